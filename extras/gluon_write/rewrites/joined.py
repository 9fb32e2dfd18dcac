"""Let the loop of a call go on with the steps of the loop of the call before it.

    acc, total = inner(acc, total, q, k_ptr + base, 0, start * BM, MASKED=False)
    acc, total = inner(acc, total, q, k_ptr + base, start * BM, stop, MASKED=True)

Both loops are put into the kernel. The second begins where the first ends, at a whole step, and loads the same with the
first one's names: copies ahead of the first are those of the second, too (see `continued`). Its range and its addresses
are computed in front of both.
"""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any, Optional, Sequence

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_core.errors import GluonError
from gluon_write.loops.continued import bounds_in
from gluon_write.loops.loop_reader import LoopReader
from gluon_write.rewrites.inline import in_own_text
from gluon_write.text.form import changed_copy, edited, factor, free_name
from gluon_write.text.syntax import mentions, names_in, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.tracer import Tracer

__all__ = ["joined"]

_MOST_DEEP = 8


def joined(fn: Any, drawn: Sketch, traced: Tracer) -> tuple[Any, Sketch]:
    """Return a kernel with the loops of its calls in its text, in one walk over their steps where they are, and its trace; or the kernel."""
    if len(drawn.jits) < 2:
        return fn, drawn
    try:
        whole, own, inlined = in_own_text(fn, drawn, traced)
        if not inlined:
            return fn, drawn
        text = _Walk(whole, 0, own, True).text()
        if text is None:
            return whole, own
        written = changed_copy(whole, own.jits, {0: text}, {})
        return written, traced(written)
    except GluonError:  # a part of the kernel that no trace has seen
        return fn, drawn


class _Walk(LoopReader):
    """Write the loops of a kernel's body as one walk.

    Attributes:
        before: the loops but for the last one. second: the last one.
        values: names that the kernel assigns once -> their values.
    """

    def text(self) -> Optional[str]:
        """Return the kernel whose last loop goes on with the steps of those before it; None without such loops."""
        body: list[ast.stmt] = self.tree.body
        loops = [s for s in body if isinstance(s, ast.For)]
        count = sum(isinstance(n, (ast.For, ast.While)) for n in nodes_in(self.tree))
        if not self.space or len(loops) < 2 or count > len(loops) or None in map(self.read, loops):
            return None
        *self.before, self.second = loops
        first, last = body.index(self.before[0]), body.index(self.before[-1])
        if body[first : last + 1] != self.before:
            return None
        self.counts = Counter(n.id for n in names_in(self.tree) if isinstance(n.ctx, ast.Store))
        self.values = self._values()
        between = body[last + 1 : body.index(self.second)]
        moved = self._moved(between)
        names = self._names()
        if moved is None or names is None or not self._meets():
            return None
        others = [s for s in between if s not in moved]
        changed = {name for s in (*self.before, *others) for name in stores(s)}
        local = {name for one in (*self.before, self.second) for name in stores(one)}
        fixed = ({*names.values()} - local) | reads(self.second.iter)
        reset = {name for s in others for name in stores(s)} & {*names, *names.values()}
        return None if fixed & changed or reset else self._written(moved, names)

    def _values(self) -> dict[str, ast.expr]:
        """Return the names that the kernel's body assigns once, with their values."""
        values: dict[str, ast.expr] = {}
        for statement in self.tree.body:
            if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
                continue
            target, value = statement.targets[0], statement.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts))
            for one, its in pairs:
                if isinstance(one, ast.Name) and self._is_fixed(one.id):
                    values[one.id] = its
        return values

    def _is_fixed(self, name: str) -> bool:
        """Return True if a name has one value in the kernel."""
        parameters = {one.arg for one in self.tree.args.args}
        return self.counts[name] == (0 if name in parameters else min(1, self.counts[name]))

    # -- statements between the loops ---------------------------------------------------------------

    def _moved(self, between: Sequence[ast.stmt]) -> Optional[list[ast.stmt]]:
        """Return the statements between the loops that may come before both; None if another one does more than compute."""
        moved: list[ast.stmt] = []
        changed = {name for loop in self.before for name in stores(loop)}
        for statement in between:
            plain = isinstance(statement, ast.Assign) and self.ahead(statement)
            called = statement.value if isinstance(statement, ast.Expr) else None
            if not plain and self.called(called) is not language.static_assert:
                return None
            if not reads(statement) & changed and all(map(self._is_fixed, stores(statement))):
                moved.append(statement)
            elif plain:
                changed |= stores(statement)
            else:
                return None
        return moved

    # -- where the loops meet -----------------------------------------------------------------------

    def _meets(self) -> bool:
        """Return True if the first loop begins at 0, and the second where the others end, a whole number of steps behind."""
        bounds = [bounds_in(loop) for loop in (*self.before, self.second)]
        (first, *_), (begin, _, step) = bounds[0] or ("", "", ""), bounds[-1] or ("", "", "")
        if None in bounds or any(one[2] != step for one in bounds if one):
            return False
        end = (bounds[-2] or ("", "", ""))[1]
        place, size = self._resolved(end), self._constant(ast.parse(step, mode="eval").body)
        if ast.unparse(self._resolved(first)) != "0" or ast.unparse(place) != ast.unparse(
            self._resolved(begin)
        ):
            return False
        return (
            size is not None and size > 0 and self._is_multiple(place, size) and self._counts(place)
        )

    def _resolved(self, text: str) -> ast.expr:
        """Return an expression with the values of names that have one."""
        values = self.values

        class Replaced(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                return values.get(node.id, node)

        expression: ast.expr = ast.parse(text, mode="eval").body
        for _ in range(_MOST_DEEP):
            before = ast.unparse(expression)
            expression = Replaced().visit(ast.parse(before, mode="eval").body)
            if ast.unparse(expression) == before:
                break
        return expression

    def _constant(self, node: ast.expr) -> Optional[int]:
        """Return the value of an expression that is known when the kernel is compiled."""
        value: Any = getattr(node, "value", None)
        if isinstance(node, ast.Name):
            value = unwrap(self.drawn.constants.get(node.id))
        return value if type(value) is int else None

    def _is_multiple(self, node: ast.expr, size: int) -> bool:
        known = self._constant(node)
        if known is not None:
            return known % size == 0
        if not isinstance(node, ast.BinOp):
            return False
        sides = [self._is_multiple(side, size) for side in (node.left, node.right)]
        return (
            any(sides)
            if isinstance(node.op, ast.Mult)
            else all(sides) and isinstance(node.op, ast.Add)
        )

    def _counts(self, node: ast.expr) -> bool:
        """Return True if an expression is not negative."""
        known = self._constant(node)
        if known is not None:
            return known >= 0
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
            return self._counts(node.left) and self._counts(node.right)
        return self.called(node) in (language.program_id, language.num_programs)

    # -- names --------------------------------------------------------------------------------------

    def _names(self) -> Optional[dict[str, str]]:
        """Return the names that the loads of the second loop read and assign -> those of the first; None of other loads."""
        one, other = self.read(self.second), self.read(self.before[-1])
        assert one is not None and other is not None
        names: dict[str, str] = {}
        parts = []
        for loop in (one, other):
            loads = loop.loads
            parts.append([loop.node.target, *sorted([*loads, *loop.ahead], key=lambda s: s.lineno)])
        if len(parts[0]) != len(parts[1]) or not all(
            self._alike(a, b, names) for a, b in zip(*parts)
        ):
            return None
        if len({*names.values()}) < len(names):
            return None
        for name, new in names.items():
            if name != new and not (self._is_local(name, new) or self._is_same(name, new)):
                return None
            if name != new and names.get(new, "") != new and new in mentions(self.second):
                return None
        return names

    def _alike(self, one: Any, other: Any, names: dict[str, str]) -> bool:
        """Return True if two trees differ in names alone, and note the name of the other one for each of the first."""
        if isinstance(one, list):
            same = isinstance(other, list) and len(one) == len(other)
            return same and all(self._alike(a, b, names) for a, b in zip(one, other))
        if not isinstance(one, ast.AST):
            return bool(one == other)
        if type(one) is not type(other):
            return False
        if isinstance(one, ast.Name) and isinstance(other, ast.Name):
            return names.setdefault(one.id, other.id) == other.id
        return all(
            self._alike(getattr(one, f, None), getattr(other, f, None), names) for f in one._fields
        )

    def _is_local(self, name: str, new: str) -> bool:
        """Return True if the second loop alone has a name, and those before it alone the other."""
        own = Counter(n.id for n in names_in(self.second))[name]
        others = sum(Counter(n.id for n in names_in(loop))[new] for loop in self.before)
        everywhere = Counter(n.id for n in names_in(self.tree))
        stored = name in stores(self.second) and all(new in stores(loop) for loop in self.before)
        return stored and everywhere[name] == own and everywhere[new] == others

    def _is_same(self, name: str, new: str) -> bool:
        """Return True if two names have one value."""
        values = [self.values.get(one) for one in (name, new)]
        texts = {None if value is None else ast.unparse(value) for value in values}
        return len(texts) == 1 and None not in texts and all(
            self._is_fixed(read) for value in values if value is not None for read in reads(value)
        )  # fmt: skip

    # -- the text -----------------------------------------------------------------------------------

    def _written(self, moved: Sequence[ast.stmt], names: dict[str, str]) -> str:
        first, last = self.before[0], self.before[-1]
        start, end, step = bounds_in(last) or ("", "", "")
        middle = free_name("middle", {*mentions(self.tree), *self.scope})
        edits: list[tuple[ast.expr, str]] = [
            (node, names[node.id])
            for node in names_in(self.second)
            if names.get(node.id, node.id) != node.id
        ]
        for loop, place in ((last, 1), (self.second, 0)):
            assert isinstance(loop.iter, ast.Call)
            edits = [e for e in edits if e[0] not in [*nodes_in(loop.iter.args[place])]]
            edits.append((loop.iter.args[place], middle))
        lines = edited(self.source, edits).splitlines()
        early: list[str] = []
        for statement in moved:
            rows = slice(statement.lineno - 1, statement.end_lineno)
            early += lines[rows]
            lines[rows] = [""] * len(lines[rows])
        whole = f"{self.space}.cdiv(max({end}, 0), {step}) * {step}"
        if start != "0":
            length = f"{factor(end)} - {factor(start)}"
            whole = f"{start} + {self.space}.cdiv(max({length}, 0), {step}) * {step}"
        early += [
            f"{' ' * first.col_offset}# The next call's steps follow: its first tiles are copied during the last steps here.",
            f"{' ' * first.col_offset}{middle} = {whole}",
        ]
        lines[first.lineno - 1 : first.lineno - 1] = early
        return "\n".join(line for line in lines if line.strip()) + "\n"
