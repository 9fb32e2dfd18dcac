"""The tensor data mover, TDM: boxes of a tensor between global memory and LDS (gfx1250).

A descriptor says where the tensor lies and which box of it one copy moves. Loads bring zero for
elements outside the tensor, stores leave them out; loads may leave gaps in LDS (PaddedSharedLayout),
stores step over them. Copies are asynchronous: they finish in order, `async_wait` or a barrier waits
for them.

Triton before 3.8 gives the position of the box to each copy. Later ones move the descriptor there,
which `update_tensor_descriptor` does too. Every way of writing it works with every Triton that can
express it.
"""

from __future__ import annotations

from typing import Any, Sequence

from gluon_amd.language.descriptor import tensor_descriptor, tensor_descriptor_type
from gluon_amd.language.tdm_operands import (
    INT32,
    check_descriptor,
    check_gather_padding,
    check_row_op,
    check_row_padding,
    handles,
    int32,
    kept,
    memory_of_box,
    optional_barrier,
    row_indices,
    sequence,
    stride,
    vector,
    warp_hint,
    zeros,
)
from gluon_amd.tdm_rules import check_box, padding_of
from gluon_core import _triton
from gluon_core._triton import block_type, ir, tl, unwrap
from gluon_core.builtin import builtin
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError
from gluon_core.layouts.base import SharedLayout
from gluon_core.semantic.base import describe
from gluon_core.semantic.memory import LOAD_CACHE, STORE_CACHE, check_choice
from gluon_core.semantic.operands import (
    compile_time_bool,
    compile_time_int,
    handle_or_absent,
    predicate,
)
from gluon_core.values import check_block_shape, shared_memory_descriptor, unwrap_shape

__all__ = [
    "async_gather",
    "async_load",
    "async_load_fused",
    "async_scatter",
    "async_store",
    "async_wait",
    "make_tensor_descriptor",
    "prefetch",
    "tensor_descriptor",
    "tensor_descriptor_type",
    "update_tensor_descriptor",
]

_REQUIRES = ("amd.tdm",)
_NAME = "gl.amd.gfx1250.tdm"


@builtin(requires=_REQUIRES, name=f"{_NAME}.make_tensor_descriptor")
def make_tensor_descriptor(
    base: Any, shape: Any, strides: Any, block_shape: Any, layout: Any, _semantic: Any = None
) -> Any:
    """A descriptor of the tensor at `base`.

    Args:
        base: scalar pointer to the first element; elements have 1, 2, 4 or 8 bytes.
        shape: of the tensor, 1 to 5 int32 scalars.
        strides: of the tensor in elements, as many integer scalars; the last one is 1.
        block_shape: of the box that one copy moves, compile-time powers of two.
        layout: of the box in LDS: PaddedSharedLayout, or SwizzledSharedLayout with max_phase=1;
            PartitionedSharedLayout of one of these.

    Returns:
        A `tensor_descriptor`.

    Raises:
        DtypeError: not a scalar pointer, or a shape or stride of another dtype.
        ShapeError: ranks that differ, or not 1 to 5.
        ArgumentError: the last stride is known not to be 1.
        LayoutError: a layout that TDM does not write.

    ISA: gfx1250, D# groups of tensor_load_to_lds.
    """
    base = _semantic.check_pointer(base, "base")
    if base.type.is_block():
        raise DtypeError("must be a scalar pointer", argument="base", got=describe(base))
    layout = unwrap(layout)
    if not isinstance(layout, SharedLayout):
        raise LayoutError(
            "not a layout for shared memory",
            argument="layout",
            expected="PaddedSharedLayout, or SwizzledSharedLayout with max_phase=1",
            got=repr(layout),
        )
    block = unwrap_shape(block_shape, "block_shape")
    element = base.dtype.element_ty
    check_box(block, element.primitive_bitwidth, layout)
    check_block_shape(block, "the box")
    _semantic._check_shared_layout(layout, block, batched=False)
    sizes, steps = sequence(shape, "shape"), sequence(strides, "strides")
    for argument, values in (("shape", sizes), ("strides", steps)):
        if len(values) != len(block):
            raise ShapeError(
                "the rank is not that of the box",
                argument=argument,
                expected=f"{len(block)} values for block_shape {block}",
                got=len(values),
            )
    last = unwrap(steps[-1])
    if isinstance(last, int) and last != 1:
        raise ArgumentError(
            "TDM reads rows of consecutive elements",
            argument="strides",
            expected="1 as the last stride",
            got=last,
            remedy="Describe the transposed tensor, and permute the view of shared memory.",
        )
    bounds = [int32(_semantic, value, "shape") for value in sizes]
    pace = [stride(_semantic, value) for value in steps]
    sizes, steps = kept(sizes), kept(steps)
    kind = tensor_descriptor_type(block_type(element, block), sizes.type, steps.type, layout)
    builder = _semantic.builder
    handle = builder.create_make_tensor_descriptor(
        kind.to_ir(builder),
        base.handle,
        [value.handle for value in bounds],
        [value.handle for value in pace],
        ir.PADDING_OPTION.PAD_ZERO,
    )
    return tensor_descriptor(handle, sizes, steps, kind)


@builtin(requires=_REQUIRES, since=(3, 8), name=f"{_NAME}.update_tensor_descriptor")
def update_tensor_descriptor(
    desc: Any,
    add_offsets: Any = None,
    set_bounds: Any = None,
    pred: Any = None,
    clamp_bounds: Any = False,
    _semantic: Any = None,
) -> Any:
    """`desc`, moved, with other bounds, or switched off.

    Args:
        desc: a descriptor.
        add_offsets: move its start by that many elements, an int32 scalar for each dimension.
        set_bounds: its shape from then on, an int32 scalar for each dimension. Without it the
            shape stays, so that after a move the bounds lie beyond the tensor's end.
        pred: int1 or int32 scalar; where 0, copies with the result do nothing.
        clamp_bounds: compile-time boolean; after the move the bounds are those of the tensor again.
            A negative offset then leaves nothing inside.

    Returns:
        A `tensor_descriptor`; `desc` itself stays as it is.

    Raises:
        ArgumentError: nothing to change, `clamp_bounds` without `add_offsets` or with `set_bounds`.
        DtypeError, ShapeError: operands of another kind.
        CapabilityError: before Triton 3.8.

    ISA: gfx1250, none: scalar arithmetic on the D# groups.
    """
    desc = check_descriptor(desc, "desc")
    offsets = vector(_semantic, desc, add_offsets, "add_offsets")
    bounds = vector(_semantic, desc, set_bounds, "set_bounds")
    clamp = compile_time_bool(clamp_bounds, "clamp_bounds")
    pred = unwrap(pred)
    if not offsets and not bounds and pred is None:
        raise ArgumentError("nothing to change", expected="add_offsets, set_bounds or pred")
    if clamp and (bounds or not offsets):
        raise ArgumentError(
            "clamps the bounds after a move",
            argument="clamp_bounds",
            expected="add_offsets, and no set_bounds",
        )
    handle = _update(_semantic, desc, offsets, bounds, pred, clamp)
    if not bounds:
        return tensor_descriptor(handle, desc.shape, desc.strides, desc.type)
    shape = kept(sequence(set_bounds, "set_bounds"))
    kind = tensor_descriptor_type(desc.block_type, shape.type, desc.type.strides_type, desc.layout)
    return tensor_descriptor(handle, shape, desc.strides, kind)


@builtin(requires=_REQUIRES, name=f"{_NAME}.async_load")
def async_load(
    src: Any,
    offsets: Any = None,
    dest: Any = None,
    pred: Any = None,
    mbarrier: Any = None,
    warp_used_hint: Any = None,
    cache_modifier: Any = "",
    _semantic: Any = None,
) -> None:
    """Start copying the box at `offsets` into LDS; elements outside the tensor become 0.

    Args:
        src: a descriptor.
        offsets: where the box starts, an int32 scalar for each dimension, not negative. None for
            the descriptor's own start.
        dest: view of shared memory, of the box's shape, dtype and layout.
        pred: int1 or int32 scalar; where 0, nothing is copied.
        mbarrier: a barrier; every warp that takes part arrives at it once its part is copied.
        warp_used_hint: compile-time bit mask of the warps that share the work: a power of two of
            them, which agree in all other bits of their number. Triton 3.8.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"`; Triton 3.8.

    Raises:
        DtypeError, ShapeError: operands of another kind.
        LayoutError: `dest` is laid out differently.
        ArgumentError: no destination, or an illegal hint or modifier.
        CapabilityError: hint or modifier with an older Triton.

    ISA: gfx1250, tensor_load_to_lds.
    """
    desc = check_descriptor(src, "src")
    dest = memory_of_box(desc, dest, "dest")
    position = vector(_semantic, desc, offsets, "offsets")
    barrier = optional_barrier(mbarrier)
    hint = warp_hint(_semantic, warp_used_hint, desc.layout)
    cache = check_choice("cache_modifier", cache_modifier, LOAD_CACHE)
    builder = _semantic.builder
    if not _triton.at_least(3, 8):
        _unless_default(hint, "warp_used_hint")
        _unless_default(cache or None, "cache_modifier")
        builder.create_async_tdm_copy_global_to_local(
            desc.handle,
            handles(position or zeros(_semantic, desc)),
            dest.handle,
            _early_pred(_semantic, pred).handle,
            handle_or_absent(_semantic, barrier),
        )
        return
    pred = unwrap(pred)
    moved = desc.handle
    if position:
        moved = _update(_semantic, desc, position, [], 1 if pred is None else pred, True)
    elif pred is not None:
        moved = _update(_semantic, desc, [], [], pred, False)
    builder.create_async_tdm_copy_global_to_local(
        moved,
        dest.handle,
        handle_or_absent(_semantic, barrier),
        _semantic._str_to_load_cache_modifier(cache),
        hint,
    )


@builtin(requires=_REQUIRES, name=f"{_NAME}.async_store")
def async_store(
    dest: Any,
    offsets: Any = None,
    src: Any = None,
    mbarrier: Any = None,
    cache_modifier: Any = "",
    _semantic: Any = None,
) -> None:
    """Start copying LDS to the box at `offsets`; elements outside the tensor are left out.

    Args:
        dest: a descriptor. Gaps in its layout must follow each row of the box (before Triton 3.7
            there must be none).
        offsets: where the box starts, an int32 scalar for each dimension, not negative. None for
            the descriptor's own start.
        src: view of shared memory, of the box's shape, dtype and layout.
        mbarrier: a barrier; every warp arrives at it once its part is copied. Triton 3.7.
        cache_modifier: `".wb"`, `".cg"`, `".cs"` or `".wt"`; Triton 3.8.

    Raises:
        DtypeError, ShapeError: operands of another kind.
        LayoutError: `src` is laid out differently, or with other gaps.
        ArgumentError: no source, or no such modifier.
        CapabilityError: barrier or modifier with an older Triton.

    ISA: gfx1250, tensor_store_from_lds.
    """
    desc = check_descriptor(dest, "dest")
    src = memory_of_box(desc, src, "src")
    check_row_padding(desc, "store", (3, 7))
    position = vector(_semantic, desc, offsets, "offsets")
    barrier = optional_barrier(mbarrier)
    cache = check_choice("cache_modifier", cache_modifier, STORE_CACHE)
    builder = _semantic.builder
    if not _triton.at_least(3, 8):
        _unless_default(cache or None, "cache_modifier")
        operands = (desc.handle, handles(position or zeros(_semantic, desc)), src.handle)
        if _triton.at_least(3, 7):
            absent = handle_or_absent(_semantic, barrier)
            builder.create_async_tdm_copy_local_to_global(*operands, absent)
            return
        _unless_default(barrier, "mbarrier", (3, 7))
        builder.create_async_tdm_copy_local_to_global(*operands)
        return
    moved = _update(_semantic, desc, position, [], None, True) if position else desc.handle
    builder.create_async_tdm_copy_local_to_global(
        moved,
        src.handle,
        handle_or_absent(_semantic, barrier),
        _semantic._str_to_store_cache_modifier(cache),
    )


@builtin(requires=_REQUIRES, since=(3, 9), name=f"{_NAME}.async_load_fused")
def async_load_fused(members: Any, cache_modifier: Any = "", _semantic: Any = None) -> None:
    """Start several loads with one instruction: each warp copies for one of them.

    Args:
        members: 2 to 4 tuples `(desc, dest, warp_used_hint)`, each as in `async_load` without
            offsets; the warps of the hints do not overlap.
        cache_modifier: `".ca"`, `".cg"`, `".cs"` or `".cv"`, for all of them.

    Raises:
        ArgumentError: another number of members, not such tuples, or hints that overlap.
        DtypeError, ShapeError, LayoutError: a member is of another kind.
        CapabilityError: before Triton 3.9.

    ISA: gfx1250, tensor_load_to_lds.
    """
    items = sequence(members, "members")
    if not 2 <= len(items) <= 4:
        raise ArgumentError(
            "fuses 2 to 4 loads", argument="members", expected="2 to 4 tuples", got=len(items)
        )
    cache = check_choice("cache_modifier", cache_modifier, LOAD_CACHE)
    descs, dests, hints, seen = [], [], [], 0
    for i, item in enumerate(items):
        parts = sequence(item, f"members[{i}]")
        if len(parts) != 3:
            raise ArgumentError(
                "not a member",
                argument=f"members[{i}]",
                expected="(desc, dest, warp_used_hint)",
                got=f"{len(parts)} values",
            )
        desc = check_descriptor(parts[0], f"members[{i}][0]")
        dest = memory_of_box(desc, parts[1], f"members[{i}][1]")
        hint = warp_hint(_semantic, parts[2], desc.layout, f"members[{i}][2]")
        if hint is None or hint & seen:
            raise ArgumentError(
                "each warp copies for one member",
                argument=f"members[{i}][2]",
                expected="a bit mask of warps that no other member has",
                got="None" if hint is None else bin(hint),
            )
        seen |= hint
        descs.append(desc.handle)
        dests.append(dest.handle)
        hints.append(hint)
    _semantic.builder.create_async_tdm_fused_copy_global_to_local(
        descs, dests, hints, _semantic._str_to_load_cache_modifier(cache)
    )


@builtin(requires=_REQUIRES, since=(3, 7), name=f"{_NAME}.async_gather")
def async_gather(
    desc: Any,
    src_row_indices: Any,
    src_col_offset: Any = None,
    dst: Any = None,
    mbarrier: Any = None,
    _semantic: Any = None,
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
        LayoutError: the indices differ between lanes, or `dst` is laid out differently.
        CapabilityError: before Triton 3.7.

    ISA: gfx1250, tensor_load_to_lds in gather mode.
    """
    _rows_op(_semantic, "gather", desc, src_row_indices, src_col_offset, dst, mbarrier)


@builtin(requires=_REQUIRES, since=(3, 7), name=f"{_NAME}.async_scatter")
def async_scatter(
    desc: Any,
    dst_row_indices: Any,
    dst_col_offset: Any = None,
    src: Any = None,
    mbarrier: Any = None,
    _semantic: Any = None,
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
        LayoutError: the indices differ between lanes, or `src` is laid out differently.
        CapabilityError: before Triton 3.7.

    ISA: gfx1250, tensor_store_from_lds in gather mode.
    """
    _rows_op(_semantic, "scatter", desc, dst_row_indices, dst_col_offset, src, mbarrier)


@builtin(requires=_REQUIRES, since=(3, 7), name=f"{_NAME}.prefetch")
def prefetch(
    src: Any, offsets: Any, pred: Any = True, speculative: Any = False, _semantic: Any = None
) -> None:
    """Bring the box at `offsets` into the L2 cache.

    Args:
        src: a descriptor.
        offsets: where the box starts, an int32 scalar for each dimension.
        pred: int1 scalar; where false, do nothing.
        speculative: compile-time boolean; leave out what cannot be had at once, and what lies in no
            mapped memory.

    Raises:
        DtypeError, ShapeError, ArgumentError: operands of another kind.
        CapabilityError: before Triton 3.7.

    ISA: gfx1250, global_prefetch_b8.
    """
    desc = check_descriptor(src, "src")
    position = vector(_semantic, desc, offsets, "offsets") or zeros(_semantic, desc)
    pred = predicate(_semantic, pred)
    speculative = compile_time_bool(speculative, "speculative")
    _semantic.builder.create_tdm_prefetch(
        desc.handle, handles(position), pred.handle, speculative, False
    )


@builtin(requires=_REQUIRES, name=f"{_NAME}.async_wait")
def async_wait(num_outstanding: Any = 0, _semantic: Any = None) -> None:
    """Wait until at most `num_outstanding` of the most recent TDM copies are still under way.

    Args:
        num_outstanding: compile-time integer; 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.

    ISA: gfx1250, s_wait_tensorcnt.
    """
    count = compile_time_int(num_outstanding, "num_outstanding", 0)
    _semantic.builder.create_async_tdm_wait(count)


# -- emission --------------------------------------------------------------------------------------


def _update(
    semantic: Any, desc: Any, offsets: Sequence, bounds: Sequence, pred: Any, clamp: bool
) -> Any:
    """The handle of a descriptor that was changed; `pred` is None, a number or a scalar."""
    switch = None if pred is None else _pred_int32(semantic, pred)
    return semantic.builder.create_update_tensor_descriptor(
        desc.handle,
        handles(offsets),
        handles(bounds),
        handle_or_absent(semantic, switch),
        clamp,
    )


def _rows_op(
    semantic: Any, op: str, desc: Any, rows: Any, column: Any, box: Any, mbarrier: Any
) -> None:
    memory = "dst" if op == "gather" else "src"
    if isinstance(unwrap(column), shared_memory_descriptor):
        # The form without a column: the arguments after the indices stand one further left.
        if unwrap(box) is not None and unwrap(mbarrier) is None:
            mbarrier, box = box, None
        if unwrap(box) is not None:
            raise ArgumentError("given twice", argument=memory, got=describe(box))
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
    if not _triton.at_least(3, 8) and padding_of(desc.layout) is not None:
        raise LayoutError(
            f"the installed Triton {op}s buffers without gaps only",
            argument=memory,
            got=repr(desc.layout),
            remedy="Use SwizzledSharedLayout(1, 1, 1, [1, 0]), or Triton 3.8.",
        )
    if op == "scatter":
        check_row_padding(desc, op, (3, 8))
    if op == "gather":
        check_gather_padding(desc)
    barrier = handle_or_absent(semantic, optional_barrier(mbarrier))
    column = unwrap(column)
    create = getattr(semantic.builder, f"create_async_tdm_{op}")
    if not _triton.at_least(3, 8):
        at = int32(semantic, 0 if column is None else column, "column offset")
        create(desc.handle, rows.handle, at.handle, box.handle, barrier)
        return
    handle = desc.handle
    if column is not None and not (isinstance(column, int) and column == 0):
        at = [int32(semantic, 0, "row"), int32(semantic, column, "column offset")]
        handle = _update(semantic, desc, at, [], None, True)
    create(handle, rows.handle, box.handle, barrier)


def _early_pred(semantic: Any, pred: Any) -> Any:
    """The predicate of a load before 3.8: int1 in 3.6, int32 in 3.7."""
    pred = unwrap(pred)
    pred = True if pred is None else pred
    if _triton.at_least(3, 7):
        return _pred_int32(semantic, pred)
    if isinstance(pred, int):
        return semantic.to_tensor(bool(pred))
    if isinstance(pred, tl.tensor) and not pred.type.is_block() and pred.dtype in INT32:
        return semantic.not_equal(pred, semantic.to_tensor(0))
    return predicate(semantic, pred)


def _pred_int32(semantic: Any, pred: Any) -> Any:
    pred = unwrap(pred)
    if isinstance(pred, int):
        return semantic.to_tensor(int(pred))
    if isinstance(pred, tl.tensor) and not pred.type.is_block() and pred.dtype in INT32:
        return pred
    return semantic.cast(predicate(semantic, pred), tl.int32)


def _unless_default(value: Any, argument: str, since: tuple[int, int] = (3, 8)) -> None:
    if value is not None:
        _triton.require(since, f"{_NAME}: {argument}")
