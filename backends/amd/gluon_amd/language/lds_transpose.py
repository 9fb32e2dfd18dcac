"""Loads from LDS that transpose on the way."""

from __future__ import annotations

from typing import Optional, Union

from gluon_amd.features import REPACKED_FP4
from gluon_core.errors import DtypeError, LayoutError, ShapeError
from gluon_core.layouts import DotOperandLayout, PaddedSharedLayout
from gluon_core.layouts.base import SharedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.values import shared_memory_descriptor

__all__ = ["load_shared_fp4_repacked"]

_NAME = "gl.amd.cdna4.load_shared_fp4_repacked"


@builtin(requires=("amd.lds_transpose", "amd.scaled_convert"), since=REPACKED_FP4, name=_NAME)
def load_shared_fp4_repacked(
    mem_desc: shared_memory_descriptor, layout: Union[DotOperandLayout, tl.constexpr]
) -> tl.tensor:
    """Load fp4 that is packed along M or N as the operand of a scaled matrix multiplication, which
    wants it packed along K.

    Args:
        mem_desc: view of shared memory of int8 or uint8, two fp4 (e2m1) in each: [M / 2, K] for
            operand 0, [K, N / 2] for operand 1, with the packed dimension the fastest.
        layout: `DotOperandLayout(...)` of the result.

    Returns:
        A tensor of the buffer's dtype: [M, K / 2] for operand 0, [K / 2, N] for operand 1, the low half of each
        byte first along K.

    Raises:
        DtypeError: no shared memory, or not bytes.
        LayoutError: not the layout of an operand, or a buffer whose fastest dimension is K.
        ShapeError: the buffer is no matrix with an even K.

    ISA: CDNA4 11.4, ds_read_b64_tr_b4.
    """
    semantic = semantic_layer()
    if not isinstance(mem_desc, shared_memory_descriptor):
        raise DtypeError(
            "not shared memory",
            argument="mem_desc",
            expected="a shared_memory_descriptor",
            got=semantic.describe(mem_desc),
        )
    if mem_desc.dtype not in (tl.int8, tl.uint8):
        raise DtypeError(
            "packed fp4 comes in bytes",
            argument="mem_desc",
            expected="int8 or uint8",
            got=mem_desc.dtype,
        )
    layout = unwrap(layout)
    if not isinstance(layout, DotOperandLayout):
        raise LayoutError(
            "not the layout of an operand",
            argument="layout",
            expected="DotOperandLayout(...)",
            got=repr(layout),
        )
    semantic.require_unbatched(mem_desc)
    shape = list(mem_desc.shape)
    packed = layout.operand_index  # M of operand 0, N of operand 1
    if len(shape) != 2 or shape[1 - packed] % 2:
        raise ShapeError(
            "must be a matrix with an even K",
            argument="mem_desc",
            expected="[M / 2, K] or [K, N / 2]",
            got=shape,
        )
    if _fastest(mem_desc.layout) != packed:
        raise LayoutError(
            "the packed dimension must be the fastest",
            argument="mem_desc",
            expected=f"a layout whose first dimension in order is {packed}",
            got=repr(mem_desc.layout),
        )
    shape[packed] *= 2
    shape[1 - packed] //= 2
    result = semantic.tensor_type(mem_desc.dtype, shape, layout)
    builder = semantic.builder
    handle = builder.create_local_load_packed_transposed(result.to_ir(builder), mem_desc.handle)
    return semantic.make_tensor(handle, result)


def _fastest(layout: SharedLayout) -> int:
    if isinstance(layout, PaddedSharedLayout):
        return next(d for d, step in enumerate(layout.offset_bases[0]) if step)
    order: Optional[list[int]] = getattr(layout, "order", None)
    return order[0] if order else layout.rank - 1
