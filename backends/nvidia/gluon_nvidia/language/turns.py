"""Turns that roles take, one after the other: while one has the matrix unit, others do something else (sm_90).

    order = turns(2)                      # before the roles part
    ...
    turn = order.first(role)              # in role 0, in role 1
    for tile in range(tiles):
        order.take(turn)
        ...                               # start what the others shall not be in the way of
        order.end(turn)
        turn = turn.next()

All roles take as many turns, or those behind a role one fewer at the end. Role 0 begins; each has a barrier at which
the one before it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gluon_core.errors import ArgumentError
from gluon_core.plugin.ops import builtin, semantic_layer, tl
from gluon_core.plugin.typing import Const
from gluon_core.portable.records import Record
from gluon_nvidia.language import mbarrier
from gluon_nvidia.language.mbarrier_counted import arrive
from gluon_nvidia.language.ring import PositionFacts, ring_position

__all__ = ["role_turns", "turns"]

_TAKE = (
    "All roles take and end as many turns, one after the other: turns.take(turn), turns.end(turn), "
    "turn = turn.next()."
)
_POSITION = PositionFacts(1, "turn")


@dataclass(frozen=True)
class TurnFacts:
    """How many roles take turns."""

    roles: int


class role_turns(Record):
    """The barriers of roles that take turns."""

    @builtin(name="role_turns.first")
    def first(self, role: Const[int]) -> ring_position:
        """A role's first turn.

        Args:
            role: compile-time integer, from 0 to below the number of roles.

        Raises:
            ArgumentError: there is no such role.
        """
        semantic = semantic_layer()
        mine = semantic.compile_time_int(role, "role", 0, self.facts.roles - 1)
        numbers = (semantic.scalar_constant(n, tl.int32) for n in (mine, int(mine == 0)))
        return ring_position(list(numbers), _POSITION)

    @builtin(name="role_turns.take")
    def take(self, turn: ring_position) -> None:
        """Wait until it is this role's turn.

        Raises:
            ArgumentError: no turn.
        """
        semantic = semantic_layer()
        barrier = semantic.memdesc_index(self.parts.values[0], _checked(turn).index)
        mbarrier.wait(barrier, turn.phase)

    @builtin(name="role_turns.end")
    def end(self, turn: ring_position) -> None:
        """Let the next role have its turn. What this one has started asynchronously may go on.

        Raises:
            ArgumentError: no turn.
        """
        semantic = semantic_layer()
        one = semantic.scalar_constant(1, tl.int32)
        count = semantic.scalar_constant(self.facts.roles, tl.int32)
        after = semantic.mod(semantic.add(_checked(turn).index, one, True), count)
        arrive(semantic.memdesc_index(self.parts.values[0], after), count=1)


@builtin(requires=("nvidia.mbarrier",), name="gl.nvidia.hopper.turns")
def turns(roles: Const[int]) -> role_turns:
    """Barriers through which `roles` roles take turns. Make them before `gl.warp_specialize`, and hand
    them to the roles.

    Args:
        roles: compile-time integer of at least 2.

    Returns:
        A `role_turns`.

    Raises:
        ArgumentError: an illegal number.

    ISA: PTX 9.7.13.15, mbarrier.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(roles, "roles", 2)
    barriers = mbarrier.allocate_mbarrier(batch=count)
    semantic.call_buffer(barriers, "the turns", _TAKE)
    for role in range(count):
        mbarrier.init(semantic.memdesc_index(barriers, role), 1)
    return role_turns([barriers], TurnFacts(count))


def _checked(turn: Any) -> ring_position:
    if not isinstance(turn, ring_position) or turn.facts != _POSITION:
        raise ArgumentError(
            "not a turn",
            argument="turn",
            expected="one of a role",
            got=turn.facts if isinstance(turn, ring_position) else semantic_layer().describe(turn),
            remedy="Begin with turns.first(role) and go on with next().",
        )
    return turn
