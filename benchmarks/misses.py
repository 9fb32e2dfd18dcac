"""Say what limits the shapes of a sweep that are slowest against their rivals, with the numbers of a profiler.

    python benchmarks/sweep.py gemm --op matmul --seed 1 --out sweep.json
    python benchmarks/misses.py sweep.json [--count 5] [--below 0.9] [--limit 60]
    python benchmarks/misses.py sweep.json --timeline      # where performance counters are not permitted
    python benchmarks/misses.py --check                    # without a GPU: a timeline of the emulator

Nsight Compute (`ncu`) profiles one call of each side with warm caches: kernels, grids, clusters, durations, and how much of the peak of memory, of the
L2 cache and of the multiprocessors they reach. With `--timeline`, CUPTI (`torch.profiler`) gives kernels and durations, and automatic scopes
(`gluon_core.timeline`) the parts of a block's time in our last kernel: until its first product ("start"), then waits for copies, waits for the matrix
unit, barriers and all else ("issue": conversions, addresses, stores between tiles), and from its last product to the end of the launch ("end": sums of
other programs, stores, later rounds of blocks). The bound is the larger of the product's time at the peak of the matrix unit and that of its bytes,
from memory or, if they fit, from the L2 cache.
"""

from __future__ import annotations

import argparse
import ast
import csv
import gzip
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
from typing import Any, Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from sweep import problems_of, ratio  # noqa: E402

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


def worst(file: Path, count: int, below: float) -> Iterator[tuple[Problem, Shape, float]]:
    """Yield the shapes of each op with the lowest ratios in graphs, so many, and lower than `below`."""
    rows = [row for row in json.loads(file.read_text()) if (ratio(row, "graph") or below) < below]
    ways = [(family, way) for family in FAMILIES for way in (False, True)]
    known = {p.name: p for family, way in ways for p in problems_of(family, None, way)}
    for op in dict.fromkeys(row["op"] for row in rows):
        own = sorted((row for row in rows if row["op"] == op), key=lambda row: ratio(row, "graph"))
        for row in own[:count]:
            shape = {name: value_of(text) for name, text in row["shape"].items()}
            yield known[op], shape, ratio(row, "graph")


def value_of(text: str) -> Any:
    """Return the number, truth value or tuple that a text shows; the text itself where it shows none, such as a dtype."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


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

SECTIONS = (
    "SpeedOfLight",
    "LaunchStats",
    "SchedulerStats",
    "WarpStateStats",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
)
METRICS = (  # besides those of the sections
    "dram__bytes_read.sum",
    "lts__t_bytes.sum",
    "sm__cycles_active.avg",
    "sm__cycles_elapsed.max",
)
BETWEEN = "spin_kernel"  # of `torch.cuda._sleep`, between the calls


def calls(todo: list[tuple[Problem, Shape, float]], limit: float) -> None:
    """Call each side of each shape once within the range that is profiled; as many shapes as the seconds allow."""
    started = time.time()
    for problem, shape, _ in todo:
        if time.time() - started > limit:
            break
        arguments = problem.arguments(shape, "cuda")
        (_, rival), *_ = problem.rivals.items()
        sides = partial(problem.op, **arguments), partial(rival, **arguments)
        for side in sides * 2:
            side()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        for side in sides:
            side()
            torch.cuda._sleep(100)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def profiled(
    files: list[Path], choice: list[str], limit: float, raw: Path | None = None
) -> list[list[dict[str, Any]]]:
    """Return the kernels of each call, ours and the rival's of each shape, with their metrics; `raw` is a file for all that was counted."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    with tempfile.TemporaryDirectory() as folder:
        report = f"{folder}/calls.ncu-rep"
        command = [ncu, "--export", report, "--profile-from-start", "off"]
        command += ["--cache-control", "none", "--clock-control", "none"]
        command += [word for section in SECTIONS for word in ("--section", section)]
        command += ["--metrics", ",".join(METRICS)]
        command += [sys.executable, "-W", "ignore", __file__, *map(str, files)]
        command += [*choice, "--calls", str(limit)]
        run = partial(subprocess.run, capture_output=True, text=True)
        said = run(command, timeout=10 * limit + 60).stdout
        page = [ncu, "--import", report, "--csv", "--page"]
        text = run([*page, "details"]).stdout
        if raw is not None:
            raw.write_bytes(gzip.compress(run([*page, "raw"]).stdout.encode()))
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    if head == len(lines):
        raise RuntimeError(f"ncu profiled nothing: {said[-500:]} {text[-500:]}")
    kernels: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(lines[head:]):
        kernel = kernels.setdefault(
            row["ID"], {"name": row["Kernel Name"], "grid": row["Grid Size"]}
        )
        if row["Metric Name"]:  # not a rule
            kernel[row["Metric Name"]] = row["Metric Value"], row["Metric Unit"]
    parts: list[list[dict[str, Any]]] = [[]]
    for kernel in kernels.values():
        if BETWEEN in kernel["name"]:
            parts.append([])
        else:
            parts[-1].append(kernel)
    return parts[:-1]


def number_of(kernel: dict[str, Any], metric: str) -> float:
    value, _ = kernel.get(metric, ("nan", ""))
    return float(value.replace(",", ""))


def microseconds(kernel: dict[str, Any]) -> float:
    _, unit = kernel.get("Duration", ("", "us"))
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    return number_of(kernel, "Duration") * scale.get(unit, 1.0)


def described(kernel: dict[str, Any]) -> str:
    """Return a kernel's name, grid, cluster and microseconds, and the shares of peaks that it reaches."""
    name = kernel["name"].replace("void ", "").split("<")[0].split("(")[0][:60]
    grid = "x".join(kernel["grid"].strip("()").replace(" ", "").split(","))
    cluster = number_of(kernel, "Cluster Size")
    pairs = f", clusters of {cluster:.0f}" if cluster > 1 else ""
    peaks = {
        "memory": number_of(kernel, "DRAM Throughput"),
        "L2": number_of(kernel, "L2 Cache Throughput"),
        "SM": number_of(kernel, "Compute (SM) Throughput"),
        "issue": 100 * number_of(kernel, "Issued Warp Per Scheduler"),
    }
    shares = ", ".join(f"{part} {share:.0f}" for part, share in peaks.items() if share == share)
    return f"{name} [{grid}{pairs}] {microseconds(kernel):.1f} us: {shares}"


def counted_rows(todo: list[tuple[Problem, Shape, float]], sides: list[list[dict[str, Any]]]) -> list[str]:  # fmt: skip
    lines = [
        "| op | shape | graph | our kernels: % of the peak of | the rival's | bound, us |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for (problem, shape, was), ours, theirs in zip(todo, sides[::2], sides[1::2]):
        least, part = bound(problem, shape)
        text = " ".join(str(x) for x in shape.values())
        cells = ["<br>".join(map(described, side)) for side in (ours, theirs)]
        lines.append(f"| {problem.name} | {text} | {was:.2f} | {' | '.join(cells)} | {least:.1f}, {part} |")  # fmt: skip
    return lines


# -- a row -----------------------------------------------------------------------------------------


def bound(problem: Problem, shape: Shape) -> tuple[float, str]:
    """Return the microseconds that no kernel beats, and the part of the machine."""
    bits = 8 if problem.name == "matmul_fp8" else 16
    size = problem.bytes(shape)
    rate, part = (L2, "L2") if size < CACHE else (MEMORY, "memory")
    times = ((problem.flops(shape) / PEAK[bits] * 1e6, "matrix unit"), (size / rate * 1e6, part))
    return max(times)


def row_of(problem: Problem, shape: Shape, was: float) -> str:
    arguments = problem.arguments(shape, "cuda")
    (name, rival), *_ = problem.rivals.items()
    ours = kernels_of(lambda: problem.op(**arguments))
    theirs = kernels_of(lambda: rival(**arguments))
    least, part = bound(problem, shape)
    main = max(ours, key=lambda kernel: kernel["us"])
    facts = (
        f"{main.get('registers per thread')} registers, {main.get('shared memory', 0) // 1024} KiB"
    )
    try:
        parts = timeline_of(lambda: problem.op(**arguments))
    except Exception as error:  # a kernel may lack a part that the recorder needs
        parts, facts = {}, f"{facts}; no timeline: {type(error).__name__} {str(error)[:80]}"
    shares = ", ".join(f"{k} {100 * v:.0f}" for k, v in parts.items())
    limit = LIMITS[max(parts, key=parts.__getitem__)] if parts else "-"
    text = " ".join(str(x) for x in shape.values())
    return (
        f"| {problem.name} | {text} | {was:.2f} | {'; '.join(map(named, ours))}; {facts} | {'; '.join(map(named, theirs))} | "
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
    parser.add_argument("--raw", type=Path, help="gzipped CSV of all that ncu counts")
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
        for problem, shape, _ in todo[number::parts]:
            arguments = problem.arguments(shape, "cuda")
            call = partial(problem.op, **arguments)
            timeline_of(call) if chosen.timeline else call()
        return 0
    if chosen.calls:
        calls(todo, chosen.calls)
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    if not chosen.timeline:
        choice = ["--count", str(chosen.count), "--below", str(chosen.below)]
        sides = profiled(chosen.sweeps, choice, chosen.limit, chosen.raw)
        print(*counted_rows(todo, sides), sep="\n")
        return 0 if sides else 3
    print(
        "| op | shape | graph | our kernels | the rival's | bound, us | shares of a block's time, % | most is |"
    )
    print("| --- | --- | ---: | --- | --- | --- | --- | --- |")
    started = time.time()
    for number, (problem, shape, was) in enumerate(todo):
        if time.time() - started > chosen.limit:
            print(f"\nended with {len(todo) - number} shapes left")
            break
        try:
            print(row_of(problem, shape, was), flush=True)
        except Exception as error:
            print(
                f"| {problem.name} | {shape} | {type(error).__name__}: {str(error)[:200]} |",
                flush=True,
            )
    return 0 if todo else 3


if __name__ == "__main__":
    raise SystemExit(main())
