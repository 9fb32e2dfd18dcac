"""Leave out the masks of a loop over the blocks of a row where the blocks fill the row.

    for start in range(0, n, BLOCK):
        columns = start + gl.arange(0, BLOCK)
        total += gl.load(x + columns, mask=columns < n, other=0.0)

becomes

    if n % BLOCK == 0:
        for start in range(0, n, BLOCK):
            columns = start + gl.arange(0, BLOCK)
            total += gl.load(x + columns)
    else:
        ...

A mask costs a comparison, a zero for what is not loaded, and a selection for each element. A loop whose end is surely
no multiple of its step stays as it is.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from typing import Any, Optional

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.text.form import Form, bounds_of, factor, rewritten
from gluon_write.text.step_masks import Terms, is_place, terms_of
from gluon_write.text.syntax import argument, nodes_in, reads, sides_of, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["PLAIN", "RowLoops", "Unmask", "WholeStep", "in_whole_steps"]

PLAIN = (ast.Assign, ast.AugAssign, ast.Expr)


def in_whole_steps(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel without products whose loops have no masks where their steps are whole, or the kernel."""
    readers = [RowLoops(jit, number, drawn) for number, jit in enumerate(drawn.jits)]
    if any(one.has_products(one.tree) for one in readers):
        return fn
    return rewritten(fn, drawn.jits, lambda _, number: readers[number].text())


class RowLoops(TracedForm):
    def text(self) -> Optional[str]:
        loops = sorted(self.for_loops(), key=lambda loop: loop.lineno, reverse=True)
        both = ((loop, self._both(loop)) for loop in loops)
        return self.with_lines((loop, lines) for loop, lines in both if lines is not None)

    def steps_of(self, loop: ast.For) -> Optional[tuple[ast.expr, str]]:
        """Return the end and the step of a loop from 0 over plain statements on lines of their own; None of others."""
        bounds = loop.iter
        if not isinstance(bounds, ast.Call) or bounds.keywords or len(bounds.args) != 3:
            return None
        if self.text_of(bounds.func) != "range":
            return None
        first, _, step = bounds_of([self.text_of(one) for one in bounds.args])
        plain = all(isinstance(s, PLAIN) for s in loop.body) and not loop.orelse
        changing = {name for s in loop.body for name in stores(s)}
        places = [(0, bounds.end_lineno), *((s.lineno, s.end_lineno) for s in loop.body)]
        own_line = loop.lineno == bounds.end_lineno
        own_line &= all(one[1] < other[0] for one, other in zip(places, places[1:]))  # type: ignore[operator]
        if first != "0" or not isinstance(loop.target, ast.Name) or not plain or not own_line:
            return None
        return None if changing & {*reads(bounds), loop.target.id} else (bounds.args[1], step)

    def never_whole(self, end: ast.expr, step: str) -> bool:
        """Return True for an end that is an argument, and surely no multiple of the step."""
        if self.number or not isinstance(end, ast.Name) or end.id not in self.drawn.odd:
            return False
        if end.id in stores(self.tree):
            return False
        value = unwrap(self.drawn.constants.get(step, int(step) if step.isdigit() else None))
        return isinstance(value, int) and value % 16 == 0

    def _both(self, loop: ast.For) -> Optional[list[str]]:
        """Return the lines of a loop with and without its masks; None where it has none of that form."""
        steps = self.steps_of(loop)
        if steps is None:
            return None
        end, step = steps
        if self.never_whole(end, step):
            return None
        unmask = Unmask(self, WholeStep(self, loop, terms_of(end), step))
        outer, inner = " " * loop.col_offset, " " * loop.body[0].col_offset
        old = self.source.splitlines()[loop.lineno - 1 : loop.end_lineno]
        pieces: list[tuple[Any, list[str]]] = []  # a statement without masks, and its lines
        for number, statement in enumerate(loop.body):
            begin = loop.body[number - 1].end_lineno if number else loop.lineno
            own = self.source.splitlines()[begin : statement.end_lineno]
            edits = unmask.edits
            new = unmask.visit(copy.deepcopy(statement))
            same = unmask.edits == edits
            pieces.append((new, own if same else [inner + ast.unparse(new)]))
        lines = [self.source.splitlines()[loop.lineno - 1]]
        for new, own in pieces:
            others = {name for other, _ in pieces if other is not new for name in reads(other)}
            mask = isinstance(new, ast.Assign) and isinstance(new.value, (ast.Compare, ast.BinOp))
            lines += [] if mask and not stores(new) & (others | self._outside(loop)) else own
        if not unmask.edits:
            return None
        return [
            f"{outer}if {factor(self.text_of(end))} % {factor(step)} == 0:  # no step has a mask",
            *(f"    {line}" if line else "" for line in lines),
            f"{outer}else:",
            *(f"    {line}" if line else "" for line in old),
        ]

    def _outside(self, loop: ast.For) -> set[str]:
        """Return the names that the function mentions outside of a loop."""
        within = {id(node) for node in nodes_in(loop)}
        names = (n for n in nodes_in(self.tree) if isinstance(n, ast.Name) and id(n) not in within)
        return {name.id for name in names}


class Unmask(ast.NodeTransformer):
    """Leave the masks out that hold in a whole step, and count them."""

    def __init__(self, form: RowLoops, step: "WholeStep"):
        self.form, self.step, self.edits = form, step, 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Return the call without its mask, or the value that a selection takes."""
        called = self.form.called(node)
        same = called is language.where and self._takes(node)
        unmasked = called in (language.load, language.store) and self._masked(node)
        self.generic_visit(node)
        if unmasked:
            self.edits += 1
            node.keywords = [word for word in node.keywords if word.arg not in ("mask", "other")]
        if same:
            self.edits += 1
            value = argument(node, 1, "x")
            assert value is not None
            return value
        return node

    def _takes(self, call: ast.Call) -> bool:
        """Return True for a selection whose value has its dtype and shape, by a mask that holds."""
        mask, value = argument(call, 0, "condition"), argument(call, 1, "x")
        if mask is None or value is None or not self.step.holds(mask):
            return False
        kind = self.form.dtype_and_shape(value)
        return kind is not None and kind == self.form.dtype_and_shape(call)

    def _masked(self, call: ast.Call) -> bool:
        """Return True for a load or store whose mask, a keyword, holds."""
        mask = next((word.value for word in call.keywords if word.arg == "mask"), None)
        return mask is not None and self.step.holds(mask)


class WholeStep:
    """Tell which masks of a loop hold in each step whose elements are all there.

    Args:
        limit: the terms of the loop's end. step: the text of its step.
    """

    def __init__(self, form: Form, loop: ast.For, limit: Terms, step: str):
        assert isinstance(loop.target, ast.Name)
        self.form, self.variable, self.limit, self.step = form, loop.target.id, limit, step
        named = [s for s in loop.body if isinstance(s, ast.Assign) and len(s.targets) == 1]
        once = Counter(name for s in loop.body for name in stores(s))
        self.values = {
            s.targets[0].id: s.value
            for s in named
            if isinstance(s.targets[0], ast.Name) and once[s.targets[0].id] == 1
        }

    def holds(self, mask: ast.expr) -> bool:
        """Return True for `start + gl.arange(0, step) < end`, in any order of its terms, and for masks of nothing else."""
        if isinstance(mask, ast.Name):
            return mask.id in self.values and self.holds(self.values[mask.id])
        if isinstance(mask, ast.Subscript):
            return self.holds(mask.value)
        if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
            return self.holds(mask.left) and self.holds(mask.right)
        sides = sides_of(mask)
        if sides is None:
            return False
        low, high = sides
        rest = self._terms(low)
        rest.subtract(self._terms(high))
        rest.update(self.limit)
        rest.subtract(Counter([(self.variable,)]))
        left = [(product, count) for product, count in rest.items() if count]
        return len(left) == 1 and left[0][1] == 1 and self._is_step(left[0][0])

    def _terms(self, node: ast.expr) -> Terms:
        """Return the terms of a sum, with the names of the step replaced by their values."""
        terms: Terms = Counter()
        for product, count in terms_of(node).items():
            value = self.values.get(product[0]) if len(product) == 1 else None
            inner = self._terms(value) if value is not None else Counter([product])
            for one, times in inner.items():
                terms[one] += count * times
        return terms

    def _is_step(self, product: tuple[str, ...]) -> bool:
        """Return True for `gl.arange(0, step)`."""
        node = is_place(self.form, product[0]) if len(product) == 1 else None
        if node is None or len(node.args) != 2:
            return False
        return [ast.unparse(arg) for arg in node.args] == ["0", self.step]
