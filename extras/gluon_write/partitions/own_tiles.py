"""Tiles that each part of the rows has for itself in a round of a loop around loops, such as the queries of a block.

The producer copies those that are loaded to rings of the parts, so that those of the next round come during this one.
Those that are stored leave through writers of the parts, while the next round is under way.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Callable, Collection, Iterator, Sequence

from gluon_core import portable
from gluon_write.loops.loops import Tile
from gluon_write.loops.tile_loops import LoopsOfTiles
from gluon_write.text.form import factor, free_name
from gluon_write.text.syntax import nodes_in, reads, stores

__all__ = ["DEPTH", "OwnStore", "OwnTile", "names_of", "own_stores", "own_tiles"]

DEPTH = 2  # slots: one in use, one that comes
_LINE = 128  # bytes of a row of a block in shared memory, the widest pattern of banks


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
        return names_of(self.ring, parts)

    def begun(self, role: str, parts: int) -> str:
        """Return the line that begins with the first slot; role is "producer" or "consumer"."""
        ring = self.ring if role == "consumer" else self.rings(parts)[0]
        return f"{self.slot} = {ring}.{role}()"

    def taken(self, shared: bool) -> list[str]:
        """Return the lines of the load in the consumer; with `shared`, units read the tile where it is."""
        load = "" if shared else ".load()"
        return [f"{self.tile.name} = {self.ring}.wait({self.slot}){load}"]

    def passed(self) -> list[str]:
        """Return the lines of a consumer that lets the tile pass."""
        return [f"{self.ring}.wait({self.slot})"]

    def slice(self, part: str) -> tuple[list[ast.stmt], set[str]]:
        """Return the statements of a round that the place needs and that differ by part, and the other names that it needs."""
        before = self.loop.body[: self.loop.body.index(self.tile.statement)]
        differing, names = [], {part}
        for statement in before:
            if reads(statement) & names:
                differing.append(statement)
                names |= stores(statement)
        needed = self.tile.reads()
        chosen: list[ast.stmt] = []
        for statement in reversed(differing):
            if stores(statement) & needed:
                chosen.insert(0, statement)
                needed |= reads(statement)
        return chosen, needed - names

    def fetched(self, reader: LoopsOfTiles, parts: int, part: str) -> list[str]:
        """Return the lines of the load in the producer, where `part` has the number of each part."""
        place = ", ".join(reader.text_of(one) for one in self.tile.place)
        chosen, _ = self.slice(part)
        names = {name for statement in chosen for name in stores(statement)}
        lines = []
        for number, ring in enumerate(self.rings(parts)):
            if not part:
                lines.append(f"{ring}.fetch({self.slot}, [[{place}]])")
                continue
            end = "_part" if any(f"{name}_{number}" in reader.locals for name in names) else ""
            new = {part: str(number), **{name: f"{name}{end}_{number}" for name in names}}
            words = re.compile(rf"\b({'|'.join(new)})\b")
            texts = [*(line for s in chosen for line in reader.piece(s)), place]
            *own, there = (words.sub(lambda m, new=new: new[m[1]], text) for text in texts)  # type: ignore[misc]
            lines += [*own, f"{ring}.fetch({self.slot}, [[{there}]])"]
        return lines

    def over(self, consumer: bool) -> list[str]:
        """Return the lines at the end of a round."""
        released = [f"{self.ring}.release({self.slot})"] if consumer else []
        return [*released, f"{self.slot} = {self.slot}.next()"]


@dataclass(frozen=True)
class OwnStore:
    """Hold a store of a tile that becomes one through a writer of each part.

    Attributes:
        loop: the loop around loops. tiles: name of the descriptor, `maker` its statement.
        writer: its name in the consumer.
        parts: number of adjacent blocks that store a tile.
        tile_bytes: of the tile.
    """

    loop: ast.For
    statement: ast.Expr
    tiles: str
    maker: ast.Assign
    writer: str
    parts: int
    tile_bytes: int

    @property
    def bytes(self) -> int:
        """Return the bytes of a writer's buffers: two parts, so that one is written while the other leaves."""
        return self.tile_bytes // self.parts * min(2, self.parts)

    def described(self, reader: LoopsOfTiles) -> str:
        """Return the statement that makes the descriptor, for blocks of one part."""
        call = self.maker.value
        assert isinstance(call, ast.Call)
        *first, block = (reader.text_of(one) for one in call.args)
        if self.parts > 1:
            sizes = call.args[-1]
            assert isinstance(sizes, (ast.List, ast.Tuple))
            rows, columns = (reader.text_of(one) for one in sizes.elts)
            block = f"[{rows}, {factor(columns)} // {self.parts}]"
        return f"{self.tiles} = {reader.text_of(call.func)}({', '.join([*first, block])})"

    def opened(self, reader: LoopsOfTiles, writer: str = "") -> str:
        """Return the statement that makes a writer, of this name or the consumer's."""
        parts = f", parts={self.parts}" if self.parts > 1 else ""
        return f"{writer or self.writer} = {reader.space}.portable.writer({self.tiles}{parts})"

    def lines(self, reader: LoopsOfTiles) -> list[str]:
        """Return the lines of the store."""
        assert isinstance(self.statement.value, ast.Call)
        _, place, value = (reader.text_of(one) for one in self.statement.value.args)
        return [f"{self.writer}.store({place}, {value})"]


def names_of(name: str, parts: int) -> list[str]:
    """Return the names of what each part has for itself."""
    return [f"{name}_{part}" for part in range(parts)] if parts > 1 else [name]


def own_stores(
    reader: LoopsOfTiles,
    around: Callable[[ast.For], bool],
    described: Collection[str],
    taken: set[str],
) -> list[OwnStore]:
    """Return the stores of tiles in rounds of a kernel's loops around loops, one for each descriptor.

    Args:
        around, described, taken: as in `own_tiles`.
    """
    listed = []
    for loop in reader.tree.body:
        if not isinstance(loop, ast.For) or not around(loop):
            continue
        for statement in _each(loop.body):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
                continue
            call = statement.value
            if reader.called(call) is not portable.store or len(call.args) != 3 or call.keywords:
                continue
            kind, tiles = reader.type_of(call.args[2]), call.args[0]
            if kind is None or not isinstance(tiles, ast.Name) or tiles.id not in described:
                continue
            names = [n for n in nodes_in(reader.tree) if isinstance(n, ast.Name)]
            maker = next(s for s in reader.tree.body if tiles.id in stores(s))
            if sum(n.id == tiles.id for n in names) > 2 or not _is_plain(maker):
                continue  # it has other uses
            assert isinstance(maker, ast.Assign)
            writer = free_name(f"{re.sub('_(tiles|desc)$', '', tiles.id)}_writer", taken)
            line = kind[0][1] * kind[1] // 8
            parts = line // _LINE if line % _LINE == 0 else 1
            size = line * kind[0][0]
            listed.append(OwnStore(loop, statement, tiles.id, maker, writer, parts, size))
    return listed


def _each(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block, and those of its branches without an alternative."""
    for statement in block:
        yield statement
        if isinstance(statement, ast.If) and not statement.orelse:
            yield from statement.body


def own_tiles(
    reader: LoopsOfTiles,
    around: Callable[[ast.For], bool],
    described: Collection[str],
    taken: set[str],
    once: bool = False,
) -> list[OwnTile]:
    """Return the tiles that rounds of a kernel's loops around loops load.

    Args:
        around: returns True for a loop around loops of tiles.
        described: names of the descriptors that are made before all loops. taken: names in use.
        once: the kernel's body counts as the only round of a loop.
    """
    tiles = []
    loops = [one for one in reader.tree.body if isinstance(one, ast.For) and around(one)]
    if once and not loops:
        loops = [ast.For(ast.Name("_"), ast.Tuple([]), reader.tree.body, [])]
    for loop in loops:
        for statement in loop.body:
            tile = reader.tile(statement) if isinstance(statement, ast.Assign) else None
            if tile is not None and not tile.transposed and tile.tiles in described:
                ring = free_name(f"{tile.name}_ring", taken)
                tiles.append(OwnTile(loop, tile, ring, free_name(f"{tile.name}_slot", taken)))
    return tiles


def _is_plain(maker: ast.stmt) -> bool:
    """Return True if a statement makes a descriptor of blocks of two sizes, without a layout."""
    call = maker.value if isinstance(maker, ast.Assign) else None
    if not isinstance(call, ast.Call) or len(call.args) != 4 or call.keywords:
        return False
    return isinstance(call.args[3], (ast.List, ast.Tuple)) and len(call.args[3].elts) == 2
