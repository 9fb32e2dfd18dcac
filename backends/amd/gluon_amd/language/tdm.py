"""The tensor data mover, TDM: boxes of a tensor between global memory and LDS (gfx1250).

A descriptor says where the tensor begins and which box of it one copy moves. Loads bring zero for
elements outside the tensor, stores leave them out; loads may leave gaps in LDS (PaddedSharedLayout),
stores step over them. Copies are asynchronous: they finish in order, `async_wait` or a barrier waits
for them.

Triton before 3.8 gives the position of the box to each copy. Later ones move the descriptor there,
which `update_tensor_descriptor` does too. Every way of writing it works with every Triton that can
express it.
"""

from __future__ import annotations

from typing import Optional, Sequence, Union

from gluon_amd.features import (
    TDM_FUSED,
    TDM_HINTS,
    TDM_MOVED,
    TDM_PRED_INT32,
    TDM_PREFETCH,
    TDM_STORE_BARRIER,
    TDM_STORE_GAPS,
)
from gluon_amd.language.descriptor import tensor_descriptor, tensor_descriptor_type
from gluon_amd.language.tdm_operands import (
    INT32,
    check_descriptor,
    check_row_padding,
    handles,
    int32,
    kept,
    memory_of_box,
    optional_barrier,
    pred_int32,
    sequence,
    stride,
    updated,
    vector,
    warp_hint,
    zeros,
)
from gluon_amd.tdm_rules import check_box
from gluon_core.errors import ArgumentError, DtypeError, LayoutError, ShapeError, refuse
from gluon_core.features import Feature
from gluon_core.layouts.base import SharedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar, Shape
from gluon_core.values import shared_memory_descriptor

__all__ = [
    "async_load",
    "async_load_fused",
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
    base: tl.tensor,
    shape: Sequence[Scalar[int]],
    strides: Sequence[Scalar[int]],
    block_shape: Shape,
    layout: Union[SharedLayout, tl.constexpr],
) -> tensor_descriptor:
    """Return a descriptor of the tensor at `base`.

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
    semantic = semantic_layer()
    base = semantic.check_pointer(base, "base")
    if base.type.is_block():
        raise DtypeError("must be a scalar pointer", argument="base", got=semantic.describe(base))
    layout = unwrap(layout)
    if not isinstance(layout, SharedLayout):
        raise LayoutError(
            "not a layout for shared memory",
            argument="layout",
            expected="PaddedSharedLayout, or SwizzledSharedLayout with max_phase=1",
            got=repr(layout),
        )
    block = semantic.unwrap_shape(block_shape, "block_shape")
    element = base.dtype.element_ty
    check_box(block, element.primitive_bitwidth, layout)
    semantic.check_block_shape(block, "the box")
    semantic.check_shared_layout(layout, block, batched=False)
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
        refuse(
            ArgumentError(
                "TDM reads rows of consecutive elements",
                argument="strides",
                expected="1 as the last stride",
                got=last,
                remedy="Describe the transposed tensor, and permute the view of shared memory.",
            )
        )
    bounds = [int32(semantic, value, "shape") for value in sizes]
    pace = [stride(semantic, value) for value in steps]
    known, paces = kept(sizes), kept(steps)
    kind = tensor_descriptor_type(tl.block_type(element, block), known.type, paces.type, layout)
    builder = semantic.builder
    handle = builder.create_make_tensor_descriptor(
        kind.to_ir(builder),
        base.handle,
        [value.handle for value in bounds],
        [value.handle for value in pace],
        semantic.enum("PADDING_OPTION", "PAD_ZERO"),
    )
    return tensor_descriptor(handle, known, paces, kind)


@builtin(requires=_REQUIRES, since=TDM_MOVED, name=f"{_NAME}.update_tensor_descriptor")
def update_tensor_descriptor(
    desc: tensor_descriptor,
    add_offsets: Optional[Sequence[Scalar[int]]] = None,
    set_bounds: Optional[Sequence[Scalar[int]]] = None,
    pred: Optional[Scalar[int]] = None,
    clamp_bounds: Const[bool] = False,
) -> tensor_descriptor:
    """`desc`, moved, with other bounds, or switched off.

    Args:
        desc: a descriptor.
        add_offsets: move its start by that many elements, an int32 scalar for each dimension.
        set_bounds: where copies end from then on, an int32 scalar for each dimension. Without it
            the bounds stay, so that after a move they lie beyond the tensor's end.
        pred: int1 or int32 scalar; where 0, copies with the result do nothing.
        clamp_bounds: compile-time boolean; after the move the bounds are those of the tensor again.
            A negative offset then leaves nothing inside.

    Returns:
        A `tensor_descriptor`; `desc` itself stays as it is. `shape` of both is that of `desc`.

    Raises:
        ArgumentError: nothing to change, `clamp_bounds` without `add_offsets` or with `set_bounds`.
        DtypeError, ShapeError: operands of another kind.
        CapabilityError: before Triton 3.8.

    ISA: gfx1250, none: scalar arithmetic on the D# groups.
    """
    semantic = semantic_layer()
    desc = check_descriptor(desc, "desc")
    offsets = vector(semantic, desc, add_offsets, "add_offsets")
    bounds = vector(semantic, desc, set_bounds, "set_bounds")
    clamp = _clamps(clamp_bounds)
    pred = unwrap(pred)
    if not offsets and not bounds and pred is None:
        raise ArgumentError("nothing to change", expected="add_offsets, set_bounds or pred")
    if clamp and (bounds or not offsets):
        raise ArgumentError(
            "clamps the bounds after a move",
            argument="clamp_bounds",
            expected="add_offsets, and no set_bounds",
        )
    handle = updated(semantic, desc, offsets, bounds, pred, clamp)
    return tensor_descriptor(handle, desc.shape, desc.strides, desc.type)


def _clamps(clamp_bounds: object) -> bool:
    """Return the compile-time boolean; True for a value of the kernel that `refuse` lets pass."""
    semantic = semantic_layer()
    if isinstance(unwrap(clamp_bounds), tl.tensor):
        try:
            semantic.compile_time_bool(clamp_bounds, "clamp_bounds")
        except ArgumentError as error:
            refuse(error)
        return True
    return semantic.compile_time_bool(clamp_bounds, "clamp_bounds")


@builtin(requires=_REQUIRES, name=f"{_NAME}.async_load")
def async_load(
    src: tensor_descriptor,
    offsets: Optional[Sequence[Scalar[int]]] = None,
    dest: Optional[shared_memory_descriptor] = None,
    pred: Optional[Scalar[int]] = None,
    mbarrier: Optional[shared_memory_descriptor] = None,
    warp_used_hint: Optional[Const[int]] = None,
    cache_modifier: Optional[Const[str]] = "",
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
    semantic = semantic_layer()
    desc = check_descriptor(src, "src")
    dest = memory_of_box(desc, dest, "dest")
    position = vector(semantic, desc, offsets, "offsets")
    barrier = optional_barrier(mbarrier)
    hint = warp_hint(semantic, warp_used_hint, desc.layout)
    cache = semantic.cache_modifier(cache_modifier)
    builder = semantic.builder
    if not semantic.has(TDM_MOVED):
        _unless_default(hint, "warp_used_hint")
        chosen = unwrap(cache_modifier)
        _unless_default(None if chosen in ("", "none") else chosen, "cache_modifier")
        builder.create_async_tdm_copy_global_to_local(
            desc.handle,
            handles(position or zeros(semantic, desc)),
            dest.handle,
            _early_pred(semantic, pred).handle,
            semantic.handle_or_absent(barrier),
        )
        return
    pred = unwrap(pred)
    moved = desc.handle
    if position:
        moved = updated(semantic, desc, position, [], 1 if pred is None else pred, True)
    elif pred is not None:
        moved = updated(semantic, desc, [], [], pred, False)
    builder.create_async_tdm_copy_global_to_local(
        moved,
        dest.handle,
        semantic.handle_or_absent(barrier),
        cache,
        hint,
    )


@builtin(requires=_REQUIRES, name=f"{_NAME}.async_store")
def async_store(
    dest: tensor_descriptor,
    offsets: Optional[Sequence[Scalar[int]]] = None,
    src: Optional[shared_memory_descriptor] = None,
    mbarrier: Optional[shared_memory_descriptor] = None,
    cache_modifier: Optional[Const[str]] = "",
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
    semantic = semantic_layer()
    desc = check_descriptor(dest, "dest")
    src = memory_of_box(desc, src, "src")
    check_row_padding(desc, "store", TDM_STORE_GAPS)
    position = vector(semantic, desc, offsets, "offsets")
    barrier = optional_barrier(mbarrier)
    cache = semantic.cache_modifier(cache_modifier, store=True)
    builder = semantic.builder
    if not semantic.has(TDM_MOVED):
        chosen = unwrap(cache_modifier)
        _unless_default(None if chosen in ("", "none") else chosen, "cache_modifier")
        operands = (desc.handle, handles(position or zeros(semantic, desc)), src.handle)
        if semantic.has(TDM_STORE_BARRIER):
            absent = semantic.handle_or_absent(barrier)
            builder.create_async_tdm_copy_local_to_global(*operands, absent)
            return
        _unless_default(barrier, "mbarrier", TDM_STORE_BARRIER)
        builder.create_async_tdm_copy_local_to_global(*operands)
        return
    moved = updated(semantic, desc, position, [], None, True) if position else desc.handle
    builder.create_async_tdm_copy_local_to_global(
        moved,
        src.handle,
        semantic.handle_or_absent(barrier),
        cache,
    )


@builtin(requires=_REQUIRES, since=TDM_FUSED, name=f"{_NAME}.async_load_fused")
def async_load_fused(
    members: Sequence[tuple[tensor_descriptor, shared_memory_descriptor, Const[int]]],
    cache_modifier: Optional[Const[str]] = "",
) -> None:
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
    semantic = semantic_layer()
    items = sequence(members, "members")
    if not 2 <= len(items) <= 4:
        raise ArgumentError(
            "fuses 2 to 4 loads", argument="members", expected="2 to 4 tuples", got=len(items)
        )
    cache = semantic.cache_modifier(cache_modifier)
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
        hint = warp_hint(semantic, parts[2], desc.layout, f"members[{i}][2]")
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
    semantic.builder.create_async_tdm_fused_copy_global_to_local(descs, dests, hints, cache)


@builtin(requires=_REQUIRES, since=TDM_PREFETCH, name=f"{_NAME}.prefetch")
def prefetch(
    src: tensor_descriptor,
    offsets: Sequence[Scalar[int]],
    pred: Scalar[bool] = True,
    speculative: Const[bool] = False,
) -> None:
    """Bring the box at `offsets` into the L2 cache.

    Args:
        src: a descriptor.
        offsets: where the box starts, an int32 scalar for each dimension.
        pred: int1 scalar; where false, do nothing.
        speculative: compile-time boolean; leave out lines that cannot be had at once, and addresses in
            no mapped memory.

    Raises:
        DtypeError, ShapeError, ArgumentError: operands of another kind.
        CapabilityError: before Triton 3.7.

    ISA: gfx1250, global_prefetch_b8.
    """
    semantic = semantic_layer()
    desc = check_descriptor(src, "src")
    position = vector(semantic, desc, offsets, "offsets") or zeros(semantic, desc)
    pred = semantic.predicate(pred)
    speculative = semantic.compile_time_bool(speculative, "speculative")
    semantic.builder.create_tdm_prefetch(
        desc.handle, handles(position), pred.handle, speculative, False
    )


@builtin(requires=_REQUIRES, name=f"{_NAME}.async_wait")
def async_wait(num_outstanding: Const[int] = 0) -> None:
    """Wait until at most `num_outstanding` of the most recent TDM copies are still under way.

    Args:
        num_outstanding: compile-time integer; 0 waits for all.

    Raises:
        ArgumentError: not a compile-time integer >= 0.

    ISA: gfx1250, s_wait_tensorcnt.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(num_outstanding, "num_outstanding", 0)
    semantic.builder.create_async_tdm_wait(count)


# -- emission --------------------------------------------------------------------------------------


def _early_pred(semantic: SemanticLayer, pred: Optional[Scalar[int]]) -> tl.tensor:
    """Return the predicate of a load before 3.8: int1 in 3.6, int32 in 3.7."""
    pred = unwrap(pred)
    pred = True if pred is None else pred
    if semantic.has(TDM_PRED_INT32):
        return pred_int32(semantic, pred)
    if isinstance(pred, int):
        return semantic.to_tensor(bool(pred))
    if isinstance(pred, tl.tensor) and not pred.type.is_block() and pred.dtype in INT32:
        return semantic.not_equal(pred, semantic.to_tensor(0))
    return semantic.predicate(pred)


def _unless_default(value: object, argument: str, since: Feature = TDM_HINTS) -> None:
    if value is not None:
        semantic_layer().require(since, f"{_NAME}: {argument}")
