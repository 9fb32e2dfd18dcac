"""Tensor memory: a second memory of each block, of 128 lanes by columns of 32 bits.

A buffer takes whole columns, of all lanes. Its layout sends "row" (a lane), "col" (in elements, so
several share a column) and "block" (of the cluster) to an element. Here a buffer is bytes lane by
lane, `pitch` bytes each, seen through a table of byte offsets as shared memory is; so views of
other types and layouts alias as they do on the hardware.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import MemDescType, Type
from gluon_sim.tracing.words import BufferName

if TYPE_CHECKING:
    from gluon_core.layouts import Layout

__all__ = [
    "LANES", "LanesName", "bytes_needed", "columns_in_use", "columns_of", "copies_of", "in_tensor_memory",
    "is_allocation", "lane_table", "pitch_of",
]  # fmt: skip

LANES = 128
_COLUMN = 4
_WARP_LANES = (
    32  # lanes that one warp reaches; data that all warps need has a copy in each such group
)


def in_tensor_memory(type: Any) -> bool:
    """Return whether a recorded type is of a buffer in tensor memory."""
    return isinstance(type, MemDescType) and type.space == "tensor"


@lru_cache(maxsize=512)
def _extent(layout: Layout, shape: tuple[int, ...], size: int) -> tuple[int, int]:
    """Blocks of a cluster, and columns in each, of a buffer with elements of `size` bytes."""
    linear = layout.to_linear(shape[-2:])
    columns = max(1, -(-linear.in_size("col") * size // _COLUMN))
    for copies in shape[:-2]:
        columns *= copies
    return linear.in_dims.get("block", 1), columns


def columns_of(type: MemDescType) -> int:
    """Columns that a buffer takes in each block."""
    return _extent(type.layout, type.shape, numpy_dtype(type).itemsize)[1]


def pitch_of(type: MemDescType) -> int:
    """Bytes from one lane of a buffer to the next."""
    return columns_of(type) * _COLUMN


def bytes_needed(type: Type) -> int:
    """Return the shape of a buffer over all blocks of the cluster."""
    assert isinstance(type, MemDescType)
    blocks, columns = _extent(type.layout, type.shape, numpy_dtype(type).itemsize)
    return blocks * LANES * columns * _COLUMN


@lru_cache(maxsize=1024)
def lane_table(layout: Layout, shape: tuple[int, ...], size: int, pitch: int) -> np.ndarray:
    """Byte offset of each element. Dimensions in front are whole buffers, in columns after each other."""
    lead, tail = shape[:-2], shape[-2:]
    linear = layout.to_linear(tail)
    sizes = linear.in_dims
    names = list(sizes)
    flat = np.arange(int(np.prod(list(sizes.values()))), dtype=np.int64)
    grids = dict(zip(names, np.unravel_index(flat, tuple(sizes.values()))))
    zero = np.zeros_like(flat)
    lane = grids.get("block", zero) * LANES + grids.get("row", zero)
    where = lane * pitch + grids.get("col", zero) * size
    table = linear.table()
    coordinates = tuple(table[f"dim{d}"].ravel() for d in range(len(tail)))
    # Where several places hold one element, the first of them is read.
    out = np.full(tail, np.iinfo(np.int64).max)
    np.minimum.at(out, coordinates, where)
    step = _extent(layout, tail, size)[1] * _COLUMN
    for extent in reversed(lead):
        out = np.arange(extent, dtype=np.int64).reshape(-1, *([1] * out.ndim)) * step + out
        step *= extent
    out.setflags(write=False)
    return out


@lru_cache(maxsize=512)
def copies_of(layout: Layout, shape: tuple[int, ...], pitch: int) -> tuple[int, ...]:
    """Byte distances to the further copies that the lanes of other warps hold; () for none."""
    bases = layout.to_linear(shape[-2:]).bases.get("row", [])
    distances = [0]
    for bit, basis in enumerate(bases):
        if 1 << bit >= _WARP_LANES and not any(basis):
            distances += [distance + (pitch << bit) for distance in distances]
    return tuple(distances[1:])


# ---- capacity ---------------------------------------------------------------------------------


def is_allocation(op: Op) -> bool:
    """Return whether an op makes a buffer in tensor memory, and not a view of one."""
    if not op.results or op.regions or op.name == "call":
        return False
    if not in_tensor_memory(op.results[0].type):
        return False
    return not any(isinstance(v.type, MemDescType) for v in op.operands())


def _least(type: Type) -> int:
    """Columns that a buffer surely takes: one that leaves lanes of each warp free may share them."""
    assert isinstance(type, MemDescType)
    bases = type.layout.to_linear(type.shape[-2:]).bases.get("row", [])
    free = sum(not any(basis) for bit, basis in enumerate(bases) if 1 << bit < _WARP_LANES)
    return -(-columns_of(type) >> free) if free else columns_of(type)


def _live(program: Program) -> tuple[int, Optional[Op]]:
    """Columns that are certainly in use at once, and the op that allocates most."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    root: dict[int, int] = {}
    ops = list(program.walk_ops())
    allocations = {id(op): op for op in ops if is_allocation(op)}
    for position, op in enumerate(ops):
        sources = [root[id(v)] for v in op.operands() if id(v) in root]
        for source in sources:
            last[source] = position
        if id(op) in allocations:
            key = id(op)
            root[id(op.results[0])], first[key], last[key] = key, position, position
        elif len(sources) == 1:
            for result in op.results:
                if in_tensor_memory(result.type):
                    root[id(result)] = sources[0]
    size = {key: _least(op.results[0].type) for key, op in allocations.items()}
    most = max(
        (
            sum(size[k] for k in size if first[k] <= position <= last[k])
            for position in first.values()
        ),
        default=0,
    )
    return most, max(allocations.values(), key=lambda op: size[id(op)], default=None)


def columns_in_use(program: Program) -> tuple[int, Optional[Op]]:
    """Return the columns that are in use at once, and the op that allocates most of them."""
    known = program.findings.columns
    if known is None:
        known = program.findings.columns = _live(program)
    return known


class LanesName(BufferName):
    """The name of a buffer in tensor memory, for reports.

    Attributes:
        pitch: bytes of a lane.
    """

    pitch: int

    def at(self, byte: int) -> str:
        lane, column = divmod(byte, self.pitch)
        block, lane = divmod(lane, LANES)
        where = f"lane {lane}, column {column // _COLUMN} of {self}"
        return f"{where} in block {block} of the cluster" if block else where
