"""Give each product of a loop a statement of its own, so that it can be under way while others run.

    score = gl.portable.mma(q, k, zeros) * scale

becomes

    product = gl.portable.mma(q, k, zeros)
    score = product * scale
"""

from __future__ import annotations

import ast
import re
from typing import Any, Iterator, Optional

from gluon_core import portable
from gluon_write.form import Form, changed_copy, free_name

__all__ = ["hoisted"]

_LATER = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)  # parts may not be evaluated


def hoisted(fn: Any, jits: list[Any]) -> Any:
    """Return a kernel whose loops have each product in a statement of its own, or the kernel.

    Args:
        jits: the kernel and the functions that it calls.
    """
    texts: dict[int, str] = {}
    for number, jit in enumerate(jits):
        text = _Hoister(jit).text()
        if text is not None:
            texts[number] = text
    return changed_copy(fn, jits, texts, {}) if texts else fn


class _Hoister(Form):
    def text(self) -> Optional[str]:
        """Return the text of the function; None where nothing changes."""
        taken = set(re.findall(r"\w+", self.source))
        lines = self.source.splitlines()
        statements = {
            id(s): s
            for loop in ast.walk(self.tree)
            if isinstance(loop, (ast.For, ast.While))
            for s in ast.walk(loop)
            if isinstance(s, (ast.Assign, ast.AugAssign))
        }
        changed = False
        for statement in sorted(statements.values(), key=lambda s: s.lineno, reverse=True):
            nested = [
                call for call in self._products(statement.value) if call is not statement.value
            ]
            inner = {id(c) for call in nested for c in ast.walk(call) if c is not call}
            outer = [call for call in nested if id(call) not in inner]
            if len(outer) != 1 or any(id(c) in inner for c in nested):
                continue
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if not isinstance(target, ast.Name) or lines[statement.lineno - 1].strip().startswith(
                "#"
            ):
                continue
            if lines[statement.lineno - 1][: statement.col_offset].strip():
                continue  # not the first of its line
            name = free_name(f"{target.id}_product", taken)
            own, call = self.text_of(statement), self.text_of(outer[0])
            if own.count(call) != 1:
                continue
            indent = " " * statement.col_offset
            new = f"{indent}{name} = {call}\n{indent}{own.replace(call, name)}".splitlines()
            lines[statement.lineno - 1 : statement.end_lineno] = new
            changed = True
        return "\n".join(lines) + "\n" if changed else None

    def _products(self, node: ast.AST) -> Iterator[ast.Call]:
        if isinstance(node, _LATER):
            return
        if isinstance(node, ast.Call) and self.called(node) is portable.mma:
            yield node
        for child in ast.iter_child_nodes(node):
            yield from self._products(child)
