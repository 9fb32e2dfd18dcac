"""The model of time of NVIDIA GPUs: measured for Hopper, from data sheets and white papers for the others.

`python benchmarks/microbenchmarks` measures the numbers of a device; `Timing.source` says where those of a table come from.
"""

from __future__ import annotations

from math import ceil
from typing import Callable, Mapping, Optional

from gluon_core.plugin import timing

__all__ = ["SM_90"]

KIB, MIB = 1 << 10, 1 << 20

# class -> (pipe, cycles of a scheduler for an instruction of a warp). Additions of integers share a pipe with float32.
_INSTRUCTIONS: Mapping[str, tuple[str, float]] = {
    "fma": ("fma", 1.1), "add": ("fma", 1.1), "mul": ("fma", 1.1), "max": ("alu", 2.0), "integer": ("fma", 1.0),
    "multiply": ("fma", 2.0), "logic": ("alu", 2.0), "shift": ("alu", 2.0), "compare": ("alu", 2.0), "select": ("alu", 2.0),
    "special": ("special", 8.0), "convert": ("alu", 2.0), "half": ("fma", 1.4), "double": ("double", 2.2),
    "shuffle": ("shuffle", 4.0), "move": ("fma", 1.0),
}  # fmt: skip
_LATENCY: Mapping[str, float] = {
    "arithmetic": 4.25, "special": 17, "shuffle": 24, "shared": 25, "L1": 38, "L2": 294, "memory": 670, "copy": 85,
    "atomic": 541, "store": 90, "arrive": 24, "pass": 38, "signal": 40, "barrier": 24, "cluster": 355,
}  # fmt: skip

# Elements of K that one wgmma instruction takes, by bits of an element.
_DEPTH = {8: 32, 16: 16, 32: 8}


def _wgmma(facts: timing.OpFacts) -> Optional[timing.Work]:
    """Return the time of a `warpgroup_mma`: instructions of 64 x N x 256 bits, the sum of N in steps of at most 256.

    One whose left operand is in registers takes 6 to 9 cycles longer, and its warps wait until these are read.
    """
    a, b = facts.operands[:2]
    columns, rows = facts.results[0].shape[-1], facts.results[0].shape[-2]
    depth = b.shape[-2]
    wide = min(columns, 256)
    registers = a.memory == "registers"
    each = max(wide / 2, 16.6 + wide / 4) + (5.0 + wide / 64 if registers else 0.0)
    count = ceil(rows / 64) * ceil(columns / 256) * ceil(depth / _DEPTH.get(b.bits, 16))
    return timing.Work(busy=count * each, latency=56.0, issue=2.0 * count, alone=registers)


def _mma_sync(rates: Mapping[str, float]) -> Callable[[timing.OpFacts], Optional[timing.Work]]:
    """Return the time of a `dot` by `mma.sync`.

    Args:
        rates: dtype -> FLOPs per cycle of a multiprocessor.
    """

    def work(facts: timing.OpFacts) -> Optional[timing.Work]:
        a, result = facts.operands[0], facts.results[0]
        rate = rates.get(a.dtype)
        if rate is None or "Blocked" in type(result.layout).__name__:
            return None
        flops = 2.0 * a.shape[-1]
        for extent in result.shape:
            flops *= extent
        return timing.Work(busy=flops / rate, latency=24.0, serial=True)

    return work


_MMA_90 = {
    "bf16": 2686.0, "fp16": 2686.0, "fp32": 1343.0, "fp8e4nv": 3800.0, "fp8e5": 3800.0, "i8": 5372.0, "fp64": 512.0,
}  # fmt: skip

SM_90 = timing.Timing(
    device="NVIDIA H200",
    source="measured on 2026-11-28 by python benchmarks/microbenchmarks",
    measured=True,
    units=132,
    schedulers=4,
    clock=1.98,
    matrix_clock=1.664,
    warps=64,
    blocks=32,
    registers=65536,
    shared=228 * KIB,
    block_shared=KIB,
    instructions=_INSTRUCTIONS,
    latency=_LATENCY,
    shared_bytes=128.0,
    copy_bytes=100.0,
    store_bytes=32.0,
    copy_issue=40.0,
    port_bytes=110.0,
    cache_bytes=8650.0,
    shared_cache_bytes=21000.0,
    cache_write_bytes=5700.0,
    memory_bytes=4500.0,
    write_bytes=4340.0,
    cache_size=45 * MIB,
    launch={"kernel": 900.0, "block": 80.0, "alone": 270.0, "code": 0.9},
    works={"warpgroup_mma": _wgmma, "dot": _mma_sync(_MMA_90)},
    matrix_queues=frozenset({"wgmma"}),
    thread_queues=frozenset({"cp.async"}),
)
