"""Lower the portable ops to AMD hardware: buffer addressing, MFMA and WMMA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Union

from gluon_amd.arch import matrix_version
from gluon_amd.features import ALL_WAVES_COPY, UNALIGNED_COPIES, WMMA_INT8
from gluon_amd.language import async_copy as direct
from gluon_amd.language import async_lds, cdna3, gfx1250, rdna3, rdna4
from gluon_amd.layouts import AMDMFMALayout, AMDWMMALayout
from gluon_amd.lower_tdm import padded_rows
from gluon_core.layouts import DotOperandLayout, SwizzledSharedLayout
from gluon_core.layouts.cost import copied_bits
from gluon_core.plugin.ops import semantic_layer, tl
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable.requests import (
    AsyncCopyRequest,
    LoadRequest,
    MmaLayouts,
    MmaRequest,
    StoreRequest,
)

__all__ = [
    "async_copy",
    "async_copy_accepts",
    "async_copy_to_lds",
    "async_copy_to_lds_accepts",
    "async_lds_accepts",
    "async_lds_copy",
    "commit",
    "commit_async_lds",
    "commit_to_lds",
    "load",
    "load_accepts",
    "mfma_accepts",
    "mfma_layouts",
    "mma_mfma",
    "mma_wmma",
    "store",
    "store_accepts",
    "wait",
    "wait_for_async_lds",
    "wait_for_lds",
    "wmma_accepts",
    "wmma_layouts",
]


# -- memory --------------------------------------------------------------------------------------


def load_accepts(request: LoadRequest) -> Union[bool, str]:
    return _addressable(request)


def store_accepts(request: StoreRequest) -> Union[bool, str]:
    return _addressable(request)


def async_copy_accepts(request: AsyncCopyRequest) -> Union[bool, str]:
    return _addressable(request)


def _addressable(request: Any) -> Union[bool, str]:
    if request.offsets.dtype not in (tl.int32, tl.uint32):
        return f"buffer addressing takes 32-bit offsets, not {request.offsets.dtype}"
    if request.ptr.dtype.element_ty.primitive_bitwidth < 8:
        return f"buffer addressing takes whole bytes, not {request.ptr.dtype.element_ty}"
    return True


def load(request: LoadRequest, _semantic: SemanticLayer) -> Any:
    return _buffer_load(request, request.other, _semantic)


def _buffer_load(request: Any, other: Any, _semantic: SemanticLayer) -> Any:
    # Where the mask is off the hardware answers 0 by itself, the default of `other`.
    return cdna3.buffer_load(
        request.ptr, request.offsets, request.mask, other, request.cache_modifier or None
    )


def store(request: StoreRequest, _semantic: SemanticLayer) -> Any:
    value = _semantic.cast(request.value, request.ptr.dtype.element_ty)
    if not value.type.is_block():
        value = _semantic.broadcast_impl_value(value, request.offsets)[0]
    return cdna3.buffer_store(
        value, request.ptr, request.offsets, request.mask, request.cache_modifier or None
    )


def async_copy(request: AsyncCopyRequest, _semantic: SemanticLayer) -> Any:
    loaded = _buffer_load(request, None, _semantic)
    return _semantic.deferred_store(
        request.dest, loaded, request.ptr, request.offsets, request.mask
    )


def async_copy_to_lds_accepts(request: AsyncCopyRequest) -> Union[bool, str]:
    refusal = _addressable(request)
    if refusal is not True:
        return refusal
    bits = request.ptr.dtype.element_ty.primitive_bitwidth
    layout, shared = request.offsets.type.layout, request.dest.layout
    if (
        copied_bits(layout, shared, semantic_layer().shape_of(request.offsets), bits, (128,))
        is None
    ):
        return "the lanes of a warp would not write 16 bytes each to LDS, side by side"
    swizzled = isinstance(shared, SwizzledSharedLayout) and shared.max_phase > 1
    if swizzled and bits >= 32 and not UNALIGNED_COPIES.held_by(request.triton):
        return "rows that are not aligned to 16 bytes would overlap in LDS under this release"
    return True


def async_copy_to_lds(request: AsyncCopyRequest, _semantic: SemanticLayer) -> Any:
    return direct.buffer_load_to_shared(
        request.dest, request.ptr, request.offsets, request.mask, None, request.cache_modifier
    )


def commit_to_lds(_semantic: SemanticLayer) -> None:
    direct.commit_group()


def wait_for_lds(outstanding: int, _semantic: SemanticLayer) -> None:
    direct.wait_group(outstanding)


def async_lds_accepts(request: AsyncCopyRequest) -> Union[bool, str]:
    semantic = semantic_layer()
    bits = request.ptr.dtype.element_ty.primitive_bitwidth
    layout, shared = request.offsets.type.layout, request.dest.layout
    held = semantic.consecutive_elements(layout, shared, semantic.shape_of(request.offsets))
    if held is None or held * bits < async_lds.LEAST_BITS:
        return "a lane would not copy 4 consecutive bytes or more"
    return True


def async_lds_copy(request: AsyncCopyRequest, _semantic: SemanticLayer) -> Any:
    pointers = _semantic.add(request.ptr, request.offsets, True)
    zero = 0.0 if request.ptr.dtype.element_ty.is_floating() else 0
    return async_lds.global_to_shared(
        request.dest,
        pointers,
        request.mask,
        None if request.mask is None else zero,  # else old values would stay
        request.cache_modifier,
    )


def commit_async_lds(_semantic: SemanticLayer) -> None:
    async_lds.commit_group()


def wait_for_async_lds(outstanding: int, _semantic: SemanticLayer) -> None:
    # Before 3.8 a wave may have issued fewer copies than the compiler counts.
    async_lds.wait_group(outstanding if _semantic.has(ALL_WAVES_COPY) else 0)


def commit(_semantic: SemanticLayer) -> None:
    """Nothing is in flight: the copy went through registers; those of the core close its group."""


def wait(outstanding: int, _semantic: SemanticLayer) -> None:
    """Nothing to wait for; the compiler puts the barrier before the loads of other threads."""


# -- matrix multiplication -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """The matrix instructions for one operand dtype.

    Args:
        depth: K of the instruction, keyed by its rows.
        width: consecutive elements of K in one lane.
    """

    depth: Mapping[int, int]
    width: int


_HALF, _SINGLE = _Unit({32: 8, 16: 16}, 4), _Unit({32: 2, 16: 4}, 1)
_BYTE = _Unit({32: 16, 16: 32}, 8)
_MFMA: Mapping[int, Mapping[str, _Unit]] = {
    1: {"fp16": _HALF, "fp32": _SINGLE, "int8": _Unit({32: 8, 16: 16}, 4)},
    2: {"fp16": _HALF, "bf16": _HALF, "fp32": _SINGLE, "int8": _Unit({32: 8, 16: 16}, 4)},
    3: {
        "fp16": _HALF,
        "bf16": _HALF,
        "fp32": _SINGLE,
        "int8": _BYTE,
        "fp8e4b8": _BYTE,
        "fp8e5b16": _BYTE,
    },
    4: {
        "fp16": _Unit({32: 16, 16: 32}, 8),
        "bf16": _Unit({32: 16, 16: 32}, 8),
        "fp32": _SINGLE,
        "int8": _Unit({32: 32, 16: 64}, 16),
        "fp8e4nv": _BYTE,
        "fp8e5": _BYTE,
    },
}
# CDNA4 keeps the shallower instructions of CDNA3, for products of fewer columns.
_SHALLOW: Mapping[int, Mapping[str, _Unit]] = {4: {"fp16": _HALF, "bf16": _HALF, "int8": _BYTE}}


def mfma_accepts(request: MmaRequest) -> Union[bool, str]:
    version = matrix_version(request.target.architecture)
    units = _MFMA.get(version or 0, {})
    refusal = _dtypes_refused(request, units, "MFMA")
    if refusal is not None:
        return refusal
    unit = _mfma_unit(request)
    if _mfma_rows(request, unit) is None:
        return _too_small(request, "MFMA", 16, unit.depth[16])
    return _layout_accepted(request, AMDMFMALayout)


def _mfma_unit(request: MmaRequest) -> _Unit:
    """Return the deepest instructions that the product fills, else the shallowest."""
    version, dtype = matrix_version(request.target.architecture) or 0, str(request.a_dtype)
    deep = _MFMA[version][dtype]
    shallow = _SHALLOW.get(version, {}).get(dtype, deep)
    return deep if _mfma_rows(request, deep) is not None else shallow


def _mfma_rows(request: MmaRequest, unit: _Unit) -> Optional[int]:
    """Return the rows of the instruction: 32, which rereads operands less often, if every warp gets such a tile; else 16."""
    for rows in (32, 16):
        tiles = (request.m // rows) * (request.n // rows)
        if min(request.m, request.n) >= rows and request.k >= unit.depth[rows]:
            if rows == 16 or tiles >= request.num_warps:
                return rows
    return None


def mfma_layouts(request: MmaRequest) -> MmaLayouts:
    version = matrix_version(request.target.architecture) or 0
    unit = _mfma_unit(request)
    rows = _mfma_rows(request, unit) or 16
    accumulator = AMDMFMALayout(
        version=version,
        instr_shape=[rows, rows, unit.depth[rows]],
        transposed=True,  # a lane then stores consecutive columns
        warps_per_cta=request.split_warps(rows, rows),
    )
    return _layouts(request, accumulator, unit.width)


def mma_mfma(request: MmaRequest, _semantic: SemanticLayer) -> Any:
    return cdna3.mfma(request.a, request.b, request.acc)


_WMMA: Mapping[int, Mapping[str, _Unit]] = {
    1: {"fp16": _Unit({16: 16}, 16), "bf16": _Unit({16: 16}, 16), "int8": _Unit({16: 16}, 16)},
    2: dict.fromkeys(("fp16", "bf16", "int8", "fp8e4nv", "fp8e5"), _Unit({16: 16}, 8)),
    3: {
        "fp16": _Unit({16: 32}, 8),
        "bf16": _Unit({16: 32}, 8),
        "fp32": _Unit({16: 4}, 2),
        **dict.fromkeys(("int8", "fp8e4nv", "fp8e5"), _Unit({16: 64}, 8)),
    },
}
_WMMA_BUILTIN = {1: rdna3.wmma, 2: rdna4.wmma, 3: gfx1250.wmma}


def wmma_accepts(request: MmaRequest) -> Union[bool, str]:
    units = _WMMA.get(matrix_version(request.target.architecture) or 0, {})
    refusal = _dtypes_refused(request, units, "WMMA")
    if refusal is not None:
        return refusal
    version = matrix_version(request.target.architecture)
    if version == 3 and str(request.a_dtype) == "int8" and not WMMA_INT8.held_by(request.triton):
        return WMMA_INT8.refusal(f"WMMA of int8 on {request.target}", request.triton)
    depth = units[str(request.a_dtype)].depth[16]
    if min(request.m, request.n) < 16 or request.k < depth:
        return _too_small(request, "WMMA", 16, depth)
    return _layout_accepted(request, AMDWMMALayout)


def wmma_layouts(request: MmaRequest) -> MmaLayouts:
    version = matrix_version(request.target.architecture) or 0
    unit = _WMMA[version][str(request.a_dtype)]
    accumulator = AMDWMMALayout(
        version=version,
        transposed=True,
        warps_per_cta=request.split_warps(16, 16),
        instr_shape=[16, 16, unit.depth[16]],
    )
    return _layouts(request, accumulator, unit.width)


def mma_wmma(request: MmaRequest, _semantic: SemanticLayer) -> Any:
    wmma = _WMMA_BUILTIN[matrix_version(request.target.architecture) or 0]
    return wmma(request.a, request.b, request.acc)


def _dtypes_refused(request: MmaRequest, units: Mapping[str, _Unit], unit: str) -> Optional[str]:
    a, b, acc = (str(t) for t in (request.a_dtype, request.b_dtype, request.acc_dtype))
    if a not in units or a != b:
        return f"{unit} of {request.target} has no form for {a} times {b}"
    wanted = "int32" if a == "int8" else "fp32"
    if acc != wanted:
        return f"{unit} accumulates {a} in {wanted}, not in {acc}"
    return None


def _too_small(request: MmaRequest, unit: str, rows: int, depth: int) -> str:
    tile = f"{request.m}x{request.n}x{request.k}"
    return f"the tile {tile} is smaller than one {unit}, {rows}x{rows}x{depth}"


def _layout_accepted(request: MmaRequest, wanted: type) -> Union[bool, str]:
    layout = request.acc_layout
    if layout is None or isinstance(layout, wanted):
        return True
    return f"the accumulator's layout is {type(layout).__name__}, not {wanted.__name__}"


def _layouts(request: MmaRequest, accumulator: Any, width: int) -> MmaLayouts:
    bits = request.a_dtype.primitive_bitwidth
    by_tdm = request.shared and request.target.has("amd.tdm")
    return MmaLayouts(
        accumulator=accumulator,
        a=DotOperandLayout(0, accumulator, width),
        b=DotOperandLayout(1, accumulator, width),
        a_shared=padded_rows([request.m, request.k], bits)
        if by_tdm
        else request.swizzled(request.k, bits),
        b_shared=_b_shared(request, width * bits),
    )


def _b_shared(request: MmaRequest, lane_bits: int) -> Any:
    """Shared memory for B, which arrives with n contiguous and is read along k.

    Where LDS loads cannot transpose, elements go to their columns one by one when they are stored:
    each is stored once and read by several warps.
    """
    bits = request.b_dtype.primitive_bitwidth
    if request.shared and request.target.has("amd.tdm"):
        rows = (request.n, request.k) if request.b_transposed else (request.k, request.n)
        return padded_rows(rows, bits)
    if request.b_transposed:
        return request.swizzled(request.k, bits)
    if bits >= 32 or request.target.has("amd.lds_transpose"):
        return request.swizzled(request.n, bits)
    columns = request.swizzled(request.k, bits, lane_bits // 8)
    return SwizzledSharedLayout(columns.vec, columns.per_phase, columns.max_phase, [0, 1])
