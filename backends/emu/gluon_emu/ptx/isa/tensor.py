"""Copies of boxes of tensors between global and shared memory: PTX ISA 9.7.9.27."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import AccessError, EmulatorError
from gluon_emu.ptx.tensormap import GROUPS, TensorMap

__all__ = ["Box", "box_of", "move", "rows_of", "swizzled"]

_SPAN = (0, 32, 64, 128)
_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOATS = (6, 7, 8, 9, 10, 11, 12)
_NAN = 0x7FF77FF77FF77FF7  # measured on an H200: each 16 bits of a NaN, whatever the type


def swizzled(offset: np.ndarray, mode: int) -> np.ndarray:
    """Exclusive or of bits of an address in shared memory, from 4 on, with those from 7 on."""
    if not mode:
        return offset
    return np.asarray(offset ^ (offset >> 3 & ((1 << mode) - 1) << 4))


@lru_cache(maxsize=256)
def _grid(counts: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Return the index along each dimension, the first fastest, of all elements of a box."""
    number = np.arange(int(np.prod(counts)))
    axes = []
    for count in counts:
        axes.append(number % count)
        number = number // count
    return tuple(axes)


class Box:
    """The elements of a box at its place.

    Attributes:
        source: byte of each in global memory.
        inside: whether it is in the tensor.
        unit: bytes of an element.
        offsets: byte of each in the box in shared memory, before swizzling.
    """

    def __init__(
        self,
        map_: TensorMap,
        coordinates: list[int],
        offsets: tuple[int, ...] = (),
        rows: tuple[int, ...] = (),
    ):
        self.map = map_
        if map_.element in GROUPS:
            self._groups(coordinates, rows)
            return
        counts: tuple[int, ...]
        if rows:
            counts = (map_.box[0], len(rows))
            column, row = _grid(counts)
            places = [coordinates[0] + column, np.array(rows)[row]]
        elif map_.tiled:
            steps = [1, *(max(1, step) for step in map_.steps[1:])]  # the first is ignored
            counts = tuple(-(-b // s) for b, s in zip(map_.box, steps))
            axes = list(_grid(counts))
            places = [c + a * s for c, a, s in zip(coordinates, axes, steps)]
        else:
            counts, places = _pixels(map_, coordinates, offsets)
        self.unit = map_.size
        inside = np.ones(places[0].shape, bool)
        element = np.full(places[0].shape, map_.address, np.int64) + places[0] * self.unit
        for place, extent in zip(places, map_.shape):
            inside &= (place >= 0) & (place < extent)
        for place, stride in zip(places[1:], map_.strides):
            element = element + place * stride
        self.source, self.inside = element, inside
        self.offsets = np.arange(element.size) * self.unit

    def _groups(self, coordinates: list[int], rows: tuple[int, ...]) -> None:
        """Place the words of elements of 4 or 6 bits, 16 of which are a group."""
        map_ = self.map
        size, room = GROUPS[map_.element]
        across = -(-map_.box[0] // 16)
        counts = (size // 4, across, *((len(rows),) if rows else map_.box[1:]))
        word, *axes = _grid(counts)
        places = [coordinates[0] // 16 + axes[0]]
        places += (
            [np.array(rows)[axes[1]]]
            if rows
            else [c + a for c, a in zip(coordinates[1:], axes[1:])]
        )
        self.unit = 4
        inside = (places[0] >= 0) & (places[0] * 16 < map_.shape[0])
        element = map_.address + places[0] * size + word * 4
        for place, extent in zip(places[1:], map_.shape[1:]):
            inside &= (place >= 0) & (place < extent)
        for place, stride in zip(places[1:], map_.strides):
            element = element + place * stride
        self.source, self.inside = element, inside
        self.offsets = np.arange(element.size) // counts[0] * room + word * 4

    @property
    def bytes(self) -> int:
        return int(self.source.size) * self.unit

    def places(self, start: int) -> np.ndarray:
        """Return the byte of each element in a block's shared memory, for a box that starts at `start`."""
        return swizzled(start + self.offsets, self.map.swizzle)


def _pixels(
    map_: TensorMap, coordinates: list[int], offsets: tuple[int, ...]
) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """Return the elements of an im2col box: channels, then pixels that walk over the bounding box of
    the image."""
    channels, pixels = map_.box
    inner = map_.rank - 2
    steps = map_.steps[1 : 1 + inner]
    low = list(map_.lower)
    counts = [
        max(1, (extent + high - lower - 1) // max(1, step) + 1)
        for extent, lower, high, step in zip(map_.shape[1:-1], low, map_.upper, steps)
    ]
    channel, pixel = _grid((channels, pixels))
    start, scale = 0, 1
    for place, lower, step, count in zip(coordinates[1:-1], low, steps, counts):
        start += (place - lower) // max(1, step) * scale
        scale *= count
    number = start + pixel
    places = [coordinates[0] + channel]
    for lower, step, count, offset in zip(low, steps, counts, (*offsets, *[0] * inner)):
        places.append(lower + number % count * max(1, step) + offset)
        number = number // count
    places.append(coordinates[-1] + number)
    return (channels, pixels), places


def _check_start(map_: TensorMap, coordinates: list[int], load: bool) -> None:
    """Refuse places at which the unit does not start, as seen on an H100 and an H200; the ISA does not name them.

    Raises:
        AccessError: a column that is no multiple of 16 bytes, or a store that starts before the tensor.
    """
    column = coordinates[0]
    if map_.element not in GROUPS and column * map_.size % 16:
        raise AccessError(
            f"a box that starts at element {column} of {map_.size} bytes: a box starts at multiples of 16 bytes "
            "of the fastest dimension (an illegal instruction on a GPU)"
        )
    if not load and min(coordinates) < 0:
        raise AccessError(
            f"a store of a box at {tuple(coordinates)}, before the tensor (an illegal instruction on a GPU)"
        )


def box_of(
    raw: bytes, coordinates: list[int], offsets: tuple[int, ...] = (), load: bool = True
) -> Box:
    """Return the box of a tensor map at some coordinates, the fastest first.

    Raises:
        EmulatorError: the bytes are no tensor map, or the number of coordinates is another.
        AccessError: the unit does not start there.
    """
    map_ = TensorMap.decode(raw)
    if len(coordinates) != map_.rank:
        raise EmulatorError(f"{len(coordinates)} coordinates in a tensor of rank {map_.rank}")
    _check_start(map_, coordinates, load)
    return Box(map_, coordinates, offsets)


def rows_of(raw: bytes, column: int, rows: list[int]) -> Box:
    """Return parts of rows of a matrix, which follow each other in shared memory (gather4, scatter4).

    Args:
        column: where each part begins.

    Raises:
        EmulatorError: the bytes are no tensor map, or not of a matrix of which one row is a box.
    """
    map_ = TensorMap.decode(raw)
    if map_.rank != 2 or not map_.tiled or map_.box[1] != 1:
        raise EmulatorError(
            "rows by their numbers, of a tensor map that is not of a matrix and boxes of one row"
        )
    _check_start(map_, [column], True)
    return Box(map_, [column], (), tuple(rows))


def move(
    memory: Any, box: Box, block: int, start: int, load: bool, reduce: Optional[Callable[..., Any]] = None
) -> None:  # fmt: skip
    """Copy a box to the shared memory of a block, or from there.

    Args:
        reduce: `f(old, new)` of the elements in global memory.
    """
    unit = box.unit
    shared, arrays = memory.view("shared", unit), memory.arrays
    index = (block * memory.stride + box.places(start)) // unit
    inside = box.inside
    wrong = arrays.bad(box.source.astype(np.uint64), unit, inside, not load)
    if wrong is not None:
        address = int(box.source[np.nonzero(wrong)[0][0]])
        raise AccessError(f"a box with an element at {address:#x}: {arrays.nearest(address, unit)}")
    view = memory.view("global", unit)
    place = (box.source - arrays.low) // unit
    if load:
        values = view[np.where(inside, place, 0)]
        if not inside.all():
            values = np.where(inside, values, _filler(box.map))
        if box.map.element in (11, 12):
            values = _tf32(values)
        shared[index] = values
        return
    place, values = place[inside], shared[index][inside]
    if reduce is not None:
        values = reduce(view[place], values)
    view[place] = values


def _tf32(values: np.ndarray) -> np.ndarray:
    """Round to the nearest with 10 bits of fraction, ties away from zero."""
    finite = (values & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    return np.where(finite, (values + np.uint32(0x1000)) & np.uint32(0xFFFFE000), values)


def _filler(map_: TensorMap) -> Any:
    unit = _UNITS[map_.size]
    if not map_.fill or map_.element not in _FLOATS:
        return unit(0)
    return unit(_NAN & (1 << 8 * map_.size) - 1)
