"""Shared memory: bytes, one buffer per allocation and program, seen through layouts.

A view maps logical elements to byte offsets through a table that the layout's linear form gives,
so two views of one buffer alias exactly as they do on the hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np

from gluon_sim.errors import OutOfBoundsError, SimulatorError
from gluon_sim.memory.barriers import Barriers
from gluon_sim.memory.tensor_memory import (
    LanesName,
    bytes_needed,
    in_tensor_memory,
    lane_table,
    pitch_of,
)
from gluon_sim.sanitizer.blocks import BlockShadow
from gluon_sim.sanitizer.races import SharedShadow
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.types import MemDescType, Type
from gluon_sim.tracing.words import BufferName, buffer_name

if TYPE_CHECKING:
    from gluon_core.layouts import Layout

__all__ = ["SharedBuffer", "SharedView", "derived", "named_by", "offsets_of"]


@lru_cache(maxsize=1024)
def offsets_of(layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """Element offsets of a buffer of `shape`, as an int64 array of that shape.

    Dimensions in front that the layout does not describe are whole buffers, one after the other.
    """
    rank = layout._rank_or_none()
    if rank is None or rank > len(shape):
        rank = len(shape)
    lead, tail = shape[: len(shape) - rank], shape[len(shape) - rank :]
    if any(extent & (extent - 1) for extent in tail):  # no element is reached through such a view
        plain = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
        plain.setflags(write=False)
        return plain
    linear = layout.to_linear(tail)
    sizes = linear.in_dims
    table = linear.table()
    flat = np.arange(int(np.prod(list(sizes.values()) or [1])), dtype=np.int64)
    # The last in-dim runs fastest in `table`; offsets must, so the block goes in front.
    names = list(sizes)
    grids = dict(zip(names, np.unravel_index(flat, tuple(sizes.values()) or (1,))))
    offset = grids.get("offset", np.zeros_like(flat))
    pad = getattr(layout, "pad", None)
    one_block = sizes.get("offset", 1)
    size = one_block
    if pad is not None:
        offset = pad(offset)
        size = int(offset.max()) + 1
    where = offset
    # Further in-dims (banks or partitions of shared memory, blocks of a cluster) lie side by side.
    for name in sorted(set(names) - {"offset"}, key=lambda name: name == "block"):
        where = where + grids[name] * size
        size *= sizes[name]
    coordinates = tuple(table[f"dim{d}"].ravel() for d in range(len(tail)))
    # Where several places hold one element, the first of them counts.
    out = np.full(tail, np.iinfo(np.int64).max)
    np.minimum.at(out, coordinates, where)
    total = int(where.max()) + 1
    for extent in reversed(lead):
        step = np.arange(extent, dtype=np.int64) * total
        out = step.reshape(-1, *([1] * out.ndim)) + out
        total *= extent
    out.setflags(write=False)
    return out


@lru_cache(maxsize=1024)
def _byte_table(layout: Layout, shape: tuple[int, ...], size: int) -> np.ndarray:
    table = offsets_of(layout, shape) * size
    table.setflags(write=False)
    return table


def _table_of(type: MemDescType, pitch: int) -> np.ndarray:
    """Byte offsets of the elements of a buffer."""
    size = numpy_dtype(type).itemsize
    if in_tensor_memory(type):
        return lane_table(type.layout, type.shape, size, pitch)
    return _byte_table(type.layout, type.shape, size)


class SharedBuffer:
    """The bytes of one allocation, one row per program of the batch."""

    def __init__(self, rows: int, size: int, name: BufferName, fill: int = 0xFF):
        # Whole 16-byte units, so that every element type can view it.
        size = -(-size // 16) * 16
        self.data = np.full((rows, size), fill, np.uint8)
        self.size = size
        self.name = name
        self.remedy = ""  # of a wrong use, from the building block that it is part of
        self.pitch = 0  # bytes of a lane, in tensor memory
        self.barriers: Optional[Barriers] = None
        self.shadow: Optional[SharedShadow] = None
        self.blocks: Optional[BlockShadow] = None  # where blocks of a cluster meet
        self.alloc: Optional[Op] = None
        self.earlier: Optional[SharedBuffer] = None  # of the same op, a round of a loop before
        self._views: dict[np.dtype, np.ndarray] = {}
        # Per byte, 1 until it is written; None where nobody watches or nothing is left.
        self.unwritten: Optional[np.ndarray] = None
        self._left = 0

    def watch(self) -> None:
        """Remember which bytes were written."""
        self.unwritten = np.ones(self.data.shape, np.uint8)
        self._left = self.unwritten.size

    def wrote(self, bytes: int) -> None:
        """After that many bytes were marked: stop watching once nothing is left to write."""
        assert self.unwritten is not None
        self._left -= bytes
        if self._left <= 0:
            # Counted only when enough was written that nothing may be left.
            self._left = int(np.count_nonzero(self.unwritten))
            if not self._left:
                self.unwritten = None

    def grow(self, size: int) -> None:
        """Let more bytes follow those there are, for views that reach beyond the end."""
        more = -(-size // 16) * 16 - self.size
        self.data = np.pad(self.data, ((0, 0), (0, more)), constant_values=0xFF)
        if self.unwritten is not None:
            self.unwritten = np.pad(self.unwritten, ((0, 0), (0, more)), constant_values=1)
            self._left += more * len(self.data)
        self.shadow = self.blocks = None
        self.size += more
        self._views = {}

    def marks(self, size: int) -> np.ndarray:
        """`unwritten` for elements of that many bytes: not 0 where a byte of one is missing."""
        assert self.unwritten is not None
        return self.unwritten.view(f"u{size}")

    def view(self, dtype: np.dtype) -> np.ndarray:
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self.data.view(dtype)
        return view


class SharedView:
    """A buffer, or a part of one, under a shape and an element type.

    Attributes:
        base: byte offset per program, shape (programs or 1,).
        table: byte offset of each element relative to `base`, of the view's shape.
        outside: for which programs (programs or 1,) an index was outside the buffer, and the error
            for whoever reaches through the view there; None for none. A predicate may spare it.
    """

    __slots__ = ("buffer", "type", "dtype", "base", "table", "outside")

    def __init__(
        self,
        buffer: SharedBuffer,
        type: MemDescType,
        base: np.ndarray,
        table: np.ndarray,
        outside: Optional[tuple[np.ndarray, Exception]] = None,
    ):
        self.buffer = buffer
        self.type = type
        self.dtype = numpy_dtype(type)
        self.base = base
        self.table = table
        self.outside = outside

    @classmethod
    def whole(cls, buffer: SharedBuffer, type: MemDescType) -> "SharedView":
        return cls(buffer, type, np.zeros(1, np.int64), _table_of(type, buffer.pitch))

    @classmethod
    def allocated(cls, buffer: SharedBuffer, type: MemDescType, alloc: Op) -> "SharedView":
        """Return a view of the whole buffer that an op of the kernel allocates for the type."""
        if in_tensor_memory(type):
            name = LanesName(buffer_name(alloc, "tensor memory"))
            name.alloc, name.pitch = alloc, pitch_of(type)
            buffer.name, buffer.pitch = name, name.pitch
        return cls.whole(buffer, type)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table.shape

    @property
    def offset(self) -> np.ndarray:
        """Bytes from the start of the buffer to the lowest element, (programs or 1,)."""
        return self.base + int(self.table.min())

    @staticmethod
    def bytes_needed(type: Type) -> int:
        assert isinstance(type, MemDescType)
        if in_tensor_memory(type):
            return bytes_needed(type)
        size = numpy_dtype(type).itemsize
        return int(_byte_table(type.layout, type.shape, size).max()) + size

    # ---- views ----------------------------------------------------------------------------

    def part(self, type: MemDescType, offsets: Sequence[int]) -> "SharedView":
        """Return the elements from compile-time offsets on, as many as the type has."""
        shape = tuple(type.shape)
        return self.with_type(type, derived(self.table, "slice", tuple(offsets), shape))

    def select(self, positions: np.ndarray) -> "SharedView":
        """Return the same view for some of the programs."""
        outside = self.outside
        if outside is not None and len(outside[0]) > 1:
            outside = (outside[0][positions], outside[1])
        elif self.base.shape[0] == 1:
            return self
        base = self.base if self.base.shape[0] == 1 else self.base[positions]
        return SharedView(self.buffer, self.type, base, self.table, outside)

    def with_type(self, type: Type, table: np.ndarray) -> "SharedView":
        assert isinstance(type, MemDescType)
        return SharedView(self.buffer, type, self.base, table, self.outside)

    def index(self, type: MemDescType, indices: np.ndarray) -> "SharedView":
        """Return the sub-buffer at `indices` (one per program) along the first dimension."""
        count = self.table.shape[0]
        first = derived(self.table, "at", 0)
        step = int(self.table.flat[first.size] - self.table.flat[0]) if count > 1 else 0
        indices = indices.astype(np.int64)
        if len(indices) > 1 and (indices == indices[0]).all():
            indices = indices[:1]  # one place for all programs, which is quick to read
        if _stacked(_Ref(self.table), step):
            return SharedView(self.buffer, type, self.base + indices * step, first, self.outside)
        if len(indices) == 1:
            table = derived(self.table, "at", int(indices[0]))
            return SharedView(self.buffer, type, self.base, table, self.outside)
        raise SimulatorError("programs of one batch index different parts of a swizzled buffer")

    def reinterpret(self, type: MemDescType, strict: bool = True) -> "SharedView":
        size = numpy_dtype(type).itemsize
        table = _table_of(type, self.buffer.pitch)
        # The new view starts where the old one's lowest element is.
        start = int(self.table.min())
        needed = int(table.max()) + size + start + int(self.base.max())
        if needed > self.buffer.size:
            if strict:
                raise OutOfBoundsError(
                    "the new view of the buffer reaches beyond its end",
                    expected=f"at most {self.buffer.size} bytes",
                    got=f"{needed} bytes",
                    remedy="Allocate the buffer with the larger of the layouts.",
                    report="bounds.view",
                )
            self.buffer.grow(needed)
        return SharedView(self.buffer, type, self.base + start, table, self.outside)

    # ---- access ---------------------------------------------------------------------------

    def reach(self, where: Optional[np.ndarray] = None) -> None:
        """Refuse to go through a view whose index was outside, for the programs of a predicate.

        Raises:
            OutOfBoundsError: one of them would.
        """
        if self.outside is not None:
            bad, error = self.outside
            if (bad if where is None else bad & np.asarray(where).reshape(-1)).any():
                raise error

    def elements(self) -> np.ndarray:
        """Element indices of the table, flat."""
        self.reach()
        return _flat_index(_Ref(self.table), self.dtype.itemsize.bit_length() - 1)

    def span(self) -> Optional[slice]:
        """Return the bytes of all elements, if they have no gaps and are the same in each program."""
        if len(self.base) != 1:
            return None
        extent = _span(_Ref(self.table), self.dtype.itemsize)
        first = int(self.base[0])
        return extent and slice(first + extent[0], first + extent[1])

    def load(self, rows: Rows) -> np.ndarray:
        """Return all elements, shape (programs, *shape). `rows` are the batch rows of the programs."""
        return self._take(self.buffer.view(self.dtype), rows)

    def missing(self, rows: Rows) -> np.ndarray:
        """Which elements were never written, shape (programs, *shape)."""
        missing: np.ndarray = self._take(self.buffer.marks(self.dtype.itemsize), rows) != 0
        return missing

    def written(self, rows: Rows, mask: Optional[np.ndarray] = None) -> None:
        """Mark the bytes that `store` with this mask writes."""
        size = self.dtype.itemsize
        self._put(self.buffer.marks(size), rows, np.zeros(1, f"u{size}"), mask)
        self.buffer.wrote(rows.count * self.table.size * size)

    def _take(self, view: np.ndarray, rows: Rows) -> np.ndarray:
        index = self.elements()
        out: np.ndarray
        if self.base.shape[0] == 1:
            data = view if rows.whole else view[rows.index]
            size = self.dtype.itemsize
            start = int(self.base[0]) // size
            chunks = _chunks(_Ref(self.table), size)
            if _runs(_Ref(self.table), size):
                first = start + int(index[0])
                out = data[:, first : first + index.size].copy()
            elif chunks is not None and int(self.base[0]) % chunks.bytes == 0:
                positions = chunks.index + int(self.base[0]) // chunks.bytes
                out = np.take(data.view(chunks.dtype), positions, axis=1, mode="clip").view(
                    view.dtype
                )
            else:
                # Every index is inside; "clip" only spares NumPy its own check.
                out = np.take(data, index + start if start else index, axis=1, mode="clip")
        else:
            positions = index[None, :] + (self.base // self.dtype.itemsize)[:, None]
            out = view[rows.index[:, None], positions]
        return out.reshape(rows.count, *self.table.shape)

    def store(self, rows: Rows, values: np.ndarray, mask: Optional[np.ndarray] = None) -> None:
        """Write elements, broadcast to (programs, *shape); only where `mask` if one is given."""
        self._put(self.buffer.view(self.dtype), rows, values, mask)

    def _put(
        self, view: np.ndarray, rows: Rows, values: np.ndarray, mask: Optional[np.ndarray]
    ) -> None:
        shape = (rows.count, *self.table.shape)
        flat = np.broadcast_to(values, shape).reshape(rows.count, -1)
        index = self.elements()
        if mask is not None:
            live = np.broadcast_to(mask, shape).reshape(rows.count, -1)
            positions = index[None, :] + (self.base // self.dtype.itemsize)[:, None]
            row = np.broadcast_to(rows.index[:, None], live.shape)
            view[row[live], np.broadcast_to(positions, live.shape)[live]] = flat[live]
            return
        if self.base.shape[0] == 1:
            start = int(self.base[0]) // self.dtype.itemsize
            positions = index + start if start else index
            if rows.whole and _runs(_Ref(self.table), self.dtype.itemsize):
                view[:, positions[0] : positions[0] + positions.size] = flat
            elif rows.whole and self._put_chunks(view, flat):
                pass
            elif rows.whole:
                view[:, positions] = flat
            else:
                view[rows.index[:, None], positions[None, :]] = flat
        else:
            positions = index[None, :] + (self.base // self.dtype.itemsize)[:, None]
            view[rows.index[:, None], positions] = flat

    def _put_chunks(self, view: np.ndarray, flat: np.ndarray) -> bool:
        """Write by the order of the bytes, which NumPy does faster; false where that cannot be."""
        span = self.span()
        if span is None or flat.dtype != view.dtype:
            return False
        there = view[:, span.start // view.itemsize : span.stop // view.itemsize]
        if flat.strides[-1] == 0:
            there[...] = flat
            return True
        chunks = _chunks(_Ref(self.table), view.itemsize)
        if chunks is None or span.start % chunks.bytes:
            return False
        flat = flat if flat.strides[-1] == flat.itemsize else np.ascontiguousarray(flat)
        ordered = np.take(flat.view(chunks.dtype), chunks.order, axis=1, mode="clip")
        there.view(chunks.dtype)[...] = ordered
        return True

    def positions(self, rows: Rows, indices: np.ndarray, axis: int) -> np.ndarray:
        """Flat indices into the typed buffer for elements picked along `axis`, one per index."""
        shape = (rows.count, *indices.shape[1:])
        indices = np.broadcast_to(indices, shape)
        grid = list(np.ogrid[tuple(slice(0, s) for s in shape[1:])])
        coordinates = [indices if d == axis else g[None] for d, g in enumerate(grid)]
        offset = self.table[tuple(np.broadcast_arrays(*coordinates))]
        base = self.base.reshape(-1, *([1] * (len(shape) - 1)))
        row = rows.index.reshape(-1, *([1] * (len(shape) - 1))) * self.buffer.size
        flat: np.ndarray = (offset + base + row) // self.dtype.itemsize
        return flat


class _Ref:
    """Makes a table a cache key by identity, and keeps it alive while it is one."""

    __slots__ = ("table",)

    def __init__(self, table: np.ndarray):
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ref) and self.table is other.table


@lru_cache(maxsize=2048)
def _flat_index(ref: _Ref, shift: int) -> np.ndarray:
    return (ref.table >> shift).ravel()


@lru_cache(maxsize=2048)
def _runs(ref: _Ref, size: int) -> bool:
    """Do the elements follow each other without gaps, in order?"""
    flat = ref.table.ravel()
    return bool((np.diff(flat) == size).all())


@lru_cache(maxsize=2048)
def _span(ref: _Ref, size: int) -> Optional[tuple[int, int]]:
    """First and last byte of elements that fill all in between, in whatever order."""
    flat = np.sort(ref.table, axis=None)
    whole = (np.diff(flat) == size).all()
    return (int(flat[0]), int(flat[-1]) + size) if flat.size and whole else None


@dataclass(frozen=True)
class _Chunks:
    """A table in the largest units whose elements stay together: swizzles move 16 bytes at a time.

    Attributes:
        bytes: of a unit.
        dtype: one that is as large, for copies.
        index: where each unit is, in units.
        order: the units in the order of their places.
    """

    bytes: int
    dtype: np.dtype
    index: np.ndarray
    order: np.ndarray


@lru_cache(maxsize=2048)
def _chunks(ref: _Ref, size: int) -> Optional[_Chunks]:
    flat = ref.table.reshape(-1)
    for nbytes, code in ((16, "c16"), (8, "u8"), (4, "u4"), (2, "u2"), (1, "u1")):
        if nbytes >= size and flat.size * size % nbytes == 0:
            units = flat.reshape(-1, nbytes // size)
            together = units[:, :1] + np.arange(0, nbytes, size)
            if (units == together).all() and not (units[:, 0] % nbytes).any():
                index = units[:, 0] // nbytes
                return _Chunks(nbytes, np.dtype(code), index, np.argsort(index, kind="stable"))
    return None


@lru_cache(maxsize=2048)
def _stacked(ref: _Ref, step: int) -> bool:
    table = ref.table
    if table.shape[0] == 1:
        return True
    moves = np.arange(table.shape[0]).reshape(-1, *([1] * (table.ndim - 1))) * step
    return bool((table == table[:1] + moves).all())


@lru_cache(maxsize=2048)
def _derived(ref: _Ref, how: str, args: tuple[Any, ...]) -> np.ndarray:
    """Return a table sliced, transposed or reshaped; the same object for the same request."""
    table = ref.table
    if how == "at":
        table = table[args[0]]
    elif how == "slice":
        offsets, shape = args
        table = table[tuple(slice(o, o + n) for o, n in zip(offsets, shape))]
    elif how == "trans":
        table = table.transpose(args)
    else:
        table = table.reshape(args)
    return table


def derived(table: np.ndarray, how: str, *args: Any) -> np.ndarray:
    return _derived(_Ref(table), how, args)


def named_by(arguments: Any) -> tuple[SharedBuffer, ...]:
    """Return the buffers among the arguments of an op."""
    buffers: list[SharedBuffer] = []
    for one in arguments:
        if isinstance(one, SharedView):
            buffers.append(one.buffer)
        elif isinstance(one, (list, tuple)):
            buffers += named_by(one)
    return tuple(buffers)
