"""The model of time of MI300X and MI355X: from documents, not measured. No number of it has been compared with a device.

Sources, by their mark below:

- [ISA] AMD Instinct MI300 and CDNA4 Instruction Set Architecture: vector instructions of a wave of 64 take four cycles of a SIMD,
  transcendental ones and 32-bit products of integers four times as long; the passes of matrix instructions.
- [WP] AMD CDNA 3 and CDNA 4 white papers: compute units, clocks, LDS, bytes per cycle of the caches, Infinity Cache, HBM.
- [DS] data sheets of MI300X and MI355X: the peaks of `gluon_amd.peaks`.
- [MAF] AMD, "Measuring Max-Achievable FLOPs" (ROCm blogs, 2025): 708 TFLOP/s of bfloat16 on MI300X, 54% of the peak.
- [CC] Chips and Cheese, "Testing AMD's Giant MI300X" (2024): latencies of the caches, bandwidth of Infinity Cache.
- [UPM] Wahlgren et al., "Dissecting CPU-GPU Unified Physical Memory on AMD MI300A APUs" (2025): latencies of the caches and of HBM.
- [E] an estimate, which only keeps such times from being nothing.
"""

from __future__ import annotations

from math import prod
from typing import Callable, Mapping, Optional

from gluon_amd.peaks import PEAKS
from gluon_core.plugin import timing

__all__ = ["GFX942", "GFX950"]

KIB, MIB = 1 << 10, 1 << 20
_SIMDS = 4

# One pipe for all: a SIMD executes an instruction of a wave of 64 in four cycles [ISA]. A conversion is two elements: by one
# instruction on CDNA4, by three on CDNA3.
_WAVE = 4.0
_INSTRUCTIONS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(
        ("fma", "add", "mul", "max", "integer", "logic", "shift", "compare", "select", "half", "double", "move"),
        ("vector", _WAVE),
    ),
    "multiply": ("vector", 4 * _WAVE), "special": ("vector", 4 * _WAVE), "convert": ("vector", 3 * _WAVE),
    "shuffle": ("vector", 2 * _WAVE),
}  # fmt: skip

# Cycles at 2.1 GHz. "L2" is Infinity Cache, the cache that blocks of all dies share; L2 in front of it has no latency of its own.
_LATENCY: Mapping[str, float] = {
    "arithmetic": 4,  # [ISA]
    "special": 16,  # [ISA]
    "shuffle": 16,  # [E] between DPP's and that of LDS
    "shared": 64,  # [E]
    "L1": 120,  # 57 ns [UPM]
    "L2": 450,  # 205 to 218 ns [UPM], [CC]
    "memory": 720,  # 333 to 350 ns [UPM]
    "copy": 64,  # [E] from memory to LDS past registers: as long as LDS
    "atomic": 450,  # [E] as long as Infinity Cache
    "store": 200,  # [E]
    "arrive": 32, "pass": 8, "signal": 64,  # [E]
    "barrier": 32,  # [E]
    "cluster": 0,  # there are none
}  # fmt: skip

_PEAK = {
    "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp64": "fp64", "i8": "int8", "fp8e4b8": "fp8", "fp8e5b16": "fp8",
    "fp8e4nv": "fp8", "fp8e5": "fp8",
}  # fmt: skip


def _mfma(name: str, units: int, clock: float) -> Callable[[timing.OpFacts], Optional[timing.Work]]:
    """Return the time of a `dot` by matrix instructions, from the peaks of the data sheet.

    Each wave has the matrix unit of its SIMD. A dependent instruction waits for the passes of the one before, 16 cycles of most [ISA].
    """
    peaks = PEAKS[name]

    def work(facts: timing.OpFacts) -> Optional[timing.Work]:
        a, result = facts.operands[0], facts.results[0]
        peak = peaks.get(_PEAK.get(a.dtype, ""))
        if peak is None or "Blocked" in type(result.layout).__name__:
            return None
        depth = a.shape[-1]
        flops = 2.0 * depth * prod(result.shape)
        rate = peak / units / clock / 1e9 * min(1.0, facts.warps / _SIMDS)
        return timing.Work(busy=flops / rate, latency=16.0, serial=True)

    return work


def _table(
    name: str,
    device: str,
    units: int,
    clock: float,
    matrix_clock: float,
    lds: int,
    memory: float,
    instructions: Mapping[str, tuple[str, float]],
) -> timing.Timing:
    """Return the model of a device: eight dies with 16 channels of L2 each, and Infinity Cache.

    Args:
        matrix_clock: GHz under full load of the matrix units.
        lds: bytes of LDS of a compute unit.
        memory: bytes per nanosecond of HBM, at its peak.
    """
    channels = 8 * 16 * clock  # L2 channels, times cycles of a nanosecond
    return timing.Timing(
        device=device,
        source="ISA documents, white papers, data sheets and published microbenchmarks; not measured",
        measured=False,
        units=units,
        schedulers=_SIMDS,
        clock=clock,
        matrix_clock=matrix_clock,
        warps=32,  # 8 waves of each SIMD [WP]
        blocks=16,  # [ISA]
        registers=512 * 64 * _SIMDS,  # [ISA]
        shared=lds,
        block_shared=0,
        instructions=instructions,
        latency=_LATENCY,
        shared_bytes=128.0,  # [WP]
        copy_bytes=64.0,  # [WP] bytes of a cycle between L1 and L2
        store_bytes=64.0,
        copy_issue=16.0,  # [E]
        port_bytes=64.0,  # [WP]
        cache_bytes=11900.0,  # [CC] of Infinity Cache, 17.2 TB/s at its peak
        shared_cache_bytes=128.0 * channels,  # [WP] of L2
        cache_write_bytes=64.0 * channels,  # [WP]
        memory_bytes=0.81 * memory,  # [E] the share that copies reach on MI300X
        write_bytes=0.75 * memory,  # [E]
        cache_size=200 * MIB,  # [WP] of 256 MiB
        launch={"kernel": 3000.0, "block": 100.0, "alone": 300.0, "code": 0.5},  # [E]
        works={"dot": _mfma(name, units, clock)},
        thread_queues=frozenset({"buffer_load_lds"}),
    )  # fmt: skip


GFX942 = _table(
    "gfx942", "AMD Instinct MI300X", 304, 2.1, 0.54 * 2.1, 64 * KIB, 5300.0, _INSTRUCTIONS
)  # [WP], [DS]; the clock under load [MAF]
GFX950 = _table(
    "gfx950",
    "AMD Instinct MI355X",
    256,
    2.4,
    0.67 * 2.4,
    160 * KIB,
    8000.0,
    {**_INSTRUCTIONS, "convert": ("vector", _WAVE)},
)  # [WP], [DS]; the clock under load [E]
