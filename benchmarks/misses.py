"""Say what limits the shapes of a sweep that are slowest against their rivals, with the numbers of a profiler.

    python benchmarks/sweep.py gemm --op matmul --seed 1 --out sweep.json
    python benchmarks/misses.py sweep.json [--count 5] [--below 0.9] [--limit 60]
    python benchmarks/misses.py sweep.json --timeline      # where performance counters are not permitted
    python benchmarks/misses.py --check                    # without a GPU: a timeline of the emulator

Nsight Compute (`ncu`) profiles one call of each side with warm caches: kernels, grids, clusters, durations, what they read from memory and move through the
L2 cache, and in how many of the cycles the matrix unit is busy, processors have a block, and instructions are issued; of these follows what most of the
difference is. The rival is the fastest one of the sweep. With `--timeline`, CUPTI (`torch.profiler`) gives kernels and durations, and automatic scopes
(`gluon_core.timeline`) the parts of a block's time in our last kernel: until its first product ("start"), then waits for copies, waits for the matrix
unit, barriers and all else ("issue": conversions, addresses, stores between tiles), and from its last product to the end of the launch ("end": sums of
other programs, stores, later rounds of blocks). The bound is the larger of the product's time at the peak of the matrix unit and that of its bytes,
from memory or, if they fit, from the L2 cache.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from sweep import compiled_only, problems_of, ratio, value_of, worded  # noqa: E402

from gluon_core.timeline import record  # noqa: E402
from gluon_kernels.problem import Problem, Shape  # noqa: E402

FAMILIES = ("gemm", "moe", "quant", "norm", "attention", "topk", "linear_attention")
PEAK = {8: 1979e12, 16: 989e12}  # FLOP/s of the matrix unit of an H200
MEMORY, L2, CACHE = (
    4.5e12,
    8.65e12,
    4e7,
)  # bytes per second of memory and of the L2 cache, and those that it keeps
PARTS = ("start", "copies", "matrix unit", "barriers", "issue", "end")
LIMITS = {
    "start": "the launch and the latency of the first copies",
    "copies": "copies from the L2 cache or memory",
    "matrix unit": "the matrix unit",
    "barriers": "barriers",
    "issue": "instructions between products",
    "end": "sums of shared tiles, stores, a partial last round",
}

Call = Callable[[], Any]


class Miss(NamedTuple):
    """A shape of a sweep, its ratio in graphs, and the rival that was the fastest there."""

    problem: Problem
    shape: Shape
    ratio: float
    rival: str

    def sides(self) -> tuple[Call, Call]:
        """Return our call, and the rival's."""
        arguments = self.problem.arguments(self.shape, "cuda")
        rival = self.problem.rivals[self.rival]
        return partial(self.problem.op, **arguments), partial(rival, **arguments)


def worst(file: Path, count: int, below: float) -> Iterator[Miss]:
    """Yield the shapes of each op with the lowest ratios in graphs, so many, and lower than `below`."""
    rows = [row for row in json.loads(file.read_text()) if (ratio(row, "graph") or below) < below]
    ways = [(family, way) for family in FAMILIES for way in (False, True)]
    known = {p.name: p for family, way in ways for p in problems_of(family, None, way)}
    for op in dict.fromkeys(row["op"] for row in rows):
        own = sorted((row for row in rows if row["op"] == op), key=lambda row: ratio(row, "graph"))
        for row in own[:count]:
            shape = {name: value_of(text) for name, text in row["shape"].items()}
            times = {name: t for name, t in row["graph"].items() if name != "ours"}
            yield Miss(known[op], shape, ratio(row, "graph"), min(times, key=times.__getitem__))


# -- CUPTI -----------------------------------------------------------------------------------------


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


# -- Nsight Compute --------------------------------------------------------------------------------

NAME, GRID, CLUSTER = "Kernel Name", "Grid Size", "launch__cluster_size"
DURATION = "gpu__time_duration.sum"  # microseconds
READ, MOVED = "dram__bytes_read.sum", "lts__t_bytes.sum"  # megabytes
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
ACTIVE, ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.max"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
METRICS = (DURATION, READ, MOVED, TENSOR, ACTIVE, ELAPSED, ISSUED, CLUSTER)
SCALES = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3}
SIZES = {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3}
BETWEEN = "spin_kernel"  # of `torch.cuda._sleep`, between the calls


def calls(todo: list[Miss], limit: float) -> None:
    """Call each side of each shape once within the range that is profiled; as many shapes as the seconds allow."""
    started = time.time()
    for miss in todo:
        if time.time() - started > limit:
            break
        sides = miss.sides()
        for side in sides * 2:
            side()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for side in sides:
            side()
            torch.cuda._sleep(100)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def profiled(files: list[Path], choice: list[str], limit: float) -> str:
    """Return what Nsight Compute counts of the kernels of `calls`, as CSV."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    command = [ncu, "--csv", "--page", "raw", "--profile-from-start", "off"]
    command += ["--cache-control", "none", "--clock-control", "none"]
    command += ["--metrics", ",".join(METRICS)]
    command += [sys.executable, "-W", "ignore", __file__, *map(str, files)]
    command += [*choice, "--calls", str(limit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=10 * limit + 60).stdout


def sides_of(text: str) -> list[list[dict[str, str]]]:
    """Return the kernels of each call, ours and the rival's of each shape, with their metrics in microseconds, megabytes and shares."""
    begin = text.find('"ID"')
    if begin < 0:
        raise RuntimeError(f"ncu profiled nothing: {text[-500:]}")
    units, *kernels = csv.DictReader(io.StringIO(text[begin:]))
    parts: list[list[dict[str, str]]] = [[]]
    for kernel in kernels:
        if BETWEEN in kernel[NAME]:
            parts.append([])
            continue
        for name in METRICS:
            scale = {**SCALES, **SIZES}.get(units[name], 1.0)
            kernel[name] = str(float(kernel[name].replace(",", "")) * scale)
        parts[-1].append(kernel)
    return parts[:-1]


def described(kernel: dict[str, str]) -> str:
    """Return a kernel's name, grid, cluster and microseconds, what it moves and how busy the processors are."""
    name = kernel[NAME].replace("void ", "").split("<")[0].split("(")[0][:60]
    grid = "x".join(kernel[GRID].strip("()").replace(" ", "").split(","))
    cluster = float(kernel[CLUSTER])
    pairs = f", clusters of {cluster:.0f}" if cluster > 1 else ""
    time, read, moved, tensor, active, elapsed, issued = (float(kernel[x]) for x in METRICS[:-1])
    return (
        f"{name} [{grid}{pairs}] {time:.1f} us: {read:.0f} MB, {moved:.0f} MB, "
        f"{tensor:.0f} %, {100 * active / elapsed:.0f} %, {issued:.0f} %"
    )


def reason(ours: list[dict[str, str]], theirs: list[dict[str, str]]) -> str:
    """Return the largest part of what our kernels take longer than theirs, in microseconds.

    The parts are kernels next to the longest one; in that one, its share of the time in which processors have no block; and in the rest, at equal work
    of the matrix unit, what cycles without products take. Bytes are named where a side moves them near the peak.
    """
    sums = [sum(float(k[DURATION]) for k in side) for side in (ours, theirs)]
    if sums[0] <= sums[1]:
        return f"{sums[0] - sums[1]:+.1f} us, not slower while profiled"
    mains = [max(side, key=lambda k: float(k[DURATION])) for side in (ours, theirs)]
    longest = [float(k[DURATION]) for k in mains]
    shares = [float(k[ACTIVE]) / float(k[ELAPSED]) for k in mains]
    idle = [t * (1 - share) for t, share in zip(longest, shares)]
    busy = [float(k[TENSOR]) / 100 * t for k, t in zip(mains, longest)]
    rest = [t - i - b for t, i, b in zip(longest, idle, busy)]
    parts = {
        f"{len(ours) - 1} other kernels, theirs {len(theirs) - 1}": sums[0] - longest[0] - sums[1] + longest[1],
        f"processors without a block, {100 - 100 * shares[0]:.0f} % of the time, theirs {100 - 100 * shares[1]:.0f}": idle[0] - idle[1],
        f"products, {busy[0]:.1f} us of the matrix unit, theirs {busy[1]:.1f}": busy[0] - busy[1],
        _without_products(mains[0], longest[0]): rest[0] - rest[1],
    }  # fmt: skip
    name = max(parts, key=parts.__getitem__)
    return f"{sums[0] - sums[1]:+.1f} us, {parts[name]:+.1f} of them: {name}"


def _without_products(kernel: dict[str, str], us: float) -> str:
    """Return what a kernel does in cycles without products."""
    rates = float(kernel[READ]) * 1e12 / us / MEMORY, float(kernel[MOVED]) * 1e12 / us / L2
    shares = dict(zip(("memory", "the L2 cache"), rates), issue=float(kernel[ISSUED]) / 100)
    name = max(shares, key=shares.__getitem__)
    if shares[name] < 0.6:
        return "waits between products"
    return f"{name}, {100 * shares[name]:.0f} % of its peak"


def counted_rows(todo: list[Miss], sides: list[list[dict[str, str]]]) -> list[str]:
    lines = [
        "| op | shape | graph | our kernels: read from memory, through the L2 cache, cycles of the matrix unit, active processors, issue | the rival's | bound, us | reason |",
        "| --- | --- | ---: | --- | --- | --- | --- |",
    ]
    for miss, ours, theirs in zip(todo, sides[::2], sides[1::2]):
        least, part = bound(miss.problem, miss.shape)
        text = " ".join(worded(miss.shape).values())
        cells = ["<br>".join(map(described, side)) for side in (ours, theirs)]
        why = reason(ours, theirs) if ours and theirs else "-"
        lines.append(
            f"| {miss.problem.name} | {text} | {miss.ratio:.2f} | {cells[0]} | {miss.rival}: {cells[1]} | {least:.1f}, {part} | {why} |"
        )
    return lines


# -- a row -----------------------------------------------------------------------------------------


def bound(problem: Problem, shape: Shape) -> tuple[float, str]:
    """Return the microseconds that no kernel beats, and the part of the machine."""
    bits = 8 if problem.name == "matmul_fp8" else 16
    size = problem.bytes(shape)
    rate, part = (L2, "L2") if size < CACHE else (MEMORY, "memory")
    times = ((problem.flops(shape) / PEAK[bits] * 1e6, "matrix unit"), (size / rate * 1e6, part))
    return max(times)


def row_of(miss: Miss) -> str:
    call, rival = miss.sides()
    ours, theirs = kernels_of(call), kernels_of(rival)
    least, part = bound(miss.problem, miss.shape)
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
    text = " ".join(worded(miss.shape).values())
    return (
        f"| {miss.problem.name} | {text} | {miss.ratio:.2f} | {'; '.join(map(named, ours))}; {facts} | {'; '.join(map(named, theirs))} | "
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=5, help="shapes of each op")
    parser.add_argument(
        "--below", type=float, default=math.inf, help="shapes with lower ratios alone"
    )
    parser.add_argument("--limit", type=float, default=1e9, help="seconds, then the rest is left")
    parser.add_argument("--timeline", action="store_true", help="CUPTI and scopes, not counters")
    parser.add_argument("--raw", type=Path, help="keep what ncu counts, as gzipped CSV")
    parser.add_argument("--read", type=Path, help="take it from such a file")
    parser.add_argument("--calls", type=float, help="make the calls that ncu profiles")
    parser.add_argument("--warm", help="compile a share of the kernels only, I/N")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    if chosen.check:
        return check()
    columns = [list(worst(file, chosen.count, chosen.below)) for file in chosen.sweeps]
    todo = [one for rank in zip_longest(*columns) for one in rank if one]  # the worst of all first
    if chosen.warm:
        number, parts = map(int, chosen.warm.split("/"))
        for miss in todo[number::parts]:
            call, _ = miss.sides()
            timeline_of(call) if chosen.timeline else call()
        return 0
    compiled_only()
    if chosen.calls:
        calls(todo, chosen.calls)
        return 0
    if not chosen.read:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    if not chosen.timeline:
        choice = ["--count", str(chosen.count), "--below", str(chosen.below)]
        text = gzip.decompress(chosen.read.read_bytes()).decode() if chosen.read else None
        text = text or profiled(chosen.sweeps, choice, chosen.limit)
        if chosen.raw:
            chosen.raw.write_bytes(gzip.compress(text.encode()))
        sides = sides_of(text)
        print(*counted_rows(todo, sides), sep="\n")
        return 0 if sides else 3
    print(
        "| op | shape | graph | our kernels | the rival's | bound, us | shares of a block's time, % | most is |"
    )
    print("| --- | --- | ---: | --- | --- | --- | --- | --- |")
    started = time.time()
    for number, miss in enumerate(todo):
        if time.time() - started > chosen.limit:
            print(f"\nended with {len(todo) - number} shapes left")
            break
        try:
            print(row_of(miss), flush=True)
        except Exception as error:
            print(
                f"| {miss.problem.name} | {miss.shape} | {type(error).__name__}: {str(error)[:200]} |",
                flush=True,
            )
    return 0 if todo else 3


if __name__ == "__main__":
    raise SystemExit(main())
