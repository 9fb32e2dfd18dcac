"""Rows of a matrix between global memory and LDS, each at an index of its own (gfx1250)."""

from __future__ import annotations

from typing import Any, Optional, Union

from gluon_amd.features import TDM_MOVED, TDM_ROW_GAPS, TDM_ROWS
from gluon_amd.language.descriptor import tensor_descriptor
from gluon_amd.language.tdm_operands import (
    check_descriptor,
    check_gather_padding,
    check_row_op,
    check_row_padding,
    int32,
    memory_of_box,
    optional_barrier,
    row_indices,
    updated,
)
from gluon_amd.tdm_rules import padding_of
from gluon_core.errors import ArgumentError, LayoutError, ShapeError
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Scalar
from gluon_core.values import shared_memory_descriptor

__all__ = ["async_gather", "async_scatter"]

_REQUIRES = ("amd.tdm",)
_NAME = "gl.amd.gfx1250.tdm"


@builtin(requires=_REQUIRES, since=TDM_ROWS, name=f"{_NAME}.async_gather")
def async_gather(
    desc: tensor_descriptor,
    src_row_indices: tl.tensor,
    src_col_offset: Optional[Union[Scalar[int], shared_memory_descriptor]] = None,
    dst: Optional[shared_memory_descriptor] = None,
    mbarrier: Optional[shared_memory_descriptor] = None,
) -> None:
    """Start copying rows of a matrix into LDS: row `src_row_indices[i]` to row i of `dst`.

    Both forms work with every Triton: `(desc, src_row_indices, dst, mbarrier)`, and the one of 3.7
    with the column at which the rows start, `(desc, src_row_indices, src_col_offset, dst, mbarrier)`.

    Args:
        desc: a descriptor of a matrix.
        src_row_indices: int16 or int32 tensor, an index for each row of `dst`, in a layout that
            gives every lane of a warp the same ones, such as
            `SliceLayout(1, BlockedLayout([rows, 1], [1, 32], [1, num_warps], [1, 0]))`.
        src_col_offset: int32 scalar; 0 if left out.
        dst: view of shared memory, of the box's shape, dtype and layout. Gaps before Triton 3.8
            are not supported.
        mbarrier: a barrier; every warp arrives at it once its part is copied.

    Raises:
        DtypeError, ShapeError: operands of another kind.
        LayoutError: the indices differ between lanes; or `dst` is laid out differently, or with gaps
            that the installed Triton does not gather.
        ArgumentError: no `dst`, or a cluster for which the installed Triton gathers no rows.
        CapabilityError: before Triton 3.7.

    ISA: gfx1250, tensor_load_to_lds in gather mode.
    """
    _rows(semantic_layer(), "gather", desc, src_row_indices, src_col_offset, dst, mbarrier)


@builtin(requires=_REQUIRES, since=TDM_ROWS, name=f"{_NAME}.async_scatter")
def async_scatter(
    desc: tensor_descriptor,
    dst_row_indices: tl.tensor,
    dst_col_offset: Optional[Union[Scalar[int], shared_memory_descriptor]] = None,
    src: Optional[shared_memory_descriptor] = None,
    mbarrier: Optional[shared_memory_descriptor] = None,
) -> None:
    """Start copying rows of LDS into a matrix: row i of `src` to row `dst_row_indices[i]`.

    Both forms work with every Triton: `(desc, dst_row_indices, src, mbarrier)`, and the one of 3.7
    with the column at which the rows start, `(desc, dst_row_indices, dst_col_offset, src, mbarrier)`.

    Args:
        desc: a descriptor of a matrix. Gaps in its layout must follow each row of the box (before
            Triton 3.8 there must be none).
        dst_row_indices: int16 or int32 tensor, as in `async_gather`.
        dst_col_offset: int32 scalar; 0 if left out.
        src: view of shared memory, of the box's shape, dtype and layout.
        mbarrier: a barrier; every warp arrives at it once its part is copied.

    Raises:
        DtypeError, ShapeError: operands of another kind.
        LayoutError: the indices differ between lanes; or `src` is laid out differently, or with gaps
            that the installed Triton does not scatter.
        ArgumentError: no `src`, or a cluster for which the installed Triton scatters no rows.
        CapabilityError: before Triton 3.7.

    ISA: gfx1250, tensor_store_from_lds in gather mode.
    """
    _rows(semantic_layer(), "scatter", desc, dst_row_indices, dst_col_offset, src, mbarrier)


def _rows(
    semantic: SemanticLayer,
    op: str,
    desc: tensor_descriptor,
    rows: tl.tensor,
    column: object,
    box: Any,
    mbarrier: Any,
) -> None:
    memory = "dst" if op == "gather" else "src"
    if isinstance(unwrap(column), shared_memory_descriptor):
        # The form without a column: the arguments after the indices stand one further left.
        if unwrap(box) is not None and unwrap(mbarrier) is None:
            mbarrier, box = box, None
        if unwrap(box) is not None:
            raise ArgumentError("given twice", argument=memory, got=semantic.describe(box))
        column, box = None, column
    desc = check_descriptor(desc, "desc")
    if len(desc.block_shape) != 2:
        raise ShapeError(
            f"{op}s rows of a matrix",
            argument="desc",
            expected="a descriptor of 2 dimensions",
            got=str(desc.type),
        )
    box = memory_of_box(desc, box, memory)
    rows = row_indices(semantic, rows, int(unwrap(desc.block_shape[0])), op)
    check_row_op(semantic, desc, rows, op)
    if not semantic.has(TDM_ROW_GAPS) and padding_of(desc.layout) is not None:
        raise LayoutError(
            f"the installed Triton {op}s buffers without gaps only",
            argument=memory,
            got=repr(desc.layout),
            remedy=f"Use SwizzledSharedLayout(1, 1, 1, [1, 0]), or {TDM_ROW_GAPS.releases}.",
        )
    if op == "scatter":
        check_row_padding(desc, op, TDM_ROW_GAPS)
    if op == "gather":
        check_gather_padding(desc)
    barrier = semantic.handle_or_absent(optional_barrier(mbarrier))
    column = unwrap(column)
    create = getattr(semantic.builder, f"create_async_tdm_{op}")
    if not semantic.has(TDM_MOVED):
        first_column = int32(semantic, 0 if column is None else column, "column offset")
        create(desc.handle, rows.handle, first_column.handle, box.handle, barrier)
        return
    handle = desc.handle
    if column is not None and not (isinstance(column, int) and column == 0):
        start = [int32(semantic, 0, "row"), int32(semantic, column, "column offset")]
        handle = updated(semantic, desc, start, [], None, True)
    create(handle, rows.handle, box.handle, barrier)
