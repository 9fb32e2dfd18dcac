"""The time of the host in a call, in parts, by torch's profiler, and the part that differs most between two calls."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, Callable, Iterable

import torch

Event = dict[str, Any]

CALLS = 24
CALL, GRADIENTS = "a call", "its gradients"  # annotations
PARTS = (
    "launches",
    "other calls of CUDA",
    "allocation",
    "torch's operators",
    "autograd",
    "the op's own code",
)
IN_CUDA = ("cuda_runtime", "cuda_driver")


def traced(call: Callable[[], Any], calls: int = CALLS) -> list[Event]:
    """Return the events of so many calls, their kernels included."""
    from torch.profiler import ProfilerActivity, profile, record_function

    grad = torch.autograd.grad

    def annotated(*arguments: Any, **options: Any) -> Any:
        with record_function(GRADIENTS):
            return grad(*arguments, **options)

    torch.autograd.grad = annotated
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(calls):
                with record_function(CALL):
                    call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    finally:
        torch.autograd.grad = grad
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events: list[Event] = json.loads(Path(file.name).read_text())["traceEvents"]
    return [event for event in events if "dur" in event]


def part_of(stack: list[Event], gradients: bool) -> str:
    """Return the part of PARTS that the innermost of the events of a thread belongs to; `gradients`: while they are computed."""
    if not stack:
        return "autograd" if gradients else "the op's own code"
    name = stack[-1]["name"]
    if stack[-1]["cat"] in IN_CUDA:
        return "launches" if "Launch" in name else "other calls of CUDA"
    if name.startswith("aten::"):
        return "allocation" if "empty" in name else "torch's operators"
    if name.startswith("autograd::") or name[-1:].isdigit():  # a node of torch has a number
        return "autograd"
    return "the op's own code"


def host_parts(events: Iterable[Event]) -> dict[str, float]:
    """Return the microseconds of each part in the median call. While autograd's thread works, the one that called waits for it."""
    events = list(events)
    spans = [e for e in events if e.get("cat") in ("cpu_op", *IN_CUDA)]
    annotations = [e for e in events if e.get("cat") == "user_annotation"]
    calls = [e for e in annotations if e["name"] == CALL]
    gradients = [e for e in annotations if e["name"] == GRADIENTS]
    rows = []
    for call in calls:
        begin, end = call["ts"], call["ts"] + call["dur"]
        inner = [e for e in spans if e["ts"] < end and e["ts"] + e["dur"] > begin]
        own = [e for e in gradients if begin <= e["ts"] < end]
        cuts = {begin, end}
        for e in (*inner, *own):
            cuts |= {min(max(t, begin), end) for t in (e["ts"], e["ts"] + e["dur"])}
        edges = sorted(cuts)
        row = dict.fromkeys(PARTS, 0.0)
        for left, right in zip(edges, edges[1:]):
            active = [e for e in inner if e["ts"] <= left and e["ts"] + e["dur"] >= right]
            others = [e for e in active if e["tid"] != call["tid"]]
            stack = sorted(others or active, key=lambda e: (e["ts"], -e["dur"]))
            within = any(e["ts"] <= left and e["ts"] + e["dur"] >= right for e in own)
            row[part_of(stack, within)] += right - left
        rows.append(row)
    return {part: statistics.median(row[part] for row in rows) for part in PARTS if rows}


def device_time(events: Iterable[Event]) -> float:
    """Return the microseconds of kernels, copies and fills per call."""
    events = list(events)
    calls = sum(e.get("cat") == "user_annotation" and e["name"] == CALL for e in events)
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return sum(float(e["dur"]) for e in events if e.get("cat") in kinds) / max(calls, 1)


def in_words(parts: dict[str, float]) -> str:
    return ", ".join(f"{part} {us:.1f}" for part, us in parts.items() if us >= 0.05)


def host_reason(
    ours: dict[str, float],
    theirs: dict[str, float],
    device: tuple[float, float],
    host: tuple[float, float],
) -> str:
    """Return why an eager call is slower than the rival's.

    Args:
        ours: `host_parts` of our calls.
        theirs: of the rival's.
        device: the microseconds of both sides' kernels.
        host: those of both sides' calls without a profiler.
    """
    if device[0] > host[0]:
        return (
            f"the device's time, not the host's: kernels take {device[0]:.1f} us, theirs {device[1]:.1f}; "
            f"the host {host[0]:.1f}, theirs {host[1]:.1f}"
        )
    more = {part: ours[part] - theirs[part] for part in PARTS}
    name = max(more, key=more.__getitem__)
    return (
        f"the host's time: it takes {host[0]:.1f} us, theirs {host[1]:.1f}; kernels {device[0]:.1f}, theirs {device[1]:.1f}; "
        f"under the profiler {sum(more.values()):+.1f} us, most: {name}, {ours[name]:.1f} us, theirs {theirs[name]:.1f}"
    )
