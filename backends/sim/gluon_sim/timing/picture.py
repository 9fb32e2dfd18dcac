"""The lanes of a predicted block in nanoseconds, with the spans that its length consists of."""

from __future__ import annotations

from typing import Optional, Sequence

from gluon_core.plugin.timing import Timing
from gluon_core.simulation.predicted import Predicted, PredictedLane, PredictedSpan
from gluon_sim.timing.grid import Prediction
from gluon_sim.timing.lanes import Lane, Span

__all__ = ["picture"]

_CLOSE = 1e-6


def picture(timing: Timing, prediction: Prediction) -> Predicted:
    """Return a prediction as the contract has it."""
    lanes = [lane for lane in prediction.lanes if lane.spans]
    index = {id(lane): i for i, lane in enumerate(lanes)}
    start = min((span.begin for lane in lanes for span in lane.spans), default=0.0)
    clock = prediction.clock

    def ns(cycles: float) -> float:
        return (cycles - start) / clock

    def drawn(span: Span) -> PredictedSpan:
        cause = None
        if span.cause is not None and id(span.cause[0]) in index:
            cause = index[id(span.cause[0])], ns(span.cause[1])
        where = span.where
        return PredictedSpan(
            where.name, where.line, where.file, ns(span.begin), ns(span.end), span.kind, cause, span.depth
        )  # fmt: skip

    return Predicted(
        prediction.kernel,
        timing.device,
        timing.source,
        prediction.nanoseconds,
        prediction.span,
        prediction.block,
        prediction.length / clock,
        tuple(
            PredictedLane(lane.name, lane.warps, tuple(drawn(s) for s in lane.spans))
            for lane in lanes
        ),
        tuple(
            (index[id(lane)], ns(begin), ns(end), kind)
            for lane, begin, end, kind in critical(lanes)
        ),
        tuple(prediction.limits),
        prediction.note,
    )


def critical(lanes: Sequence[Lane]) -> list[tuple[Lane, float, float, str]]:
    """Return (lane, begin, end, kind) of the chain of spans that ends last, from its end to its begin.

    Before a wait comes whatever signalled its end; before anything else the span in front of it in the same lane.
    """
    flat = {
        id(lane): sorted((s for s in lane.spans if s.kind != "scope"), key=lambda s: s.end)
        for lane in lanes
    }
    lane: Optional[Lane] = None
    time = 0.0
    for one in lanes:
        spans = flat[id(one)]
        if one.warps is not None and spans and spans[-1].end > time:
            lane, time = one, spans[-1].end
    path: list[tuple[Lane, float, float, str]] = []
    while lane is not None and len(path) < 100_000:
        span = _before(flat[id(lane)], time)
        if span is None:
            break
        if span.kind == "wait" and span.cause is not None and span.cause[1] > span.begin + _CLOSE:
            other, signalled = span.cause
            path.append((lane, signalled, min(span.end, time), "signal"))
            if other is lane or id(other) not in flat:
                time = signalled
                continue
            lane, time = other, signalled
            continue
        path.append((lane, span.begin, min(span.end, time), span.kind))
        if span.kind == "work" and span.cause is not None and span.cause[1] > span.begin - _CLOSE:
            lane, time = span.cause  # it did not wait for the unit
            continue
        time = span.begin
    return path


def _before(spans: Sequence[Span], time: float) -> Optional[Span]:
    """Return the last span that ends by `time`, or contains it."""
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle].begin < time - _CLOSE:
            low = middle + 1
        else:
            high = middle
    return spans[low - 1] if low else None
