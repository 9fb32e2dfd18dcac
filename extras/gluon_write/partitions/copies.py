"""Write the copies of a kernel's functions in which one partition copies the tiles of their loops, or lets those of others pass.

Such a copy has the control flow around the tiles, and the arithmetic of their places.
"""

from __future__ import annotations

import ast
from functools import cached_property
from typing import Any, Callable, Optional, Sequence

from gluon_write.loops.loops import Loop
from gluon_write.loops.single_step import has_at_most_one_step, is_sure
from gluon_write.loops.tile_loops import LoopsOfTiles, wrapped
from gluon_write.partitions.own_tiles import names_of
from gluon_write.partitions.ring_plan import COMPOUND, Function, NoForm, RingPlan, by_ring
from gluon_write.partitions.shared_walk import Shared
from gluon_write.text.form import function_of
from gluon_write.text.syntax import is_docstring, mentions, reads, stores
from gluon_write.text.unread import without_unread

__all__ = ["Copies"]

_MANY = 3  # consumers


class Copies(RingPlan):
    """Hold the copies of a kernel's functions.

    Attributes:
        sharing: how consumers share tiles; None where each has a part of one block.
        passing: the copies of a consumer that lets tiles pass are written.
        copying: the number of the tile whose copies are written.
        written, texts: the functions that are written, and their texts.
        warps: of the kernel.
    """

    warps: int
    sharing: Optional[Shared] = None
    passing = False
    copying: Optional[int] = None
    written: dict[str, Any]
    texts: dict[str, str]

    # Partitions that copy one operand each pay where a kernel makes its descriptors.
    splits_copies = True

    def _movable(self, maker: ast.stmt) -> bool:
        """Return True if a partition can make a descriptor: of parameters, none of which has its name."""
        reader = self.functions[0].reader
        parameters = set(reader.parameters)
        known = reads(maker) & reader.locals <= parameters
        return known and not stores(maker) & parameters

    @cached_property
    def makers(self) -> list[list[ast.stmt]]:
        """Return the statements that make the descriptors of each of several partitions that copy; [] where one copies all.

        A descriptor takes most of a microsecond, in which no other tile of a short kernel is copied. Operands of one ring have a
        partition each, and so have the tiles of rounds and those of steps: on an H200 short attention took 1.5 us less, and
        with three partitions for queries, keys and values 1.05 to 1.2 of the time. Long
        kernels of three consumers that share tiles took 1.005 of the time, and keep one.
        """
        reader = self.functions[0].reader
        if self.sharing is not None and self.parts >= _MANY:
            return []
        if self.parts > 1 and self.warps != self.group:  # the kernel's own warps copy
            return []
        if not self.splits_copies or self.parts == 1 and (len(self.rings) > 1 or self.own):
            return []
        by_name = {name: s for s in self.before if self.describes(reader, s) for name in stores(s)}
        own = dict.fromkeys(one.tile.tiles for one in self.own)
        if self.parts == 1:
            groups = [[name] for name in self.descriptors]
        else:
            groups = [[*own], [name for name in self.descriptors if name not in own]]
        makers = [[by_name[name] for name in group] for group in groups]
        able = all(map(self._movable, (s for group in makers for s in group)))
        return makers if able and all(makers) and len(makers) > 1 else []

    def copied_rings(self, copying: Optional[int] = None) -> dict[str, list[int]]:
        """Return the rings that the partition which is written copies to, or another one, and the numbers of the tensors of each."""
        number = self.copying if copying is None else copying
        rings: dict[str, list[int]] = {}
        for name, ring in self.descriptors.items():
            listed = [one for one, other in self.descriptors.items() if other == ring]
            if number is None or any(name in stores(s) for s in self.makers[number]):
                rings.setdefault(ring, []).append(listed.index(name))
        return rings

    def _copies(self, descriptor: str) -> bool:
        """Return True if the partition that is written copies the tiles of a descriptor of the kernel."""
        return self.copying is None or any(
            descriptor in stores(s) for s in self.makers[self.copying]
        )

    def _opening(self, role: str) -> list[str]:
        """Return the lines that a partition begins with; role is "consumer" or "producer"."""
        rings, lines = self.copied_rings(), []
        if self.copying is not None:
            reader = self.functions[0].reader
            lines.append("# Described here, while other partitions describe other tensors.")
            for maker in self.makers[self.copying]:
                (name,) = stores(maker)
                lines += reader.piece(maker)
                ring = self.descriptors.get(name, "")
                listed = [one for one, other in self.descriptors.items() if other == ring]
                parts = [(ring, listed.index(name))] if ring else []
                parts += [(own_ring, 0) for one in self.own if one.tile.tiles == name
                          for own_ring in one.rings(self.parts)]  # fmt: skip
                lines += [f"{ring} = {ring}.part({number}, {name})" for ring, number in parts]
        return [*lines, *(f"{self.slot} = {ring}.{role}()" for ring in [*rings][:1])]

    def _words(self, role: str) -> str:
        """Return the docstring of a partition's function."""
        return {
            "consumer": "Multiply the tiles of each step.",
            "producer": "Copy the tiles of each step.",
            "passing": "Let the tiles of each step pass.",
        }[role]

    def _handed(self, role: str) -> list[str]:
        """Return the names of what a partition shares with others; role is "consumer", "producer" or "passing"."""
        return [*self.copied_rings()]

    def _compound(
        self,
        reader: LoopsOfTiles,
        statement: ast.stmt,
        lines_of: Callable[[ast.stmt, bool], list[str]],
        inner: bool,
        over: Sequence[str],
        span: str = "",
    ) -> list[str]:
        """Return the lines of a loop or a branch around loops of tiles; a round of a loop ends with `over`.

        Args:
            span: of a loop, in place of its own one.
        """
        if isinstance(statement, ast.For):
            if statement.orelse:
                raise NoForm
            over_all = reader.text_of(statement.iter)
            head = f"for {reader.text_of(statement.target)} in {span or over_all}:"
            deep = True
        elif isinstance(statement, ast.If):
            head, deep = f"if {reader.text_of(statement.test)}:", inner
        else:
            raise NoForm
        blocks = [(head, statement.body)]
        if isinstance(statement, ast.If) and statement.orelse:
            blocks.append(("else:", statement.orelse))
        lines, empty = [], True
        for start, block in blocks:
            content = [line for s in block for line in lines_of(s, deep)]
            content = [*content, *over]
            empty &= not content
            lines += [start, *(f"    {line}" if line else "" for line in content or ["pass"])]
        return [] if empty and isinstance(statement, ast.If) else lines

    def _span(self, statement: ast.stmt, passing: bool) -> str:
        """Return the range of the groups of a consumer, or of those whose tiles it lets pass; "" of other loops, and without sharing."""
        if self.sharing is None or not self._is_walk(statement):
            return ""
        return f"range({self.sharing.passed[2] if passing else self.sharing.rows})"

    def _is_walk(self, statement: ast.stmt) -> bool:
        """Return True for the kernel's loop over groups."""
        kernel = self.functions[0]
        return isinstance(statement, ast.For) and self.is_around(kernel, statement)

    def _called(
        self, one: Function, statement: ast.stmt, calls: list[ast.Call], consumer: bool
    ) -> list[str]:
        """Return the call of a function's copy, which returns the slot after its last."""
        reader = one.reader
        if len(calls) != 1 or not isinstance(statement, (ast.Assign, ast.Expr)):
            raise NoForm
        if statement.value is not calls[0]:
            raise NoForm
        rings = [*self.rings] if consumer else [*self.copied_rings()]
        if not rings:
            return []
        call = calls[0]
        callee = self.functions[self.number_of(reader, call)]
        bound = self.bound(call, callee.reader)
        name = callee.products if consumer else self._copy_of(callee)
        taken = self._taken_by(callee, consumer)
        passed = [f"{p}={reader.text_of(bound[p])}" for p in taken if p in bound]
        targets: list[str] = []
        if isinstance(statement, ast.Assign) and consumer:
            target = statement.targets[0]
            if len(statement.targets) != 1 or not isinstance(target, (ast.Name, ast.Tuple)):
                raise NoForm
            value = callee.reader.tree.body[-1]
            many = isinstance(value, ast.Return) and isinstance(value.value, ast.Tuple)
            if many != isinstance(target, ast.Tuple):
                raise NoForm
            nodes = target.elts if isinstance(target, ast.Tuple) else [target]
            targets = [reader.text_of(node) for node in nodes]
        begin = f"{', '.join([*targets, self.slot])} = {name}("
        return wrapped(begin, [*rings, self.slot, *passed], ")")

    def _copy_of(self, one: Function) -> str:
        """Return the name of the copy that is written: the producer's, or that of a consumer that lets tiles pass."""
        if self.copying is not None:
            return names_of(one.copies, len(self.makers))[self.copying]
        return one.passes if self.passing else one.copies

    def _taken_by(self, callee: Function, consumer: bool) -> list[str]:
        written = self.written[callee.products if consumer else self._copy_of(callee)]
        return [a for a in written.arg_names if a not in self.rings and a != self.slot]

    def _producer(self, number: int, one: Function, skipped: Sequence[ast.stmt]) -> None:
        reader = one.reader
        needed = self.slice_of(one)
        role, copy = "consumer" if self.passing else "producer", self._copy_of(one)
        body: list[str] = []
        sharing = self.sharing if self.passing and number == 0 else None
        if number == 0 and sharing is None:  # a consumer that lets tiles pass has slots
            body = self._opening(role)
            body += [t.begun(role, self.parts) for t in self.own if self._copies(t.tile.tiles)]
        for statement in reader.tree.body:
            if not is_docstring(statement) and statement not in skipped:
                body += self._fetched(one, statement, needed)
        if number:
            body.append(f"return {self.slot}")
        if self.copying is not None:
            alone = without_unread(
                reader.function_text(copy, "", [], body), reader.scope, notes=True
            )
            body = [line[4:] for line in alone.splitlines()[2:]]
        tree = ast.parse("\n".join(["def f():", *(f"    {line}" for line in body)]))
        read = mentions(tree)
        if self.part in read:
            raise NoForm
        own = [p for p in reader.parameters if p in read]
        if number == 0:
            described = {name for group in self.makers for s in group for name in stores(s)}
            own += sorted(({name for s in skipped for name in stores(s)} & read) - described)
        rings = [
            ring
            for tile in self.own
            if number == 0 and self._copies(tile.tile.tiles)
            for ring in ([tile.ring] if self.passing else tile.rings(self.parts))
        ]
        handed = self._handed("passing" if self.passing else role)
        slots = [self.slot] if number or sharing is not None else []
        if sharing is not None:
            slots += [*(tile.slot for tile in self.own), sharing.passed[1]]
        parameters = [*handed, *rings, *slots, *own]
        words = self._words("passing" if self.passing else role)
        text = reader.function_text(copy, words, parameters, body)
        self.texts[copy] = text
        self.written[copy] = function_of(text, copy, {**reader.scope, **self.written})
        one.taken = one.taken if self.passing else own

    def _fetched(self, one: Function, statement: ast.stmt, needed: set[str]) -> list[str]:
        """Return the lines of a statement in the producer."""
        reader = one.reader
        loop = one.loops.get(id(statement))
        if loop is not None:
            behind = self.masked_behind(one, loop)
            if any(self.masked_behind(one, other) is loop for other in one.loops.values()):
                return []
            return [*(self._copied(one, behind) if behind else []), *self._copied(one, loop)]
        if isinstance(statement, ast.Return):
            return []
        own = self.own_of(statement)
        if own and not isinstance(statement, ast.For):
            if self.passing:
                return own[0].passed()
            mine = self._copies(own[0].tile.tiles)
            return own[0].fetched(reader, self.parts, self.part) if mine else []
        if isinstance(statement, COMPOUND):
            if self.has_loops(one, statement):
                return self._compound(
                    reader,
                    statement,
                    lambda s, _: self._fetched(one, s, needed),
                    False,
                    [
                        line
                        for tile in own
                        if self._copies(tile.tile.tiles)
                        for line in tile.over(self.passing)
                    ],
                    self._span(statement, True) if self.passing else "",
                )
            if not stores(statement) & needed:
                return []
            if not reader.ahead(statement):
                raise NoForm
            return reader.piece(statement)
        calls = [call for call, _ in self.calls_in(reader, statement)]
        if calls:
            if stores(statement) & needed:
                raise NoForm
            return self._called(one, statement, calls, False)
        if not stores(statement) & needed:
            return []
        if not reader.ahead(statement):
            raise NoForm
        return reader.piece(statement)

    def _copied(self, one: Function, loop: Loop) -> list[str]:
        """Return the producer's loop."""
        reader, node = one.reader, loop.node
        mine = self.copied_rings()
        if not mine:
            return []
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        bounds = reader.bounds(node)
        loads = loop.by_statement
        single = is_sure(reader.tree, node, bounds) and has_at_most_one_step(reader, node)
        lines = [f"for {node.target.id} in range({', '.join(bounds)}):"]
        last = {tile.ring: tile for tile in loop.tiles.values()}
        for statement in node.body:
            tile = loads.get(id(statement))
            if tile is not None and tile is last[tile.ring] and self.passing:
                lines += [f"    {tile.ring}.{word}({self.slot})" for word in ("wait", "release")]
            elif tile is not None and tile is last[tile.ring] and tile.ring in mine:
                places = ", ".join(
                    f"[{', '.join(reader.text_of(part) for part in one.place)}]"
                    for one in by_ring(loop)[tile.ring]
                    if one.number in mine[tile.ring]
                )
                lines.append(f"    {tile.ring}.fetch({self.slot}, [{places}])")
            elif tile is None and statement in loop.ahead:
                lines += [f"    {line}" for line in reader.piece(statement)]
        lines.append(f"    {self.slot} = {self.slot}.next()")
        if not single:
            return lines
        return [f"{node.target.id} = {bounds[0]}", *(line[4:] for line in lines[1:])]
