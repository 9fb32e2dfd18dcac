"""The AMD architectures that can be compiled for: limits and capabilities.

Limits are those of the CDNA and RDNA ISA documents; what an architecture can do is what its
assembler accepts (the tests ask LLVM's, inside Triton).

Capabilities, each with the instructions behind it:
    amd.buffer_ops              buffer_load and buffer_store: bounds checked by the descriptor
    amd.buffer_atomics          buffer_atomic_* of float32
    amd.buffer_atomics_f16      ... of pairs of float16
    amd.buffer_atomics_bf16     ... of pairs of bfloat16
    amd.mfma                    the matrix unit of CDNA
    amd.mfma_f64                with float64
    amd.mfma_fp8                with fp8 (`amd.fp8_fnuz` or `amd.fp8_ocp` says which)
    amd.mfma_xf32               with float32 rounded to 19 bits
    amd.mfma_double_rate        with twice the K (32x32x16 of 16-bit elements)
    amd.mfma_scaled             with block scales (mxfp8, mxfp6, mxfp4)
    amd.wmma                    the matrix unit of RDNA and gfx1250
    amd.wmma_v1 _v2 _v3         its operand layouts: RDNA3, RDNA4, gfx1250
    amd.wmma_fp8                with fp8
    amd.wmma_scaled             with block scales
    amd.fp8_fnuz, amd.fp8_ocp   fp8 conversions of the fnuz kind, of the OCP kind
    amd.scaled_convert          conversions to and from fp8, fp6, fp4 with a scale
    amd.bf16_convert            float32 to bfloat16 conversions
    amd.buffer_load_to_lds      global memory to LDS past the registers, 4 bytes per lane
    amd.direct_to_lds_128       ... 16 bytes per lane
    amd.global_load_to_lds      ... from global addresses
    amd.async_lds               asynchronous copies between global memory and LDS, both ways
    amd.tdm                     tensor data mover
    amd.lds_transpose           LDS loads that transpose
    amd.clusters                clusters of workgroups, with multicast loads
    amd.mbarrier                barrier objects in LDS
    amd.partitioned_lds         LDS in partitions that are read at once
"""

from __future__ import annotations

from typing import Any, Optional

from gluon_amd.features import BF16_AND_FNUZ, FNUZ_FP4, TENSOR_CAS
from gluon_amd.peaks import PEAKS
from gluon_core.features import Feature
from gluon_core.plugin import targets

__all__ = ["ARCHITECTURES", "lanes_read_together", "matrix_version", "properties"]

TIMED = ("gfx942", "gfx950")  # architectures with a table in `timing`

_CDNA1 = ("buffer_ops", "buffer_atomics", "buffer_atomics_f16", "buffer_load_to_lds", "mfma")
_CDNA2 = (*_CDNA1, "mfma_f64")
_CDNA3_ON = (*_CDNA2, "mfma_fp8", "global_load_to_lds")
_CDNA3 = (*_CDNA3_ON, "mfma_xf32", "fp8_fnuz")
_CDNA4 = (
    *_CDNA3_ON,
    "mfma_double_rate",
    "mfma_scaled",
    "buffer_atomics_bf16",
    "fp8_ocp",
    "scaled_convert",
    "bf16_convert",
    "direct_to_lds_128",
    "lds_transpose",
)
_RDNA3 = ("buffer_ops", "buffer_atomics", "wmma", "wmma_v1")
_GFX12 = (
    "buffer_ops",
    "buffer_atomics",
    "buffer_atomics_f16",
    "buffer_atomics_bf16",
    "wmma",
    "wmma_fp8",
    "fp8_ocp",
)
_RDNA4 = (*_GFX12, "wmma_v2")
_CDNA5 = (
    *_GFX12,
    "wmma_v3",
    "wmma_scaled",
    "scaled_convert",
    "bf16_convert",
    "async_lds",
    "tdm",
    "lds_transpose",
    "clusters",
    "mbarrier",
    "partitioned_lds",
)
_MFMA_VERSIONS = {"gfx908": 1, "gfx90a": 2, "gfx942": 3, "gfx950": 4}


def matrix_version(architecture: targets.Architecture) -> Optional[int]:
    """Return the `version` of AMDMFMALayout or AMDWMMALayout for an architecture; None without either."""
    for version in (1, 2, 3):
        if f"amd.wmma_v{version}" in architecture.capabilities:
            return version
    return _MFMA_VERSIONS.get(architecture.name)


# ds_read_b128 does not take neighbouring lanes at once. On gfx942 lanes 0-3 go with 20-23, 4-7 with
# 16-19 and so on; on gfx950, with twice the banks, 0-3, 12-15 and 20-27. Lanes that span the group
# of lane 0 by xor.
_READ_B128 = {"gfx942": (1, 2, 20), "gfx950": (1, 2, 12, 20)}


def lanes_read_together(architecture: targets.Architecture, bits: int) -> Optional[tuple[int, ...]]:
    """Return the lanes whose reads of `bits` each from LDS go through the banks at once, as
    `gluon_core.layouts.cost.bank_conflicts` takes them; None where neighbours go together."""
    return _READ_B128.get(architecture.name) if bits == 128 else None


_WHOLE = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_FP8 = ("fp8e5", "fp8e4nv", "fp8e5b16", "fp8e4b8")
# Multiply-adds are of float16, float32 and float64 alone.
_NO_OPS = {
    **{("dot_fma", dtype): None for dtype in ("bf16", *_FP8, *_WHOLE)},
    **{
        ("atomic_cas", dtype): TENSOR_CAS
        for dtype in (*_WHOLE, "fp16", "bf16", "fp32", "fp64")
    },
}  # fmt: skip
_NO_FP4 = {("fp4_to_fp", "bf16"): FNUZ_FP4}

# Before, LLVM aborts, or the bits are taken for those of the OCP kind.
_BF16_AND_FNUZ = dict.fromkeys(
    [cast for fp8 in ("fp8e5b16", "fp8e4b8") for cast in (("bf16", fp8), (fp8, "bf16"))],
    BF16_AND_FNUZ,
)


def _by_float32(features: tuple[str, ...]) -> dict[tuple[str, str], Feature]:
    if "fp8_fnuz" in features:
        return {}
    if "mfma_fp8" in features:  # gfx950
        return {("fp8e5b16", "bf16"): BF16_AND_FNUZ}
    return _BF16_AND_FNUZ


def _arch(
    name: str,
    features: tuple[str, ...],
    aliases: tuple[str, ...],
    description: str,
    lds_kib: int = 64,
) -> targets.Architecture:
    cdna = "mfma" in features
    if cdna:
        # Half of them accumulation registers from gfx90a on; separate files of 256 before.
        registers = 256 if name == "gfx908" else 512
    else:
        registers = 1024 if "wmma_v3" in features else 256
    return targets.Architecture(
        name=name,
        backend="amd",
        aliases=aliases,
        arch=name,
        triton_backend="hip",
        warp_size=64 if cdna else 32,
        limits=targets.Limits(
            shared_memory=lds_kib * 1024,
            max_warps=16 if cdna else 32,  # 1024 work-items
            max_registers=registers,
            max_ctas_per_cluster=16 if "clusters" in features else 1,
            partitions="clusters" in features,  # gfx1250, as its compiler says
            remote_shared=False,
        ),
        capabilities=frozenset(f"amd.{feature}" for feature in features),
        banks=64 if "lds_transpose" in features else 32,
        description=description,
        peaks=PEAKS.get(name, {}),
        timing=f"gluon_amd.timing:{name.upper()}" if name in TIMED else None,
        casts_by_float32=_by_float32(features),
        no_ops={**_NO_OPS, **_NO_FP4} if "fp8_fnuz" in features else _NO_OPS,
        no_constraints=("m", "o", "V", "p"),  # memory: of another address space than LLVM expects
    )


ARCHITECTURES: tuple[targets.Architecture, ...] = (
    _arch("gfx908", _CDNA1, ("cdna1", "mi100"), "CDNA: MI100"),
    _arch("gfx90a", _CDNA2, ("cdna2", "mi200", "mi210", "mi250", "mi250x"), "CDNA2: MI200"),
    _arch("gfx942", _CDNA3, ("cdna3", "mi300", "mi300a", "mi300x", "mi325x"), "CDNA3: MI300"),
    _arch("gfx950", _CDNA4, ("cdna4", "mi350", "mi350x", "mi355x"), "CDNA4: MI350", lds_kib=160),
    _arch("gfx1100", _RDNA3, ("rdna3", "rx7900", "w7900"), "RDNA3: RX 7900"),
    _arch("gfx1101", _RDNA3, ("rx7800", "rx7700"), "RDNA3: RX 7800, RX 7700"),
    _arch("gfx1102", _RDNA3, ("rx7600",), "RDNA3: RX 7600"),
    _arch("gfx1103", _RDNA3, ("phoenix",), "RDNA3: Ryzen 7040"),
    _arch("gfx1150", _RDNA3, ("rdna3.5", "strix_point"), "RDNA3.5: Ryzen AI 300"),
    _arch("gfx1151", _RDNA3, ("strix_halo",), "RDNA3.5: Ryzen AI Max"),
    _arch("gfx1152", _RDNA3, ("krackan_point",), "RDNA3.5: Ryzen AI 300 (small)"),
    _arch("gfx1153", _RDNA3, (), "RDNA3.5"),
    _arch("gfx1200", _RDNA4, ("rx9060",), "RDNA4: RX 9060"),
    _arch("gfx1201", _RDNA4, ("rdna4", "rx9070"), "RDNA4: RX 9070"),
    _arch("gfx1250", _CDNA5, ("cdna5", "mi450"), "CDNA5: MI450", lds_kib=320),
)

# Compute units (of RDNA, pairs of them) and GiB of memory of one device: MI100, MI250X (one die),
# MI300X, MI355X, RX 7900 XTX, RX 9070 XT.
_DEVICES = {
    "gfx908": (120, 32), "gfx90a": (110, 64), "gfx942": (304, 192), "gfx950": (256, 288),
    "gfx1100": (48, 24), "gfx1201": (32, 16),
}  # fmt: skip

# MiB of level-2 cache that one die of the same devices has.
_L2 = {"gfx908": 8, "gfx90a": 8, "gfx942": 4, "gfx950": 4, "gfx1100": 6, "gfx1201": 8}


def properties(architecture: targets.Architecture) -> dict[str, Any]:
    """Return the properties that torch reports for a device of this architecture, as its data sheet
    does."""
    name = str(architecture.arch)
    digits = name.removeprefix("gfx")
    count, gib = _DEVICES.get(name, (256, 288) if digits.startswith("125") else (32, 16))
    return {
        "name": f"{architecture.description} (simulated)",
        "major": int(digits[:-2]),
        "minor": int(digits[-2]),
        "gcnArchName": name,
        "multi_processor_count": count,
        "total_memory": gib << 30,
        "L2_cache_size": _L2.get(name, 4) << 20,
        "warp_size": architecture.warp_size,
        "shared_memory_per_block": architecture.limits.shared_memory,
        "max_threads_per_multi_processor": 2048,
    }
