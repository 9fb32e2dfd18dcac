"""Which tile comes next: walks over tiles, in step in all roles of a program.

    work = gl.portable.walk(tiles, roles=2)      # before the roles part
    ...
    turn = work.first(role)                      # in role 0, in role 1
    while work.has(turn):
        row, column = work.at(turn)
        ...
        turn = work.next(turn)

A program begins with the tile of its own number and goes on by as many as there are programs. Where
hardware starts programs one after the other, it can do besides what others would have done that
have not begun; role 0 asks for that a tile ahead. So a kernel is right with any grid: with one
program for each tile, hardware balances them, or each does one; with fewer they share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from gluon_core import _triton
from gluon_core._triton import tensor, tl_tuple, unwrap
from gluon_core.errors import ArgumentError
from gluon_core.plugin.ops import builtin, semantic_layer
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.portable.common import choose
from gluon_core.portable.records import Record
from gluon_core.portable.requests import WalkRequest
from gluon_core.portable.schedule import tile_schedule
from gluon_core.registry.selection import code, named
from gluon_core.semantic.operands import compile_time_int, scalar_int32
from gluon_core.values.tensors import describe

__all__ = [
    "make_walk",
    "static_walk",
    "tile_walk",
    "walk",
    "walk_turn",
]


@dataclass(frozen=True)
class WalkFacts:
    """The lowering of `tile_walk` that was taken, the roles that walk, and the answers that may be
    on their way or not yet read by all."""

    lowering: str
    roles: int
    slots: int


@dataclass(frozen=True)
class TurnFacts:
    """The walk that a turn belongs to, and whose turn it is."""

    walk: WalkFacts
    role: int


class walk_turn(Record):
    """A role's tile of a walk. Loops carry it."""

    @property
    def tile(self) -> tensor:
        """The tile's number, an int32 scalar; the number of tiles where none is left."""
        return self.parts.values[0]


class tile_walk(Record):
    """Tiles that a program takes one after the other."""

    @builtin(name="tile_walk.first")
    def first(self, role: Const[int] = 0) -> walk_turn:
        """A role's first tile. Every role walks to the end.

        Args:
            role: compile-time integer, from 0 to below the number of roles; one role each. Role 0
                should be one that is ahead of the others.

        Raises:
            ArgumentError: there is no such role.
        """
        mine = compile_time_int(role, "role", 0, self.facts.roles - 1)
        return self._turn("first", [], TurnFacts(self.facts, mine))

    @builtin(name="tile_walk.has")
    def has(self, turn: walk_turn) -> tensor:
        """Whether there is a tile in this turn, an int1 scalar.

        Raises:
            ArgumentError: no turn of this walk.
        """
        return semantic_layer().less_than(self._checked(turn).tile, self._count())

    @builtin(name="tile_walk.at")
    def at(self, turn: walk_turn) -> Union[tl_tuple, tensor]:
        """Where the tile begins: its first row and its first column, as the order of the tiles has
        them; of plain numbers, the number. All int32 scalars.

        Raises:
            ArgumentError: no turn of this walk.
        """
        tile, tiles = self._checked(turn).tile, self.parts.values[0]
        return tiles.at(tile) if isinstance(tiles, tile_schedule) else tile

    @builtin(name="tile_walk.next")
    def next(self, turn: walk_turn) -> walk_turn:
        """The turn after this one; where this one has no tile, neither has that.

        Raises:
            ArgumentError: no turn of this walk.
        """
        checked = self._checked(turn)
        return self._turn("next", list(checked.parts.values), checked.facts)

    def _count(self) -> tensor:
        tiles = self.parts.values[0]
        return tiles.count() if isinstance(tiles, tile_schedule) else tiles

    def _turn(self, what: str, before: list[Any], facts: TurnFacts) -> walk_turn:
        semantic, state = semantic_layer(), list(self.parts.values[1].values)
        make = code(named("tile_walk", self.facts.lowering), what)
        return walk_turn(make(state, before, facts, self._count(), _semantic=semantic), facts)

    def _checked(self, turn: Any) -> walk_turn:
        if not isinstance(turn, walk_turn) or turn.facts.walk != self.facts:
            raise ArgumentError(
                "not a turn of this walk",
                argument="turn",
                expected=f"one of {self.facts.roles} roles, {self.facts.lowering}",
                got=turn.facts if isinstance(turn, walk_turn) else describe(turn),
                remedy="Begin with walk.first(role) and go on with walk.next(turn).",
            )
        return turn


@builtin(name="gl.portable.walk")
def walk(
    tiles: Union[tile_schedule, Scalar[int]], roles: Const[int] = 1, slots: Const[int] = 3
) -> tile_walk:
    """Walk over tiles, taking over programs that have not begun where hardware can (sm_100), else by
    steps of as many as there are programs. Make it before `gl.warp_specialize`, and hand it to the roles.

    Programs are counted along all axes of the grid.

    Args:
        tiles: an order of tiles, such as `grouped_tiles`; or their number, an integer scalar.
        roles: compile-time integer: how many roles walk, each from `first(role)` to the end.
        slots: compile-time integer: by how many tiles role 0 may be ahead of the last; where nothing
            is asked for, by any number.

    Returns:
        A `tile_walk`.

    Raises:
        ArgumentError: an illegal number.
        DtypeError: `tiles` are neither an order nor a number.
    """
    semantic = semantic_layer()
    around = semantic.target, semantic.num_warps, _triton.VERSION
    selected = choose("tile_walk", WalkRequest(*around, semantic.num_ctas))
    return make_walk(selected.chosen.name, tiles, roles, slots)


@builtin(name="gl.portable.static_walk")
def static_walk(tiles: Union[tile_schedule, Scalar[int]], roles: Const[int] = 1) -> tile_walk:
    """Walk over tiles by steps of as many as there are programs, on all hardware; otherwise as `walk`.

    Args:
        tiles: an order of tiles, or their number.
        roles: compile-time integer.

    Returns:
        A `tile_walk`.

    Raises:
        ArgumentError: an illegal number.
        DtypeError: `tiles` are neither an order nor a number.
    """
    return make_walk("static", tiles, roles, 1)


def make_walk(lowering: str, tiles: Any, roles: Any, slots: Any) -> tile_walk:
    """A walk by the lowering of that name."""
    semantic, given = semantic_layer(), unwrap(tiles)
    count = compile_time_int(slots, "slots", 1)
    facts = WalkFacts(lowering, compile_time_int(roles, "roles", 1), count)
    if not isinstance(given, tile_schedule):
        given = scalar_int32(semantic, given, "tiles")
    state = code(named("tile_walk", lowering))(facts, _semantic=semantic)
    return tile_walk([given, tl_tuple(list(state))], facts)


# -- what lowerings are made of ------------------------------------------------------------------


# -- every target: by steps ----------------------------------------------------------------------


def begin(facts: WalkFacts, _semantic: SemanticLayer) -> list[Any]:
    """Nobody is asked."""
    return []


def first(
    state: Any, before: Any, facts: TurnFacts, count: Any, _semantic: SemanticLayer
) -> list[Any]:
    return [_semantic.program_number()]


def following(
    state: Any, before: Any, facts: TurnFacts, count: Any, _semantic: SemanticLayer
) -> list[Any]:
    return [_semantic.add(before[0], _semantic.programs(), True)]
