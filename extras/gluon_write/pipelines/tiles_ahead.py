"""Copy tiles of descriptors ahead, in loops of several products whose warps all copy and multiply.

    for start in range(0, length, BN):
        key = gl.portable.load(k_tiles, [start, 0])
        score = gl.portable.mma(query, key.T, zeros)
        value = gl.portable.load(v_tiles, [start, 0])
        acc = gl.portable.mma(weight_of(score), value, acc)

becomes a pipeline that one thread feeds by TMA, where the kernel cannot have partitions. Products of fewer rows than a warp group
takes load each tile from its buffer.
"""

from __future__ import annotations

import ast
from typing import Any, Mapping

from gluon_core.plugin.targets import Target
from gluon_write.loops.loops import Edit, Loop, Tile, viewed
from gluon_write.loops.tile_loops import LoopsOfTiles, loops_of_tiles
from gluon_write.pipelines.prefetch import Prefetcher
from gluon_write.text.form import factor, free_name, one_line, renamed
from gluon_write.text.syntax import nodes_in, operands_of, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["has_several_products", "reads_tiles", "tiles_ahead"]

_GROUP = 4  # warps


def tiles_ahead(fn: Any, drawn: Sketch, traced: Tracer) -> Any:
    """Return a kernel whose loops of several products copy tiles ahead, or the kernel."""
    if not traced.copies_tiles(drawn):
        return fn
    able = traced.has("nvidia.wgmma") and traced.warps % _GROUP == 0
    for kind in (_TilePrefetcher, _WarpProducts) if able else (_WarpProducts,):
        words = {"stages": traced.stages, "room": traced.room}
        ahead = kind.rewrite(fn, drawn, traced.target, traced.warps, **words)
        if ahead is not fn:
            return ahead
    return fn


def has_several_products(drawn: Sketch, target: Target) -> bool:
    """Return True if a loop of tiles has more than one product."""
    readers = loops_of_tiles(drawn, target, _GROUP)
    return any(len(loop.products) > 1 for reader in readers for loop in reader.loops())


def reads_tiles(drawn: Sketch, target: Target) -> bool:
    """Return True if the loops of a kernel load tiles of descriptors for products that read them from shared memory alone."""
    readers = loops_of_tiles(drawn, target, _GROUP)
    loops = [loop for reader in readers for loop in reader.loops()]
    loads = [
        node
        for reader in readers
        for loop in nodes_in(reader.tree)
        if isinstance(loop, ast.For)
        for node in loop.body
        if isinstance(node, ast.Assign) and reader.tile(node) is not None
    ]
    return 0 < sum(len(loop.tiles) for loop in loops) == len(loads)


class _TilePrefetcher(LoopsOfTiles, Prefetcher):
    """Write loops whose tiles come through pipelines."""

    tiles = ""  # the name of a loop's pipeline
    places: dict[str, str] = {}  # tile -> the name of its place, which a step moves
    steps = ""  # the name of the steps of a loop that begins elsewhere than at 0, which counts them

    def read(self, node: Any) -> Any:
        loop = super().read(node)
        if loop is None or not self.is_one(loop):
            return None
        moves = [s for tile in loop.tiles.values() for s in self._moves(loop, tile)]
        if not all(statement in loop.ahead for statement in moves):
            return None
        return None if self._asks(loop) else loop

    def is_one(self, loop: Loop) -> bool:
        """Return True for a loop of the products that this class writes."""
        return len(loop.issued) > 1 and self.suits(loop)

    def _asks(self, loop: Loop) -> bool:
        """Return True if arithmetic asks for the shape of a tile, whose buffer may be transposed."""
        within = {id(n) for product in loop.products for n in nodes_in(product)}
        return any(
            isinstance(n, ast.Attribute) and n.attr == "shape" and id(n) not in within
            and isinstance(n.value, ast.Name) and n.value.id in loop.tiles
            for n in nodes_in(loop.node)
        )  # fmt: skip

    def _moves(self, loop: Loop, tile: Tile) -> list[ast.stmt]:
        """Return the statements of a step that move the place of a tile after its load."""
        later = loop.node.body[loop.node.body.index(tile.statement) + 1 :]
        return [statement for statement in later if stores(statement) & tile.reads()]

    def named(self, loop: Loop, taken: set[str]) -> None:
        self.tiles = free_name("tiles", taken)
        counts = self._bounds(loop)[0] != "0" and not loop.falls
        self.steps = free_name("steps", taken) if counts else ""
        for tile in loop.tiles.values():
            tile.ring = tile.name  # the buffer knows its dtype
        self.places = {
            name: free_name(f"{name}_place", taken)
            for name, tile in loop.tiles.items()
            if self._moves(loop, tile)
        }

    def _bounds(self, loop: Loop) -> tuple[str, str, str]:
        assert isinstance(loop.node.iter, ast.Call)
        return self.bounds(loop.node)

    def _written(self, loop: Loop, stages: int, taken: set[str]) -> list[Edit]:
        """Return the edits of a loop; one that begins elsewhere than at 0 counts its steps, as its copies do."""
        edits = super()._written(loop, stages, taken)
        if not self.steps:
            return edits
        node, step = loop.node, self.step
        assert isinstance(node.target, ast.Name)
        first, last, stride = self._bounds(loop)
        outer, inner = " " * node.col_offset, " " * node.body[0].col_offset
        count = f"{self.space}.cdiv({last} - {factor(first)}, {stride})"
        moves = f"{inner}{node.target.id} = {first} + {step} * {factor(stride)}"
        counted = f"{outer}{step} = 0", f"{inner}{step} += 1"
        edits = [
            (begin, end, [line for line in lines if line not in counted])
            for begin, end, lines in edits
        ]
        begin, end, before = edits[0]
        loop_line = next(i for i, line in enumerate(before) if line.endswith(":"))
        edits[0] = (
            begin,
            end,
            [*before[:loop_line], f"{outer}{self.steps} = {count}", *before[loop_line:]],
        )
        header = [f"{outer}for {step} in range({self.steps}):", moves]
        return [*edits, (node.lineno, node.body[0].lineno - 1, header)]

    def rings_of(self, loop: Loop, moved: Mapping[str, str]) -> list[str]:
        listed = ", ".join(tile.tiles for tile in loop.tiles.values())
        return [f"{self.tiles} = {self.space}.portable.pipeline([{listed}], {self.stages})"]

    def waited(self, loop: Loop, step: str, slot: str) -> list[str]:
        names = ", ".join(loop.tiles)
        return [f"{names} = {self.tiles}.wait({step})"]

    def arrived(self, loop: Loop, later: int) -> list[str]:
        return []  # the pipeline waits

    def loaded(self, tile: Tile, loop: Loop, slot: str) -> list[str]:
        return []

    def ended(self) -> str:
        return f"{self.tiles}.close()"

    def _fetch(
        self,
        loop: Loop,
        moved: Mapping[str, str],
        last: str,
        stride: str,
        ahead: str,
        end: ast.For,
    ) -> Any:
        def lines(step: str) -> list[str]:
            text: list[str] = []
            places: dict[str, str] = {}
            loads = loop.by_statement
            for statement in loop.node.body:
                tile = loads.get(id(statement))
                if statement in loop.ahead:
                    text.append(one_line(renamed(self.text_of(statement), moved)))
                if tile is None:
                    continue
                parts = [renamed(self.text_of(part), moved) for part in tile.place]
                name = self.places.get(tile.name)
                if name is not None:  # all tiles are fetched together, behind the moves
                    text.append(f"{name} = ({', '.join(parts)})")
                    parts = [f"{name}[{dim}]" for dim in range(len(parts))]
                places[tile.name] = f"[{', '.join(parts)}]"
            inside = f"{step} < {self.steps}" if self.steps else loop.inside(ahead, last)
            text.append(
                f"{self.tiles}.fetch({step}, [{', '.join(places[name] for name in loop.tiles)}], pred={inside})"
            )
            return [*text, f"{ahead} += {stride}"]

        return lines


class _WarpProducts(_TilePrefetcher):
    """Write loops of products that warps multiply from registers."""

    takes_several = True

    def __init__(self, fn: Any, number: int, drawn: Sketch, target: Target, warps: int):
        super().__init__(fn, number, drawn, target, warps)
        self.wgmma = False

    def is_one(self, loop: Loop) -> bool:
        self.wgmma = self.target.has("nvidia.wgmma") and self.warps % _GROUP == 0
        grouped = self.on_shared(loop)
        self.wgmma = False
        return not grouped and len(loop.products) > 1 and self.copies_alone(loop)

    def several(self, call: ast.Call, loop: Loop) -> dict[int, str]:
        texts: dict[int, str] = {}
        for operand in operands_of(call):
            name = viewed(operand, self) or ""
            if name in loop.tiles:
                across = isinstance(operand, ast.Name) == loop.tiles[name].transposed
                texts[id(operand)] = f"{name}{'.permute((1, 0))' if across else ''}.load()"
        return texts
