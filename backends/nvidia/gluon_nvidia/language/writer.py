"""Tiles that go to memory while the partition that made them goes on: buffers and stores by TMA (sm_90).

    out = tma_writer(c_desc, parts=4)      # before `gl.warp_specialize`, one for each partition
    ...
    out.store([row, column], result)       # for each tile
    ...
    out.close()

A buffer is written again once the store that reads it is over; the others may be under way then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence, Union

from gluon_core import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.typing import Const, Operand
from gluon_core.portable.epilogues import tile_epilogue
from gluon_core.portable.records import Record
from gluon_nvidia.language import tma
from gluon_nvidia.language.descriptor import tensor_descriptor
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.language.tensor_memory import tensor_memory_descriptor

__all__ = [
    "block_of",
    "check_descriptor",
    "finishing",
    "fitting",
    "listed",
    "tile_writer",
    "tma_writer",
]


@dataclass(frozen=True)
class WriterFacts:
    """Describe the blocks that are stored at once side by side, and the buffers that they use in turn."""

    parts: int
    buffers: int


class tile_writer(Record):
    """Buffers through which one partition stores tiles of a tensor."""

    @builtin(name="tile_writer.store")
    def store(
        self,
        coordinates: Sequence[Any],
        value: Union[Operand, tensor_memory_descriptor],
        descriptor: Optional[tensor_descriptor] = None,
        turns: Sequence[tile_writer] = (),
    ) -> None:
        """Start storing `value`; the partition goes on while it is on its way.

        Args:
            coordinates: where it begins: an integer scalar per dimension, from 0 on.
            value: a tensor of as many of the descriptor's blocks side by side as the writer has
                parts; converted to the descriptor's element type. Or so much tensor memory, of
                which one part after the other is loaded; it has been read when this returns.
            descriptor: of another tensor than that of the writer, with the same type, block and
                layout, such as another device's.
            turns: all writers of the partition, which each store once before this one does again: the
                store waits for this writer's buffers only. By default it waits for stores of others, too.

        Raises:
            ArgumentError: no such descriptor, or `turns` are no writers.
            ShapeError: `value` has another shape.
            LayoutError: there are several parts, and a thread does not hold elements of each.
        """
        semantic = semantic_layer()
        held = unwrap(value)
        if isinstance(held, tensor_memory_descriptor):
            parts = _loaded(held, self.width)
        else:
            held = semantic.require_distributed(held, "value")
            parts = self._split(held)
        stored = 0
        for one in listed(turns, "turns"):
            if not isinstance(one, tile_writer):
                raise errors.ArgumentError(
                    "not a writer",
                    argument="turns",
                    expected="tile_writers",
                    got=semantic.describe(one),
                )
            stored += one.facts.parts
        self.send(coordinates, held, parts, descriptor, max(0, stored - self.facts.parts))

    def send(
        self,
        coordinates: Sequence[Any],
        value: Union[Operand, tensor_memory_descriptor],
        parts: Iterator[Operand],
        descriptor: Optional[tensor_descriptor] = None,
        between: int = 0,
    ) -> None:
        """Store the parts of `value`, each made when its turn comes; `between` parts of others are stored since the last ones."""
        semantic = semantic_layer()
        desc, buffers, end = self.parts.values
        if unwrap(descriptor) is not None:
            desc = fitting(desc.type, unwrap(descriptor), "writer")
        block, shape = block_of(desc), semantic.shape_of(value)
        plain = [size for size in block if size > 1] if len(shape) < len(block) else block
        if shape != [*plain[:-1], plain[-1] * self.facts.parts]:
            raise errors.ShapeError(
                "not that of the writer",
                argument="value",
                expected=f"{self.facts.parts} of {block} side by side",
                got=shape,
            )
        count = self.facts.buffers
        place = [semantic.scalar_int32(item, "coordinates") for item in listed(coordinates)]
        for i, part in enumerate(parts):
            here = semantic.moved_right(place, i * plain[-1])
            if end.values:
                part = end.values[0].apply(part, here, desc.dtype)
            part = semantic.cast(semantic.to_tensor(part), desc.dtype)
            tma.store_wait(count - 1 + (between if i < count else 0))
            buffer = semantic.memdesc_index(buffers, i % count)
            target = buffer if plain == block else buffer.reshape(plain)
            semantic.shared_store(target, part)
            fence_async_shared()
            tma.async_store(desc, here, buffer)

    def _split(self, value: Any) -> Iterator[Any]:
        """Without an epilogue a tile is converted whole."""
        semantic = semantic_layer()
        whole = value if self.parts.values[2].values else semantic.cast(value, self._desc.dtype)
        yield from semantic.split_columns(whole, self.width)

    @property
    def _desc(self) -> Any:
        return self.parts.values[0]

    @property
    def width(self) -> int:
        """Columns of a part."""
        return block_of(self._desc)[-1]

    @builtin(name="tile_writer.close")
    def close(self, read_only: Const[bool] = True) -> None:
        """Wait until all that was stored is out of the buffers.

        Args:
            read_only: with False, until it is in global memory: a signal after that tells others.
        """
        tma.store_wait(0, read_only)


@builtin(requires=("nvidia.tma",), name="gl.nvidia.hopper.tma_writer")
def tma_writer(
    descriptor: tensor_descriptor,
    parts: Const[int] = 1,
    buffers: Optional[Const[int]] = None,
    epilogue: Optional[tile_epilogue] = None,
) -> tile_writer:
    """Allocate buffers through which one partition stores tiles by TMA: where there are several, one is
    written while those before are read. Make it before `gl.warp_specialize`, one for each partition.

    Args:
        descriptor: of the tensor.
        parts: compile-time integer: a tile is so many of the descriptor's blocks side by side.
        buffers: compile-time integer that divides `parts`; 2 by default where it does, else 1.
        epilogue: change of the tiles before they are stored, of `gl.portable.epilogue`; one part after
            the other, so that its operands take few registers.

    Returns:
        A `tile_writer`.

    Raises:
        ArgumentError: no descriptor, no epilogue, or an illegal number.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor; 9.7.9.27.3, cp.async.bulk.wait_group.
    """
    semantic = semantic_layer()
    semantic, end = semantic, unwrap(epilogue)
    check_descriptor(descriptor, "descriptor")
    tile_epilogue.check(end)
    blocks = semantic.compile_time_int(parts, "parts", 1)
    buffer_count = 2 - blocks % 2 if unwrap(buffers) is None else buffers
    count = semantic.compile_time_int(buffer_count, "buffers", 1)
    # A tile begins with the first buffer: earlier stores still in flight are in the others.
    if blocks % count:
        raise errors.ArgumentError(
            "does not divide the parts",
            argument="buffers",
            expected=f"a divisor of {blocks}",
            got=count,
        )
    memory = semantic.allocate_shared(
        descriptor.dtype, [count, *block_of(descriptor)], descriptor.layout
    )
    held = tl.tuple([] if end is None else [end])
    return tile_writer([descriptor, memory, held], WriterFacts(blocks, count))


def finishing(writer: tile_writer, end: Optional[tile_epilogue]) -> tile_writer:
    """Return the writer with another epilogue, or none."""
    held = tl.tuple([] if end is None else [end])
    return tile_writer([*writer.parts.values[:2], held], writer.facts)


# -- shared --------------------------------------------------------------------------------------


def _loaded(memory: Any, width: int) -> Iterator[Any]:
    """Parts of tensor memory, each loaded when its turn comes."""
    for start in range(0, semantic_layer().shape_of(memory)[-1], width):
        yield memory.slice(start, width).load()


def block_of(desc: Any) -> list[int]:
    return [int(size) for size in desc.block_type.shape]


def check_descriptor(value: Any, argument: str) -> None:
    if not isinstance(value, tensor_descriptor):
        raise errors.ArgumentError(
            "not a descriptor",
            argument=argument,
            expected="a tensor_descriptor",
            got=semantic_layer().describe(value),
        )


def fitting(tile: Any, other: Any, owner: str) -> Any:
    """Return another descriptor, for buffers of `owner` that were made for tiles with such a `block_type` and `layout`.

    Raises:
        ArgumentError: it has another type, block or layout.
    """
    check_descriptor(other, "descriptor")
    if other.type.block_type != tile.block_type or other.layout != tile.layout:
        raise errors.ArgumentError(
            f"does not fit the {owner}'s buffers",
            argument="descriptor",
            expected=f"{tile.block_type} in {tile.layout}",
            got=f"{other.type.block_type} in {other.layout}",
        )
    return other


def listed(values: Any, argument: str = "coordinates") -> list[Any]:
    values = unwrap(values)
    if not isinstance(values, (list, tuple, tl.tuple)):
        raise errors.ShapeError(
            "not a sequence", argument=argument, got=semantic_layer().describe(values)
        )
    return [unwrap(value) for value in values]
