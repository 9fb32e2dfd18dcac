"""Copies of boxes of tensors between global and shared memory: PTX ISA 9.7.9.27."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_emu.errors import AccessError, EmulatorError
from gluon_emu.ptx.tensormap import GROUPS, TensorMap

__all__ = ["Box", "box_of", "move", "rows_of", "swizzled"]

_ILLEGAL = " (an illegal instruction on a GPU)"
_SPAN = (0, 32, 64, 128)
_UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_FLOATS = (6, 7, 8, 9, 10, 11, 12)
_ROUNDED = (11, 12)  # to tf32
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


@dataclass(frozen=True)
class _Inner:
    """A box that is inside of its tensor, from its first element on.

    Args:
        unit: bytes that a copy moves at once: 16 or eight where rows are multiples of so many, else an element.
        source: byte of each unit in global memory.
        offsets: byte of each in shared memory, before swizzling.
        permuted: the same after swizzling, for a box that starts at a multiple of 1024 bytes.
        from_units, to_units: the units of `source` and of `permuted`.
        span: bytes of global memory from the first to the end of the last.
        reach: the same of shared memory.
    """

    unit: int
    source: np.ndarray
    inside: np.ndarray
    offsets: np.ndarray
    permuted: np.ndarray
    from_units: np.ndarray
    to_units: np.ndarray
    span: int
    reach: int


@lru_cache(maxsize=256)
def _inner(
    size: int, counts: tuple[int, ...], steps: tuple[int, ...], strides: tuple[int, ...], mode: int, whole: bool
) -> _Inner:  # fmt: skip
    """Return a box of elements of `size` bytes.

    Args:
        steps: between elements of each dimension.
        whole: copy rows, not elements.
    """
    row = counts[0] * size
    unit = next((unit for unit in (16, 8) if whole and row % unit == 0), size)
    column, *axes = _grid((row // unit, *counts[1:]))
    source = column * unit
    for axis, step, stride in zip(axes, steps[1:], strides):
        source = source + axis * (step * stride)
    # A row takes the bytes that the swizzle permutes, however short it is.
    offsets = np.arange(source.size) * unit // row * max(row, _SPAN[mode]) + column * unit
    inside = np.ones(source.size, bool)
    permuted = swizzled(offsets, mode)
    return _Inner(
        unit, source, inside, offsets, permuted, source // unit, permuted // unit,
        int(source.max()) + unit, int(offsets.max()) + unit,
    )  # fmt: skip


class Box:
    """The elements of a box at its place.

    Attributes:
        source: byte of each in global memory.
        inside: whether it is in the tensor.
        before: whether some element is before the tensor in some dimension.
        unit: bytes of an element, or of the parts of rows that a copy moves as a whole.
        offsets: byte of each in the box in shared memory, before swizzling.
    """

    inner: Optional[_Inner] = (
        None  # of a box that is inside of its tensor, and `start` its first byte
    )
    start = 0

    def __init__(
        self,
        map_: TensorMap,
        coordinates: Sequence[int],
        offsets: tuple[int, ...] = (),
        rows: tuple[int, ...] = (),
        whole: bool = False,
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
            last = [c + (n - 1) * s for c, n, s in zip(coordinates, counts, steps)]
            if min(coordinates) >= 0 and all(n < extent for n, extent in zip(last, map_.shape)):
                self._inside(coordinates, counts, steps, whole and map_.element not in _ROUNDED)
                return
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
        self.before = any(bool((place < 0).any()) for place in places)
        number, inner = np.arange(element.size), int(counts[0])
        # A row takes the bytes that the swizzle permutes, however short it is.
        pitch = max(inner * self.unit, _SPAN[map_.swizzle])
        self.offsets = number // inner * pitch + number % inner * self.unit

    def _inside(
        self, coordinates: Sequence[int], counts: tuple[int, ...], steps: list[int], whole: bool
    ) -> None:
        map_ = self.map
        box = _inner(map_.size, counts, tuple(steps), map_.strides, map_.swizzle, whole)
        start = map_.address + coordinates[0] * map_.size
        start += sum(place * stride for place, stride in zip(coordinates[1:], map_.strides))
        self.unit, self.inside, self.before = box.unit, box.inside, False
        self.inner, self.start, self.offsets = box, start, box.offsets

    def _groups(self, coordinates: Sequence[int], rows: tuple[int, ...]) -> None:
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

    @cached_property
    def source(self) -> np.ndarray:
        assert self.inner is not None
        return np.asarray(self.inner.source + self.start)

    @property
    def bytes(self) -> int:
        return int(self.offsets.size) * self.unit

    @property
    def reach(self) -> int:
        """Return the bytes of shared memory from the first to the last of the box."""
        return int(self.offsets.max()) + self.unit if self.inner is None else self.inner.reach

    def places(self, start: int) -> np.ndarray:
        """Return the byte of each element in a block's shared memory, for a box that starts at `start`."""
        if self.inner is not None and start % 1024 == 0:
            return self.inner.permuted + start
        return swizzled(start + self.offsets, self.map.swizzle)


def _pixels(
    map_: TensorMap, coordinates: Sequence[int], offsets: tuple[int, ...]
) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """Return the elements of an im2col box: channels, then pixels that walk over the bounding box of
    the image."""
    channels, pixels = map_.box
    steps = map_.steps[1 : map_.rank - 1]
    channel, number = _grid((channels, pixels))
    places = [coordinates[0] + channel]
    bounds = zip(coordinates[1:], map_.shape[1:], map_.lower, map_.upper, steps)
    for dimension, (start, extent, lower, upper, step) in enumerate(bounds):
        place, number = _walked(number, start, lower, extent - 1 + upper, max(1, step))
        places.append(place + (offsets[dimension] if offsets else 0))
    places.append(coordinates[-1] + number)
    return (channels, pixels), places


def _walked(
    number: np.ndarray, start: int, lower: int, last: int, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """Walk along a dimension of a bounding box: from the start to the last place, then anew from the lower one.

    Returns:
        The place of each step, and how often the walk began anew before it.
    """
    later = number - ((last - start) // step + 1)
    count = max(1, (last - lower) // step + 1)
    anew = later >= 0
    place = np.where(anew, lower + later % count * step, start + number * step)
    return place, np.where(anew, 1 + later // count, 0)


def _check(map_: TensorMap, coordinates: Sequence[int], load: bool) -> None:
    """Refuse what is an illegal instruction, as seen on an H100 and an H200; the ISA does not name it.

    Raises:
        AccessError: a column that is no multiple of 16 bytes, a store that starts before the tensor, or pixels that start
            behind their bounding box.
        EmulatorError: integers that are filled with NaN, or an interleaved layout.
    """
    column = coordinates[0]
    if map_.interleave:
        raise EmulatorError("a copy of a tensor with an interleaved layout is not known")
    if 0 in map_.shape:
        raise EmulatorError(f"a tensor map with an extent of 0{_ILLEGAL}")
    for stride, extent in zip(map_.strides, map_.shape[1:]):
        if extent > 1 and stride % 16:
            raise EmulatorError(f"a tensor map with a stride of {stride} bytes: a multiple of 16")
    if map_.element not in GROUPS and column * map_.size % 16:
        raise AccessError(
            f"a box that starts at element {column} of {map_.size} bytes: a box starts at multiples of 16 bytes "
            f"of the fastest dimension{_ILLEGAL}"
        )
    if not load and min(coordinates) < 0:
        raise AccessError(f"a store of a box at {tuple(coordinates)}, before the tensor{_ILLEGAL}")
    if map_.fill and map_.element not in _FLOATS:
        raise EmulatorError(f"a tensor map that fills integers with NaN{_ILLEGAL}")
    if not map_.tiled:
        for place, extent, upper in zip(coordinates[1:], map_.shape[1:], map_.upper):
            if place > extent - 1 + upper:
                raise AccessError(
                    f"pixels from {tuple(coordinates[1:-1])} on, behind their bounding box{_ILLEGAL}"
                )


@lru_cache(maxsize=256)  # blocks in a row or column copy the same boxes
def box_of(
    raw: bytes, coordinates: tuple[int, ...], offsets: tuple[int, ...] = (), load: bool = True,
    whole: bool = False,
) -> Box:  # fmt: skip
    """Return the box of a tensor map at some coordinates, the fastest first.

    Args:
        whole: nobody looks at single elements, so that copies move parts of rows.

    Raises:
        EmulatorError: the bytes are no tensor map, or the number of coordinates is another.
        AccessError: the unit does not start there.
    """
    map_ = TensorMap.decode(raw)
    if len(coordinates) != map_.rank:
        raise EmulatorError(f"{len(coordinates)} coordinates in a tensor of rank {map_.rank}")
    _check(map_, coordinates, load)
    box = Box(map_, coordinates, offsets, whole=whole)
    if not load and not map_.tiled and box.before:
        raise AccessError(f"a store of pixels before the tensor{_ILLEGAL}")
    return box


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
    _check(map_, [column], True)
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
    inner, first = box.inner, block * memory.stride + start
    plain = reduce is None and not (load and box.map.element in _ROUNDED)
    if inner is not None and plain and start % 1024 == first % unit == 0:
        far = box.start - arrays.low
        if far % unit == 0 and arrays.holds(box.start, box.start + inner.span, not load):
            view = memory.view("global", unit)
            if load:
                shared[inner.to_units + first // unit] = view[inner.from_units + far // unit]
            else:
                view[inner.from_units + far // unit] = shared[inner.to_units + first // unit]
            return
    index = (block * memory.stride + box.places(start)) // unit
    inside = box.inside
    wrong = arrays.bad(box.source.astype(np.uint64), unit, inside, not load)
    if wrong is not None:
        address = int(box.source[np.nonzero(wrong)[0][0]])
        raise AccessError(f"a box with an element at {address:#x}: {arrays.nearest(address, unit)}")
    view = memory.view("global", unit)
    place = (box.source - arrays.low) // unit
    whole = bool(inside.all())
    if load:
        values = view[place if whole else np.where(inside, place, 0)]
        if not whole:
            values = np.where(inside, values, _filler(box.map))
        if box.map.element in _ROUNDED:
            values = _tf32(values)
        shared[index] = values
        return
    values = shared[index]
    if not whole:
        place, values = place[inside], values[inside]
    if reduce is not None:
        values = reduce(view[place], values)
    view[place] = values


def _tf32(values: np.ndarray) -> np.ndarray:
    """Round to the nearest with 10 bits of fraction, ties to even, as an H200 does."""
    finite = (values & np.uint32(0x7F800000)) != np.uint32(0x7F800000)
    half = np.uint32(0xFFF) + (values >> np.uint32(13) & np.uint32(1))
    return np.where(finite, (values + half) & np.uint32(0xFFFFE000), values)


def _filler(map_: TensorMap) -> Any:
    unit = _UNITS[map_.size]
    if not map_.fill or map_.element not in _FLOATS:
        return unit(0)
    return unit(_NAN & (1 << 8 * map_.size) - 1)
