"""The NVIDIA architectures that can be compiled for: limits and capabilities.

Limits are those of the CUDA C++ Programming Guide, "Compute Capabilities"; what an architecture
can do is what its assembler accepts (the tests ask `ptxas`). `sm_90` stands for `sm_90a`, and so
on upwards: Triton compiles for the architecture-specific target.

Capabilities, each with the instructions behind it:
    nvidia.ldmatrix             ldmatrix
    nvidia.mma_turing           mma.sync.m16n8k8 of float16
    nvidia.mma_v2               mma.sync.m16n8k16 and its kin, the Ampere form
    nvidia.bf16, nvidia.tf32    in arithmetic and mma.sync
    nvidia.fp64_mma             mma.sync of float64
    nvidia.fp8                  fp8 conversions, and mma.sync of fp8
    nvidia.cp_async             cp.async: asynchronous copies to shared memory, by thread
    nvidia.mbarrier             mbarrier objects in shared memory
    nvidia.mbarrier_tx          mbarriers that count bytes (expect_tx), and try_wait
    nvidia.mbarrier_multicast   arrivals at the mbarriers of several blocks of a cluster
    nvidia.stmatrix             stmatrix
    nvidia.clusters             thread block clusters, distributed shared memory, st.async
    nvidia.tma                  cp.async.bulk.tensor, tiled and im2col, with reductions
    nvidia.tma_multicast        to several blocks of a cluster
    nvidia.tma_gather_scatter   tile::gather4 and tile::scatter4
    nvidia.fence_async          fence.proxy.async
    nvidia.multimem             multimem: one access to the memory of several devices
    nvidia.gdc                  griddepcontrol: programmatic dependent launch
    nvidia.setmaxnreg           registers moved between warp groups
    nvidia.wgmma                wgmma.mma_async
    nvidia.tcgen05              tcgen05 and tensor memory
    nvidia.tcgen05_i8           tcgen05.mma of 8-bit integers
    nvidia.tcgen05_ld_red       tcgen05.ld with a reduction
    nvidia.clc                  cluster launch control
    nvidia.f32x2                packed pairs of float32
    nvidia.f32x4                packed quadruples of float32
    nvidia.packed_bf16          packed pairs of bfloat16: add, sub, mul
    nvidia.packed_fp8           packed quadruples of fp8: add, sub, mul, fma
    nvidia.packed_mixed         packed arithmetic whose operands and result differ in type
    nvidia.fp4                  fp4 conversions
    nvidia.mma_block_scale      mma.sync with block scales (mxfp8, mxfp4, nvfp4)
"""

from __future__ import annotations

from typing import Any

from gluon_core.plugin.targets import Architecture, Limits
from gluon_nvidia.features import SM_107, SM_110, TURING_CASTS
from gluon_nvidia.peaks import PEAKS

TIMED = (90,)  # architectures with a table in `timing`

__all__ = ["ARCHITECTURES", "properties"]

# ptxas refuses the code that later releases emit for these: it needs sm_80.
_TURING_CASTS = {
    ("fp16", "bf16"): TURING_CASTS,
    ("fp8e4b15", "bf16"): TURING_CASTS,
    ("fp16", "fp8e5"): TURING_CASTS,
    ("bf16", "fp8e5"): TURING_CASTS,
    ("fp32", "fp8e5"): TURING_CASTS,
    ("fp8e4b15", "fp8e5"): TURING_CASTS,
}
_TURING = ("ldmatrix", "mma_turing")
_AMPERE = (*_TURING, "mma_v2", "bf16", "tf32", "fp64_mma", "cp_async", "mbarrier")
_ADA = (*_AMPERE, "fp8")
# Capabilities that came with Hopper and that every later architecture kept.
_SM90_ON = (
    *_ADA,
    "mbarrier_tx",
    "stmatrix",
    "clusters",
    "tma",
    "tma_multicast",
    "fence_async",
    "multimem",
    "gdc",
    "setmaxnreg",
    "packed_bf16",
)
_HOPPER = (*_SM90_ON, "wgmma")
_SM100_ON = (*_SM90_ON, "clc", "f32x2", "fp4")
_TCGEN05 = (*_SM100_ON, "tcgen05", "tma_gather_scatter")
_BLACKWELL_RTX = (*_SM100_ON, "mma_block_scale")


def _arch(
    number: int,
    shared_kib: int,
    features: tuple[str, ...],
    aliases: tuple[str, ...],
    description: str,
    min_triton: tuple[int, int] = Architecture.min_triton,
    default: bool = False,
) -> Architecture:
    if "tcgen05" in features or "wgmma" in features:
        cluster = 16
    else:
        cluster = 8 if "clusters" in features else 1
    return Architecture(
        name=f"sm_{number}",
        backend="nvidia",
        aliases=(f"sm_{number}a", *aliases) if number >= 90 else aliases,
        arch=number,
        triton_backend="cuda",
        warp_size=32,
        limits=Limits(
            shared_memory=shared_kib * 1024,
            max_warps=32,
            max_registers=255,
            max_ctas_per_cluster=cluster,
            tensor_memory_columns=512 if "tcgen05" in features else 0,
            movable_registers="setmaxnreg" in features,
        ),
        capabilities=frozenset(f"nvidia.{feature}" for feature in features),
        min_triton=min_triton,
        banks=32,
        description=description,
        default=default,
        peaks=PEAKS.get(number, {}),
        no_casts=_TURING_CASTS if number == 75 else {},
        # It goes by e4m3, for which Ada brought the conversion.
        no_ops={} if "fp8" in features else {("fp4_to_fp", "fp16"): None},
        no_constraints=("o", "V", "p"),
        timing=f"gluon_nvidia.timing:SM_{number}" if number in TIMED else None,
    )


ARCHITECTURES: tuple[Architecture, ...] = (
    _arch(75, 64, _TURING, ("turing", "t4", "rtx2080"), "Turing: T4, RTX 20"),
    _arch(80, 163, _AMPERE, ("ampere", "a100", "a800", "a30"), "Ampere: A100, A30"),
    _arch(
        86,
        99,
        _AMPERE,
        ("a10", "a10g", "a40", "a6000", "rtx3090", "3090"),
        "Ampere: A10, A40, RTX A6000, RTX 30",
    ),
    _arch(87, 163, _AMPERE, ("orin",), "Ampere: Jetson Orin"),
    _arch(
        89,
        99,
        _ADA,
        ("ada", "l4", "l40", "l40s", "rtx4090", "4090"),
        "Ada: L4, L40S, RTX 40",
    ),
    _arch(
        90,
        227,
        _HOPPER,
        ("hopper", "h100", "h200", "h800", "h20", "gh200"),
        "Hopper: H100, H200, GH200",
        default=True,
    ),
    _arch(
        100,
        227,
        (*_TCGEN05, "tcgen05_i8", "packed_fp8"),
        ("blackwell", "b100", "b200", "gb200"),
        "Blackwell: B200, GB200",
    ),
    _arch(
        103,
        227,
        (*_TCGEN05, "tcgen05_ld_red", "packed_fp8"),
        ("blackwell_ultra", "b300", "gb300"),
        "Blackwell Ultra: B300, GB300",
    ),
    _arch(
        107,
        227,
        (*_TCGEN05, "mbarrier_multicast", "tcgen05_ld_red", "f32x4", "packed_mixed"),
        ("rubin",),
        "Rubin",
        min_triton=SM_107.since,
    ),
    _arch(
        110,
        227,
        (*_TCGEN05, "tcgen05_i8", "tcgen05_ld_red"),
        ("thor", "jetson_thor"),
        "Blackwell: Jetson Thor",
        min_triton=SM_110.since,
    ),
    _arch(
        120,
        99,
        _BLACKWELL_RTX,
        ("rtx5090", "5090", "rtx_pro_6000"),
        "Blackwell: RTX 50, RTX PRO 6000",
    ),
    _arch(121, 99, _BLACKWELL_RTX, ("gb10", "dgx_spark"), "Blackwell: GB10 (DGX Spark)"),
)

# Multiprocessors and bytes of memory of one device: T4, A100, A10, L40S, H200, B200, B300, RTX 5090.
_DEVICES = {
    75: (40, 16), 80: (108, 80), 86: (72, 24), 87: (16, 64), 89: (142, 48), 90: (132, 141),
    100: (148, 192), 103: (160, 288), 110: (20, 128), 120: (170, 32), 121: (48, 128),
}  # fmt: skip

# MiB of level-2 cache of the same devices.
_L2 = {75: 4, 80: 40, 86: 6, 87: 4, 89: 96, 90: 50, 100: 126, 103: 126, 110: 32, 120: 96, 121: 24}


def properties(architecture: Architecture) -> dict[str, Any]:
    """Return the properties that torch reports for a device of this architecture, as its data sheet
    does."""
    number = int(architecture.arch)
    count, gib = _DEVICES.get(number, (148, 192))
    return {
        "name": f"{architecture.description} (simulated)",
        "major": number // 10,
        "minor": number % 10,
        "multi_processor_count": count,
        "total_memory": gib << 30,
        "L2_cache_size": _L2.get(number, 126) << 20,
        "warp_size": 32,
        "regs_per_multiprocessor": 65536,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_block_optin": architecture.limits.shared_memory,
        "max_threads_per_multi_processor": 2048,
    }
