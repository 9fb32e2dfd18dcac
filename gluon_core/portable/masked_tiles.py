"""Tiles on every target: masked copies by the best `async_copy` that there is, masked stores."""

from __future__ import annotations

from typing import Any, Sequence, Union

from gluon_core import _triton
from gluon_core._triton import tl
from gluon_core.layouts import SliceLayout, SwizzledSharedLayout
from gluon_core.plugin.requests import (
    AsyncCopyRequest,
    StoreRequest,
    TileRequest,
    TileStoreRequest,
)
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.portable.common import lower
from gluon_core.portable.tiles import blocked_layout, row_swizzle
from gluon_core.registry.selection import available, code

__all__ = [
    "arrived",
    "begin",
    "end",
    "fetch",
    "layout",
    "make",
    "moved",
    "narrowest",
    "split",
    "splits",
    "store",
]


def make(request: TileRequest, _semantic: SemanticLayer) -> Sequence[Any]:
    """Base, shape and strides are all that it takes."""
    return ()


def layout(request: TileRequest) -> Any:
    rank = len(request.block_shape)
    if rank == 2:
        return row_swizzle(request.block_shape[-1], request.dtype.primitive_bitwidth)
    return SwizzledSharedLayout(1, 1, 1, list(reversed(range(rank))))


def begin(stages: int, tiles: int, _semantic: SemanticLayer) -> Sequence[Any]:
    """Groups of copies are counted by the hardware."""
    return ()


def fetch(fetch: Any, _semantic: SemanticLayer) -> None:
    for tile, buffer, place in zip(fetch.tiles, fetch.buffers, fetch.coordinates):
        block = tile.block_shape
        base, offsets, mask = _addresses(_semantic, tile, place, block)
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
    """The last groups hold no copies, but they are groups."""
    arrived(state, None, None, 0, _semantic)


def store(request: TileStoreRequest, _semantic: SemanticLayer) -> None:
    # Turning a tile into rows takes shared memory, a part less than the whole.
    width = narrowest(request)
    for i, part in enumerate(split(request.value, width, _semantic)):
        shape = [int(size) for size in part.shape]
        place = moved(request.coordinates, i * width, _semantic)
        layout = _blocked(_semantic, shape, request.tile.dtype.primitive_bitwidth)
        value = _semantic.convert_layout(part, layout)
        base, offsets, mask = _addresses(_semantic, request.tile, place, shape)
        asked = StoreRequest(
            request.target, request.num_warps, request.triton, base, offsets, value, mask
        )
        lower("store", asked)


def splits(request: TileStoreRequest) -> Union[bool, str]:
    """Whether the value falls into tiles without moving a register, or why not."""
    if narrowest(request) == request.tile.block_shape[-1]:
        return True
    return "a thread does not hold elements of each tile"


def narrowest(request: TileStoreRequest) -> int:
    """Columns of the narrowest parts, not narrower than a tile, of which each thread holds some."""
    shape = [int(size) for size in request.value.shape]
    held = [list(basis) for basis in request.layout.to_linear(shape).bases["register"]]
    width = shape[-1]
    while width > request.tile.block_shape[-1]:
        if [*[0] * (len(shape) - 1), width // 2] not in held:
            break
        width //= 2
    return width


def split(value: Any, width: int, semantic: SemanticLayer) -> list[Any]:
    """Parts of `width` columns, left to right."""
    *rows, columns = (int(size) for size in value.shape)
    if columns == width:
        return [value]
    rank = len(rows) + 1
    halves = semantic.reshape(value, [*rows, 2, columns // 2])
    left, right = semantic.split(semantic.permute(halves, [*range(rank - 1), rank, rank - 1]))
    return [*split(left, width, semantic), *split(right, width, semantic)]


def moved(place: Sequence[Any], columns: int, semantic: SemanticLayer) -> list[Any]:
    """Coordinates `columns` further to the right."""
    if not columns:
        return list(place)
    *rows, column = place
    return [*rows, semantic.add(column, semantic.scalar_constant(columns, tl.int32), True)]


def _blocked(semantic: SemanticLayer, shape: Sequence[int], bits: int) -> Any:
    order = list(reversed(range(len(shape))))
    return blocked_layout(shape, bits, semantic.num_warps, semantic.target.warp_size, order)


def _addresses(
    semantic: SemanticLayer, tile: Any, place: Sequence[Any], shape: Sequence[int]
) -> tuple[Any, Any, Any]:
    """Pointer to the tile, offsets in it, and which of its elements the tensor has.

    What moves from tile to tile is in the scalar pointer: offsets are small, and the same for all.
    """
    layout = _blocked(semantic, shape, tile.dtype.primitive_bitwidth)
    moved = semantic.cast(place[-1], tl.int64)
    offsets = mask = None
    for dim, (first, extent) in enumerate(zip(place, tile.extents)):
        along = _along(semantic, layout, dim, shape)
        inside = semantic.less_than(semantic.add(along, first, True), extent)
        if dim + 1 < len(shape):
            stride = tile.strides[dim]
            moved = semantic.add(
                moved, semantic.mul(semantic.cast(first, tl.int64), stride, True), True
            )
            along = semantic.mul(along, semantic.cast(stride, tl.int32), True)
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
