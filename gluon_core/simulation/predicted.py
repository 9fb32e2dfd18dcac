"""The predicted time of a launch: its lanes, the waits between them, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

__all__ = ["Predicted", "PredictedLane", "PredictedSpan"]


@dataclass(frozen=True)
class PredictedSpan:
    """One activity of a lane.

    Args:
        name: the op that the line calls, or a scope.
        line, file: of the source.
        begin, end: nanoseconds since the block began.
        kind: "compute", "issue", "wait", "scope", or "work" of a unit.
        cause: of a wait, index of the lane whose signal ended it, and when that came; of work, of the lane that
            issued it, and when. None where unknown.
        depth: number of open scopes around it.
    """

    name: str
    line: int
    file: str
    begin: float
    end: float
    kind: str
    cause: Optional[tuple[int, float]] = None
    depth: int = 0


@dataclass(frozen=True)
class PredictedLane:
    """A task of a block, or a unit that works for the block.

    Args:
        warps: first warp and number of warps of a task; None for a unit.
    """

    name: str
    warps: Optional[tuple[int, int]]
    spans: tuple[PredictedSpan, ...]


@dataclass(frozen=True)
class Predicted:
    """The predicted time of a launch, and the lanes of one of its blocks.

    Args:
        kernel: its name.
        device, source: of the `Timing`.
        nanoseconds: from one launch to the next in a graph.
        span: nanoseconds from the first block's begin to the last one's end.
        block: linear index of the block in the grid.
        length: nanoseconds of the block.
        lanes: of the block.
        critical: (lane, begin, end, kind): the spans that its length consists of, from the last one backwards.
        limits: (cause, share of the launch's time), the largest first.
        note: a restriction of the prediction; empty without one.
    """

    kernel: str
    device: str
    source: str
    nanoseconds: float
    span: float
    block: int
    length: float
    lanes: tuple[PredictedLane, ...]
    critical: tuple[tuple[int, float, float, str], ...]
    limits: tuple[tuple[str, float], ...]
    note: str = ""
