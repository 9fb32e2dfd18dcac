"""Pipeline the mainloop of a GEMM: tiles that a loop loads for a matrix unit are copied steps ahead.

    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)

becomes a ring of buffers in shared memory that copies fill in the background, and products that read
it. The text of the rest stays.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Iterable, Iterator, Optional

from gluon_core import language, portable
from gluon_write.loops.flat import Around, around, lines_of, room_of
from gluon_write.loops.loops import falling, orders_memory, untransposed, viewed
from gluon_write.text.form import (
    bounds_of,
    factor,
    free_name,
    one_line,
    renamed,
    with_text,
)
from gluon_write.text.syntax import mentions, nodes_in
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["staged"]

_INDENT = "    "
_STORED = 3  # arguments of a store: descriptor, coordinates and value
_BARRIERS = 2048  # bytes for barriers and the padding of buffers


@dataclass
class _Loop:
    """Hold a loop that can be staged.

    Attributes:
        node: the loop; its bounds as text are `first`, `last` and `step`.
        loads: name of a tile -> (name of its descriptor, text of its coordinates, its statement).
        products: the statements of products; `acc` names their accumulator.
        transposed: the second tile is transposed, by the product or behind its load. flipped: tiles that are, behind it.
    """

    node: ast.For
    first: str
    last: str
    step: str
    acc: str = ""
    loads: dict[str, tuple[str, list[str], ast.stmt]] = field(default_factory=dict)
    product: Optional[ast.Assign] = None
    transposed: bool = False
    flipped: set[str] = field(default_factory=set)

    def count(self, space: str) -> str:
        """Return the number of steps."""
        count = self.last if self.first == "0" else f"{self.last} - {factor(self.first)}"
        return count if self.step == "1" else f"{space}.cdiv({count}, {self.step})"

    def at(self, number: str) -> str:
        """Return the value of the variable in a step."""
        moved = number if self.step == "1" else f"{factor(number)} * {factor(self.step)}"
        return moved if self.first == "0" else f"{self.first} + {moved}"

    def fetched(
        self, tiles: str, step: str, places: Iterable[Iterable[str]], condition: str
    ) -> list[str]:
        """Return the lines that fetch the tiles of a step at some coordinates, where a condition holds."""
        listed = ", ".join(f"[{', '.join(place)}]" for place in places)
        return [f"{tiles}.fetch(", f"    {step}, [{listed}], pred={condition}", ")"]


def staged(fn: Any, drawn: Sketch, stages: int, transposes: bool = False, room: int = 0) -> Any:
    """Return a function with its mainloop pipelined; `fn` itself where it has none of that form.

    Args:
        drawn: the traced function. stages: buffers for each tile. transposes: the unit reads transposed tiles.
        room: bytes of shared memory of a program.
    """
    if stages < 2:
        return fn
    text = _Stager(fn, drawn, transposes).text(stages, room)
    if text is None:
        return fn
    return with_text(fn, text)


class _Stager(TracedForm):
    def __init__(self, fn: Any, drawn: Sketch, transposes: bool):
        super().__init__(fn, 0, drawn)
        self.transposes = transposes
        self.lines = self.source.splitlines()
        self.descriptors = self._assigned(portable.descriptor)
        self.accumulators = self._assigned(language.zeros)

    # -- names ----------------------------------------------------------------------------------

    def _assigned(self, function: Any) -> dict[str, ast.Assign]:
        """Return names that are assigned once, by a call of `function`."""
        counts: dict[str, int] = {}
        assigned: dict[str, ast.Assign] = {}
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] = counts.get(node.id, 0) + 1
            if isinstance(node, ast.Assign) and self.called(node.value) is function:
                target = node.targets[0]
                if len(node.targets) == 1 and isinstance(target, ast.Name):
                    assigned[target.id] = node
        once = function is language.zeros  # an accumulator is assigned by its products, too
        return {name: node for name, node in assigned.items() if once or counts[name] == 1}

    # -- the loop -------------------------------------------------------------------------------

    def _loops(self) -> Iterator[_Loop]:
        for node in nodes_in(self.tree):
            if not isinstance(node, ast.For) or not isinstance(node.target, ast.Name):
                continue
            bounds = node.iter
            if not isinstance(bounds, ast.Call) or node.orelse or bounds.keywords:
                continue
            if falling(node, 0, self.drawn) or orders_memory(self, node):
                continue
            if self.called(bounds) is not range and self.text_of(bounds.func) != "range":
                continue
            texts = [self.text_of(arg) for arg in bounds.args]
            first, last, step = bounds_of(texts)
            loop = self._read(_Loop(node, first, last, step))
            if loop is not None:
                yield loop

    def _read(self, loop: _Loop) -> Optional[_Loop]:
        """Return the loop with its loads and its product; None if it is another loop."""
        assert isinstance(loop.node.target, ast.Name)
        changed = {
            n.id
            for n in nodes_in(loop.node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        } - {loop.node.target.id}
        for statement in loop.node.body:
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            call, target = untransposed(statement.value, self), statement.targets[0]
            called = self.called(call)
            if not isinstance(target, ast.Name) or not isinstance(call, ast.Call):
                continue
            if called is portable.load:
                tile = self._load(call, changed, self._inlined(loop.node, changed))
                if tile is not None:
                    loop.loads[target.id] = (*tile, statement)
                    loop.flipped |= {target.id} if call is not statement.value else set()
            elif called is portable.mma:
                if loop.product is not None or not self._multiplies(statement, loop):
                    return None
                loop.product, loop.acc = statement, target.id
        if loop.product is None or len(loop.loads) != 2:
            return None
        names = [n.id for n in nodes_in(loop.node) if isinstance(n, ast.Name)]
        acc_uses = names.count(loop.acc)
        tile_uses = [names.count(name) for name in loop.loads]
        return loop if acc_uses == 2 and tile_uses == [2, 2] else None

    def _inlined(self, node: ast.For, changed: set[str]) -> dict[str, str]:
        """Return names that a loop assigns once, from its variable alone, and the text that computes them."""
        inlined: dict[str, str] = {}
        for statement in node.body:
            if not isinstance(statement, ast.Assign) or not isinstance(
                statement.targets[0], ast.Name
            ):
                continue
            name = statement.targets[0].id
            stored = [n for n in nodes_in(node) if isinstance(n, ast.Name)
                      and n.id == name and isinstance(n.ctx, ast.Store)]  # fmt: skip
            parts = list(nodes_in(statement.value))
            plain = all(
                isinstance(p, (ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.expr_context))
                for p in parts
            )
            free = {p.id for p in parts if isinstance(p, ast.Name)}
            if len(stored) == 1 and plain and not free & changed:
                inlined[name] = self.text_of(statement.value)
        return inlined

    def _load(
        self, call: ast.Call, changed: set[str], inlined: dict[str, str]
    ) -> Optional[tuple[str, list[str]]]:
        """Return the descriptor and the coordinates of a tile that depends on the step alone."""
        if len(call.args) != 2 or call.keywords or not isinstance(call.args[0], ast.Name):
            return None
        tiles, place = call.args
        if call.args[0].id not in self.descriptors or not isinstance(place, (ast.List, ast.Tuple)):
            return None
        names = mentions(place)
        if names & changed - set(inlined):
            return None
        texts = [self.text_of(entry) for entry in place.elts]
        for name in sorted(names & set(inlined)):
            texts = [_replaced(text, name, inlined[name]) for text in texts]
        return self.text_of(tiles), texts

    def _multiplies(self, statement: ast.Assign, loop: _Loop) -> bool:
        """Return True for `acc = mma(x, y, acc)` with both tiles of the loop."""
        call, target = statement.value, statement.targets[0]
        assert isinstance(call, ast.Call) and isinstance(target, ast.Name)
        words = {word.arg: word.value for word in call.keywords}
        operands = [
            *call.args,
            *(words[n] for n in ("a", "b", "acc")[len(call.args) :] if n in words),
        ]
        if len(operands) == 3 and self.transposes and not isinstance(operands[1], ast.Name):
            inner = viewed(operands[1], self)
            loop.transposed = inner is not None
            operands[1] = ast.Name(inner or "", ast.Load())
        if len(operands) != 3 or not all(isinstance(one, ast.Name) for one in operands):
            return False
        a, b, acc = (one.id for one in operands if isinstance(one, ast.Name))
        loop.transposed ^= b in loop.flipped
        if a in loop.flipped or loop.transposed and not self.transposes:
            return False
        known = list(loop.loads) == [a, b] or set(loop.loads) == {a, b}
        if known and list(loop.loads) != [a, b]:
            loop.loads = {name: loop.loads[name] for name in (a, b)}
        return known and acc == target.id and acc in self.accumulators

    # -- the text -------------------------------------------------------------------------------

    def text(self, stages: int, room: int) -> Optional[str]:
        """Return the function with its first such loop staged, in as many stages as there is room for; None without one."""
        loop = next(self._loops(), None)
        if loop is None or not self._operands_fit(loop):
            return None
        free = room - (_BARRIERS if self.transposes else 0)
        while room and stages > 1 and room_of(self, self.drawn, loop.node, stages) > free:
            stages -= 1  # more than there is memory for
        if stages < 2:
            return None
        taken = self.names_in_use()
        names = {word: free_name(word, taken) for word in ("tiles", "step", "steps", "layouts")}
        outer = self._around(loop, taken, stages, room)
        written = (
            self._loop(loop, names, stages)
            if outer is None
            else self._rounds(loop, outer, names, stages, taken)
        )
        edits = [*self._before(loop, names), *written]
        lines = list(self.lines)
        for first, last, new in sorted(edits, reverse=True):
            lines[first - 1 : last] = new
        return "\n".join(lines) + "\n"

    def _later(self, loop: _Loop) -> list[ast.Assign]:
        """Return the descriptors that only the rest needs: they are made while the first copies run."""
        block = next(
            b for n in nodes_in(self.tree) for b in (getattr(n, "body", []), getattr(n, "orelse", []))
            if isinstance(b, list) and loop.node in b
        )  # fmt: skip
        later = []
        for name, statement in self.descriptors.items():
            if statement not in block or block.index(statement) > block.index(loop.node):
                continue
            between = block[block.index(statement) + 1 : block.index(loop.node) + 1]
            names = [n for other in between for n in nodes_in(other) if isinstance(n, ast.Name)]
            read = mentions(statement.value)
            stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
            if all(n.id != name for n in names) and not read & stored:
                later.append(statement)
        return sorted(later, key=lambda statement: statement.lineno)

    def _operands_fit(self, loop: _Loop) -> bool:
        """Return True if both descriptors leave their layout out, and lie outside the loop."""
        inside = {id(node) for node in nodes_in(loop.node)}
        for tiles, _, _ in loop.loads.values():
            node = self.descriptors[tiles]
            call = node.value
            assert isinstance(call, ast.Call)
            known = [word.arg for word in call.keywords] in ([], ["host"])
            if id(node) in inside or len(call.args) != 4 or not known:
                return False
            if self._block(call, loop, tiles) is None:
                return False
            if not self._has_dtype(self._root(call.args[0]), node, self._earliest(loop)):
                return False
        return id(self.accumulators[loop.acc]) not in inside

    def _has_dtype(self, root: ast.expr, maker: ast.Assign, earliest: ast.Assign) -> bool:
        """Return True if the pointer of a descriptor has its dtype where the first descriptor is made."""
        names = mentions(root)
        known = {node.arg for node in nodes_in(self.tree.args) if isinstance(node, ast.arg)}
        for node in nodes_in(self.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in names:
                if node.lineno < earliest.lineno:
                    known.add(node.id)
                elif node.lineno < maker.lineno and node is not maker.targets[0]:
                    return False  # such as a descriptor with the name of what describes its tensor
        return names <= {*known, *self.scope}

    def _block(self, call: ast.Call, loop: _Loop, tiles: str) -> Optional[list[str]]:
        """Return the texts of a tile's two sizes; None where it has other ones."""
        sizes = call.args[3]
        if isinstance(sizes, (ast.List, ast.Tuple)):
            return [self.text_of(size) for size in sizes.elts] if len(sizes.elts) == 2 else None
        places = [place for name, place, _ in loop.loads.values() if name == tiles]
        if isinstance(sizes, ast.Attribute) and {len(place) for place in places} == {2}:
            return [f"{self.text_of(sizes)}[{dim}]" for dim in (0, 1)]
        return None

    def _demands(self, loop: _Loop) -> str:
        """Return what `mma_layouts` has to know of a transposed tile, whose elements units may read along K alone."""
        assert loop.product is not None and isinstance(loop.product.value, ast.Call)
        if not loop.transposed:
            return ""
        words = [f"input_precision={self.text_of(word.value)}" for word in loop.product.value.keywords
                 if word.arg == "input_precision"]  # fmt: skip
        return {8: ", b_transposed=True", 32: ", ".join(["", "b_transposed=True", *words])}.get(
            self._bits(loop), ""
        )

    def _bits(self, loop: _Loop) -> int:
        """Return the bits of the elements of a loop's tiles."""
        _, _, statement = next(iter(loop.loads.values()))
        assert isinstance(statement, ast.Assign)
        values = self.values_of(untransposed(statement.value, self))
        return max((getattr(value.type.element, "bits", 0) for value in values), default=0)

    def _earliest(self, loop: _Loop) -> ast.Assign:
        """Return the first statement that makes a descriptor of a loop's tiles."""
        statements = (self.descriptors[tiles] for tiles, _, _ in loop.loads.values())
        return min(statements, key=lambda node: node.lineno)

    def _root(self, pointer: ast.expr) -> ast.expr:
        """Return the pointer that an address begins with, of the same dtype: other parts may be computed later."""
        while isinstance(pointer, ast.BinOp) or self.called(pointer) is language.multiple_of:
            pointer = pointer.left if isinstance(pointer, ast.BinOp) else pointer.args[0]  # type: ignore[attr-defined]
        return pointer

    def _before(self, loop: _Loop, names: dict[str, str]) -> list[Any]:
        """Return edits that give the descriptors and the accumulator the layouts of the unit."""
        (a, _, _), (b, _, _) = loop.loads.values()
        calls = []
        for tiles in (a, b):
            call = self.descriptors[tiles].value
            assert isinstance(call, ast.Call)
            calls.append(call)
        blocks = [self._block(call, loop, tiles) for call, tiles in zip(calls, (a, b))]
        assert blocks[0] is not None and blocks[1] is not None
        dtypes = [f"{self.text_of(self._root(call.args[0]))}.dtype.element_ty" for call in calls]
        sizes = f"{blocks[0][0]}, {blocks[1][not loop.transposed]}, {blocks[0][1]}"
        earliest = self._earliest(loop)
        indent = " " * earliest.col_offset
        head = [
            f"{indent}{names['layouts']}: {self.space}.constexpr = {self.space}.portable.mma_layouts(",
            f'{indent}    {sizes}, {", ".join(dtypes)}, operands="shared"{self._demands(loop)}',
            f"{indent})",
        ]
        edits = []
        for tiles, call, part in list(zip((a, b), calls, ("a_shared", "b_shared")))[: 1 + (a != b)]:
            node = self.descriptors[tiles]
            args = ", ".join(self.text_of(arg) for arg in call.args)
            hosts = "".join(f", {w.arg}={self.text_of(w.value)}" for w in call.keywords)
            free = a == b or loop.transposed and tiles == b
            shared = "" if free else f", {names['layouts']}.{part}"
            new = [
                f"{' ' * node.col_offset}{tiles} = {self.text_of(call.func)}(",
                f"{' ' * node.col_offset}    {args}{shared}{hosts}",
                f"{' ' * node.col_offset})",
            ]
            edits.append(
                (node.lineno, node.end_lineno, [*(head if node is earliest else []), *new])
            )
        start = self.accumulators[loop.acc]
        indent = " " * start.col_offset
        make = f"{indent}{loop.acc} = {self.space}.portable.accumulator("
        new_start = [f"{make}{names['layouts']})"]
        if not self._has_steps(loop):
            assert isinstance(start.value, ast.Call)
            zeros = ", ".join(self.text_of(arg) for arg in start.value.args)
            words = "".join(f", {w.arg}={self.text_of(w.value)}" for w in start.value.keywords)
            zeros += f"{words}, layout={names['layouts']}.accumulator"
            held = f"{indent}    {names['layouts']}, {self.space}.zeros({zeros})"
            new_start = [make, held, f"{indent})"]
        edits.append((start.lineno, start.end_lineno, new_start))
        return edits

    def _has_steps(self, loop: _Loop) -> bool:
        """Return True if a loop begins at 0 and ends at the end of a tensor, which is positive."""
        last = ast.parse(loop.last, mode="eval").body
        if isinstance(last, ast.Call) and self.called(last) is language.cdiv:
            last = last.args[0]
        calls = [self.descriptors[tiles].value for tiles, _, _ in loop.loads.values()]
        ends = {
            self.text_of(end)
            for call in calls
            if isinstance(call, ast.Call) and isinstance(call.args[1], (ast.List, ast.Tuple))
            for end in call.args[1].elts
        }
        return loop.first == "0" and ast.unparse(last) in ends

    def _loop(self, loop: _Loop, names: dict[str, str], stages: int) -> list[Any]:
        """Return edits that fetch the first steps, wait within the loop, and fetch ahead."""
        assert isinstance(loop.node.target, ast.Name) and loop.product is not None
        outer = " " * loop.node.col_offset
        inner = " " * loop.node.body[0].col_offset
        variable, tiles, step = loop.node.target.id, names["tiles"], names["step"]
        steps = names["steps"]

        def fetch(indent: str, number: str) -> list[str]:
            places = (
                [_replaced(text, variable, loop.at(number)) for text in place]
                for _, place, _ in loop.loads.values()
            )
            return [
                indent + line for line in loop.fetched(tiles, number, places, f"{number} < {steps}")
            ]

        rings = ", ".join(name for name, _, _ in loop.loads.values())
        before = [
            f"{outer}# A ring of {stages} buffers for each tile: copies run {stages - 1} ahead of the products.",
            f"{outer}{tiles} = {self.space}.portable.pipeline([{rings}], {stages})",
            f"{outer}{steps} = {loop.count(self.space)}",
            f"{outer}for {step} in {self.space}.static_range({stages - 1}):",
            *fetch(outer + _INDENT, step),
        ]
        moved = self._later(loop)
        for later in moved:
            before += self.lines[later.lineno - 1 : later.end_lineno]
        before.append(f"{outer}for {step} in range({steps}):")
        body = loop.node.body
        others = [s for s in body if all(s is not load for _, _, load in loop.loads.values())]
        if any(isinstance(n, ast.Name) and n.id == variable for s in others for n in nodes_in(s)):
            before.append(f"{inner}{variable} = {loop.at(step)}")
        edits: list[Any] = [(loop.node.lineno, body[0].lineno - 1, before)]
        edits += [(later.lineno, later.end_lineno, []) for later in moved]
        edits += self._waits(loop, f"{tiles}.wait({step})")
        product = [*self._product(loop), *fetch(inner, f"{step} + {stages - 1}")]
        edits.append((loop.product.lineno, loop.product.end_lineno, product))
        end = loop.node.end_lineno or loop.node.lineno
        after = [
            f"{outer}{loop.acc} = {self.space}.portable.read({loop.acc})",
            f"{outer}{tiles}.close()",
        ]
        if body[-1] is loop.product:
            edits[-1] = (edits[-1][0], edits[-1][1], [*product, *after])
        else:
            edits.append((end + 1, end, after))
        return edits

    def _waits(self, loop: _Loop, wait: str) -> list[Any]:
        """Return edits that take the tiles from the ring where the last of them was loaded."""
        statements = [statement for _, _, statement in loop.loads.values()]
        last_load = max(statements, key=lambda node: node.lineno)
        taken = f"{' ' * last_load.col_offset}{', '.join(loop.loads)} = {wait}"
        return [
            (one.lineno, one.end_lineno, [taken] if one is last_load else []) for one in statements
        ]

    def _product(self, loop: _Loop) -> list[str]:
        """Return the lines of the asynchronous product, after which the buffers of the step before are free."""
        assert loop.product is not None and isinstance(loop.product.value, ast.Call)
        call, inner = loop.product.value, " " * loop.product.col_offset
        words = [
            f", {w.arg}={self.text_of(w.value)}"
            for w in call.keywords
            if w.arg not in ("a", "b", "acc")
        ]
        first, second = loop.loads
        second = f"{second}.permute((1, 0))" if loop.transposed else second
        operands = f"{first}, {second}, {loop.acc}"
        return [
            f"{inner}{loop.acc} = {self.text_of(call.func)}({operands}{''.join(words)}, is_async=True)",
            f"{inner}{loop.acc} = {self.space}.portable.mma_wait({loop.acc}, pending=1)  # frees the step before",
        ]

    # -- loops around the loop ------------------------------------------------------------------

    def _around(self, loop: _Loop, taken: set[str], stages: int, room: int) -> Optional[Around]:
        """Return the loop around a loop whose rounds the copies can walk over; None without one."""
        assert isinstance(loop.node.target, ast.Name)
        texts = [text for _, place, _ in loop.loads.values() for text in place]
        names = {name for text in texts for name in mentions(ast.parse(text.strip()))}
        outer = around(self, self.drawn, loop.node, names - {loop.node.target.id}, taken)
        if outer is None or room_of(self, self.drawn, outer.node, stages) > room - _BARRIERS:
            return None
        inside = {id(node) for node in nodes_in(outer.node)}
        descriptors = {id(self.descriptors[tiles]) for tiles, _, _ in loop.loads.values()}
        return None if inside & descriptors else outer

    def _rounds(
        self, loop: _Loop, outer: Around, names: dict[str, str], stages: int, taken: set[str]
    ) -> list[Any]:
        """Return edits that copy ahead across the rounds of the loop around, while the tiles of a round are stored."""
        assert isinstance(loop.node.target, ast.Name) and loop.product is not None
        count, fetches = free_name("step_ahead", taken), free_name("fetches", taken)
        more = free_name("more", taken)
        rounds = outer.rounds(self.space)
        if not self._has_steps(loop):  # nor a product above zero of two counts below
            rounds = f"{self.space}.maximum({rounds}, 0)"
        writers, stores = self._stores(outer, taken)
        indent, inner = " " * outer.node.col_offset, " " * loop.node.body[0].col_offset
        tiles, step, steps = (names[word] for word in ("tiles", "step", "steps"))
        variable = loop.node.target.id

        def fetch(indent: str, number: str, condition: str) -> list[str]:
            places = (
                [renamed(_replaced(text, variable, loop.at(count)), outer.moved) for text in place]
                for _, place, _ in loop.loads.values()
            )
            return [indent + line for line in loop.fetched(tiles, number, places, condition)]

        def moved_on(statement: ast.stmt, names: dict[str, str]) -> str:
            return one_line(renamed(self.text_of(statement), names))

        def copied(number: str, indent: str, condition: str) -> list[str]:
            one = partial(fetch, number=number, condition=condition)
            return list(lines_of(outer, moved_on, one, steps, count, indent))

        rings = ", ".join(name for name, _, _ in loop.loads.values())
        before = [
            f"{indent}# A ring of {stages} buffers for each tile: copies run {stages - 1} ahead of the products,",
            f"{indent}# and go on to the next round while the last one ends.",
            f"{indent}{tiles} = {self.space}.portable.pipeline([{rings}], {stages})",
            f"{indent}{steps} = {loop.count(self.space)}",
            f"{indent}{fetches} = {rounds} * {steps}",
            *(f"{indent}{w} = {self.space}.portable.writer({d})" for d, w in writers.items()),
            f"{indent}{outer.moved[outer.variable]} = {outer.first}",
            *(f"{indent}{moved_on(statement, outer.moved)}" for statement in outer.ahead),
            f"{indent}{count} = 0",
            f"{indent}for {step} in {self.space}.static_range({stages - 1}):",
            *copied(step, indent + _INDENT, f"{step} < {fetches}"),
            f"{indent}{step} = 0",
            f"{indent}{more} = {stages - 1} < {fetches}",
        ]
        product = [
            *self._product(loop),
            *copied(f"{step} + {stages - 1}", inner, more),
            f"{inner}{step} += 1",
            f"{inner}{more} = {step} + {stages - 1} < {fetches}",
        ]
        end, last = loop.node.end_lineno or 0, outer.node.end_lineno or 0
        read = f"{' ' * loop.node.col_offset}{loop.acc} = {self.space}.portable.read({loop.acc})"
        edits = [
            (outer.node.lineno, outer.node.lineno - 1, before),
            *self._waits(loop, f"{tiles}.wait({step})"),
            (loop.product.lineno, loop.product.end_lineno, product),
            (last + 1, last, [f"{indent}{one}.close()" for one in (tiles, *writers.values())]),
        ]
        if loop.node.body[-1] is loop.product:
            edits[-2] = (loop.product.lineno, loop.product.end_lineno, [*product, read])
        else:
            edits.append((end + 1, end, [read]))
        return [*edits, *stores]

    def _stores(self, outer: Around, taken: set[str]) -> tuple[dict[str, str], list[Any]]:
        """Return writers of the descriptors that rounds store to, and edits of the stores: the next round need not wait."""
        writers: dict[str, str] = {}
        edits: list[Any] = []
        for node in nodes_in(outer.node):
            if not isinstance(node, ast.Expr) or self.called(node.value) is not portable.store:
                continue
            call = node.value
            assert isinstance(call, ast.Call)
            first = self.lines[node.lineno - 1].encode()[: node.col_offset]
            last = self.lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :]
            if len(call.args) != _STORED or call.keywords or (first + last).strip():
                continue
            tiles, place, value = map(self.text_of, call.args)
            described = self.descriptors.get(tiles)
            if described is None or (described.end_lineno or 0) >= outer.node.lineno:
                continue
            if tiles not in writers:
                writers[tiles] = free_name(f"{tiles}_writer", taken)
            stored = f"{first.decode()}{writers[tiles]}.store({place}, {value})"
            edits.append((node.lineno, node.end_lineno, stored.splitlines()))
        return writers, edits


def _replaced(text: str, name: str, new: str) -> str:
    """Return an expression with a name replaced by another expression."""
    if re.fullmatch(rf"\s*{name}\s*", text):
        return new
    return re.sub(rf"\b{name}\b", f"({new})", text)
