"""Accumulators in tensor memory that one partition fills and another stores: a ring of them (sm_100).

    sums = accumulator_ring([BLOCK_M, BLOCK_N], 2)     # before `gl.warp_specialize`
    ...
    position = sums.producer()                               # the partition that multiplies
    acc = sums.take(position)
    ...                                                # tcgen05_mma(..., acc, ...)
    sums.done(position)
    position = position.next()
    ...
    position = sums.consumer()                               # the partition that stores
    sums.store(position, writer, [row, column])
    position = position.next()

Each slot has a barrier that says it is full, which the matrix unit completes, and one that says it
is empty, at which the partition that stores arrives once it has read.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional, Sequence

from gluon_core import errors
from gluon_core.plugin.ops import (
    builtin,
    semantic_layer,
    tl,
    unwrap,
)
from gluon_core.plugin.typing import Const, Shape
from gluon_core.portable.records import Record
from gluon_nvidia.language import mbarrier
from gluon_nvidia.language.mbarrier_counted import arrive
from gluon_nvidia.language.ring import RingFacts, begin, check_position, ring_position
from gluon_nvidia.language.tcgen05 import tcgen05_commit
from gluon_nvidia.language.tensor_memory import allocate_tensor_memory, tensor_memory_descriptor
from gluon_nvidia.language.writer import tile_writer
from gluon_nvidia.tensor_memory import TensorMemoryLayout

__all__ = ["accumulator_ring", "tmem_ring"]

_FULL = (
    "Take and finish as many accumulators as are waited for, each with sums.take(position), sums.done(position) and "
    "then position = position.next()."
)
_EMPTY = (
    "Read each accumulator once, sums.store(position, ...) or sums.wait(position) and sums.release(position), and then "
    "position = position.next()."
)


class tmem_ring(Record):
    """Accumulators in tensor memory, with their barriers."""

    @builtin(name="tmem_ring.producer")
    def producer(self) -> ring_position:
        """Return the first position of the partition that multiplies."""
        return begin(self.facts, "producer")

    @builtin(name="tmem_ring.consumer")
    def consumer(self) -> ring_position:
        """Return the first position of the partition that reads."""
        return begin(self.facts, "consumer")

    @builtin(name="tmem_ring.take")
    def take(self, position: ring_position) -> tensor_memory_descriptor:
        """Wait until the accumulator was read, and get it to multiply into.

        Raises:
            ArgumentError: no position of a producer on this ring.
        """
        check_position(self.facts, position, "producer")
        semantic, (memory, _, empty) = semantic_layer(), self.parts.values
        mbarrier.wait(semantic.memdesc_index(empty, position.index), position.phase)
        result: tensor_memory_descriptor = memory.index(position.index)
        return result

    @builtin(name="tmem_ring.done")
    def done(self, position: ring_position) -> None:
        """Let the accumulator be read once all multiplications so far have ended.

        Raises:
            ArgumentError: no position of a producer on this ring.
        """
        check_position(self.facts, position, "producer")
        tcgen05_commit(semantic_layer().memdesc_index(self.parts.values[1], position.index))

    @builtin(name="tmem_ring.wait")
    def wait(self, position: ring_position) -> tensor_memory_descriptor:
        """Wait until the accumulator is done, and get it to read.

        Raises:
            ArgumentError: no position of a consumer on this ring.
        """
        check_position(self.facts, position, "consumer")
        semantic, (memory, full, _) = semantic_layer(), self.parts.values
        mbarrier.wait(semantic.memdesc_index(full, position.index), position.phase)
        result: tensor_memory_descriptor = memory.index(position.index)
        return result

    @builtin(name="tmem_ring.release")
    def release(self, position: ring_position) -> None:
        """Give the accumulator back, which has been read.

        Raises:
            ArgumentError: no position of a consumer on this ring.
        """
        check_position(self.facts, position, "consumer")
        arrive(semantic_layer().memdesc_index(self.parts.values[2], position.index), count=1)

    @builtin(name="tmem_ring.store")
    def store(
        self,
        position: ring_position,
        writer: tile_writer,
        coordinates: Sequence[Any],
    ) -> None:
        """Wait until the accumulator is done, start storing it, and give it back as soon as its last
        part is in registers.

        Args:
            position: a consumer's position.
            writer: of `tma_writer`, for as many parts as the accumulator is wide.
            coordinates: where the tile begins: an integer scalar per dimension.

        Raises:
            ArgumentError: no position of a consumer on this ring, or no writer.
            ShapeError: the writer was made for other tiles.
        """
        if not isinstance(writer, tile_writer):
            raise errors.ArgumentError(
                "not a writer",
                argument="writer",
                expected="what gl.nvidia.hopper.tma_writer(...) returns",
                got=semantic_layer().describe(writer),
            )
        memory = self.wait(position)
        writer.send(coordinates, memory, self._read(position, memory, writer.width))

    def _read(self, position: ring_position, memory: Any, width: int) -> Iterator[Any]:
        last = int(memory.shape[-1]) - width
        for start in range(0, last + width, width):
            part = memory.slice(start, width).load()
            if start == last:
                self.release(position)
            yield part


@builtin(requires=("nvidia.tcgen05",), name="gl.nvidia.blackwell.accumulator_ring")
def accumulator_ring(
    shape: Shape, slots: Const[int] = 2, layout: Optional[TensorMemoryLayout] = None
) -> tmem_ring:
    """Allocate `slots` accumulators of float32 in tensor memory, which one partition multiplies into and another
    reads: one is read while the next grows. Make it before `gl.warp_specialize`, and hand it to both.

    Args:
        shape: rows and columns, compile-time integers.
        slots: compile-time integer.
        layout: of one; by default `TensorMemoryLayout(shape, col_stride=1)`. With `two_ctas` the
            blocks of each pair release an accumulator together.

    Returns:
        A `tmem_ring`.

    Raises:
        ArgumentError: an illegal number.
        LayoutError, ShapeError: no such tensor memory.

    ISA: PTX 9.7.16.7.1, tcgen05.alloc; 9.7.16.12, tcgen05.commit; 9.7.13.15, mbarrier.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(slots, "slots", 1)
    size = [int(unwrap(side)) for side in unwrap(shape)]
    chosen = unwrap(layout) or TensorMemoryLayout(size, col_stride=1)
    memory = allocate_tensor_memory(tl.float32, [count, *size], chosen)
    full = mbarrier.allocate_mbarrier(batch=count)
    empty = mbarrier.allocate_mbarrier(batch=count, two_ctas=chosen.two_ctas)
    semantic.record("call_buffer", full, "the full accumulators", _FULL)
    semantic.record("call_buffer", empty, "the empty accumulators", _EMPTY)
    for slot in range(count):
        mbarrier.init(semantic.memdesc_index(full, slot), 1)
        mbarrier.init(semantic.memdesc_index(empty, slot), 1)
    return tmem_ring([memory, full, empty], RingFacts(count, 1))
