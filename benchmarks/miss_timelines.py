"""Kernels of a call by CUPTI, and the parts of a block's time by automatic scopes, where performance counters are not permitted."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

import torch
from miss_sides import bound, sides_of_miss
from ratios import Row, shape_of, text_of
from sweep import problems_of

from gluon_core.timeline import record
from gluon_kernels.problem import Problem

Call = Callable[[], Any]

PARTS = ("start", "copies", "matrix unit", "barriers", "issue", "end")
LIMITS = {
    "start": "the launch and the latency of the first copies",
    "copies": "copies from the L2 cache or memory",
    "matrix unit": "the matrix unit",
    "barriers": "barriers",
    "issue": "instructions between products",
    "end": "sums of shared tiles, stores, a partial last round",
}


TITLE = """\
| op | shape | graph | our kernels | the rival's | bound, us | shares of a block's time, % | most is |
| --- | --- | ---: | --- | --- | --- | --- | --- |"""


def kernels_of(call: Call, calls: int = 5) -> list[dict[str, Any]]:
    """Return the kernels of a call in their order, each with the median of its microseconds."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    rows = sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: e["ts"])
    each = len(rows) // calls
    return [
        {**rows[i]["args"], "name": rows[i]["name"], "us": statistics.median(r["dur"] for r in rows[i::each])}
        for i in range(each)
    ]  # fmt: skip


def named(kernel: dict[str, Any]) -> str:
    """Return a kernel's name without template arguments, its grid and its microseconds."""
    name = kernel["name"].replace("void ", "").split("<")[0].split("(")[0][:90]
    grid = "x".join(str(x) for x in kernel.get("grid", ()))
    return f"{name} [{grid}], {kernel['us']:.1f} us"


# -- timelines -------------------------------------------------------------------------------------


def parts_of(launch: Any) -> dict[str, float]:
    """Return the shares of a launch's time that the median block spends in each of PARTS; empty where no warp issues products, or rings lost spans."""
    blocks: dict[int, dict[int, list[Any]]] = {}
    for span in launch.spans:
        blocks.setdefault(span.block, {}).setdefault(span.warp, []).append(span)
    if launch.dropped:  # the first spans of warps are gone
        return {}
    shares: list[tuple[float, ...]] = []
    for warps in blocks.values():
        for spans in warps.values():
            issues = [s.begin for s in spans if s.scope == "wgmma issue"]
            waits = [s.end for s in spans if s.scope == "wgmma wait"]
            if not issues or not waits:
                continue
            first, last = min(issues), max(waits)
            inner = [s for s in spans if s.begin >= first and s.end <= last]

            def spent(*names: str, inner: list[Any] = inner) -> float:
                return sum(s.end - s.begin for s in inner if s.scope in names)

            copies = spent("mbarrier wait", "cp.async wait")
            products, barriers = spent("wgmma wait"), spent("barrier")
            issue = max(0.0, last - first - copies - products - barriers)
            end = max(0.0, launch.nanoseconds - last)
            shares.append((first, copies, products, barriers, issue, end))
    if not shares:
        return {}
    means = [statistics.fmean(column) for column in zip(*shares)]
    return {name: x / sum(means) for name, x in zip(PARTS, means)}


def timeline_of(call: Callable[[], Any], events: int = 512) -> dict[str, float]:
    """Return the parts of the last launch of a call whose plan is made anew."""
    forget()
    with record(auto=True, events=events, launches=16) as timeline:
        call()
        call()
    forget()
    shares = [parts_of(launch) for launch in timeline.launches]
    return next((x for x in reversed(shares) if x), {})


def forget() -> None:
    """Drop the plans of all operators, whose launches were prepared with or without a recorder."""
    from gluon_kernels.plans import Plans

    for name, module in list(sys.modules.items()):
        if name.startswith("gluon_kernels"):
            for value in list(vars(module).values()):
                if isinstance(value, Plans):
                    value.forget()


def row_of(miss: Row, problem: Problem) -> str:
    """Return a line of the table of TITLE."""
    call, rival = sides_of_miss(miss, problem)
    ours, theirs = kernels_of(call), kernels_of(rival)
    least, part = bound(problem, shape_of(miss))
    main = max(ours, key=lambda kernel: kernel["us"])
    facts = (
        f"{main.get('registers per thread')} registers, {main.get('shared memory', 0) // 1024} KiB"
    )
    try:
        parts = timeline_of(call)
    except Exception as error:  # a kernel may lack a part that the recorder needs
        parts, facts = {}, f"{facts}; no timeline: {type(error).__name__} {str(error)[:80]}"
    shares = ", ".join(f"{k} {100 * v:.0f}" for k, v in parts.items())
    limit = LIMITS[max(parts, key=parts.__getitem__)] if parts else "-"
    return (
        f"| {miss['op']} | {text_of(miss)} | {miss['ratio']:.2f} | {'; '.join(map(named, ours))}; {facts} | {'; '.join(map(named, theirs))} | "
        f"{least:.1f}, {part} | {shares} | {limit} |"
    )


def check() -> int:
    """Record a small product on the emulator and print its parts."""
    import os

    os.environ["GLUON_TARGET"] = "emu:sm_90"
    (problem,) = problems_of("quant", "linear")
    arguments = problem.arguments(
        {"M": 40, "N": 128, "K": 512, "format": "int8", "group": 0}, "cpu"
    )
    parts = timeline_of(lambda: problem.op(**arguments))
    print(", ".join(f"{k} {100 * v:.0f} %" for k, v in parts.items()))
    return int(set(parts) != set(PARTS))
