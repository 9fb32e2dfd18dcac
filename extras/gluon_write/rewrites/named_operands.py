"""Name second operands that a statement with a product computes, so that loops may store them for units that read shared memory.

    o = gl.portable.mma(q, state.to(gl.float16), o)

becomes

    state_operand = state.to(gl.float16)
    o = gl.portable.mma(q, state_operand, o)
"""

from __future__ import annotations

import ast
import re
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_write.loops.loops import viewed
from gluon_write.text.form import Form, edited, free_name, one_line, rewritten
from gluon_write.text.syntax import nodes_in, operands_of
from gluon_write.tracing.sketch import Sketch

__all__ = ["with_named_operands"]

_OTHERS = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)  # parts may not be evaluated


def with_named_operands(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops compute second operands in statements of their own, or the kernel.

    Args:
        drawn: the traced kernel.
    """
    return rewritten(fn, drawn.jits, lambda jit, number: _Namer(jit).text())


class _Namer(Form):
    def text(self) -> Optional[str]:
        """Return the text of the function; None where nothing changes."""
        taken = set(re.findall(r"\w+", self.source))
        edits: list[tuple[ast.expr, str]] = []
        before: list[tuple[int, str]] = []
        for statement, operand in self._operands():
            words = (node.id for node in nodes_in(operand) if isinstance(node, ast.Name))
            name = free_name(f"{next(w for w in words if w not in self.scope)}_operand", taken)
            edits.append((operand, name))
            line = f"{' ' * statement.col_offset}{name} = {one_line(self.text_of(operand))}"
            before.append((statement.lineno, line))
        lines = edited(self.source, edits).splitlines() if edits else []
        for number, line in sorted(before, reverse=True):
            lines.insert(number - 1, line)
        return "\n".join(lines) + "\n" if edits else None

    def _operands(self) -> Iterator[tuple[ast.stmt, ast.expr]]:
        """Yield the statements of loops with a product whose second operand they compute, and that operand."""
        for loop in nodes_in(self.tree):
            for statement in loop.body if isinstance(loop, ast.For) else ():
                product = statement.value if isinstance(statement, ast.Assign) else None
                if not isinstance(product, ast.Call) or self.called(product) is not portable.mma:
                    continue
                operand = operands_of(product)[1:2]
                own = self.source.splitlines()[statement.lineno - 1][: statement.col_offset]
                if operand and not own.strip() and self._computes(operand[0]):
                    yield statement, operand[0]

    def _computes(self, operand: ast.expr) -> bool:
        """Return True for an expression of names that neither loads nor multiplies."""
        nodes = list(nodes_in(operand))
        if isinstance(operand, ast.Name) or viewed(operand, self) or isinstance(operand, _OTHERS):
            return False
        called = [self.called(node) for node in nodes if isinstance(node, ast.Call)]
        if any(isinstance(node, _OTHERS) for node in nodes) or language.load in called:
            return False
        named = any(isinstance(n, ast.Name) and n.id not in self.scope for n in nodes)
        return named and portable.mma not in called and portable.load not in called
