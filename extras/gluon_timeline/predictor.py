"""Predict the timelines of launches, without a device."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Iterator, Mapping, Optional, Union

from gluon_core.errors import ArgumentError, CapabilityError
from gluon_core.registry.load import registry
from gluon_core.simulation.predicted import Predicted
from gluon_timeline import page

__all__ = ["Predictions", "predict", "predicted_data"]

Path = Union[str, "os.PathLike[str]"]


class Predictions:
    """The predictions of launches, in their order.

    Attributes:
        launches: a `gluon_core.simulation.predicted.Predicted` each.
    """

    def __init__(self) -> None:
        self.launches: list[Predicted] = []

    def perfetto(self) -> dict[str, Any]:
        """Return the traces as JSON for https://ui.perfetto.dev: a process per launch, a thread per lane.

        The entry `gluon` holds the launches for `gluon timeline`.
        """
        events: list[dict[str, Any]] = []
        for number, launch in enumerate(self.launches):
            process = (
                f"{launch.kernel} {number}, predicted for {launch.device}, block {launch.block}"
            )
            for lane in launch.lanes:
                for span in lane.spans:
                    events.append(
                        {
                            "ph": "X", "cat": span.kind, "name": span.name, "pid": process, "tid": lane.name,
                            "ts": span.begin / 1000, "dur": (span.end - span.begin) / 1000,
                            "args": {"line": span.line, "file": span.file},
                        }
                    )  # fmt: skip
        return {
            "traceEvents": events,
            "displayTimeUnit": "ns",
            "gluon": [page.predicted_alone(predicted_data(launch)) for launch in self.launches],
        }

    def write_html(self, path: Path) -> None:
        """Write a page that needs no network: lanes, waits joined to what they waited for, the critical path."""
        launches = [page.predicted_alone(predicted_data(launch)) for launch in self.launches]
        with open(path, "w", encoding="utf-8") as file:
            file.write(page.render(launches))

    def write_json(self, path: Path) -> None:
        """Write `perfetto()` to a file."""
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.perfetto(), file)

    def table(self) -> str:
        """Return the time of each launch, and what limits it, as text."""
        lines = []
        for launch in self.launches:
            lines.append(
                f"{launch.kernel}: {launch.nanoseconds / 1000:.2f} us predicted for {launch.device}"
                + (f" ({launch.note})" if launch.note else "")
            )
            lines += [f"  {share:6.1%}  {cause}" for cause, share in launch.limits[:5]]
        return "\n".join(lines)


def predicted_data(launch: Predicted) -> dict[str, Any]:
    """Return a prediction as plain data, as the page draws it."""
    lanes = []
    flows = []
    for i, lane in enumerate(launch.lanes):
        spans = []
        for span in lane.spans:
            waited = ""
            if span.cause is not None:
                other, time = span.cause
                waited = launch.lanes[other].name
                if span.kind == "wait":
                    flows.append([other, round(time, 1), i, round(span.end, 1)])
            spans.append(
                [span.name, round(span.begin, 1), round(span.end, 1), span.kind, span.line, waited, span.file,
                 page.source(span.file, span.line), span.depth]
            )  # fmt: skip
        lanes.append([_named(lane.name, lane.warps), spans])
    return {
        "kernel": launch.kernel,
        "device": launch.device,
        "source": launch.source,
        "nanoseconds": launch.nanoseconds,
        "block": launch.block,
        "length": launch.length,
        "lanes": lanes,
        "flows": flows,
        "critical": [
            [lane, round(a, 1), round(b, 1), kind] for lane, a, b, kind in launch.critical
        ],
        "path": _path(launch),
        "limits": [list(row) for row in launch.limits],
        "note": launch.note,
    }


def _named(name: str, warps: Optional[tuple[int, int]]) -> str:
    if warps is None:
        return name
    first, count = warps
    numbers = f"warp {first}" if count == 1 else f"warps {first} to {first + count - 1}"
    return f"{numbers}: {name}"


def _path(launch: Predicted) -> list[list[Any]]:
    """Return (lane, kind, nanoseconds, share) of the critical path, the largest share first."""
    times: dict[tuple[str, str], float] = {}
    for lane, begin, end, kind in launch.critical:
        key = (launch.lanes[lane].name, kind)
        times[key] = times.get(key, 0.0) + end - begin
    whole = max(sum(times.values()), 1e-9)
    rows = [[name, kind, time, time / whole] for (name, kind), time in times.items()]
    return sorted(rows, key=lambda row: -row[2])


@contextlib.contextmanager
def predict(target: Optional[str] = None) -> Iterator[Predictions]:
    """Predict the time of the launches in a `with` block, instead of running them; nothing needs a device.

    A sample of each launch's programs is executed by the simulator without floating-point data, and replayed against the
    latencies and rates of the architecture's device. Arrays are those of NumPy or torch's on the CPU, whose contents
    matter where integers in them steer the kernel; results are not computed.

    Args:
        target: an architecture, such as "sm_90"; by default that of GLUON_TARGET, or the simulator's own.

    Raises:
        ArgumentError: no such architecture.
        CapabilityError: no simulator is installed, or the architecture has no model of time.
    """
    plugins = registry()
    chosen = plugins.target(target)
    simulator = plugins.simulator()
    if simulator is None:
        raise CapabilityError("no simulator is installed", remedy="pip install gluon-sim")
    if chosen.architecture.timing is None:
        raise CapabilityError(
            "no model of time is known for this architecture", argument="target", got=str(chosen)
        )
    predictions = Predictions()
    before = os.environ.get("GLUON_TARGET")
    os.environ["GLUON_TARGET"] = f"{simulator.name}:{chosen.architecture.name}"
    try:
        with simulator.simulation.predict(predictions.launches.append, only=True):
            yield predictions
    finally:
        if before is None:
            del os.environ["GLUON_TARGET"]
        else:
            os.environ["GLUON_TARGET"] = before


@contextlib.contextmanager
def predicting(target: Any) -> Iterator[Predictions]:
    """Predict the launches of a `with` block on a simulated target, which run as well."""
    predictions = Predictions()
    backend = registry().backend(target.backend)
    with backend.simulation.predict(predictions.launches.append):
        yield predictions


def joined(
    measured: list[Mapping[str, Any]], predicted: list[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return measured launches with the predictions of launches of the same kernel, in order.

    Raises:
        ArgumentError: no kernel is in both.
    """
    left: dict[str, list[Mapping[str, Any]]] = {}
    for launch in predicted:
        if launch.get("predicted"):
            left.setdefault(str(launch["kernel"]), []).append(launch["predicted"])
    out = []
    for launch in measured:
        known = left.get(str(launch["kernel"]), [])
        entry = dict(launch)
        if known:
            entry["predicted"] = known.pop(0) if len(known) > 1 else known[0]
        out.append(entry)
    if not any("predicted" in launch for launch in out):
        raise ArgumentError(
            "predicts other kernels",
            argument="--predicted",
            expected=", ".join(sorted({str(launch["kernel"]) for launch in measured})),
            got=", ".join(sorted(left)) or "no prediction",
        )
    return out
