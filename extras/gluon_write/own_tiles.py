"""Tiles that each part of the rows has for itself in a round of a loop around loops, such as the queries of a block.

The producer copies them to rings of the parts, so that those of the next round come during this one.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Callable, Collection

from gluon_write.form import free_name
from gluon_write.loops import Tile
from gluon_write.tile_loops import LoopsOfTiles

__all__ = ["DEPTH", "OwnTile", "own_tiles"]

DEPTH = 2  # slots: one in use, one that comes


@dataclass(frozen=True)
class OwnTile:
    """Hold a load that becomes a copy to a ring of each part.

    Attributes:
        loop: the loop around loops, each round of which takes one slot.
        ring: name in the consumer; `ring_0` is that of part 0. slot: name of the position.
    """

    loop: ast.For
    tile: Tile
    ring: str
    slot: str

    def rings(self, parts: int) -> list[str]:
        """Return the names of the parts' rings."""
        return [f"{self.ring}_{part}" for part in range(parts)]

    def begun(self, role: str) -> str:
        """Return the line that begins with the first slot; role is "producer" or "consumer"."""
        ring = self.ring if role == "consumer" else f"{self.ring}_0"
        return f"{self.slot} = {ring}.{role}()"

    def taken(self) -> list[str]:
        """Return the lines of the load in the consumer."""
        return [f"{self.tile.name} = {self.ring}.wait({self.slot}).load()"]

    def fetched(self, reader: LoopsOfTiles, parts: int, part: str) -> list[str]:
        """Return the lines of the load in the producer, where `part` has the number of each part."""
        place = ", ".join(reader.text_of(one) for one in self.tile.place)
        word = re.compile(rf"\b{part}\b")
        return [
            f"{ring}.fetch({self.slot}, [[{word.sub(str(number), place)}]])"
            for number, ring in enumerate(self.rings(parts))
        ]

    def over(self, consumer: bool) -> list[str]:
        """Return the lines at the end of a round."""
        released = [f"{self.ring}.release({self.slot})"] if consumer else []
        return [*released, f"{self.slot} = {self.slot}.next()"]


def own_tiles(
    reader: LoopsOfTiles,
    around: Callable[[ast.For], bool],
    described: Collection[str],
    taken: set[str],
) -> list[OwnTile]:
    """Return the tiles that rounds of a kernel's loops around loops load.

    Args:
        around: returns True for a loop around loops of tiles.
        described: names of the descriptors that are made before all loops. taken: names in use.
    """
    tiles = []
    for loop in reader.tree.body:
        if not isinstance(loop, ast.For) or not around(loop):
            continue
        for statement in loop.body:
            tile = reader.tile(statement) if isinstance(statement, ast.Assign) else None
            if tile is not None and not tile.transposed and tile.tiles in described:
                ring = free_name(f"{tile.name}_ring", taken)
                tiles.append(OwnTile(loop, tile, ring, free_name(f"{tile.name}_slot", taken)))
    return tiles
