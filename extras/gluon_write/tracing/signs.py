"""Read signs of integers: expressions and results of functions that are never below 0."""

from __future__ import annotations

import ast
from typing import Any, Callable, Iterable, Optional

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.text.form import Form
from gluon_write.text.syntax import assigned_in, stores

__all__ = ["POSITIVE", "UNTOUCHED", "is_positive", "positive_results"]

UNTOUCHED = (language.multiple_of, language.max_contiguous, language.to_tensor)
POSITIVE = (language.program_id, language.num_programs)
_BOUNDED = (language.cdiv, language.minimum, language.maximum)
_MOST_DEEP = 8  # calls within calls


def is_positive(
    node: ast.expr, name: Callable[[ast.Name], bool], called: Callable[[ast.Call], Any]
) -> bool:
    """Return True if a scalar is a sum, a product, a quotient or a bound of numbers that are not below 0.

    Divisors are taken for positive.

    Args:
        name: True for a name whose value is not below 0. called: the function that a call names.
    """

    def all_are(parts: Iterable[ast.expr]) -> bool:
        return all(is_positive(part, name, called) for part in parts)

    if isinstance(node, ast.Constant):
        return type(node.value) is int and node.value >= 0
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, (ast.Add, ast.Mult)):
            return all_are((node.left, node.right))
        return isinstance(node.op, (ast.FloorDiv, ast.Mod)) and all_are([node.left])
    if isinstance(node, ast.IfExp):
        return all_are((node.body, node.orelse))
    if isinstance(node, ast.Call):
        function = called(node)
        if function in POSITIVE:
            return True
        if function in _BOUNDED or getattr(node.func, "id", "") in ("min", "max"):
            return all_are(node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return all_are([node.func.value])
        return function in UNTOUCHED and all_are(node.args[:1])
    return isinstance(node, ast.Name) and name(node)


def positive_results(
    function: Any, call: ast.Call, known: Callable[[ast.expr], bool], deep: int = 0
) -> Optional[list[bool]]:
    """Return True for each result of a call that is never below 0; None where the function has no source.

    Args:
        known: True for an argument that is not below 0.
    """
    if deep > _MOST_DEEP or not isinstance(getattr(function, "src", None), str):
        return None
    if any(isinstance(arg, ast.Starred) for arg in call.args) or not all(
        word.arg for word in call.keywords
    ):
        return None
    form = Form(function)
    names = [arg.arg for arg in (*form.tree.args.posonlyargs, *form.tree.args.args)]
    signs = {name: known(arg) for name, arg in zip(names, call.args)}
    signs |= {word.arg: known(word.value) for word in call.keywords if word.arg}
    reader = _Signs(form, signs | {name: False for name in names if name not in signs}, deep)
    reader.block(form.tree.body)
    return reader.results


class _Signs:
    """Read the statements of a function in their order.

    Attributes:
        signs: name of a variable -> True if it is not below 0. results: of the function, the same.
    """

    def __init__(self, form: Form, signs: dict[str, bool], deep: int) -> None:
        self.form, self.signs, self.deep = form, signs, deep
        self.results: Optional[list[bool]] = None

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Return):
            own = self._results(statement.value) if statement.value else []
            pairs = zip(own if self.results is None else self.results, own)
            self.results = [one and other for one, other in pairs]
        elif isinstance(statement, ast.Assign):
            self._assign(statement.targets, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign([statement.target], statement.value)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            read = ast.Name(statement.target.id, ast.Load())
            self._assign([statement.target], ast.BinOp(read, statement.op, statement.value))
        elif isinstance(statement, ast.If):
            before = dict(self.signs)
            self.block(statement.body)
            other, self.signs = self.signs, before
            self.block(statement.orelse)
            self.signs = {name: self.signs[name] and other.get(name, True) for name in self.signs}
            self.signs |= {name: other[name] for name in other if name not in self.signs}
        elif isinstance(statement, (ast.For, ast.While)):
            self._forget(statement)
            self.block(statement.body)
            self._forget(statement)
        else:
            self._forget(statement)

    def _forget(self, statement: ast.AST) -> None:
        self.signs |= {name: False for name in stores(statement)}

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        signs: dict[str, bool] = {}
        for target in targets:
            for name, part in assigned_in(target, value):
                signs[name] = not isinstance(part, ast.Starred) and self._is_positive(part)
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            results = self._results(value)
            if isinstance(value, ast.Call) and len(results) == len(parts):
                pairs = zip(parts, results)
                signs |= {part.id: sign for part, sign in pairs if isinstance(part, ast.Name)}
        self.signs |= signs

    def _results(self, value: ast.expr) -> list[bool]:
        if isinstance(value, ast.Tuple):
            return [self._is_positive(part) for part in value.elts]
        if isinstance(value, ast.Call) and not self._is_positive(value):
            function = self.form.called(value)
            own = positive_results(function, value, self._is_positive, self.deep + 1)
            return [False] if own is None else own
        return [self._is_positive(value)]

    def _is_positive(self, node: ast.expr) -> bool:
        return is_positive(node, self._name, self.form.called)

    def _name(self, node: ast.Name) -> bool:
        if node.id in self.signs:
            return self.signs[node.id]
        value = unwrap(self.form.scope.get(node.id))
        return type(value) is int and value >= 0
