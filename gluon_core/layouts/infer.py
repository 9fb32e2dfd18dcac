"""Infer the layouts of results as the compiler does for the ops that only move elements.

A vendor's layout may answer for itself through the hooks `_infer_permute` and `_infer_reshape`
(return a layout, or None to take the general answer).
"""

from __future__ import annotations

from math import prod
from typing import Any, Sequence

from gluon_core.errors import LayoutError, ShapeError
from gluon_core.features import CLUSTERED_JOINS, DROPS_REGISTER_COPIES, SQUEEZES_TO_SLICES
from gluon_core.layouts.base import (
    DistributedLayout,
    Layout,
    SharedLayout,
    check_int,
    check_ints,
    check_shape,
)
from gluon_core.layouts.dialect import follows
from gluon_core.layouts.distributed import (
    AutoLayout,
    BlockedLayout,
    CoalescedLayout,
    DistributedLinearLayout,
    SliceLayout,
)
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.shared import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout
from gluon_core.layouts.tiling import dim_names

__all__ = [
    "as_linear",
    "broadcast",
    "expand_dims",
    "join",
    "memdesc_index",
    "memdesc_permute",
    "memdesc_reinterpret",
    "memdesc_reshape",
    "permute",
    "reduce",
    "reshape",
    "split",
]

_UNRESOLVED = (AutoLayout, CoalescedLayout)


def as_linear(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return the same layout spelled by its bases: a DistributedLinearLayout or a SharedLinearLayout.

    Raises:
        LayoutError: the layout is padded or unresolved, or does not fit the shape.
    """
    if isinstance(layout, PaddedSharedLayout):
        raise LayoutError(
            "a padded layout is not linear",
            argument="layout",
            got=repr(layout),
            remedy="layout.to_linear(shape) gives the order of the elements before padding.",
        )
    linear = layout.to_linear(shape)
    if isinstance(layout, SharedLayout):
        return _shared_linear(linear, layout)
    return DistributedLinearLayout.from_linear(linear)


def expand_dims(layout: DistributedLayout, axis: int) -> DistributedLayout:
    """Return the layout after a dimension of size 1 was put in at `axis`.

    Raises:
        LayoutError: `layout` is not the slice of some layout along `axis`.
    """
    if isinstance(layout, _UNRESOLVED):
        return layout
    if not isinstance(layout, SliceLayout):
        raise LayoutError(
            "expand_dims needs a tensor in a SliceLayout",
            argument="layout",
            expected=f"SliceLayout({axis}, <layout of the result>)",
            got=repr(layout),
            remedy=f"Convert first: gl.convert_layout(x, gl.SliceLayout({axis}, parent)).",
        )
    if layout.dim != axis:
        raise LayoutError(
            "the tensor is a slice along another dimension",
            argument="axis",
            expected=layout.dim,
            got=axis,
            remedy=f"Make or convert the tensor in SliceLayout({axis}, parent).",
        )
    return layout.parent


def reduce(layout: DistributedLayout, axis: int) -> DistributedLayout:
    """Return the layout after dimension `axis` was reduced away; the tensor has rank 2 or more."""
    if isinstance(layout, _UNRESOLVED):
        return layout
    return _slice(check_int(axis, "axis", 0, layout.rank - 1), layout)


def _slice(dim: int, layout: DistributedLayout) -> SliceLayout:
    result = SliceLayout(dim, layout).check()
    result.check_compiler()
    return result


def broadcast(layout: DistributedLayout) -> DistributedLayout:
    """Stretching dimensions of size 1 keeps the layout."""
    return layout


def _check_permutation(order: Any, rank: int) -> list[int]:
    checked = check_ints(order, "order")
    if sorted(checked) != list(range(rank)):
        raise ShapeError(
            "not a permutation of the dimensions",
            argument="order",
            expected=f"each of 0..{rank - 1} once",
            got=checked,
        )
    return checked


def _permute_linear(layout: LinearLayout, order: Sequence[int]) -> LinearLayout:
    names = list(layout.out_dims)
    moved = layout.transpose_outs([names[d] for d in order])
    return moved.rename(outs={names[d]: names[i] for i, d in enumerate(order)})


def permute(layout: DistributedLayout, shape: Sequence[int], order: Sequence[int]) -> Any:
    """Return the layout after the dimensions were permuted: result dimension i is dimension order[i].

    Args:
        shape: of the tensor before.
    """
    order = _check_permutation(order, len(shape))
    if isinstance(layout, _UNRESOLVED):
        return layout
    _check_rank(layout, shape)
    if order == sorted(order):
        return layout
    own = _hook(layout, "_infer_permute", shape, order)
    if own is not None:
        return own
    if isinstance(layout, BlockedLayout):
        return BlockedLayout(
            [layout.size_per_thread[d] for d in order],
            [layout.threads_per_warp[d] for d in order],
            [layout.warps_per_cta[d] for d in order],
            [order.index(d) for d in layout.order],
            [[row[d] for d in order] for row in layout.cga_layout],
        )
    return DistributedLinearLayout.from_linear(_permute_linear(layout.to_linear(shape), order))


def reshape(layout: DistributedLayout, shape: Sequence[int], new_shape: Sequence[int]) -> Any:
    """Return the layout after a row-major reshape from `shape` to `new_shape`.

    A blocked layout stays blocked where its tiles map to tiles; else the result is linear.
    """
    shape, new_shape = list(check_shape(shape, None)), list(check_shape(new_shape, None))
    if prod(shape) != prod(new_shape):
        raise ShapeError(
            "a reshape keeps the number of elements",
            argument="shape",
            expected=f"{prod(shape)} elements, as {shape} has",
            got=new_shape,
        )
    if isinstance(layout, _UNRESOLVED):
        return layout
    _check_rank(layout, shape)
    own = _hook(layout, "_infer_reshape", shape, new_shape)
    if own is not None:
        return own
    if follows(SQUEEZES_TO_SLICES):
        sliced = _reshape_by_one(layout, shape, new_shape)
        if sliced is not None:
            return sliced
    if isinstance(layout, BlockedLayout):
        blocked = _reshape_blocked(layout, shape, new_shape)
        if blocked is not None:
            return blocked
    linear = layout.to_linear(shape).reshape(new_shape)
    return DistributedLinearLayout.from_linear(linear)


def _reshape_by_one(
    layout: DistributedLayout, shape: list[int], new_shape: list[int]
) -> DistributedLayout | None:
    """Return the layout where one dimension of size 1 was dropped, or put back into a slice."""
    linear = layout.to_linear(shape).reshape(new_shape)
    if isinstance(layout, SliceLayout):
        if [*shape[: layout.dim], 1, *shape[layout.dim :]] == new_shape:
            if layout.parent.to_linear(new_shape) == linear:
                return layout.parent
    if isinstance(layout, DistributedLinearLayout) or not new_shape:
        return None
    for d, size in enumerate(shape):
        if size == 1 and shape[:d] + shape[d + 1 :] == new_shape:
            sliced = SliceLayout(d, layout)
            if sliced.to_linear(new_shape) == linear:
                return sliced
    return None


def default_blocked(shape: Sequence[int], warps: int, lanes: int, blocks: int = 1) -> BlockedLayout:
    """Return the compiler's default: one element per lane, row-major; blocks split the major dims."""
    rank = len(shape)
    counts, left = [1] * rank, blocks
    for d in range(rank):
        counts[d] = max(1, min(left, shape[d]))
        left //= counts[d]
    counts[rank - 1] *= left
    cga = []
    split = [min(c, s) for c, s in zip(counts, shape)]
    for d in reversed(range(rank)):
        for bit in range(counts[d].bit_length() - 1):
            row = [0] * rank
            if 1 << bit < split[d]:
                row[d] = 1 << bit
            cga.append(row)
    tile = [max(1, s // c) for s, c in zip(shape, split)]
    per_warp, per_cta = [1] * rank, [1] * rank
    left_lanes, left_warps, left_threads = lanes, warps, lanes * warps
    for d in reversed(range(1, rank)):
        threads = max(1, min(left_threads, tile[d]))
        per_warp[d] = min(threads, left_lanes)
        per_cta[d] = max(1, min(threads // per_warp[d], left_warps))
        left_lanes //= per_warp[d]
        left_warps //= per_cta[d]
        left_threads //= threads
    per_warp[0] = lanes // prod(per_warp[1:])
    per_cta[0] = warps // prod(per_cta[1:])
    return BlockedLayout([1] * rank, per_warp, per_cta, list(range(rank))[::-1], cga)


def _groups(shape: Sequence[int], new_shape: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the least runs of dimensions that hold the same elements before and after."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(new_shape):
        before: list[int] = []
        after: list[int] = []
        size = new_size = 1
        while True:
            more = i < len(shape)
            if more and (size < new_size or size == 1 or shape[i] == 1):
                size *= shape[i]
                before.append(i)
                i += 1
            elif j < len(new_shape) and (new_size < size or new_shape[j] == 1):
                new_size *= new_shape[j]
                after.append(j)
                j += 1
            else:
                break
        groups.append((before, after))
    return groups


def _fills(shape: list[int], parts: Sequence[int]) -> bool:
    """Do the parts fill the dims from the last one on? Divides `shape` by them on the way.

    Only the first dim may have a part beyond its size: it wraps there.
    """
    for i in reversed(range(len(parts))):
        if parts[i] == 1:
            continue
        if any(size != 1 for size in shape[i + 1 :]):
            return False
        shape[i] = shape[i] // parts[i]
        if shape[i] == 0 and i != 0:
            return False
    return True


def _reshape_blocked(
    layout: BlockedLayout, shape: list[int], new_shape: list[int]
) -> BlockedLayout | None:
    """Return the blocked layout of the reshaped tensor, or None where the compiler finds none."""
    if shape == new_shape:
        return layout
    warps, lanes = prod(layout.warps_per_cta), prod(layout.threads_per_warp)
    blocks = 1 << len(layout.cga_layout)
    if layout == default_blocked(shape, warps, lanes, blocks):
        return default_blocked(new_shape, warps, lanes, blocks)
    if blocks != 1:
        return None
    levels = (layout.size_per_thread, layout.threads_per_warp, layout.warps_per_cta)
    place = [layout.order.index(d) for d in range(len(shape))]
    groups = _groups(shape, new_shape)
    for before, _ in groups:
        minor_first = [place[d] for d in reversed(before)]
        if any(b != a + 1 for a, b in zip(minor_first, minor_first[1:])):
            return None
        remaining = [shape[d] for d in before]
        if not all(_fills(remaining, [level[d] for d in before]) for level in levels):
            return None
    remaining = list(new_shape)
    results = []
    for level in levels:
        parts = [1] * len(new_shape)
        for before, after in groups:
            left = prod(level[d] for d in before)
            for d in reversed(after):
                parts[d] = min(left, remaining[d])
                left //= parts[d]
                remaining[d] //= parts[d]
            if after:
                parts[after[0]] *= left
        results.append(parts)
    groups.sort(key=lambda group: place[group[0][0]] if group[0] else 0)
    order = [d for _, after in groups for d in reversed(after)]
    size, threads, warp_counts = results
    return BlockedLayout(size, threads, warp_counts, order)


def join(layout: DistributedLayout, shape: Sequence[int]) -> DistributedLayout:
    """Return the layout after two tensors of `shape` were joined along a new last dimension of size 2."""
    if isinstance(layout, _UNRESOLVED):
        return layout
    _check_rank(layout, shape)
    if isinstance(layout, BlockedLayout):
        rank = layout.rank
        return BlockedLayout(
            [*layout.size_per_thread, 2],
            [*layout.threads_per_warp, 1],
            [*layout.warps_per_cta, 1],
            [rank, *layout.order],
            [[*row, 0] for row in layout.cga_layout],
        )
    shape = list(shape)
    linear = layout.to_linear(shape)
    if isinstance(layout, SliceLayout) and layout.dim == len(shape):
        if not follows(CLUSTERED_JOINS) and _splits_blocked(layout.parent):
            raise LayoutError(
                "the installed Triton cannot join slices of a blocked layout with several blocks",
                argument="layout",
                got=repr(layout),
                remedy=f"Use {CLUSTERED_JOINS.releases}, or convert to another layout first.",
            )
        # The parent is the result if each lane holds both elements of its pairs.
        whole = layout.parent.to_linear([*shape, 2])
        if follows(DROPS_REGISTER_COPIES):
            whole = whole.without_zero_bases("register")
        if _halves(whole) == linear:
            return layout.parent
    pair = LinearLayout.identity_1d(2, "register", f"dim{len(shape)}")
    joined = (pair * linear).transpose_outs(dim_names(len(shape) + 1))
    return DistributedLinearLayout.from_linear(joined)


def split(layout: DistributedLayout, shape: Sequence[int]) -> DistributedLayout:
    """Return the layout of each half after a split along the last dimension, of size 2.

    Raises:
        LayoutError: a lane does not hold both elements of each pair.
    """
    if isinstance(layout, _UNRESOLVED):
        return layout
    _check_rank(layout, shape)
    if len(shape) < 2 or shape[-1] != 2:
        raise ShapeError(
            "split needs rank 2 or more and a last dimension of size 2",
            argument="shape",
            got=list(shape),
        )
    if _halves(layout.to_linear(shape)) is None:
        raise LayoutError(
            "each lane must hold both elements of the last dimension",
            argument="layout",
            expected="a register basis that moves along the last dimension",
            got=repr(layout),
            remedy="Convert to a layout with size_per_thread 2 in the last dimension.",
        )
    return _slice(len(shape) - 1, layout)


def _splits_blocked(layout: DistributedLayout) -> bool:
    return (
        isinstance(layout, BlockedLayout)
        and layout.size_per_thread[-1] == 2
        and layout.threads_per_warp[-1] == layout.warps_per_cta[-1] == 1
        and bool(layout.cga_layout)
    )


def _halves(linear: LinearLayout) -> LinearLayout | None:
    """Without the last dimension and the register that walks it; None if no register does."""
    rows = linear.bases["register"]
    pairs = [i for i, row in enumerate(rows) if row[-1]]
    if not pairs:
        return None
    del rows[pairs[0]]
    kept = list(linear.out_dims)[:-1]
    halves = LinearLayout({**linear.bases, "register": rows}, linear.out_dims)
    return halves.sublayout(halves.in_dims, kept)


# -- shared memory -------------------------------------------------------------------------------


def memdesc_index(layout: SharedLayout, shape: Sequence[int]) -> SharedLayout:
    """Return the layout of one buffer of a buffer whose first dimension counts buffers: the same."""
    if len(shape) < 2:
        raise ShapeError(
            "indexing needs a buffer of rank 2 or more", argument="shape", got=list(shape)
        )
    rank = layout._rank_or_none()
    if rank is not None and rank != len(shape) - 1:
        raise LayoutError(
            "the layout does not describe the indexed buffers",
            argument="layout",
            expected=f"rank {len(shape) - 1}",
            got=repr(layout),
        )
    return layout


def _own_shape(layout: SharedLayout, shape: Sequence[int]) -> list[int]:
    if layout.rank != len(shape):
        raise LayoutError(
            "the layout and the buffer have different ranks",
            argument="layout",
            expected=f"rank {len(shape)}",
            got=repr(layout),
        )
    return list(shape)


def _shared_linear(linear: LinearLayout, source: SharedLayout) -> SharedLinearLayout:
    layout = SharedLinearLayout.from_linear(linear, getattr(source, "alignment", 16))
    layout.check_compiler()
    return layout


def memdesc_permute(layout: SharedLayout, shape: Sequence[int], order: Sequence[int]) -> Any:
    """Return the layout of a view with permuted dimensions: view dimension i is dimension order[i]."""
    shape = _own_shape(layout, shape)
    order = _check_permutation(order, len(shape))
    if order == sorted(order):
        return layout
    own = _hook(layout, "_infer_permute", shape, order)
    if own is not None:
        return own
    if isinstance(layout, SwizzledSharedLayout):
        return SwizzledSharedLayout(
            layout.vec,
            layout.per_phase,
            layout.max_phase,
            [order.index(d) for d in layout.order],
            [[row[d] for d in order] for row in layout.cga_layout],
        )
    if isinstance(layout, PaddedSharedLayout):
        return PaddedSharedLayout(
            layout.interval_padding_pairs,
            [[row[d] for d in order] for row in layout.offset_bases],
            [[row[d] for d in order] for row in layout.cga_layout],
            [layout.shape[d] for d in order],
        )
    linear = _permute_linear(layout.to_linear(shape), order)
    return _shared_linear(linear, layout)


def memdesc_reshape(layout: SharedLayout, shape: Sequence[int], new_shape: Sequence[int]) -> Any:
    """Return the layout of a view with another shape, row-major."""
    shape = _own_shape(layout, shape)
    new_shape = list(check_shape(new_shape, None))
    if prod(shape) != prod(new_shape):
        raise ShapeError(
            "a reshape keeps the number of elements",
            argument="shape",
            expected=f"{prod(shape)} elements, as {shape} has",
            got=new_shape,
        )
    own = _hook(layout, "_infer_reshape", shape, new_shape)
    if own is not None:
        return own
    linear = layout.to_linear(shape).reshape(new_shape)
    if isinstance(layout, PaddedSharedLayout):
        bases = linear.bases
        return PaddedSharedLayout(
            layout.interval_padding_pairs,
            bases["offset"],
            shape=new_shape,
            block_bases=bases["block"],
        ).check()
    return _shared_linear(linear, layout)


def memdesc_reinterpret(
    src_bits: int, src_shape: Sequence[int], bits: int, shape: Sequence[int], layout: SharedLayout
) -> SharedLayout:
    """Check a reinterpretation of a buffer's bytes and give back its layout.

    Args:
        src_bits, bits: element widths, before and after.
        src_shape, shape: before and after.
        layout: after.

    Raises:
        ShapeError: the sizes in bits differ.
        LayoutError: the layout does not fit the new shape.
    """
    if src_bits * prod(src_shape) < bits * prod(shape):
        raise ShapeError(
            "a reinterpreted buffer cannot be larger than the memory it views",
            argument="shape",
            expected=f"at most {src_bits * prod(src_shape)} bits",
            got=f"{list(shape)} of {bits} bits",
        )
    rank = layout._rank_or_none()
    if rank is not None and rank not in (len(shape), len(shape) - 1):
        raise LayoutError(
            "the layout does not fit the shape",
            argument="layout",
            expected=f"rank {len(shape)}",
            got=repr(layout),
        )
    return layout


def _hook(layout: Layout, name: str, *args: Any) -> Any:
    hook = getattr(layout, name, None)
    return hook(*args) if hook is not None else None


def _check_rank(layout: Layout, shape: Sequence[int]) -> None:
    if layout.rank != len(shape):
        raise LayoutError(
            "the layout and the tensor have different ranks",
            argument="layout",
            expected=f"rank {len(shape)}",
            got=repr(layout),
        )
