"""The model of time of NVIDIA GPUs: measured for Hopper, from data sheets and white papers for the others.

`python benchmarks/microbenchmarks` measures the numbers of a device; `Timing` says which one a table is of.
"""

from __future__ import annotations

from math import ceil
from typing import Callable, Mapping, Optional

from gluon_core.plugin import timing

__all__ = ["SM_90"]

KIB, MIB = 1 << 10, 1 << 20

# class -> (pipe, cycles of a scheduler for an instruction of a warp).
_INSTRUCTIONS: Mapping[str, tuple[str, float]] = {
    "fma": ("fma", 1.0), "add": ("fma", 1.0), "mul": ("fma", 1.0), "max": ("alu", 2.0), "integer": ("alu", 2.0),
    "multiply": ("fma", 2.0), "logic": ("alu", 2.0), "shift": ("alu", 2.0), "compare": ("alu", 2.0), "select": ("alu", 2.0),
    "special": ("special", 8.0), "convert": ("alu", 2.0), "half": ("fma", 1.0), "double": ("double", 2.0),
    "shuffle": ("shuffle", 2.0), "move": ("alu", 1.0),
}  # fmt: skip
_LATENCY: Mapping[str, float] = {
    "arithmetic": 4.5, "special": 20, "shuffle": 24, "shared": 30, "L1": 35, "L2": 260, "memory": 620, "copy": 360,
    "atomic": 700, "store": 400, "signal": 40, "barrier": 25, "cluster": 190,
}  # fmt: skip
_LAUNCH: Mapping[str, float] = {"kernel": 1200.0, "block": 400.0, "first": 600.0, "last": 500.0}

# Elements of K that one wgmma instruction takes, by bits of an element.
_DEPTH = {8: 32, 16: 16, 32: 8}


def _wgmma(facts: timing.OpFacts) -> Optional[timing.Work]:
    """Return the time of a `warpgroup_mma`: instructions of 64 x N x 256 bits."""
    b = facts.operands[1]
    columns, rows = facts.results[0].shape[-1], facts.results[0].shape[-2]
    depth = b.shape[-2]
    each = max(columns / 2, 16.0)
    count = ceil(rows / 64) * ceil(depth / _DEPTH.get(b.bits, 16))
    return timing.Work(busy=count * each, latency=60.0, issue=2.0 * count)


def _mma_sync(rate: float) -> Callable[[timing.OpFacts], Optional[timing.Work]]:
    """Return the time of a `dot` by `mma.sync`, at `rate` FLOPs per cycle of a unit for 16-bit operands."""

    def work(facts: timing.OpFacts) -> Optional[timing.Work]:
        a = facts.operands[0]
        result = facts.results[0]
        if a.bits > 32 or "Blocked" in type(result.layout).__name__:
            return None
        flops = 2.0 * a.shape[-1]
        for extent in result.shape:
            flops *= extent
        busy = flops / rate * (a.bits / 16)
        return timing.Work(busy=busy, latency=35.0, issue=0.0, serial=True)

    return work


SM_90 = timing.Timing(
    device="NVIDIA H100 SXM",
    source="estimate",
    measured=False,
    units=132,
    schedulers=4,
    clock=1.755,
    matrix_clock=1.4,
    warps=64,
    blocks=32,
    registers=65536,
    shared=228 * KIB,
    block_shared=KIB,
    instructions=_INSTRUCTIONS,
    latency=_LATENCY,
    shared_bytes=128.0,
    copy_bytes=96.0,
    copy_issue=40.0,
    port_bytes=64.0,
    cache_bytes=5500.0,
    memory_bytes=2900.0,
    write_bytes=2700.0,
    cache_size=30 * MIB,
    launch=_LAUNCH,
    works={"warpgroup_mma": _wgmma, "dot": _mma_sync(2048.0)},
    matrix_queues=frozenset({"wgmma"}),
)
