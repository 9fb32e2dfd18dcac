"""Give copies and products of a loop warps of their own: a producer and a consumer partition.

    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)

becomes two functions and a ring of buffers between them, whose barriers say which slots are full and
which are empty:

    tiles = gl.nvidia.hopper.tma_ring([a_tiles, b_tiles], 4)
    acc = gl.warp_specialize([(products, (tiles, acc, K, BK)), (copies, (tiles, row, column, K, BK))], [1], [24])

A loop may have several products, and arithmetic between them. Its order comes from a modulo schedule:
where that pays, a product of the next round is under way during the arithmetic of this one.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, Iterable, Optional, Sequence

from gluon_core.language.control import warp_specialize
from gluon_write.loops.loops import Loop, Tile, viewed
from gluon_write.loops.tile_loops import LoopsOfTiles, wrapped
from gluon_write.pipelines.rounds import Rounds
from gluon_write.pipelines.work import forms_of
from gluon_write.text.form import changed_copy, free_name, function_of
from gluon_write.text.syntax import nodes_in, operands_of, reads, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["specialized"]

_LEAST_WARPS = 4  # of a warp group
_REGISTERS = 24  # of a thread that copies by TMA


@dataclass
class _Plan:
    """Hold the names of the functions of a loop, and what they take and return.

    Attributes:
        rings: name of a ring -> its tiles. depth: slots of each.
        results: names whose values the rest of the function reads.
    """

    loop: Loop
    rings: dict[str, list[Tile]]
    depth: int
    results: list[str]
    products: str = ""
    copies: str = ""
    functions: dict[str, str] = field(default_factory=dict)


def specialized(fn: Any, drawn: Sketch, traced: Tracer, form: Optional[str]) -> Any:
    """Return a kernel with producer and consumer partitions, or the kernel where that does not pay.

    Args:
        form: "specialized" or "pipelined" to have that one; None for the one that costs less.
    """
    able = traced.has("nvidia.wgmma") and traced.warps % _LEAST_WARPS == 0
    if not able or not traced.copies_tiles(drawn) or form == "pipelined":
        return fn
    for number, jit in enumerate(drawn.jits):
        if jit in drawn.called.values() and number == 0:
            continue
        work = _Specializer(jit, number, drawn, traced.target, traced.warps)
        text = work.text(traced.stages, form)
        if text is not None:
            done: dict[int, Any] = {}
            return changed_copy(fn, drawn.jits, {number: text}, done, work.functions)
    return fn


class _Specializer(LoopsOfTiles):
    """Write the partitions of one function's loop."""

    def _outermost(self) -> Iterable[ast.For]:
        """Yield the loops that no other loop is around."""

        def inner(block: Sequence[ast.stmt]) -> Iterable[ast.For]:
            for statement in block:
                if isinstance(statement, ast.For):
                    yield statement
                elif isinstance(statement, ast.If):
                    yield from inner(statement.body)
                    yield from inner(statement.orelse)

        return inner(self.tree.body)

    # -- the text -------------------------------------------------------------------------------

    def text(self, stages: int, form: Optional[str]) -> Optional[str]:
        """Return the function with its first such loop in partitions; None without one."""
        if not self.space or any(
            self.called(node) is warp_specialize for node in nodes_in(self.tree)
        ):
            return None
        for node in self._outermost():
            loop = self.read(node) if isinstance(node.target, ast.Name) else None
            if loop is None or not self.suits(loop):
                continue
            plan = self._plan(loop, stages)
            if plan is None:
                continue
            rounds = Rounds(self, loop, plan.rings)
            forms = forms_of(self, loop, rounds, plan.results, plan.depth, self.target, self.warps)
            if form is None and not forms.specialized < forms.pipelined:
                continue
            return self._written(plan, rounds, forms.schedule)
        return None

    def _plan(self, loop: Loop, stages: int) -> Optional[_Plan]:
        taken = self.names_in_use()
        rings: dict[str, list[Tile]] = {}
        for product in loop.products:
            names = [viewed(operand, self) for operand in operands_of(product)]
            tiles = [loop.tiles[name] for name in dict.fromkeys(names) if name in loop.tiles]
            if not tiles:
                return None
            word = f"{tiles[0].name}_ring" if len(loop.products) > 1 else "tiles"
            ring = free_name(word, taken)
            rings[ring] = tiles
            for tile in tiles:
                tile.ring = ring
        size = sum(tile.bytes for tile in loop.tiles.values())
        depth = min(stages, self.target.architecture.limits.shared_memory // size)
        results = self.results_of(loop)
        if depth < 2 or results is None:
            return None
        plan = _Plan(loop, rings, depth, results)
        name = self.tree.name
        plan.products = free_name(f"{name}_products", taken)
        plan.copies = free_name(f"{name}_copies", taken)
        return plan

    def _written(self, plan: _Plan, rounds: Rounds, schedule: Any) -> str:
        node, gl = plan.loop.node, self.space
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        bounds = self.bounds(node)
        copies, taken_by_copies = self._copies(plan, bounds)
        body = rounds.lines(schedule, bounds, plan.results)
        exposed = self._exposed(rounds.statements(plan.results), node)
        taken_by_products = [n for n in dict.fromkeys([*plan.results, *exposed])]
        products = self.function_text(
            plan.products,
            "Multiply the tiles of each step.",
            [*plan.rings, *taken_by_products],
            body,
        )
        for name, text in ((plan.products, products), (plan.copies, copies)):
            self.functions[name] = function_of(text, name, self.scope)
        outer = " " * node.col_offset
        lines = [
            f"{outer}# One warp copies, through rings of {plan.depth} slots; the others multiply."
        ]
        for ring, tiles in plan.rings.items():
            listed = ", ".join(tile.tiles for tile in tiles)
            lines.append(f"{outer}{ring} = {gl}.nvidia.hopper.tma_ring([{listed}], {plan.depth})")
        returned = f"{', '.join(plan.results)} = " if plan.results else ""
        calls = []
        for name, passed in ((plan.products, taken_by_products), (plan.copies, taken_by_copies)):
            words = [*plan.rings, *passed]
            calls += wrapped(f"({name}, (", words if passed else [*words, ""], ")),")
        lines += [
            f"{outer}{returned}{gl}.warp_specialize(",
            f"{outer}    [",
            *(f"{outer}        {call}" for call in calls),
            f"{outer}    ],",
            f"{outer}    [1],",
            f"{outer}    [{_REGISTERS}],",
            f"{outer})",
        ]
        whole = self.source.splitlines()
        whole[node.lineno - 1 : node.end_lineno] = lines
        return "\n".join(whole) + "\n"

    def _copies(self, plan: _Plan, bounds: tuple[str, str, str]) -> tuple[str, list[str]]:
        """Return the function that copies, and the names that it takes besides the rings."""
        loop, node = plan.loop, plan.loop.node
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        slot = free_name("slot", {*re.findall(r"\w+", self.source)})
        body = [f"{slot} = {next(iter(plan.rings))}.producer()"]
        first, last, step = bounds
        body.append(f"for {node.target.id} in range({first}, {last}, {step}):")
        loads = loop.by_statement
        ready: dict[str, set[str]] = {ring: set() for ring in plan.rings}
        wanted: list[ast.stmt | Tile] = []
        for statement in node.body:
            tile = loads.get(id(statement))
            if tile is not None:
                ready[tile.ring].add(tile.name)
                wanted.append(tile)
                if len(ready[tile.ring]) == len(plan.rings[tile.ring]):
                    places = ", ".join(
                        f"[{', '.join(self.text_of(part) for part in one.place)}]"
                        for one in plan.rings[tile.ring]
                    )
                    body.append(f"    {tile.ring}.fetch({slot}, [{places}])")
            elif statement in loop.ahead:
                wanted.append(statement)
                body += [f"    {line}" for line in self.piece(statement)]
        body.append(f"    {slot} = {slot}.next()")
        exposed = self._exposed(wanted, node)
        names = [*plan.rings, *exposed]
        return self.function_text(plan.copies, "Copy the tiles of each step.", names, body), exposed

    def _exposed(self, parts: Sequence[Any], node: ast.For) -> list[str]:
        """Return the names of the function that statements read before they assign them."""
        assert isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
        exposed: list[str] = []
        for bound in node.iter.args:
            exposed += sorted(reads(bound))
        assigned = {node.target.id}
        for part in parts:
            exposed += sorted(_needed(part, assigned))
        tiles = {name for tile in self.tiles_of(node) for name in (tile.tiles, tile.name)}
        return [n for n in dict.fromkeys(exposed) if n in self.locals and n not in tiles]

    def tiles_of(self, node: ast.For) -> Iterable[Tile]:
        """Yield the tiles that a loop loads."""
        for statement in node.body:
            tile = self.tile(statement) if isinstance(statement, ast.Assign) else None
            if tile is not None:
                yield tile


def _needed(part: Any, assigned: set[str]) -> set[str]:
    """Return the names that a statement or tile reads before it assigns them, and note those it assigns."""
    if isinstance(part, Tile):
        needed = part.reads() - assigned
        assigned.add(part.name)
        return needed
    if not isinstance(part, ast.If):
        needed = reads(part) - assigned
        assigned |= stores(part)
        return needed
    needed = reads(part.test) - assigned
    branches = []
    for block in (part.body, part.orelse):
        own = set(assigned)
        for statement in block:
            needed |= _needed(statement, own)
        branches.append(own)
    assigned |= branches[0] & branches[1]
    return needed
