"""Name tiles and scalars that a statement of a loop of products loads and changes, so that they may be copied ahead.

    w = gl.load(w_ptrs).to(x.dtype)
    acc = gl.portable.mma(x, w, acc)

becomes

    w_loaded = gl.load(w_ptrs)
    w = w_loaded.to(x.dtype)
    acc = gl.portable.mma(x, w, acc)

Each layout may compute rows that follow from a named scalar. Second operands that a statement with a product computes get names, too, so that loops may store them for units that read shared memory.

    o = gl.portable.mma(q, state.to(gl.float16), o)

becomes

    state_operand = state.to(gl.float16)
    o = gl.portable.mma(q, state_operand, o)
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_write.loops.loops import may_write, viewed
from gluon_write.text.form import edited, free_name, one_line
from gluon_write.text.syntax import calls_in, nodes_in, operands_of, stores
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["with_named_loads", "with_named_operands"]

_OTHERS = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)  # parts may not be evaluated


def with_named_loads(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops of products load tiles in statements of their own, or the kernel."""
    return _Loads.rewrite(fn, drawn)


def with_named_operands(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops compute second operands in statements of their own, or the kernel."""
    return _Namer.rewrite(fn, drawn)


class _Namer(TracedForm):
    suffix = "operand"

    def text(self) -> Optional[str]:
        taken = self.names_in_use()
        edits: list[tuple[ast.expr, str]] = []
        before: list[tuple[int, str]] = []
        for statement, part in self._parts():
            if not self.begins_line(statement):
                continue
            name = free_name(f"{self._word(statement, part)}_{self.suffix}", taken)
            edits.append((part, name))
            line = f"{' ' * statement.col_offset}{name} = {one_line(self.text_of(part))}"
            before.append((statement.lineno, line))
        lines = edited(self.source, edits).splitlines() if edits else []
        for number, line in sorted(before, key=lambda one: one[0], reverse=True):
            lines.insert(number - 1, line)
        return "\n".join(lines) + "\n" if edits else None

    def _word(self, statement: ast.stmt, part: ast.expr) -> str:
        """Return the word that the new name begins with."""
        words = (node.id for node in nodes_in(part) if isinstance(node, ast.Name))
        return next(word for word in words if word not in self.scope)

    def _parts(self) -> Iterator[tuple[ast.stmt, ast.expr]]:
        """Yield the statements of loops with a product whose second operand they compute, and that operand."""
        for loop in nodes_in(self.tree):
            for statement in loop.body if isinstance(loop, ast.For) else ():
                product = statement.value if isinstance(statement, ast.Assign) else None
                if not isinstance(product, ast.Call) or self.called(product) is not portable.mma:
                    continue
                operand = operands_of(product)[1:2]
                if operand and self._computes(operand[0]):
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


class _Loads(_Namer):
    suffix = "loaded"

    def _word(self, statement: ast.stmt, part: ast.expr) -> str:
        return next(iter(sorted(stores(statement))))

    def _parts(self) -> Iterator[tuple[ast.stmt, ast.expr]]:
        """Yield the statements of loops of products that change what they load, and each load."""
        loops = filter(self.has_products, self.for_loops())
        statements = (s for loop in loops for s in loop.body if isinstance(s, ast.Assign))
        for statement in filter(self._evaluates, statements):
            for call in calls_in(statement.value):
                if call is not statement.value and self._is_apart(call, statement.value):
                    yield statement, call

    def _evaluates(self, statement: ast.Assign) -> bool:
        """Return True for a statement whose loads may come first: no other part writes memory."""
        others = any(isinstance(node, _OTHERS) for node in nodes_in(statement))
        return not others and not may_write(self, statement)

    def _is_apart(self, load: ast.Call, value: ast.expr) -> bool:
        """Return True for the load of a tile, or of a scalar that a tensor is computed from."""
        if self.called(load) is not language.load:
            return False
        ranks = [self.ranks_of(node) for node in (load, value)]
        return max(ranks[0], default=0) > 1 or ranks[0] == {0} and max(ranks[1], default=0) > 0
