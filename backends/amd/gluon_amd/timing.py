"""The model of time of MI300X and MI355X, not measured. No number of it has been compared with a device.

Sources, by their mark below:

- [LLVM] the scheduling models of LLVM 22 for gfx942 and gfx950, as `llvm-mca -instruction-info` prints them, in units of four cycles: a
  vector instruction of a wave of 64 takes 1, a transcendental one 4; `v_mfma_f32_32x32x8_bf16` takes 8, `v_mfma_f32_16x16x16_bf16` 4, and a
  dependent one waits for 4 more. With the units and clocks below these rates are the peaks of `gluon_amd.peaks`.
- [A] an assumption. Where a document is named with it, the number is what we believe the document to say, without a comparison with its text:
  ISA (AMD Instinct MI300 and CDNA4 Instruction Set Architecture), WP (CDNA 3 and CDNA 4 white papers), MAF (AMD, "Measuring Max-Achievable
  FLOPs", ROCm blogs, 2025), CC (Chips and Cheese, "Testing AMD's Giant MI300X", 2024), UPM (Wahlgren et al., "Dissecting CPU-GPU Unified
  Physical Memory on AMD MI300A APUs", 2025).
"""

from __future__ import annotations

from math import prod
from typing import Callable, Mapping, Optional

from gluon_amd.peaks import PEAKS
from gluon_core.plugin import timing

__all__ = ["GFX942", "GFX950"]

KIB, MIB = 1 << 10, 1 << 20
_SIMDS = 4

# One pipe for all: a SIMD executes an instruction of a wave of 64 in four cycles, a transcendental one in 16 [LLVM]. A product of 32-bit integers
# takes 16 [A, ISA]; LLVM's model says four. A conversion is two elements: by one instruction on CDNA4, by three on CDNA3. A
# shuffle takes eight [A].
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
    "arithmetic": 4,  # [LLVM]
    "special": 16,  # [LLVM]
    "shuffle": 16,  # [A] between DPP's and that of LDS
    "shared": 64,  # [A]; LLVM schedules for 20
    "L1": 120,  # [A, UPM] 57 ns
    "L2": 450,  # [A, UPM and CC] 205 to 218 ns
    "memory": 720,  # [A, UPM] 333 to 350 ns; LLVM schedules for 320
    "copy": 64,  # [A] from memory to LDS past registers: as long as LDS
    "atomic": 450,  # [A] as long as Infinity Cache
    "store": 200,  # [A]
    "arrive": 32, "pass": 8, "signal": 64,  # [A]
    "barrier": 32,  # [A]
    "cluster": 0,  # there are none
}  # fmt: skip

_PEAK = {
    "bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "fp64": "fp64", "i8": "int8", "fp8e4b8": "fp8", "fp8e5b16": "fp8",
    "fp8e4nv": "fp8", "fp8e5": "fp8",
}  # fmt: skip


def _mfma(name: str, units: int, clock: float) -> Callable[[timing.OpFacts], Optional[timing.Work]]:
    """Return the time of a `dot` by matrix instructions, at the peak rates.

    Each wave has the matrix unit of its SIMD. A dependent instruction waits for 16 cycles after the one before [LLVM].
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
        source="LLVM's scheduling models, and assumptions; not measured",
        measured=False,
        units=units,
        schedulers=_SIMDS,
        clock=clock,
        matrix_clock=matrix_clock,
        warps=32,  # [A, WP] 8 waves of each SIMD
        blocks=16,  # [A, ISA]
        registers=512 * 64 * _SIMDS,  # [A, ISA]
        shared=lds,
        block_shared=0,
        instructions=instructions,
        latency=_LATENCY,
        shared_bytes=128.0,  # [A, WP]
        copy_bytes=64.0,  # [A, WP] bytes of a cycle between L1 and L2
        store_bytes=64.0,
        copy_issue=16.0,  # [A]
        port_bytes=64.0,  # [A, WP]
        cache_bytes=11900.0,  # [A, CC] of Infinity Cache, 17.2 TB/s at its peak
        shared_cache_bytes=128.0 * channels,  # [A, WP] of L2
        cache_write_bytes=64.0 * channels,  # [A, WP]
        memory_bytes=0.81 * memory,  # [A] the share that copies reach on MI300X
        write_bytes=0.75 * memory,  # [A]
        cache_size=200 * MIB,  # [A, WP] of 256 MiB
        launch={"kernel": 3000.0, "block": 100.0, "alone": 300.0, "code": 0.5},  # [A]
        works={"dot": _mfma(name, units, clock)},
        thread_queues=frozenset({"buffer_load_lds"}),
    )  # fmt: skip


GFX942 = _table(
    "gfx942", "AMD Instinct MI300X", 304, 2.1, 0.54 * 2.1, 64 * KIB, 5300.0, _INSTRUCTIONS
)  # units, clock, LDS and HBM [A, WP]; the clock under load [A, MAF], 708 TFLOP/s of bfloat16
GFX950 = _table(
    "gfx950",
    "AMD Instinct MI355X",
    256,
    2.4,
    0.67 * 2.4,
    160 * KIB,
    8000.0,
    {**_INSTRUCTIONS, "convert": ("vector", _WAVE)},
)  # units, clock, LDS and HBM [A, WP]; the clock under load [A]
