"""Give each product of a loop a statement of its own, so that it can be under way while others run.

    score = gl.portable.mma(q, k, zeros) * scale

becomes

    product = gl.portable.mma(q, k, zeros)
    score = product * scale

and the arithmetic and loads of its operands, too.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_write.text.form import Form, free_name, rewritten
from gluon_write.text.syntax import argument, mentions, nodes_in, operands_of
from gluon_write.tracing.sketch import Sketch

__all__ = ["hoisted"]

_LATER = (ast.IfExp, ast.BoolOp, ast.Lambda, ast.comprehension)  # parts may not be evaluated


def hoisted(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops have each product in a statement of its own, or the kernel."""
    return rewritten(fn, drawn.jits, lambda jit, _: _Hoister(jit).text())


class _Hoister(Form):
    def text(self) -> Optional[str]:
        loads = self._loads()
        if loads is not None:
            self.hold(loads)
        return self._products_alone() or loads

    def _statements(self) -> list[ast.Assign | ast.AugAssign]:
        """Return the assignments within loops, the last one first."""
        statements = {
            id(s): s
            for loop in nodes_in(self.tree)
            if isinstance(loop, (ast.For, ast.While))
            for s in nodes_in(loop)
            if isinstance(s, (ast.Assign, ast.AugAssign))
        }
        return sorted(statements.values(), key=lambda s: s.lineno, reverse=True)

    def _loads(self) -> Optional[str]:
        """Return the text with the loads of operands in statements of their own; None where nothing changes."""
        taken = self.names_in_use()
        edits: list[tuple[ast.stmt, list[str]]] = []
        for statement in filter(self.begins_line, self._statements()):
            own, before = self.text_of(statement), []
            for load, word in self._loaded(statement):
                call = self.text_of(load)
                if own.count(call) == 1:
                    name = free_name(word, taken)
                    before.append(f"{name} = {call}")
                    own = own.replace(call, name)
            if before:
                indent = " " * statement.col_offset
                edits.append((statement, [f"{indent}{line}" for line in (*before, own)]))
        return self.with_lines(edits)

    def _loaded(self, statement: ast.Assign | ast.AugAssign) -> Iterator[tuple[ast.Call, str]]:
        """Yield the loads that are operands of a statement's products, and names for them."""
        for product in self._products(statement.value):
            for operand, word in zip(operands_of(product), ("left", "right")):
                if isinstance(operand, ast.Attribute) and operand.attr == "T":
                    operand = operand.value
                if not isinstance(operand, ast.Call):
                    continue
                called = self.called(operand)
                if called is portable.load and isinstance(argument(operand, 0, "ptr"), ast.Name):
                    tiles = self.text_of(operand.args[0]) if operand.args else word
                    yield operand, f"{re.sub('_(tiles|desc)$', '', tiles)}_tile"
                elif called in (portable.load, language.load):
                    yield operand, word

    def _products_alone(self) -> Optional[str]:
        """Return the text with each product in a statement of its own; None where nothing changes."""
        taken = self.names_in_use()
        edits: list[tuple[ast.stmt, list[str]]] = []
        for statement in filter(self.begins_line, self._statements()):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            product = self._product_of(statement)
            if product is None or not isinstance(target, ast.Name):
                continue
            before: list[str] = []
            own, call = self.text_of(statement), self.text_of(product)
            if own.count(call) != 1:
                continue
            inner = self._operands(product, target.id, before, taken)
            if product is statement.value:
                after = own.replace(call, inner)
            else:
                name = free_name(f"{target.id}_product", taken)
                before.append(f"{name} = {inner}")
                after = own.replace(call, name)
            if before:
                indent = " " * statement.col_offset
                edits.append((statement, [f"{indent}{line}" for line in (*before, after)]))
        return self.with_lines(edits)

    def _product_of(self, statement: ast.Assign | ast.AugAssign) -> Optional[ast.Call]:
        """Return the product of a statement; None of those with several."""
        products = list(self._products(statement.value))
        return products[0] if len(products) == 1 else None

    def _operands(self, call: ast.Call, target: str, before: list[str], taken: set[str]) -> str:
        """Return a product with names for the arithmetic of its operands, which goes to `before`."""
        text = self.text_of(call)
        first, acc = argument(call, 0, "a"), argument(call, 2, "acc")
        if isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute):
            own = self.text_of(first)
            if first.func.attr == "to" and isinstance(first.func.value, ast.Name):
                if text.count(own) == 1 and "\n" not in own:
                    name = free_name(f"{first.func.value.id}_operand", taken)
                    before.append(f"{name} = {own}")
                    text = text.replace(own, name)
        if isinstance(acc, ast.BinOp):
            own = self.text_of(acc)
            if target in mentions(acc) and text.count(own) == 1 and "\n" not in own:
                before.append(f"{target} = {own}")
                text = text.replace(own, target)
        return text

    def _products(self, node: ast.AST) -> Iterator[ast.Call]:
        if isinstance(node, _LATER):
            return
        if isinstance(node, ast.Call) and self.called(node) is portable.mma:
            yield node
        for child in ast.iter_child_nodes(node):
            yield from self._products(child)
