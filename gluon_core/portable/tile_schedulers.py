"""Tile schedulers: the tile that comes next, the same in all partitions of a program.

    work = gl.portable.tile_scheduler(tiles, partitions=2)   # before `gl.warp_specialize`
    ...
    tile = work.first(partition)                             # in partition 0, in partition 1
    while work.has(tile):
        row, column = work.at(tile)
        ...
        tile = work.next(tile)

A program begins with the tile of its own number and goes on by as many as there are programs. Where
hardware starts programs one after the other, it also takes over the tiles of programs that have not
begun; partition 0 asks for them a tile ahead. So a kernel is right with any grid: with one program for
each tile, hardware balances them, or each does one; with fewer they share.
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
from gluon_core.portable.requests import TileSchedulerRequest
from gluon_core.portable.selection import code, named
from gluon_core.portable.tile_orders import tile_order
from gluon_core.semantic.operands import compile_time_int, scalar_int32
from gluon_core.values.tensors import describe

__all__ = [
    "scheduled_tile",
    "static_tile_scheduler",
    "tile_scheduler",
    "tile_scheduler_type",
]


@dataclass(frozen=True)
class TileSchedulerFacts:
    """The lowering that was chosen, the partitions that take tiles, and how many answers may be on their
    way or not yet read by all."""

    lowering: str
    partitions: int
    slots: int


@dataclass(frozen=True)
class ScheduledTileFacts:
    """The scheduler that a tile comes from, and the partition that takes it."""

    scheduler: TileSchedulerFacts
    partition: int


class scheduled_tile(Record):
    """A partition's tile of a scheduler. Loops carry it."""

    @property
    def number(self) -> tensor:
        """Return the tile's number, an int32 scalar; the number of tiles where none is left."""
        return self.parts.values[0]


class tile_scheduler_type(Record):
    """Tiles that a program takes one after the other."""

    @staticmethod
    def make(lowering: str, tiles: Any, partitions: Any, slots: Any) -> tile_scheduler_type:
        """Return a scheduler by the lowering of that name."""
        semantic, order = semantic_layer(), unwrap(tiles)
        count = compile_time_int(slots, "slots", 1)
        facts = TileSchedulerFacts(lowering, compile_time_int(partitions, "partitions", 1), count)
        if not isinstance(order, tile_order):
            order = scalar_int32(semantic, order, "tiles")
        state = code(named("tile_scheduler", lowering))(facts, _semantic=semantic)
        return tile_scheduler_type([order, tl_tuple(list(state))], facts)

    @builtin(name="tile_scheduler.first")
    def first(self, partition: Const[int] = 0) -> scheduled_tile:
        """Return a partition's first tile. Every partition must loop to the end.

        Args:
            partition: compile-time integer, from 0 to below the number of partitions; one partition each.
                Partition 0 should be one that is ahead of the others.

        Raises:
            ArgumentError: there is no such partition.
        """
        mine = compile_time_int(partition, "partition", 0, self.facts.partitions - 1)
        return self._tile("first", [], ScheduledTileFacts(self.facts, mine))

    @builtin(name="tile_scheduler.has")
    def has(self, tile: scheduled_tile) -> tensor:
        """Return True, an int1 scalar, where there is such a tile.

        Raises:
            ArgumentError: not a tile of this scheduler.
        """
        return semantic_layer().less_than(self._checked(tile).number, self._count())

    @builtin(name="tile_scheduler.at")
    def at(self, tile: scheduled_tile) -> Union[tl_tuple, tensor]:
        """Return where the tile begins: its first row and its first column, as the order of the tiles has
        them; of plain numbers, the number. All int32 scalars.

        Raises:
            ArgumentError: not a tile of this scheduler.
        """
        number, tiles = self._checked(tile).number, self.parts.values[0]
        return tiles.at(number) if isinstance(tiles, tile_order) else number

    @builtin(name="tile_scheduler.next")
    def next(self, tile: scheduled_tile) -> scheduled_tile:
        """Return the tile after this one; nothing comes after the end.

        Raises:
            ArgumentError: not a tile of this scheduler.
        """
        checked = self._checked(tile)
        return self._tile("next", list(checked.parts.values), checked.facts)

    def _count(self) -> tensor:
        tiles = self.parts.values[0]
        return tiles.count() if isinstance(tiles, tile_order) else tiles

    def _tile(self, step: str, before: list[Any], facts: ScheduledTileFacts) -> scheduled_tile:
        semantic, state = semantic_layer(), list(self.parts.values[1].values)
        make = code(named("tile_scheduler", self.facts.lowering), step)
        return scheduled_tile(make(state, before, facts, self._count(), _semantic=semantic), facts)

    def _checked(self, tile: Any) -> scheduled_tile:
        if not isinstance(tile, scheduled_tile) or tile.facts.scheduler != self.facts:
            raise ArgumentError(
                "not a tile of this scheduler",
                argument="tile",
                expected=f"one of {self.facts.partitions} partitions, {self.facts.lowering}",
                got=tile.facts if isinstance(tile, scheduled_tile) else describe(tile),
                remedy="Begin with scheduler.first(partition) and go on with scheduler.next(tile).",
            )
        return tile


@builtin(name="gl.portable.tile_scheduler")
def tile_scheduler(
    tiles: Union[tile_order, Scalar[int]], partitions: Const[int] = 1, slots: Const[int] = 3
) -> tile_scheduler_type:
    """Schedule the tiles of a persistent kernel: take over programs that have not started where the
    target can, else advance by the number of programs. Create the scheduler before
    `gl.warp_specialize`, and pass it to the partitions.

    Programs are counted along all axes of the grid.

    Args:
        tiles: an order of tiles, such as `swizzled_tiles`; or their number, an integer scalar.
        partitions: compile-time integer: how many partitions take tiles, each from `first(partition)` to
            the end.
        slots: compile-time integer: by how many tiles partition 0 may be ahead of the last; where nothing
            is asked for, by any number.

    Returns:
        A `tile_scheduler_type`.

    Raises:
        ArgumentError: an illegal number.
        DtypeError: `tiles` are neither an order nor a number.
    """
    semantic = semantic_layer()
    around = semantic.target, semantic.num_warps, _triton.VERSION
    selected = choose("tile_scheduler", TileSchedulerRequest(*around, semantic.num_ctas))
    return tile_scheduler_type.make(selected.chosen.name, tiles, partitions, slots)


@builtin(name="gl.portable.static_tile_scheduler")
def static_tile_scheduler(
    tiles: Union[tile_order, Scalar[int]], partitions: Const[int] = 1
) -> tile_scheduler_type:
    """Schedule tiles in a fixed order on all hardware: program i takes tile i and then every n-th tile for
    n programs. Otherwise as `tile_scheduler`.

    Args:
        tiles: an order of tiles, or their number.
        partitions: compile-time integer.

    Returns:
        A `tile_scheduler_type`.

    Raises:
        ArgumentError: an illegal number.
        DtypeError: `tiles` are neither an order nor a number.
    """
    return tile_scheduler_type.make("static", tiles, partitions, 1)


# -- every target: a fixed order ------------------------------------------------------------------


def begin(facts: TileSchedulerFacts, _semantic: SemanticLayer) -> list[Any]:
    """Return no state: nobody is asked."""
    return []


def first(
    state: Any, before: Any, facts: ScheduledTileFacts, count: Any, _semantic: SemanticLayer
) -> list[Any]:
    return [_semantic.program_number()]


def following(
    state: Any, before: Any, facts: ScheduledTileFacts, count: Any, _semantic: SemanticLayer
) -> list[Any]:
    return [_semantic.add(before[0], _semantic.programs(), True)]
