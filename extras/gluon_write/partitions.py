"""Give a whole kernel partitions: one copies the tiles of its loops, others compute a part of the rows each.

The consumers run the kernel without the copies, the producer a slice of it: the control flow around the
copies, and the arithmetic of their places. Both walk over the same slots of the same rings, through
loops around loops and through functions. Consumers that have rows of their own meet at no barrier, so one
multiplies while another computes exponentials.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional, Sequence

from gluon_core import language, portable
from gluon_core.errors import GluonError
from gluon_core.plugin.targets import Target
from gluon_write.form import bounds_of, changed_copy, free_name, function_of
from gluon_write.loops import Loop, Tile, argument, reads, stores
from gluon_write.own_tiles import DEPTH, OwnTile, own_tiles
from gluon_write.programs import heavy_axis, reversed_programs
from gluon_write.rounds import Rounds
from gluon_write.rows import parted
from gluon_write.sketch import Sketch
from gluon_write.tile_loops import LoopsOfTiles, wrapped
from gluon_write.walk import walking
from gluon_write.work import forms_of

__all__ = ["in_partitions"]

_GROUP = 4  # warps
_ROWS = 64  # of a product of a group of warps
_MOST_PARTS = 2
_REGISTERS = {
    4: (240, 24),
    8: (232, 24),
}  # of threads that multiply and copy, by the kernel's warps
_WALKS = True
_LEAST_GAIN = 1.15  # of a block that makes its own descriptors and partitions, measured on an H200
_OWN = False  # consumers make the descriptors that no ring needs, while the first tiles come
_BARRIERS = 1024  # bytes of shared memory
_COMPOUND = (ast.For, ast.While, ast.If)


def in_partitions(
    fn: Any,
    drawn: Sketch,
    traced: Callable[..., Sketch],
    stages: int,
    target: Target,
    warps: int,
    form: Optional[str] = None,
) -> Any:
    """Return a kernel with a producer and consumers of their own rows, or the kernel where that does not pay.

    Args:
        drawn: the traced kernel. traced: traces another one, with other warps.
        stages: buffers for each tile. warps: of the program.
        form: "specialized" or "pipelined" to have that one; None for the one that costs less.
    """
    able = target.has("nvidia.wgmma") and target.has("nvidia.tma") and warps in _REGISTERS
    if stages < 2 or not able or not drawn.copied or drawn.warps or form == "pipelined":
        return fn
    whole = fn
    readers = [LoopsOfTiles(jit, i, drawn, target, warps) for i, jit in enumerate(drawn.jits)]
    loops = [loop for reader in readers for loop in reader.loops()]
    if not any(len(loop.products) > 1 for loop in loops):
        return fn
    try:
        written = _with_parts(fn, drawn, traced, target, stages, warps)
        axis = written.heavy_axis()
        ordered = reversed_programs(fn, drawn, axis) if axis is not None else None
        if ordered is not None:
            fn, drawn = ordered, traced(ordered)
            written = _with_parts(fn, drawn, traced, target, stages, warps)
    except (_NoForm, GluonError):
        return whole
    walk = walking(fn, drawn) if _WALKS else None
    if walk is not None:
        try:
            other = traced(walk.kernel)
            walks = _with_parts(walk.kernel, other, traced, target, stages, warps, walk.ends)
            return walks.kernel if form or walks.gain > 1 else whole
        except (_NoForm, GluonError):
            pass  # each program has its own block
    return written.kernel if form or written.gain > _LEAST_GAIN else whole


def _with_parts(
    fn: Any,
    drawn: Sketch,
    traced: Callable[..., Sketch],
    target: Target,
    stages: int,
    warps: int,
    ends: Sequence[str] = (),
) -> _Partitions:
    parts = _MOST_PARTS
    halved = parted(fn, drawn, parts)
    if halved is None:
        raise _NoForm
    fn, part = halved
    return _Partitions(fn, traced(fn, _GROUP), target, stages, warps, parts, part, ends)


class _NoForm(Exception):
    """Say that a kernel has no such form."""


@dataclass
class _Function:
    """Hold a function with loops of tiles.

    Attributes:
        loops: id of a loop's node -> the loop. rings: name of a descriptor -> that of its ring.
        products, copies: names of the consumer's and the producer's copy.
        taken: parameters of the producer's copy.
    """

    reader: LoopsOfTiles
    loops: dict[int, Loop]
    rings: dict[str, str] = field(default_factory=dict)
    products: str = ""
    copies: str = ""
    taken: list[str] = field(default_factory=list)


class _Partitions:
    """Hold a kernel in partitions.

    Attributes:
        kernel: the function.

    Raises:
        _NoForm: the kernel has no such form.
    """

    def __init__(
        self, fn: Any, drawn: Sketch, target: Target, stages: int, warps: int, parts: int, part: str,
        ends: Sequence[str],
    ):  # fmt: skip
        self.ends = ends
        self.fn, self.drawn, self.target = fn, drawn, target
        self.stages, self.warps, self.parts, self.part = stages, warps, parts, part
        self.readers = [
            LoopsOfTiles(jit, i, drawn, target, _GROUP) for i, jit in enumerate(drawn.jits)
        ]
        self.taken = {
            word for one in self.readers for word in (*re.findall(r"\w+", one.source), *one.scope)
        }
        self.slot = free_name("slot", self.taken)
        self.functions: dict[int, _Function] = {}
        self.rings: dict[str, Tile] = {}  # name -> one of its tiles
        self.descriptors: dict[str, str] = {}  # the kernel's name of a descriptor -> its ring
        self.written: dict[str, Any] = {}
        self.texts: dict[str, str] = {}  # of the functions that are written
        self.depth = 0
        self.own: list[OwnTile] = []
        self.cycles = [0.0, 0.0]  # of a round of each loop, pipelined and in partitions
        self.kernel = self._written()

    @property
    def gain(self) -> float:
        """Return the time of the pipelined form over that of this one."""
        return self.cycles[0] / self.cycles[1]

    def heavy_axis(self) -> Optional[int]:
        """Return the axis along which programs have more and more steps; None without one."""
        kernel = self.functions[0]
        texts = {one.copies: self.texts[one.copies] for n, one in self.functions.items() if n}
        text, scope = self.texts[kernel.copies], kernel.reader.scope
        rings = [*self.rings, *(ring for one in self.own for ring in one.rings(self.parts))]
        return heavy_axis(text, kernel.copies, rings, self.drawn, scope, texts)

    def _written(self) -> Any:
        self._find()
        self._place_rings()
        kernel = self.functions[0]
        reader = kernel.reader
        before = self._before(reader, kernel)
        self._place_own(kernel, before)
        order = [n for n in self.functions if n] + [0]
        for number in self._callees_first(order):
            self._write(number, before if number == 0 else [])
        return self._whole(kernel, before)

    # -- functions, loops and rings -------------------------------------------------------------

    def _find(self) -> None:
        for number, reader in enumerate(self.readers):
            loops = {id(loop.node): loop for loop in reader.loops()}
            if loops:
                self.functions[number] = _Function(reader, loops)
        changed = True
        while changed:
            changed = False
            for number, reader in enumerate(self.readers):
                if number not in self.functions and any(True for _ in self._calls(reader)):
                    self.functions[number] = _Function(reader, {})
                    changed = True
        if 0 not in self.functions:
            raise _NoForm
        for number, one in self.functions.items():
            name = one.reader.tree.name
            word = f"{name}_rows" if number == 0 else f"{name}_products"
            one.products = free_name(word, self.taken)
            one.copies = free_name(f"{name}_copies", self.taken)
            returns = [n for n in ast.walk(one.reader.tree) if isinstance(n, ast.Return)]
            last = one.reader.tree.body[-1]
            if any(r is not last for r in returns) or number == 0 and returns:
                raise _NoForm

    def _calls(self, reader: LoopsOfTiles) -> Iterator[tuple[ast.Call, int]]:
        """Yield the calls of functions that have loops of tiles."""
        for node in ast.walk(reader.tree):
            number = self._number(reader, node)
            if number in self.functions and isinstance(node, ast.Call):
                yield node, number

    def _number(self, reader: LoopsOfTiles, node: ast.AST) -> int:
        called = reader.called(node)
        return next((i for i, jit in enumerate(self.drawn.jits) if jit is called), -1)

    def _callees_first(self, numbers: Sequence[int]) -> list[int]:
        order: list[int] = []

        def add(number: int) -> None:
            if number not in order:
                for _, callee in self._calls(self.functions[number].reader):
                    add(callee)
                order.append(number)

        for number in numbers:
            add(number)
        return order

    def _place_rings(self) -> None:
        """Give each descriptor whose tiles are copied ahead a ring; loops take one slot of each in a round.

        Raises:
            _NoForm: a function has several descriptors for one name, or a loop has not all rings.
        """
        for number in reversed(self._callees_first(list(self.functions))):
            one = self.functions[number]
            if number:
                one.rings = self._passed(number)
            for loop in one.loops.values():
                for tile in loop.tiles.values():
                    if number == 0:
                        one.rings[tile.tiles] = self._ring(tile.tiles, tile)
                    if tile.tiles not in one.rings:
                        raise _NoForm
        names = set(self.rings)
        for one in self.functions.values():
            for loop in one.loops.values():
                for tile in loop.tiles.values():
                    tile.ring = one.rings[tile.tiles]
                    known = self.rings[tile.ring]
                    if (tile.shape, tile.bits) != (known.shape, known.bits):
                        raise _NoForm
                if sorted(tile.ring for tile in loop.tiles.values()) != sorted(names):
                    raise _NoForm
        size = sum(tile.bytes for tile in self.rings.values())
        room = self.target.architecture.limits.shared_memory - self._other_memory()
        self.depth = min(max(self.stages, 2), room // size)
        if self.depth < 2:
            raise _NoForm

    def _other_memory(self) -> int:
        """Return the bytes of shared memory through which the consumers move other tiles."""
        copied = {
            id(node)
            for one in self.functions.values()
            for loop in one.loops.values()
            for tile in loop.tiles.values()
            for node in ast.walk(tile.statement)
        }
        most = 0
        for reader in self.readers:
            for node in ast.walk(reader.tree):
                called = reader.called(node)
                if not isinstance(node, ast.Call) or id(node) in copied:
                    continue
                moved: Optional[ast.expr] = node
                if called in (portable.store, language.store):
                    moved = argument(node, 2 if called is portable.store else 1, "value")
                elif called not in (portable.load, language.load):
                    continue
                kind = reader.type_of(moved) if moved is not None else None
                if kind is not None:
                    most = max(most, kind[0][0] * kind[0][1] * kind[1] // 8)
        return self.parts * most + _BARRIERS

    def _place_own(self, kernel: _Function, before: Sequence[ast.stmt]) -> None:
        """Give each part rings of the tiles that a round of a loop around loops loads, where there is memory."""
        described = {
            name
            for s in before
            if kernel.reader.called(getattr(s, "value", None)) is portable.descriptor
            for name in stores(s)
        }
        own = own_tiles(
            kernel.reader, lambda loop: self._has_loops(kernel, loop), described, self.taken
        )
        size = self.depth * sum(tile.bytes for tile in self.rings.values())
        more = DEPTH * self.parts * sum(one.tile.bytes for one in own)
        room = self.target.architecture.limits.shared_memory - self._other_memory()
        self.own = own if size + more <= room else []

    def _own_of(self, statement: ast.stmt) -> list[OwnTile]:
        """Return the tiles that a statement loads, or a loop in its rounds."""
        return [one for one in self.own if statement in (one.tile.statement, one.loop)]

    def _ring(self, descriptor: str, tile: Tile) -> str:
        """Return the ring of one of the kernel's descriptors."""
        if descriptor not in self.descriptors:
            ring = free_name(f"{tile.name}_ring", self.taken)
            self.descriptors[descriptor] = ring
            self.rings[ring] = tile
        return self.descriptors[descriptor]

    def _passed(self, number: int) -> dict[str, str]:
        """Return the rings of the descriptors that a function's calls pass, by parameter."""
        one = self.functions[number]
        rings: dict[str, str] = {}
        tiles = {t.tiles: t for loop in one.loops.values() for t in loop.tiles.values()}
        for caller in self.functions.values():
            for call, callee in self._calls(caller.reader):
                if callee != number:
                    continue
                for name, value in self._bound(call, one.reader).items():
                    if name not in tiles:
                        continue
                    if not isinstance(value, ast.Name):
                        raise _NoForm
                    ring = caller.rings.get(value.id)
                    if ring is None and caller is self.functions[0]:
                        ring = caller.rings[value.id] = self._ring(value.id, tiles[name])
                    if ring is None or rings.get(name, ring) != ring:
                        raise _NoForm
                    rings[name] = ring
        return rings

    def _bound(self, call: ast.Call, callee: LoopsOfTiles) -> dict[str, ast.expr]:
        """Return the arguments of a call by parameter."""
        names = [arg.arg for arg in callee.tree.args.args]
        if any(isinstance(arg, ast.Starred) for arg in call.args) or len(call.args) > len(names):
            raise _NoForm
        bound = dict(zip(names, call.args))
        for word in call.keywords:
            if word.arg is None:
                raise _NoForm
            bound[word.arg] = word.value
        return bound

    # -- the statements before the partitions -----------------------------------------------------

    def _describes(self, reader: LoopsOfTiles, statement: ast.stmt) -> bool:
        """Return True for a statement that makes the descriptor of a ring."""
        makes = reader.called(getattr(statement, "value", None)) is portable.descriptor
        own = not _OWN or bool(stores(statement) & set(self.descriptors))
        return isinstance(statement, ast.Assign) and makes and own

    def _before(self, reader: LoopsOfTiles, kernel: _Function) -> list[ast.stmt]:
        """Return the kernel's statements that make descriptors of rings, with those that these need.

        Raises:
            _NoForm: a ring's descriptor is made within a loop or a branch.
        """
        body = [s for s in reader.tree.body if not _is_text(s)]
        makers = [s for s in body if self._describes(reader, s)]
        described = {name for s in makers for name in stores(s)}
        if not set(self.descriptors) <= described:
            raise _NoForm
        last = max(body.index(s) for s in makers)
        chosen = list(makers)
        needed = {name for s in makers for name in reads(s)}
        for statement in reversed(body[: last + 1]):
            if statement not in chosen and stores(statement) & needed:
                plain = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign))
                if not plain or not reader.ahead(statement) or self.part in reads(statement):
                    raise _NoForm
                chosen.append(statement)
                needed |= reads(statement)
        return [s for s in body if s in chosen]

    # -- the copies of a function -----------------------------------------------------------------

    def _write(self, number: int, before: Sequence[ast.stmt]) -> None:
        """Write the consumer's and the producer's copy of a function."""
        one = self.functions[number]
        makers = [s for s in before if self._describes(one.reader, s)]
        skipped = [s for s in one.reader.tree.body if s in makers]
        if number == 0:
            skipped += [s for s in one.reader.tree.body
                        if isinstance(s, ast.AnnAssign) and self.part in stores(s)]  # fmt: skip
        self._consumer(number, one, skipped, before)
        self._producer(number, one, skipped)

    def _consumer(
        self, number: int, one: _Function, skipped: Sequence[ast.stmt], before: Sequence[ast.stmt]
    ) -> None:
        reader = one.reader
        first, *_ = self.rings
        body = [f"{self.slot} = {first}.consumer()"] if number == 0 else []
        body += [tile.begun("consumer") for tile in self.own if number == 0]
        rest = [s for s in reader.tree.body if s not in skipped and not _is_text(s)]
        for statement in rest:
            alone = statement in before and not any(
                stores(statement) & reads(other) for other in rest if other is not statement
            )
            if not alone:  # else only descriptors need it
                body += self._consumed(one, statement, False)
        if number and not isinstance(reader.tree.body[-1], ast.Return):
            body.append(f"return {self.slot}")
        parameters = self._parameters(number, one, body, skipped)
        words = "Compute a part of the rows." if number == 0 else "Multiply the tiles of each step."
        text = reader.function_text(one.products, words, parameters, body)
        self.texts[one.products] = text
        self.written[one.products] = function_of(
            text, one.products, {**reader.scope, **self.written}
        )

    def _parameters(
        self, number: int, one: _Function, body: list[str], skipped: Sequence[ast.stmt]
    ) -> list[str]:
        """Return the parameters of a copy: the rings, the slot, and the names that its body reads from outside."""
        tree = ast.parse("\n".join(body))
        own = [*one.reader.parameters_in_order()]
        if number == 0:
            own += sorted({name for s in skipped for name in stores(s)} - {self.part})
            read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
            kept = [p for p in own if p in read]
            return [*self.rings, *(tile.ring for tile in self.own), *kept, self.part]
        read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        return [*self.rings, self.slot, *(p for p in own if p in read)]

    def _consumed(self, one: _Function, statement: ast.stmt, inner: bool) -> list[str]:
        """Return the lines of a statement in the consumer."""
        reader = one.reader
        loop = one.loops.get(id(statement))
        if loop is not None:
            return self._rounds(one, loop, inner)
        own = self._own_of(statement)
        if own and not isinstance(statement, ast.For):
            return own[0].taken()
        calls = [call for call, _ in self._calls(reader) if call in list(ast.walk(statement))]
        if isinstance(statement, ast.Return) and one is not self.functions[0]:
            if calls:
                raise _NoForm
            value = statement.value
            listed = value.elts if isinstance(value, ast.Tuple) else [value] if value else []
            return [f"return {', '.join([*(reader.text_of(v) for v in listed), self.slot])}"]
        if isinstance(statement, _COMPOUND) and self._has_loops(one, statement):
            return self._compound(
                reader,
                statement,
                lambda s, deep: self._consumed(one, s, deep),
                inner,
                [line for tile in own for line in tile.over(True)],
            )
        if calls:
            return self._called(one, statement, calls, True)
        return reader.piece(statement)

    def _has_loops(self, one: _Function, statement: ast.stmt) -> bool:
        nodes = list(ast.walk(statement))
        calls = [call for call, _ in self._calls(one.reader)]
        return any(id(n) in one.loops for n in nodes) or any(call in nodes for call in calls)

    def _compound(
        self,
        reader: LoopsOfTiles,
        statement: ast.stmt,
        lines_of: Callable[[ast.stmt, bool], list[str]],
        inner: bool,
        over: Sequence[str],
    ) -> list[str]:
        """Return the lines of a loop or a branch around loops of tiles; a round of a loop ends with `over`."""
        if isinstance(statement, ast.For):
            if statement.orelse:
                raise _NoForm
            head = f"for {reader.text_of(statement.target)} in {reader.text_of(statement.iter)}:"
            deep = True
        elif isinstance(statement, ast.If):
            head, deep = f"if {reader.text_of(statement.test)}:", inner
        else:
            raise _NoForm
        blocks = [(head, statement.body)]
        if isinstance(statement, ast.If) and statement.orelse:
            blocks.append(("else:", statement.orelse))
        lines = []
        for start, block in blocks:
            content = [line for s in block for line in lines_of(s, deep)]
            content = [*content, *over] or ["pass"]
            lines += [start, *(f"    {line}" if line else "" for line in content)]
        return lines

    def _called(
        self, one: _Function, statement: ast.stmt, calls: list[ast.Call], consumer: bool
    ) -> list[str]:
        """Return the call of a function's copy, which returns the slot after its last."""
        reader = one.reader
        if len(calls) != 1 or not isinstance(statement, (ast.Assign, ast.Expr)):
            raise _NoForm
        if statement.value is not calls[0]:
            raise _NoForm
        call = calls[0]
        callee = self.functions[self._number(reader, call)]
        bound = self._bound(call, callee.reader)
        name = callee.products if consumer else callee.copies
        taken = self._taken_by(callee, consumer)
        passed = [f"{p}={reader.text_of(bound[p])}" for p in taken if p in bound]
        targets: list[str] = []
        if isinstance(statement, ast.Assign) and consumer:
            target = statement.targets[0]
            if len(statement.targets) != 1 or not isinstance(target, (ast.Name, ast.Tuple)):
                raise _NoForm
            value = callee.reader.tree.body[-1]
            many = isinstance(value, ast.Return) and isinstance(value.value, ast.Tuple)
            if many != isinstance(target, ast.Tuple):
                raise _NoForm
            nodes = target.elts if isinstance(target, ast.Tuple) else [target]
            targets = [reader.text_of(node) for node in nodes]
        begin = f"{', '.join([*targets, self.slot])} = {name}("
        return wrapped(begin, [*self.rings, self.slot, *passed], ")")

    def _taken_by(self, callee: _Function, consumer: bool) -> list[str]:
        written = self.written[callee.products if consumer else callee.copies]
        return [a for a in written.arg_names if a not in self.rings and a != self.slot]

    def _rounds(self, one: _Function, loop: Loop, inner: bool) -> list[str]:
        """Return the consumer's loop in the order of its schedule."""
        reader = one.reader
        results = reader.results_of(loop, inner)
        if results is None or not isinstance(loop.node.iter, ast.Call):
            raise _NoForm
        rings = {tile.ring: [tile] for tile in loop.tiles.values()}
        rounds = Rounds(reader, loop, rings)
        rounds.slot = self.slot
        forms = forms_of(
            reader, loop, rounds, results, self.depth, self.target, _GROUP, self.parts
        )  # fmt: skip
        self.cycles = [self.cycles[0] + forms.pipelined, self.cycles[1] + forms.specialized]
        bounds = bounds_of([reader.text_of(arg) for arg in loop.node.iter.args])
        return rounds.threaded(forms.schedule, bounds, results)

    # -- the producer -----------------------------------------------------------------------------

    def _producer(self, number: int, one: _Function, skipped: Sequence[ast.stmt]) -> None:
        reader = one.reader
        first, *_ = self.rings
        needed = self._slice(one)
        body = [f"{self.slot} = {first}.producer()"] if number == 0 else []
        body += [tile.begun("producer") for tile in self.own if number == 0]
        for statement in reader.tree.body:
            if not _is_text(statement) and statement not in skipped:
                body += self._fetched(one, statement, needed)
        if number:
            body.append(f"return {self.slot}")
        tree = ast.parse("\n".join(["def f():", *(f"    {line}" for line in body)]))
        if self.part in {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}:
            raise _NoForm
        read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        own = [p for p in reader.parameters_in_order() if p in read]
        if number == 0:
            own += sorted({name for s in skipped for name in stores(s)} & read)
        rings = [ring for tile in self.own if number == 0 for ring in tile.rings(self.parts)]
        parameters = [*self.rings, *rings, *([self.slot] if number else []), *own]
        text = reader.function_text(one.copies, "Copy the tiles of each step.", parameters, body)
        self.texts[one.copies] = text
        self.written[one.copies] = function_of(text, one.copies, {**reader.scope, **self.written})
        one.taken = own

    def _slice(self, one: _Function) -> set[str]:
        """Return the names that the copies and the control flow around them need."""
        reader = one.reader
        needed: set[str] = set()
        for node in ast.walk(reader.tree):
            loop = one.loops.get(id(node))
            if loop is not None:
                needed |= {name for tile in loop.tiles.values() for name in tile.reads()}
                needed |= {name for arg in loop.node.iter.args for name in reads(arg)}  # type: ignore[attr-defined]
            elif isinstance(node, _COMPOUND) and self._has_loops(one, node):
                head = node.iter if isinstance(node, ast.For) else node.test
                needed |= reads(head)
        if one is self.functions[0]:
            needed |= {n for own in self.own for n in own.tile.reads()} - {self.part}
        for call, callee in self._calls(reader):
            inner = self.functions[callee]
            for name, value in self._bound(call, inner.reader).items():
                if name in inner.taken:
                    needed |= reads(value)
        changed = True
        while changed:
            before = set(needed)
            for node in ast.walk(reader.tree):
                if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
                    if not isinstance(node, _COMPOUND) and stores(node) & needed:
                        needed |= reads(node)
                    elif isinstance(node, _COMPOUND) and stores(node) & needed:
                        head = node.iter if isinstance(node, ast.For) else node.test
                        needed |= reads(head)
            changed = needed != before
        return needed

    def _fetched(self, one: _Function, statement: ast.stmt, needed: set[str]) -> list[str]:
        """Return the lines of a statement in the producer."""
        reader = one.reader
        loop = one.loops.get(id(statement))
        if loop is not None:
            return self._copied(one, loop)
        if isinstance(statement, ast.Return):
            return []
        own = self._own_of(statement)
        if own and not isinstance(statement, ast.For):
            return own[0].fetched(reader, self.parts, self.part)
        if isinstance(statement, _COMPOUND):
            if self._has_loops(one, statement):
                return self._compound(
                    reader,
                    statement,
                    lambda s, _: self._fetched(one, s, needed),
                    False,
                    [line for tile in own for line in tile.over(False)],
                )
            if not stores(statement) & needed:
                return []
            if not reader.ahead(statement):
                raise _NoForm
            return reader.piece(statement)
        calls = [call for call, _ in self._calls(reader) if call in list(ast.walk(statement))]
        if calls:
            if stores(statement) & needed:
                raise _NoForm
            return self._called(one, statement, calls, False)
        if not stores(statement) & needed:
            return []
        if not reader.ahead(statement):
            raise _NoForm
        return reader.piece(statement)

    def _copied(self, one: _Function, loop: Loop) -> list[str]:
        """Return the producer's loop."""
        reader, node = one.reader, loop.node
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        bounds = bounds_of([reader.text_of(arg) for arg in node.iter.args])
        loads = {id(tile.statement): tile for tile in loop.tiles.values()}
        lines = [f"for {node.target.id} in range({', '.join(bounds)}):"]
        for statement in node.body:
            tile = loads.get(id(statement))
            if tile is not None:
                place = ", ".join(reader.text_of(part) for part in tile.place)
                lines.append(f"    {tile.ring}.fetch({self.slot}, [[{place}]])")
            elif statement in loop.ahead:
                lines += [f"    {line}" for line in reader.piece(statement)]
        return [*lines, f"    {self.slot} = {self.slot}.next()"]

    # -- the kernel -------------------------------------------------------------------------------

    def _whole(self, kernel: _Function, before: Sequence[ast.stmt]) -> Any:
        reader = kernel.reader
        gl = reader.space
        lines = [*self.ends]
        lines += [line for statement in before for line in reader.piece(statement)]
        lines.append(
            f"# One partition copies, through rings of {self.depth} slots; {self.parts} have a part of the rows each."
        )
        for ring in self.rings:
            name = next(n for n, one in self.descriptors.items() if one == ring)
            lines.append(
                f"{ring} = {gl}.nvidia.hopper.tma_ring([{name}], {self.depth}, consumers={self.parts})"
            )
        for one in self.own:
            lines += [
                f"{ring} = {gl}.nvidia.hopper.tma_ring([{one.tile.tiles}], {DEPTH})"
                for ring in one.rings(self.parts)
            ]
        calls = []
        taken = self.written[kernel.products].arg_names[:-1]
        own_rings = {one.ring: one.rings(self.parts) for one in self.own}
        for number in range(self.parts):
            passed = [own_rings[name][number] if name in own_rings else name for name in taken]
            calls.append(wrapped(f"({kernel.products}, (", [*passed, str(number)], ")),"))
        copies = wrapped(f"({kernel.copies}, (", self.written[kernel.copies].arg_names, ")),")
        many, copying = _REGISTERS[self.warps]
        if self.warps == _GROUP:  # the first part has the kernel's own warps
            workers, registers = (
                [_GROUP] * (self.parts - 1) + [1],
                [many] * (self.parts - 1) + [copying],
            )
            calls.append(copies)
        else:
            workers, registers = [_GROUP] * self.parts, [many] * self.parts
            calls.insert(0, copies)
        lines += [
            f"{gl}.warp_specialize(",
            "    [",
            *(f"        {line}" for call in calls for line in call),
            "    ],",
            f"    {workers},",
            f"    {registers},",
            ")",
        ]
        whole = reader.source.splitlines()
        body = [s for s in reader.tree.body if not _is_text(s)]
        start = body[0].lineno - 1
        head = whole[:start]
        indent = " " * body[0].col_offset
        text = "\n".join([*head, *(f"{indent}{line}" if line else "" for line in lines)]) + "\n"
        return changed_copy(self.fn, self.drawn.jits, {0: text}, {}, self.written)


def _is_text(statement: ast.stmt) -> bool:
    """Return True for a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
