"""Values of the portable ops that are made of several: the vendor's state, and its known facts.

A record has `parts`, a tuple of values of the IR, and `facts`, known when tracing. Kernels
hand records to functions and from round to round of a loop like any other value.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Sequence

from gluon_core._triton import base_type, base_value, tl_tuple

__all__ = [
    "AccumulatorFacts",
    "PipelineFacts",
    "Record",
    "TileFacts",
    "mma_accumulator",
]


@dataclass(frozen=True)
class TileFacts:
    """Hold the known facts of a tensor that is copied in tiles.

    Args:
        dtype: of the elements.
        block_shape: of a tile.
        layout: of a tile in shared memory.
        lowering: of `tile_copy` that was taken.
        together: neighbours of a row that are surely aligned.
    """

    dtype: Any
    block_shape: tuple[int, ...]
    layout: Any
    lowering: str
    together: int = 16


@dataclass(frozen=True)
class PipelineFacts:
    """Hold the known facts of a pipeline of tiles: its buffers, and the tiles of one step."""

    stages: int
    tiles: tuple[TileFacts, ...]


@dataclass(frozen=True)
class AccumulatorFacts:
    """Hold the known facts of an accumulator.

    Args:
        shape: `(m, n)`.
        dtype: of the elements.
        layout: of the tensor that the unit is read as.
        lowering: of `mma` that it belongs to.
        read_as: layout that `read` converts the tensor to, None for `layout`.
    """

    shape: tuple[int, ...]
    dtype: Any
    layout: Any
    lowering: str
    read_as: Any = None


class record_type(base_type):
    """Type of a record.

    Args:
        kind: class of the value.
        parts: tuple type of the vendor's state.
        facts: frozen dataclass of the facts known when tracing.
    """

    def __init__(self, kind: type, parts: Any, facts: Any):
        self.kind, self.parts, self.facts = kind, parts, facts

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None:
        self.parts._flatten_ir_types(builder, out)

    def _unflatten_ir(self, handles: Sequence[Any], cursor: int) -> tuple[Any, int]:
        parts, cursor = self.parts._unflatten_ir(handles, cursor)
        return self.kind(parts, self.facts), cursor

    def mangle(self) -> str:
        known = hashlib.sha256(repr(self.facts).encode()).hexdigest()[:16]
        return f"R{self.kind.__name__}{self.parts.mangle()}{known}R"

    def __str__(self) -> str:
        return f"{self.kind.__name__}<{self.facts}>"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, record_type)
            and self.kind is other.kind
            and self.parts == other.parts
            and self.facts == other.facts
        )

    def __hash__(self) -> int:
        return hash((self.kind, str(self.facts)))


class Record(base_value):
    """A value made of several. See the module."""

    def __init__(self, parts: Any, facts: Any):
        self.parts = parts if isinstance(parts, tl_tuple) else tl_tuple(list(parts))
        self.facts = facts
        self.type = record_type(type(self), self.parts.type, facts)

    def _flatten_ir(self, handles: list[Any]) -> None:
        self.parts._flatten_ir(handles)

    def _set_name(self, builder: Any, name: str) -> None:
        """Leave the parts their own names."""

    def __str__(self) -> str:
        return str(self.type)


class mma_accumulator(Record):
    """Sums of products, in registers or wherever the matrix unit keeps them.

    `gl.portable.mma` adds to it, `gl.portable.mma_wait` waits for it, `gl.portable.read` makes it a
    tensor.
    """

    @property
    def dtype(self) -> Any:
        """dtype of the elements."""
        return self.facts.dtype

    @property
    def shape(self) -> list[int]:
        """`[m, n]`."""
        return list(self.facts.shape)

    @property
    def layout(self) -> Any:
        """Layout of the tensor that it is read as."""
        return self.facts.layout
