"""Tiles on every target: masked copies by the best `async_copy` that there is, masked stores."""

from __future__ import annotations

from typing import Any, Sequence

from gluon_core import _triton
from gluon_core._triton import tl
from gluon_core.layouts import SliceLayout, SwizzledSharedLayout
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable.common import lower
from gluon_core.portable.requests import (
    AsyncCopyRequest,
    LoadRequest,
    StoreRequest,
    TileRequest,
    TileStoreRequest,
)
from gluon_core.portable.selection import available, code
from gluon_core.portable.tiles import blocked_layout, row_swizzle

__all__ = [
    "arrived",
    "begin",
    "end",
    "fetch",
    "layout",
    "load",
    "make",
    "store",
]

_WIDEST = 128  # bits of an access of a thread


def make(request: TileRequest, _semantic: SemanticLayer) -> Sequence[Any]:
    """Accept any base, shape and strides."""
    return ()


def layout(request: TileRequest) -> Any:
    rank = len(request.block_shape)
    if rank == 2:
        return row_swizzle(request.block_shape[-1], request.dtype.primitive_bitwidth)
    return SwizzledSharedLayout(1, 1, 1, list(reversed(range(rank))))


def begin(stages: int, tiles: int, _semantic: SemanticLayer) -> Sequence[Any]:
    """Count groups of copies by the hardware."""
    return ()


def fetch(fetch: Any, _semantic: SemanticLayer) -> None:
    for tile, buffer, place in zip(fetch.tiles, fetch.buffers, fetch.coordinates):
        block = tile.block_shape
        layout = _blocked(_semantic, block, tile.dtype.primitive_bitwidth)
        base, offsets, mask = _addresses(_semantic, tile, place, block, layout)
        if fetch.pred is not None:
            mask = _semantic.and_(mask, fetch.pred)
        around = (_semantic.target, _semantic.num_warps, _triton.VERSION)
        request = AsyncCopyRequest(*around, buffer, base, offsets, mask, "")
        lower("async_copy", request)
    for lowering in available("async_copy", _semantic.target, _triton.VERSION):
        code(lowering, "commit")(_semantic=_semantic)


def arrived(state: Any, slot: Any, phase: Any, pending: int, _semantic: SemanticLayer) -> None:
    for lowering in available("async_copy", _semantic.target, _triton.VERSION):
        code(lowering, "wait")(pending, _semantic=_semantic)


def end(state: Any, stages: int, _semantic: SemanticLayer) -> None:
    """Commit the last groups, which hold no copies."""
    arrived(state, None, None, 0, _semantic)


def store(request: TileStoreRequest, _semantic: SemanticLayer) -> None:
    # Turning a tile into rows takes shared memory, a part less than the whole.
    width = request.narrowest
    for i, part in enumerate(_semantic.split_columns(request.value, width)):
        shape = [int(size) for size in part.shape]
        place = _semantic.moved_right(request.coordinates, i * width)
        layout = _aligned(_semantic, request.tile, shape)
        value = _semantic.convert_layout(part, layout)
        base, offsets, mask = _addresses(_semantic, request.tile, place, shape, layout)
        asked = StoreRequest(
            request.target, request.num_warps, request.triton, base, offsets, value, mask
        )
        lower("store", asked)


def load(tile: Any, place: Sequence[Any], _semantic: SemanticLayer) -> Any:
    """Return a tile in registers, zero where it leaves the tensor."""
    layout = _aligned(_semantic, tile, tile.block_shape)
    base, offsets, mask = _addresses(_semantic, tile, place, tile.block_shape, layout)
    around = (_semantic.target, _semantic.num_warps, _triton.VERSION)
    zero = _semantic.scalar_constant(0, tile.dtype)
    return lower("load", LoadRequest(*around, base, offsets, mask, zero, ""))


def _blocked(semantic: SemanticLayer, shape: Sequence[int], bits: int) -> Any:
    order = list(reversed(range(len(shape))))
    return blocked_layout(shape, bits, semantic.num_warps, semantic.target.warp_size, order)


def _aligned(semantic: SemanticLayer, tile: Any, shape: Sequence[int]) -> Any:
    """Return a layout whose threads have as many neighbours as rows are surely aligned to.

    Where no two elements move together, neighbours belong to neighbouring lanes.
    """
    return _blocked(
        semantic, shape, max(tile.dtype.primitive_bitwidth, _WIDEST // tile.facts.together)
    )


def _addresses(
    semantic: SemanticLayer, tile: Any, place: Sequence[Any], shape: Sequence[int], layout: Any
) -> tuple[Any, Any, Any]:
    """Pointer to the tile, offsets in it, and which of its elements the tensor has.

    The scalar pointer moves from tile to tile: offsets are small, and the same for all.
    """
    moved = semantic.cast(place[-1], tl.int64)
    offsets = mask = None
    single = len(place) - len(shape)  # dimensions of which a tile has one index
    for dim, (first, extent) in enumerate(zip(place, tile.extents)):
        along = _along(semantic, layout, dim - single, shape) if dim >= single else None
        index = first if along is None else semantic.add(along, first, True)
        inside = semantic.less_than(index, extent)
        if dim + 1 < len(place):
            stride = tile.strides[dim]
            moved = semantic.add(
                moved, semantic.mul(semantic.cast(first, tl.int64), stride, True), True
            )
            if along is not None:
                along = semantic.mul(along, semantic.cast(stride, tl.int32), True)
        if along is not None:
            offsets = along if offsets is None else semantic.add(offsets, along, True)
        mask = inside if mask is None else semantic.and_(mask, inside)
    return semantic.add(tile.base, moved, True), offsets, mask


def _along(semantic: SemanticLayer, layout: Any, dim: int, shape: Sequence[int]) -> Any:
    """0, 1, ... along one dimension, of the shape's rank."""
    others = [other for other in range(len(shape)) if other != dim]
    line = layout
    for other in reversed(others):
        line = SliceLayout(other, line)
    values = semantic.arange(0, shape[dim], line)
    for other in others:
        values = semantic.expand_dims(values, other)
    return values
