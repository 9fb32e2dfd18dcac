"""Counts of Nsight Compute for the kernels of two calls, and the largest part of their difference; without torch."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Sequence

MEMORY, L2, CACHE = (
    4.5e12,
    8.65e12,
    4e7,
)  # bytes per second of memory and of the L2 cache, and those that it keeps
PEAK = {8: 1979e12, 16: 989e12}  # FLOP/s of the matrix unit of an H200

NAME, GRID, CLUSTER = "Kernel Name", "Grid Size", "launch__cluster_size"
DURATION = "gpu__time_duration.sum"  # microseconds
READ, MOVED = "dram__bytes_read.sum", "lts__t_bytes.sum"  # megabytes
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
ACTIVE, ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.max"
ISSUED = "smsp__issue_active.avg.pct_of_peak_sustained_active"
METRICS = (DURATION, READ, MOVED, TENSOR, ACTIVE, ELAPSED, ISSUED, CLUSTER)  # one pass of a kernel
WAVES = "launch__waves_per_multiprocessor"  # these are in each report
HELD = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
}
STALLS = re.compile(r"smsp__average_warps_issue_stalled_[a-z_]+_per_issue_active\b")
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
WORDS = {
    "long_scoreboard": "wait for memory or a barrier of copies",
    "short_scoreboard": "wait for shared memory",
    "gmma": "wait for the matrix unit",
    "barrier": "wait for other warps",
}
NEAR = 0.6  # of a peak, from which a part of the machine is a kernel's limit
SCALES = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3}
SIZES = {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3}
BETWEEN = "spin_kernel"  # of `torch.cuda._sleep`, after each call

Kernel = dict[str, str]


def profiler(command: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return the command line that counts the kernels of a process between `cudaProfilerStart` and `cudaProfilerStop`, printed as CSV at its end.

    Args:
        command: the process.
        more: metrics next to those that one pass of a kernel counts.
    """
    options = ["--csv", "--page", "raw", "--profile-from-start", "off"]
    options += ["--target-processes", "application-only"]
    options += ["--cache-control", "none", "--clock-control", "none"]
    return [ncu(), *options, "--metrics", ",".join((*METRICS, *more)), *command]


def ncu() -> str:
    return shutil.which("ncu") or "/usr/local/cuda/bin/ncu"


def stalls() -> list[str]:
    """Return the metrics of this release of Nsight Compute that count the states of warps; they take further passes of a kernel."""
    result = subprocess.run([ncu(), "--query-metrics"], capture_output=True, text=True)
    return [f"{name}.ratio" for name in sorted(set(STALLS.findall(result.stdout)))]


def environment() -> dict[str, str]:
    """Return the environment in which several profilers start at once, and bytecode is kept: without it imports take most of the time."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    bytecode = {"PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "gluon-misses-bytecode"))}
    return {**bytecode, **kept, "NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}


def sides_of(text: str) -> list[list[Kernel]]:
    """Return the kernels of each call, ours and the rival's of each shape, with their metrics in microseconds, megabytes and shares."""
    begin = text.find('"ID"')
    if begin < 0:
        raise RuntimeError(f"ncu profiled nothing: {text[-500:]}")
    units, *kernels = csv.DictReader(io.StringIO(text[begin:]))
    parts: list[list[Kernel]] = [[]]
    for kernel in kernels:
        if None in kernel.values():  # a line of the process or the profiler, or the part of one
            continue
        if BETWEEN in kernel[NAME]:
            parts.append([])
            continue
        for name in METRICS:
            scale = {**SCALES, **SIZES}.get(units[name], 1.0)
            kernel[name] = str(float(kernel[name].replace(",", "")) * scale)
        parts[-1].append(kernel)
    return parts[:-1]


def label(kernel: Kernel) -> str:
    """Return a kernel's name, grid and cluster."""
    name = re.sub(
        r"void |kernel_cutlass_kernel_|<[a-z ]+>::|\([a-z ]+\)::|\bat::", "", kernel[NAME]
    )
    name = name.split("<")[0].split("(")[0][:60]
    grid = "x".join(kernel[GRID].strip("()").replace(" ", "").split(","))
    cluster = float(kernel[CLUSTER])
    pairs = f", clusters of {cluster:.0f}" if cluster > 1 else ""
    return f"{name} [{grid}{pairs}]"


def described(kernel: Kernel) -> str:
    """Return a kernel's label and microseconds, what it moves and how busy the processors are."""
    time, read, moved, tensor, active, elapsed, issued = (float(kernel[x]) for x in METRICS[:-1])
    return (
        f"{label(kernel)} {time:.1f} us: {read:.0f} MB, {moved:.0f} MB, "
        f"{tensor:.0f} %, {100 * active / elapsed:.0f} %, {issued:.0f} %"
    )


def reason(ours: list[Kernel], theirs: list[Kernel]) -> str:
    """Return the largest part of what our kernels take longer than theirs, in microseconds, and what limits the longest kernel of each side.

    The parts are kernels next to the longest one; in that one, its share of the time in which processors have no block; and in the rest, at equal work
    of the matrix unit, what cycles without products take.
    """
    sums = [sum(float(k[DURATION]) for k in side) for side in (ours, theirs)]
    mains = [max(side, key=lambda k: float(k[DURATION])) for side in (ours, theirs)]
    limits = f"ours {limit(mains[0])}; theirs {limit(mains[1])}"
    total = f"{sums[0]:.1f} us, theirs {sums[1]:.1f}"
    if sums[0] <= sums[1]:
        return f"not slower while profiled, {total}; {limits}"
    longest = [float(k[DURATION]) for k in mains]
    shares = [float(k[ACTIVE]) / float(k[ELAPSED]) for k in mains]
    idle = [t * (1 - share) for t, share in zip(longest, shares)]
    busy = [float(k[TENSOR]) / 100 * t for k, t in zip(mains, longest)]
    rest = [t - i - b for t, i, b in zip(longest, idle, busy)]
    others = [total_of - main for total_of, main in zip(sums, longest)]
    names = [_others(side, main) for side, main in zip((ours, theirs), mains)]
    waits = (
        "waits between products" if busy[0] >= 0.01 * longest[0] else "loads, arithmetic and stores"
    )
    parts = {
        f"other kernels, {others[0]:.1f} us ({names[0]}), theirs {others[1]:.1f} ({names[1]})": others[0] - others[1],
        f"processors without a block, {100 - 100 * shares[0]:.0f} % of the time, theirs {100 - 100 * shares[1]:.0f}": idle[0] - idle[1],
        f"products, {busy[0]:.1f} us of the matrix unit, theirs {busy[1]:.1f}": busy[0] - busy[1],
        f"{waits}, {rest[0]:.1f} us, theirs {rest[1]:.1f}": rest[0] - rest[1],
    }  # fmt: skip
    name = max(parts, key=parts.__getitem__)
    return f"{total}; {parts[name]:+.1f} of {sums[0] - sums[1]:+.1f}: {name}; {limits}"


def limit(kernel: Kernel) -> str:
    """Return what limits a kernel: a part of the machine near its peak; else blocks that do not fill it, or the latency of the steps of a block.

    Shares are of the time in which the average processor has a block: a part that is at its peak then limits the kernel.
    """
    us, active = float(kernel[DURATION]), float(kernel[ACTIVE]) / float(kernel[ELAPSED])
    shares = {
        "memory": float(kernel[READ]) * 1e12 / us / MEMORY,
        "L2": float(kernel[MOVED]) * 1e12 / us / L2,
        "matrix unit": float(kernel[TENSOR]) / 100,
        "issue": float(kernel[ISSUED]) / 100 * active,
    }
    name = max(shares, key=shares.__getitem__)
    if active < NEAR and shares[name] < NEAR:
        cause = "idle processors"
    else:
        cause = name if shares[name] >= NEAR * active else "latency"
    texts = [f"{part} {100 * share:.0f} %" for part, share in shares.items() if share >= 0.01]
    facts = [f"{us:.1f} us", *_residence(kernel), f"processors with a block {100 * active:.0f} %"]
    return f"{label(kernel)} by {cause} ({', '.join([*facts, *texts])}){_stalls(kernel)}"


def _others(side: list[Kernel], main: Kernel) -> str:
    names = [label(kernel).split(" [")[0] for kernel in side if kernel is not main]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"


def _residence(kernel: Kernel) -> list[str]:
    """Return the waves of blocks, and how many of them a processor holds for lack of which resource."""
    facts = []
    if kernel.get(WAVES):
        facts.append(f"{float(kernel[WAVES]):.2g} waves")
    held = {
        name: int(kernel[column].replace(",", ""))
        for name, column in HELD.items()
        if kernel.get(column)
    }
    if held:
        least = min(held, key=held.__getitem__)
        facts.append(f"{least} for {held[least]} block{'s' * (held[least] > 1)} a processor")
    return facts


def _stalls(kernel: Kernel) -> str:
    """Return the two largest states of warps that wait, as shares of all that its warps do."""
    states = {m[1]: float(v) for name, v in kernel.items() if v and (m := STALL.fullmatch(name))}
    total = sum(states.values())
    names = sorted(
        (n for n in states if n not in ("selected", "not_selected")), key=states.__getitem__
    )
    texts = [
        f"{WORDS.get(n, n.replace('_', ' '))} {100 * states[n] / total:.0f} %"
        for n in names[:-3:-1]
    ]
    return f"; warps: {', '.join(texts)}" if total else ""
