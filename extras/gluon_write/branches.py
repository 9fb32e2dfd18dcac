"""Write a kernel with the branches alone that its constants choose.

    if CAUSAL:
        acc = attend(acc, q, k_tiles, 0, row)
    else:
        acc = attend(acc, q, k_tiles, 0, length)

becomes

    gl.static_assert(not CAUSAL)
    acc = attend(acc, q, k_tiles, 0, length)
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.form import Form, changed_copy, factor
from gluon_write.loops import mentions
from gluon_write.sketch import Sketch

__all__ = ["taken_alone"]


def taken_alone(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel with one branch of each condition of constants in its body, or the kernel.

    Args:
        drawn: the traced kernel, whose constants are known.
    """
    while True:
        text = _Branches(fn, drawn).text()
        if text is None:
            return fn
        fn = changed_copy(fn, [fn, *drawn.jits[1:]], {0: text}, {})


class _Branches(Form):
    def __init__(self, fn: Any, drawn: Sketch):
        super().__init__(fn)
        self.drawn = drawn
        self.space = next((n for n, value in self.scope.items() if value is language), "")

    def text(self) -> Optional[str]:
        """Return the kernel with the first such condition in its body replaced; None without one."""
        for statement in self.tree.body:
            if not isinstance(statement, ast.If) or not self.space:
                continue
            if not mentions(statement.test) <= set(self.drawn.constants):
                continue
            names = {name: unwrap(value) for name, value in self.drawn.constants.items()}
            test = ast.Expression(statement.test)
            holds = bool(eval(compile(test, "<condition>", "eval"), {"__builtins__": {}}, names))
            return self._replaced(statement, holds)
        return None

    def _replaced(self, statement: ast.If, holds: bool) -> str:
        """Return the text with one branch in place of a condition."""
        lines, outer = self.source.splitlines(), " " * statement.col_offset
        shown = ast.unparse(statement.test)
        known = shown if holds else f"not {factor(shown)}"
        block = statement.body if holds else statement.orelse
        inner: list[str] = []
        if block:
            depth = block[0].col_offset
            part = lines[block[0].lineno - 1 : block[-1].end_lineno]
            part[0] = " " * depth + part[0].lstrip()
            inner = [outer + line[min(depth, len(line) - len(line.lstrip())) :] for line in part]
        asserted = f"{outer}{self.space}.static_assert({known})"
        lines[statement.lineno - 1 : statement.end_lineno] = [asserted, *inner]
        return "\n".join(lines) + "\n"
