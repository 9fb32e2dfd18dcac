"""Apply the mask of a loop's steps only in the steps that it changes.

    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        score = gl.where(columns[None, :] < length, score, -1e30)

masks the scores of each step, and only the last one has columns beyond the length:

        if start + (BN - 1) >= length:
            score = gl.where(columns[None, :] < length, score, -1e30)

The bounds of a mask's sides are those of sums of scalars and ranges; a mask with other sides stays.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language, portable
from gluon_write.form import factor, rewritten
from gluon_write.loops import argument, reads
from gluon_write.recompute import Definitions
from gluon_write.sketch import Sketch, place_of

__all__ = ["guarded"]

_MOST_DEEP = 8
#: Comparison -> the bounds that decide (of the left side: the highest), and the opposite comparison.
_ORDERS: dict[type, tuple[bool, str]] = {
    ast.Lt: (True, ">="),
    ast.LtE: (True, ">"),
    ast.Gt: (False, "<="),
    ast.GtE: (False, "<"),
}


def guarded(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops of products mask only the steps that need it, or the kernel.

    Args:
        drawn: the traced kernel.
    """
    return rewritten(fn, drawn.jits, lambda jit, number: _Guard(jit, number, drawn).text())


class _Guard(Definitions):
    def text(self) -> Optional[str]:
        """Return the text of the function; None where nothing changes."""
        if not self.space:
            return None
        lines = self.source.splitlines()
        changed = False
        for statement in sorted(self._statements(), key=lambda s: s.lineno, reverse=True):
            new = self._guarded(statement)
            if new is not None:
                indent = " " * statement.col_offset
                lines[statement.lineno - 1 : statement.end_lineno] = [indent + one for one in new]
                changed = True
        return "\n".join(lines) + "\n" if changed else None

    def _statements(self) -> list[ast.Assign]:
        """Return the statements of loops of products, without those of loops within."""
        return [
            statement
            for loop in ast.walk(self.tree)
            if isinstance(loop, ast.For)
            and any(self.called(node) is portable.mma for node in ast.walk(loop))
            for statement in loop.body
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1
        ]

    def _guarded(self, statement: ast.Assign) -> Optional[list[str]]:
        """Return the lines of `x = where(mask, value, other)` under a condition; None where there is none."""
        target, call = statement.targets[0], statement.value
        if not isinstance(target, ast.Name) or self.called(call) is not language.where:
            return None
        assert isinstance(call, ast.Call)
        mask, value, other = (argument(call, i, n) for i, n in enumerate(("condition", "x", "y")))
        if mask is None or value is None or other is None or self._rank(other) is not None:
            return None
        alone = not self.source.splitlines()[statement.lineno - 1][: statement.col_offset].strip()
        same = self._kind(value) == self._kind(call)
        if not alone or not same or target.id in reads(mask):
            return None
        condition = self._changes(mask, statement)
        if condition is None:
            return None
        name = self.text_of(call.func)
        cond, own, rest = (self._line_of(one) for one in (mask, value, other))
        first = [f"{target.id} = {own}"] if own != target.id else []
        masked = f"{name}({cond}, {target.id}, {rest})"
        return [
            *first,
            "# The mask leaves all other steps as they are.",
            f"if {ast.unparse(ast.parse(condition))}:",
            f"    {target.id} = {masked}",
        ]

    def _line_of(self, node: ast.expr) -> str:
        """Return an expression in one line."""
        text = self.text_of(node)
        return ast.unparse(node) if "\n" in text else text

    def _kind(self, node: ast.expr) -> Any:
        """Return the dtype and shape of an expression's value; None where they are not known."""
        place = place_of(node, self.number)
        values = self.drawn.returned.get(place, ()) if place else ()
        kinds = {(str(value.type.element), tuple(value.type.dims)) for value in values}
        return kinds.pop() if len(kinds) == 1 else None

    def _changes(self, mask: ast.expr, use: ast.stmt) -> Optional[str]:
        """Return the condition that a mask is not true everywhere; None where it is not known."""
        if isinstance(mask, ast.Name):
            definition = self._definition(mask)
            return self._changes(definition.value, use) if definition is not None else None
        if isinstance(mask, ast.Subscript):
            return self._changes(mask.value, use)
        if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
            sides = [self._changes(side, use) for side in (mask.left, mask.right)]
            return None if None in sides else " or ".join(f"({side})" for side in sides)
        if not isinstance(mask, ast.Compare) or len(mask.ops) != 1:
            return None
        order = _ORDERS.get(type(mask.ops[0]))
        if order is None:
            return None
        highest, opposite = order
        left = self._bound(mask.left, highest, use, None, _MOST_DEEP)
        right = self._bound(mask.comparators[0], not highest, use, None, _MOST_DEEP)
        return None if left is None or right is None else f"{left} {opposite} {right}"

    def _bound(
        self, node: ast.expr, highest: bool, use: ast.stmt, since: Optional[ast.stmt], deep: int
    ) -> Optional[str]:
        """Return the highest or lowest element of a vector as a scalar expression; None where it is not known.

        Args:
            since: the statement that `node` is a part of, None of `use`.
        """
        if deep == 0:
            return None
        if self._rank(node) is None:
            return self._scalar(node, use, since)
        if isinstance(node, ast.Name):
            definition = self._definition(node)
            return (
                None
                if definition is None
                else self._bound(definition.value, highest, use, definition, deep - 1)
            )
        if isinstance(node, ast.Subscript):
            return self._bound(node.value, highest, use, since, deep - 1)
        if self.called(node) is language.arange:
            assert isinstance(node, ast.Call)
            first, last = argument(node, 0, "start"), argument(node, 1, "end")
            if not isinstance(first, ast.Constant) or first.value != 0 or last is None:
                return None
            size = self._scalar(last, use, since)
            if size is None or not highest:
                return None if size is None else "0"
            return str(int(size) - 1) if size.isdigit() else f"{size} - 1"
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            falls = isinstance(node.op, ast.Sub)
            left = self._bound(node.left, highest, use, since, deep - 1)
            right = self._bound(node.right, highest != falls, use, since, deep - 1)
            if left is None or right is None:
                return None
            if right == "0":
                return left
            return (
                right
                if left == "0" and not falls
                else f"{left} {'-' if falls else '+'} {factor(right)}"
            )
        return None
