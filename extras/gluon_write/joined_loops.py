"""Join two loops that do the same, the second from where the first ends, and with one mask more.

    for start in range(0, block * BM, BN):
        columns = start + gl.arange(0, BN)
        seen = columns[None, :] < length
        score = gl.where(seen, score_of(columns), -1e30)
        ...
    for start in range(block * BM, min((block + 1) * BM, length), BN):
        columns = start + gl.arange(0, BN)
        seen = columns[None, :] < length
        seen = seen & (rows[:, None] >= columns[None, :])
        score = gl.where(seen, score_of(columns), -1e30)
        ...

becomes

    for start in range(0, min((block + 1) * BM, length), BN):
        columns = start + gl.arange(0, BN)
        seen = columns[None, :] < length
        seen = seen & (rows[:, None] >= columns[None, :])
        ...

where the mask is true in all steps of the first loop. Which steps have no need of it is found again later (see `guard`), for
the only loop: then all masked steps are those behind the others.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Optional, Sequence

from gluon_core import language
from gluon_write.form import changed_copy, edited
from gluon_write.index_forms import IndexForms, NoIndex
from gluon_write.loops import reads, stores
from gluon_write.polynomials import Polynomial
from gluon_write.sketch import Sketch

__all__ = ["with_joined_loops"]

_MOST_DEEP = 8  # definitions of names within definitions
_OF_PROGRAM = re.compile(r"\w+\.(program_id|num_programs)\((axis=)?\d\)")
_MOST_COLUMNS = 64  # of sums: with more, ptxas spilled in the loop of attention with heads of 128


def with_joined_loops(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with one loop for two that follow each other, or the kernel.

    Args:
        fn: the kernel, with these loops in its own text. drawn: its trace.
    """
    block = IndexForms(fn, drawn).tree.body
    loops = [i for i, statement in enumerate(block) if isinstance(statement, ast.For)]
    for first, second in zip(loops, loops[1:]):
        text = _Pair(fn, drawn, first, second).text()
        if text is not None:
            return changed_copy(fn, drawn.jits, {0: text}, {})
    return fn


class _Pair(IndexForms):
    """Read two loops of a kernel's body, by their numbers in it."""

    def __init__(self, fn: Any, drawn: Sketch, first: int, second: int):
        super().__init__(fn, drawn)
        block: list[Any] = self.tree.body
        self.one, self.other = block[first], block[second]
        self.between: list[ast.stmt] = block[first + 1 : second]

    def text(self) -> Optional[str]:
        """Return the text of the kernel with one loop; None where the two differ."""
        try:
            if not self._follows() or not self._same() or self._crowded():
                return None
        except NoIndex:
            return None
        begin = self.text_of(self.one.iter.args[0])
        lines = edited(self.source, [(self.other.iter.args[0], begin)]).splitlines()
        for statement in reversed(self.other.body):
            if isinstance(statement, ast.If):  # else the mask's condition is not known
                taken = self._taken(statement)
                own = lines[taken[0].lineno - 1 : taken[-1].end_lineno] if taken else []
                deep = taken[0].col_offset - statement.col_offset if taken else 0
                lines[statement.lineno - 1 : statement.end_lineno] = [line[deep:] for line in own]
        del lines[self.one.lineno - 1 : self.one.end_lineno]
        return "\n".join(lines) + "\n"

    def _follows(self) -> bool:
        """Return True if the second loop begins where the first ends, whole steps behind its begin, and nothing between reads its results."""
        for loop in (self.one, self.other):
            if not isinstance(loop.target, ast.Name) or loop.orelse:
                return False
            if ast.unparse(loop.iter.func) != "range" or len(loop.iter.args) != 3:
                return False
        (start, end, step), (begin, _, other) = (
            [self.form_of(arg) if number != 1 or loop is self.one else Polynomial.of(0)
             for number, arg in enumerate(loop.iter.args)]
            for loop in (self.one, self.other)
        )  # fmt: skip
        self.step, self.end = step.number, end
        if not self.step or self.step < 1 or step != other or end != begin:
            return False
        whole = end - start
        if not self._is_positive(whole) or self.multiple_of(whole) % self.step:
            return False
        changed = stores(self.one)
        return all(self._is_plain(s) and not (reads(s) | stores(s)) & changed for s in self.between)

    def _is_plain(self, statement: ast.stmt) -> bool:
        asserted = isinstance(statement, ast.Expr) and (
            self.called(statement.value) is language.static_assert
        )
        return asserted or isinstance(statement, (ast.Assign, ast.AnnAssign))

    def _is_positive(self, form: Polynomial) -> bool:
        """Return True for a sum that is not below 0 with any arguments."""
        return all(count > 0 for count in form.terms.values()) and all(
            _OF_PROGRAM.fullmatch(name) for name in form.names
        )

    def _crowded(self) -> bool:
        """Return True if sums leave few registers for the masks that come behind them."""
        values = [s.value for s in self._statements(self.other.body) if isinstance(s, ast.Assign)]
        names = [s.targets[0].id for s in self._statements(self.other.body)]  # type: ignore[attr-defined]
        shapes = [self.dims_of(v) for n, v in zip(names, values) if n in self._passed_on(1)]
        return any(len(shape or ()) == 2 and shape[1] > _MOST_COLUMNS for shape in shapes)  # type: ignore[index]

    # -- what the loops do ------------------------------------------------------------------------------

    def _same(self) -> bool:
        """Return True if each statement of the first loop is one of the second, which has others for masks alone."""
        ones, others = (self._statements(loop.body) for loop in (self.one, self.other))
        self.names: tuple[dict[str, str], ...] = ({}, {})
        left = list(ones)
        for statement in others:
            if left and self._canonical(left[0], 0) == self._canonical(statement, 1):
                self._assign(left.pop(0), statement)
            elif not self._only_masks(statement):
                return False
        inner = stores(self.one) - set(self._passed_on())
        later = reads(self.other) - stores(self.other)
        for statement in self.tree.body:
            if statement not in (self.one, self.other):
                later |= reads(statement)
        return not left and not inner & later and self._passed_on() == self._passed_on(1)

    def _statements(self, block: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return plain statements, with the branches that conditions of constants choose.

        Raises:
            NoIndex: there are others.
        """
        listed: list[ast.stmt] = []
        for statement in block:
            if isinstance(statement, ast.If):
                listed += self._statements(self._taken(statement))
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                listed.append(statement)
            else:
                raise NoIndex
        return listed

    def _taken(self, statement: ast.If) -> list[ast.stmt]:
        """Return the branch that a condition of numbers chooses.

        Raises:
            NoIndex: it has another condition.
        """
        test = statement.test
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            raise NoIndex
        sides = [test.left, test.comparators[0]]
        if not all(isinstance(side, ast.Constant) for side in sides):
            raise NoIndex
        if not isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
            raise NoIndex
        equal = sides[0].value == sides[1].value  # type: ignore[attr-defined]
        return statement.body if equal == isinstance(test.ops[0], ast.Eq) else statement.orelse

    def _passed_on(self, which: int = 0) -> list[str]:
        """Return the names that a step of a loop reads of the one before."""
        loop = (self.one, self.other)[which]
        known: set[str] = set()
        carried: set[str] = set()
        for statement in self._statements(loop.body):
            carried |= reads(statement) & stores(loop) - known
            known |= stores(statement)
        return sorted(carried - stores(loop.target))

    def _assign(self, one: ast.stmt, other: ast.stmt) -> None:
        """Give the names that two statements assign one name."""
        for which, statement in enumerate((one, other)):
            (name,) = stores(statement)
            own = name in self._passed_on(which)
            self.names[which][name] = name if own else f"<{len(self.names[which])}>"

    def _canonical(self, node: ast.AST, which: int, deep: int = _MOST_DEEP) -> str:
        """Return a text that is the same for equal values; names from outside are what they were assigned."""
        loop = (self.one, self.other)[which]
        if isinstance(node, ast.Assign):
            (name,) = stores(node)
            own = name if name in self._passed_on(which) else "<new>"
            return f"{own} = {self._canonical(node.value, which)}"
        if isinstance(node, ast.Name):
            if node.id == loop.target.id:
                return "<step>"
            if node.id in self.names[which]:
                return self.names[which][node.id]
            if node.id in stores(loop):
                return node.id  # of the step before
            source = self.reaching(node.id, node)
            if source in ("parameter", "global") or deep == 0:
                return f"{node.id} of {source if isinstance(source, str) else id(source)}"
            target = source.targets[0] if isinstance(source, ast.Assign) else None
            if not isinstance(target, ast.Name):
                return f"{node.id} of {id(source)}"
            return self._canonical(source.value, which, deep - 1)
        if isinstance(node, ast.Constant):
            return repr(node.value)
        parts = [
            self._canonical(child, which, deep)
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.expr_context)
        ]
        words = [str(getattr(node, w)) for w in ("attr", "arg", "id") if hasattr(node, w)]
        return f"{type(node).__name__}({', '.join([*words, *parts])})"

    # -- masks ------------------------------------------------------------------------------------------

    def _only_masks(self, statement: ast.stmt) -> bool:
        """Return True for `mask = mask & (x >= y)` where the comparison holds in all steps of the first loop."""
        assert isinstance(statement, ast.Assign)
        target, value = statement.targets[0], statement.value
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.BitAnd):
            return False
        if ast.unparse(value.left) != ast.unparse(target):
            return False
        new = self.names[1].get(ast.unparse(target), "")
        return new.startswith("<") and self._holds(value.right)

    def _holds(self, mask: ast.expr) -> bool:
        """Return True if a comparison of ranges is true in all steps of the first loop."""
        if not isinstance(mask, ast.Compare) or len(mask.ops) != 1:
            return False
        high, low, order = mask.left, mask.comparators[0], mask.ops[0]
        if isinstance(order, (ast.Lt, ast.LtE)):
            high, low = low, high
        elif not isinstance(order, (ast.Gt, ast.GtE)):
            return False
        least = self.form_of(high) - self.form_of(low)
        for name in least.names & set(self.ranges):
            known = self.ranges[name]
            count = least.terms.get((name,), 0)
            if known.bound is not None or any(name in n for n in least.terms if n != (name,)):
                return False
            last = Polynomial.of(known.size - 1 if count < 0 else 0)
            least = least - Polynomial({(name,): count}) + Polynomial.of(count) * last
        variable = self.other.target.id
        count = least.terms.get((variable,), 0)
        assert self.step
        if count > 0 or any(variable in n for n in least.terms if n != (variable,)):
            return False
        latest = self.end - Polynomial.of(self.step)  # step of the first loop
        least = least - Polynomial({(variable,): count}) + Polynomial.of(count) * latest
        positive = self._is_positive(least - Polynomial.of(least.terms.get((), 0)))
        return positive and least.terms.get((), 0) >= isinstance(order, (ast.Gt, ast.Lt))
