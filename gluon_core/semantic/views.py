"""Check other views of memory against the rules of the installed compiler."""

from __future__ import annotations

import math
from typing import Any, Optional

from gluon_core import _triton
from gluon_core.errors import LayoutError, ShapeError
from gluon_core.features import (
    BLOCKS_CUT,
    BLOCKS_SLICED,
    LARGER_VIEWS,
    PARTITIONS_VIEWED,
    SMALLER_VIEWS_REFUSED,
    VIEWS_CHECKED,
)
from gluon_core.layouts import PaddedSharedLayout
from gluon_core.layouts.linear import LinearLayout
from gluon_core.layouts.tiling import dim_names

__all__ = ["check_slice", "check_view_place", "check_view_size"]

_FIRST = "Reinterpret the buffer first, and slice the view."


def check_view_size(have: int, want: int, unit: str, memory: Any = None) -> None:
    """Refuse another view of memory where the installed compiler would.

    Args:
        have: size of the view that there is.
        want: that of the one to be made of it.
        unit: unit of the counts, in the plural.
        memory: the view that there is itself, which may be a slice.

    Raises:
        ShapeError: from Triton 3.8 on a larger view, with 3.8 a smaller one and one of a slice, too.
            Older compilers take any; the simulator reports accesses beyond the memory.
    """
    part = [] if memory is None else list(memory.shape)
    whole = list(memory.type.alloc_shape[-len(part) :]) if part else []
    if part != whole and _triton.has(SMALLER_VIEWS_REFUSED):
        raise ShapeError(
            "the installed Triton makes no other view of a slice",
            argument="self",
            expected=f"all of the buffer, {whole}",
            got=part,
            remedy=_FIRST,
        )
    if want > have and not _triton.has(LARGER_VIEWS):
        raise ShapeError(
            "the new view is larger than the old one",
            argument="shape",
            expected=f"at most {have} {unit}",
            got=f"{want} {unit}",
        )
    if want < have and _triton.has(SMALLER_VIEWS_REFUSED):
        raise ShapeError(
            "the installed Triton makes no smaller view",
            argument="shape",
            expected=f"{have} {unit}",
            got=f"{want} {unit}",
            remedy="Take a slice, or another release of Triton.",
        )


def check_view_place(memory: Any, view: Any) -> None:
    """Refuse another view of shared memory that has gaps elsewhere, or reaches past a slice.

    Args:
        memory: the view that there is, which may be a slice.
        view: the type of the one to be made of it.

    Raises:
        LayoutError: from Triton 3.8 on where one is padded and the other is not, or otherwise.
        ShapeError: from 3.8 on where a block of a cluster has more of it than of the memory, and where
            the bytes that a slice has in a row are too few.
    """
    if not _triton.has(VIEWS_CHECKED):
        return
    part, whole = list(memory.shape), _whole(memory)
    if _gaps(memory.type) != _gaps(view):
        raise LayoutError(
            "a view must have the padding of its buffer",
            argument="layout",
            expected=f"padding as in {memory.layout!r}",
            got=repr(view.layout),
            remedy="Take another buffer, which may come to lie in the same bytes.",
        )
    parts = {*_linear(view).in_dims, *_linear(memory.type, whole).in_dims} - {"offset", "block"}
    if parts and not _triton.has(PARTITIONS_VIEWED):
        raise LayoutError(
            f"the installed Triton makes no other view of a buffer in {'s, '.join(sorted(parts))}s",
            argument="layout",
            got=f"{view.layout!r} of {memory.layout!r}",
            remedy="Take another buffer, which may come to lie in the same bytes.",
        )
    want = _bytes(view)
    if part == whole:
        have = _bytes(memory.type)
        if want > have or want < have and _triton.has(SMALLER_VIEWS_REFUSED):
            raise ShapeError(
                "each block would have more or less of the new view than of the old one",
                argument="layout",
                expected=f"{have} bytes in each",
                got=f"{want} bytes: {view.layout!r}",
            )
        return
    if isinstance(memory.layout, PaddedSharedLayout):
        raise LayoutError(
            "the installed Triton makes no other view of a slice with gaps",
            argument="self",
            expected=f"all of the buffer, {whole}",
            got=part,
            remedy=_FIRST,
        )
    have = _bytes_in_a_row(memory.type, part, whole)
    if want > have:
        raise ShapeError(
            "the new view reaches past the slice",
            argument="shape",
            expected=f"at most {have} bytes, which the slice {part} of {whole} has in a row",
            got=f"{want} bytes",
            remedy=_FIRST,
        )


def check_slice(memory: Any, dim: int, length: int) -> None:
    """Refuse a part of a buffer that is laid out otherwise than the next.

    Raises:
        LayoutError: the layout's swizzle, or the share of a cluster's blocks, crosses the cut.
    """
    rank = memory.layout.rank or memory.rank
    ahead = memory.rank - rank
    if dim < ahead or length == memory.shape[dim]:
        return
    linear = _linear(memory.type, _whole(memory))
    inverse = linear.pseudo_inverse()
    rows = inverse.bases[dim_names(rank)[dim - ahead]]
    cut = rows[length.bit_length() - 1 : memory.shape[dim].bit_length() - 1]
    places = dict(zip(inverse.out_dims, zip(*cut)))
    needs = BLOCKS_CUT if any(places.get("block", ())) else BLOCKS_SLICED
    if linear.in_dims.get("block", 1) > 1 and not _triton.has(needs):
        raise LayoutError(
            f"the installed Triton makes no {needs.title}",
            argument="self",
            expected=needs.releases,
            got=f"{length} of {memory.shape[dim]} with {memory.layout!r}",
            remedy="Allocate the parts as buffers of their own: [parts, ...] and index(i).",
        )
    if any(place & (place - 1) for place in places["offset"]):
        raise LayoutError(
            "the slice cuts the layout's swizzle",
            argument="length",
            expected=f"all of dimension {dim}, or a length after which the swizzle comes again",
            got=f"{length} of {memory.shape[dim]} with {memory.layout!r}",
            remedy="Take a layout without swizzle, or allocate the parts as buffers of their own: "
            "[parts, ...] and index(i).",
        )


def _whole(memory: Any) -> list[int]:
    """Return the shape of the buffer behind a view, without the dimensions that are indexed."""
    return list(memory.type.alloc_shape[-len(memory.shape) :])


def _gaps(view: Any) -> list[tuple[int, int]]:
    """Return the distance and the size of a buffer's gaps, in bytes."""
    size = max(1, view.element_ty.primitive_bitwidth // 8)
    pairs = getattr(view.layout, "interval_padding_pairs", ())
    return sorted((interval * size, padding * size) for interval, padding in pairs)


def _linear(view: Any, shape: Optional[list[int]] = None) -> LinearLayout:
    """Return the offsets of the elements of one buffer of a view, or of a buffer of `shape`."""
    shape = list(shape or view.shape)
    rank = view.layout.rank or len(shape)
    linear: LinearLayout = view.layout.to_linear(shape[len(shape) - rank :])
    return linear


def _bytes(view: Any) -> int:
    """Return the offsets of one block's part of a view."""
    ahead = len(view.shape) - (view.layout.rank or len(view.shape))
    elements: int = math.prod(view.shape[:ahead]) * _linear(view).in_size("offset")
    return elements * int(view.element_ty.primitive_bitwidth) // 8


def _bytes_in_a_row(memory: Any, part: list[int], whole: list[int]) -> int:
    """From where a slice begins."""
    rank = memory.layout.rank or len(part)
    size: int = memory.element_ty.primitive_bitwidth // 8
    ahead = len(part) - rank  # dimensions that count buffers
    dims = range(rank)
    kept = part[ahead:]
    linear = _linear(memory, whole).bases
    if any(row[d] >= kept[d] for row in linear.get("block", []) for d in dims):
        raise LayoutError(
            "the installed Triton makes no other view of a slice across the blocks of a cluster",
            argument="self",
            expected=f"all of the buffer, {whole}",
            got=part,
            remedy=_FIRST,
        )
    for row in linear["offset"]:
        if any(row[d] >= kept[d] for d in dims):
            return size
        size *= 2
    for length in part[:ahead]:
        size *= length
    return size
