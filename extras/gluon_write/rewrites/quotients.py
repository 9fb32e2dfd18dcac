"""Divide scalars once, before the loop whose steps all divide the same ones.

    for start in range(0, columns, BLOCK):
        scale = 1.0 / count
        gl.store(y_ptr + start + offsets, x * scale)

LLVM moves the other arithmetic of scalars out of a loop; a quotient of floats it leaves where it is.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_write.rewrites.recompute import Definitions
from gluon_write.text.syntax import nodes_in, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["divided_once"]

# No quotient of integers, which may be undefined where a loop has no steps.
_PARTS = (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Name, ast.Constant, ast.expr_context)


def divided_once(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops divide no scalars that they leave alone, or the kernel."""
    return _Mover.rewrite(fn, drawn)


class _Mover(Definitions):
    def text(self) -> Optional[str]:
        lines = self.source.splitlines()
        moved: dict[ast.stmt, list[str]] = {}
        for node in nodes_in(self.tree):
            statement = node if isinstance(node, ast.Assign) else None
            loop = self._before_which(statement) if statement is not None else None
            if statement is None or loop is None:
                continue
            first, last = statement.lineno - 1, statement.end_lineno or 0
            # A block is not empty, and the lines behind keep their numbers.
            kept = [f"{' ' * statement.col_offset}pass", *[""] * (last - first - 1)]
            lines[first:last] = kept
            moved.setdefault(loop, []).append(f"{' ' * loop.col_offset}{ast.unparse(statement)}")
        for loop in sorted(moved, key=lambda n: n.lineno, reverse=True):
            lines[loop.lineno - 1 : loop.lineno - 1] = moved[loop]
        return "\n".join(lines) + "\n" if moved else None

    def _before_which(self, statement: ast.Assign) -> Any:
        """Return the outermost loop whose steps give a statement the same quotient of scalars; None without one."""
        outermost: Any = None
        inner: ast.stmt = statement
        while isinstance(loop := self.parents.get(id(inner)), (ast.For, ast.While)):
            alone = self.begins_line(loop)
            if inner not in loop.body or not alone or not self._moves(statement, loop):
                break
            outermost = inner = loop
        return outermost

    def _moves(self, statement: ast.Assign, loop: ast.stmt) -> bool:
        """Return True for a quotient of scalars that is the same in all steps of a loop."""
        value, place = statement.value, self.place_of(statement.value)
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            return False
        if place not in self.drawn.returned or self._rank(value) is not None:
            return False
        parts = list(nodes_in(value))
        if not all(isinstance(part, _PARTS) for part in parts):
            return False
        if not any(isinstance(part, ast.Div) for part in parts):
            return False
        alone = self.begins_line(statement) and self.ends_line(statement)
        once = len(self.stores.get(target.id, ())) == 1 and target.id not in self.parameters
        read = {part.id for part in parts if isinstance(part, ast.Name)}
        return alone and once and not read & stores(loop)
