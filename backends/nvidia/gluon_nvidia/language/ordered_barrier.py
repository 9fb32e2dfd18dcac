"""Ordered barriers: partitions pass a section one after the other, as in a ping-pong schedule (sm_90).

    order = ordered_barrier(2)            # before `gl.warp_specialize`
    ...
    position = order.first(partition)           # in partition 0, in partition 1
    for tile in range(tiles):
        order.wait(position)
        ...                               # start the work that has the tensor cores to itself
        order.arrive(position)
        position = position.next()

All partitions pass as often, or those after one of them once less at the end. Partition 0 begins; each has a
barrier at which the one before it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gluon_core import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.typing import Const
from gluon_core.portable.records import Record
from gluon_nvidia.language import mbarrier
from gluon_nvidia.language.mbarrier_counted import arrive
from gluon_nvidia.language.ring import PositionFacts, ring_position

__all__ = ["ordered_barrier", "ordered_barrier_type"]

_PASS = (
    "All partitions pass as often, one after the other: order.wait(position), order.arrive(position), "
    "position = position.next()."
)
_POSITION = PositionFacts(1, "turn")


@dataclass(frozen=True)
class OrderedBarrierFacts:
    """Return the number of partitions that pass."""

    partitions: int


class ordered_barrier_type(Record):
    """The barriers of partitions that pass a section in a fixed order."""

    @builtin(name="ordered_barrier.first")
    def first(self, partition: Const[int]) -> ring_position:
        """Return a partition's first position.

        Args:
            partition: compile-time integer, from 0 to below the number of partitions.

        Raises:
            ArgumentError: there is no such partition.
        """
        semantic = semantic_layer()
        mine = semantic.compile_time_int(partition, "partition", 0, self.facts.partitions - 1)
        numbers = (semantic.scalar_constant(n, tl.int32) for n in (mine, int(mine == 0)))
        return ring_position(list(numbers), _POSITION)

    @builtin(name="ordered_barrier.wait")
    def wait(self, position: ring_position) -> None:
        """Wait until the partitions before this one have arrived.

        Raises:
            ArgumentError: not a position of an ordered barrier.
        """
        semantic = semantic_layer()
        barrier = semantic.memdesc_index(self.parts.values[0], _checked(position).index)
        mbarrier.wait(barrier, position.phase)

    @builtin(name="ordered_barrier.arrive")
    def arrive(self, position: ring_position) -> None:
        """Let the next partition pass. Work that this one has started asynchronously may go on.

        Raises:
            ArgumentError: not a position of an ordered barrier.
        """
        semantic = semantic_layer()
        one = semantic.scalar_constant(1, tl.int32)
        count = semantic.scalar_constant(self.facts.partitions, tl.int32)
        after = semantic.mod(semantic.add(_checked(position).index, one, True), count)
        arrive(semantic.memdesc_index(self.parts.values[0], after), count=1)


@builtin(requires=("nvidia.mbarrier",), name="gl.nvidia.hopper.ordered_barrier")
def ordered_barrier(partitions: Const[int]) -> ordered_barrier_type:
    """Make a barrier that `partitions` partitions pass one after the other. Make it before
    `gl.warp_specialize`, and hand it to the partitions.

    Args:
        partitions: compile-time integer of at least 2.

    Returns:
        An `ordered_barrier_type`.

    Raises:
        ArgumentError: an illegal number.

    ISA: PTX 9.7.13.15, mbarrier.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(partitions, "partitions", 2)
    barriers = mbarrier.allocate_mbarrier(batch=count)
    semantic.record("call_buffer", barriers, "the ordered barrier", _PASS)
    for partition in range(count):
        mbarrier.init(semantic.memdesc_index(barriers, partition), 1)
    return ordered_barrier_type([barriers], OrderedBarrierFacts(count))


def _checked(position: Any) -> ring_position:
    if not isinstance(position, ring_position) or position.facts != _POSITION:
        raise errors.ArgumentError(
            "not a position of an ordered barrier",
            argument="position",
            expected="one of a partition",
            got=position.facts
            if isinstance(position, ring_position)
            else semantic_layer().describe(position),
            remedy="Begin with order.first(partition) and go on with position.next().",
        )
    return position
