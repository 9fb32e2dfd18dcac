"""Counts of Nsight Compute for the kernels of two calls, and the largest part of their difference; without torch."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
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
SCALES = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3}
SIZES = {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3}
BETWEEN = "spin_kernel"  # of `torch.cuda._sleep`, after each call

Kernel = dict[str, str]


def profiler(command: Sequence[str]) -> list[str]:
    """Return the command line that counts the kernels of a process between `cudaProfilerStart` and `cudaProfilerStop`, printed as CSV at its end."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    options = ["--csv", "--page", "raw", "--profile-from-start", "off"]
    options += ["--target-processes", "application-only"]
    options += ["--cache-control", "none", "--clock-control", "none"]
    return [ncu, *options, "--metrics", ",".join(METRICS), *command]


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


def described(kernel: Kernel) -> str:
    """Return a kernel's name, grid, cluster and microseconds, what it moves and how busy the processors are."""
    name = re.sub(r"void |<unnamed>::|\(anonymous namespace\)::|\bat::", "", kernel[NAME])
    name = name.split("<")[0].split("(")[0][:60]
    grid = "x".join(kernel[GRID].strip("()").replace(" ", "").split(","))
    cluster = float(kernel[CLUSTER])
    pairs = f", clusters of {cluster:.0f}" if cluster > 1 else ""
    time, read, moved, tensor, active, elapsed, issued = (float(kernel[x]) for x in METRICS[:-1])
    return (
        f"{name} [{grid}{pairs}] {time:.1f} us: {read:.0f} MB, {moved:.0f} MB, "
        f"{tensor:.0f} %, {100 * active / elapsed:.0f} %, {issued:.0f} %"
    )


def reason(ours: list[Kernel], theirs: list[Kernel]) -> str:
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


def _without_products(kernel: Kernel, us: float) -> str:
    """Return what a kernel does in cycles without products."""
    rates = float(kernel[READ]) * 1e12 / us / MEMORY, float(kernel[MOVED]) * 1e12 / us / L2
    shares = dict(zip(("memory", "the L2 cache"), rates), issue=float(kernel[ISSUED]) / 100)
    name = max(shares, key=shares.__getitem__)
    if shares[name] < 0.6:
        return "waits between products" if float(kernel[TENSOR]) >= 1 else "waits of its warps"
    return f"{name}, {100 * shares[name]:.0f} % of its peak"
