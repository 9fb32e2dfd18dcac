"""Apply the mask of a loop's steps only in the steps that it changes.

    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        score = gl.where(columns[None, :] < length, score, -1e30)

masks the scores of each step, and only the last one has columns beyond the length. Where such steps are the
last ones, they get a loop of their own (see `parting`); else a condition:

        if start + (BN - 1) >= length:
            score = gl.where(columns[None, :] < length, score, -1e30)

Masks that no step needs in a block that stores anything are left out (see `stored_rows`).
The bounds of a mask's sides are those of sums of scalars and ranges; a mask with other sides stays.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language
from gluon_write.loops.loops import falling
from gluon_write.loops.single_step import has_at_most_one_step
from gluon_write.loops.stored_rows import StoredRows
from gluon_write.rewrites.recompute import Definitions
from gluon_write.text.form import factor, rewritten
from gluon_write.text.parting import Masked, ends_of, parts_of, unmasked
from gluon_write.text.syntax import argument, nodes_in, reads, stores
from gluon_write.tracing.sketch import Sketch

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
    """Return a kernel whose loops of products mask only the steps that need it, or the kernel."""
    guards = [_Guard(jit, number, drawn) for number, jit in enumerate(drawn.jits)]
    for guard in guards:
        guard.others = guards
    return rewritten(fn, drawn.jits, lambda jit, number: guards[number].text())


class _Guard(Definitions):
    def __init__(self, fn: Any, number: int, drawn: Sketch):
        super().__init__(fn, number, drawn)
        self.stored = StoredRows(fn, drawn) if number == 0 else None
        self.constants = {
            arg.arg
            for arg in nodes_in(self.tree)
            if isinstance(arg, ast.arg) and "constexpr" in ast.unparse(arg.annotation or arg)
        }

    def text(self) -> Optional[str]:
        if not self.space:
            return None
        lines = self.source.splitlines()
        changed = False
        for loop in self.loops_of_products():
            masked = [m for m in map(self._masked, loop.body) if m is not None]
            parts = self._parts(loop, masked) if masked else None
            if not masked or parts is None and has_at_most_one_step(self, loop):
                continue
            changed = True
            if parts is not None:
                lines[loop.lineno - 1 : loop.end_lineno] = parts
                continue
            for one in reversed(masked):
                own = one.statement
                indent = " " * own.col_offset
                lines[own.lineno - 1 : own.end_lineno] = [indent + line for line in one.guarded]
        return "\n".join(lines) + "\n" if changed else None

    def _parts(self, loop: ast.For, masked: list[Masked]) -> Optional[list[str]]:
        """Return the lines of a loop over the steps without masks, and of one over the others if there are any; None where they mix."""
        if falling(loop, self.number, self.drawn):
            return None
        ends, names = ends_of(loop, masked), {n for one in masked for n in stores(one.statement)}
        if ends and self.stored is not None and self.stored.leave(loop, names, ends):
            return unmasked(self, loop, masked)
        if has_at_most_one_step(self, loop):
            return None
        return parts_of(self, self.space, loop, masked, self.constants)

    def _masked(self, statement: ast.stmt) -> Optional[Masked]:
        """Return `x = where(mask, value, other)` with its condition; None of others, and of masks without one."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, call = statement.targets[0], statement.value
        if not isinstance(target, ast.Name) or self.called(call) is not language.where:
            return None
        assert isinstance(call, ast.Call)
        mask, value, other = (argument(call, i, n) for i, n in enumerate(("condition", "x", "y")))
        if mask is None or value is None or other is None or self._rank(other) is not None:
            return None
        alone = self.begins_line(statement)
        same = self.dtype_and_shape(value) == self.dtype_and_shape(call)
        if not alone or not same or target.id in reads(mask):
            return None
        condition = self._changes(mask, statement)
        if condition is None:
            return None
        name = self.text_of(call.func)
        cond, own, rest = (self._line_of(one) for one in (mask, value, other))
        first = [f"{target.id} = {own}"] if own != target.id else []
        guarded = [
            *first,
            "# The mask leaves all other steps as they are.",
            f"if {ast.unparse(ast.parse(condition))}:",
            f"    {target.id} = {name}({cond}, {target.id}, {rest})",
        ]
        return Masked(statement, ast.parse(condition, mode="eval").body, first, guarded)

    def _line_of(self, node: ast.expr) -> str:
        """Return an expression in one line."""
        text = self.text_of(node)
        return ast.unparse(node) if "\n" in text else text

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
            if definition is not None:
                return self._bound(definition.value, highest, use, definition, deep - 1)
            count = self._size_of_range(node)
            return None if count is None else str(count - 1) if highest else "0"
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
