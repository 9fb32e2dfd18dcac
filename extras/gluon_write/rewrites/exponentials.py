"""Compute the weights of an online softmax as powers of two, which units compute.

    higher = gl.maximum(largest, gl.max(score, 1))
    weight = gl.exp(score - higher[:, None])
    kept = gl.exp(largest - higher)

becomes

    higher = gl.maximum(largest, gl.max(score, 1))
    weight = gl.exp2((score - higher[:, None]) * 1.4426950408889634)
    kept = gl.exp2((largest - higher) * 1.4426950408889634)

`gl.exp` multiplies by that number, too. It then scales differences below -126 before and results after the unit, so that numbers
below 2^-126 are exact, with three more operations for each; `gl.exp2` gives 0 for these (`ex2.approx.ftz`, PTX ISA 9.7.3.21). The largest
score of a row has a weight of 1, next to which such numbers are lost in each sum of float32.

A product less a number is one operation, so that loops whose scores are not too large get

    weight = gl.exp2(score * 1.4426950408889634 - (higher * 1.4426950408889634)[:, None])

Both sides differ by up to 2^-24 of the number where they should be equal, which all weights of a row have in common. It may be no more than
one: masks of -1e30 and sums with loaded numbers are subtracted first.

A sum of an exponential and a constant loses the same numbers, as that of a sigmoid does:

    score = cap * (2.0 / (1.0 + gl.exp2(score * -1.4426950408889634)) - 1.0)
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_core._triton import tl, unwrap
from gluon_core.plugin.targets import Target
from gluon_write.rewrites.recompute import Definitions
from gluon_write.text.form import edited, factor, one_line
from gluon_write.text.syntax import argument, nodes_in, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["with_fused_differences", "with_powers_of_two", "with_summed_powers"]

_LOG2_E = "1.4426950408889634"
_KIND = "fp32"
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_HIGHEST = 1e7  # 2^-24 of which is less than one
_LEAST = 1e-30  # numbers below 2^-126 are less than 2^-24 of it
_SIGMOID = unwrap(tl.sigmoid)
Edits = Iterator[tuple[ast.expr, str]]


def with_powers_of_two(fn: Any, drawn: Sketch, target: Target) -> Any:
    """Return a kernel whose loops of products have weights that are powers of two, or the kernel."""
    if not target.has("nvidia.cp_async"):
        return fn
    return _Powers.rewrite(fn, drawn)


def with_fused_differences(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops of products subtract scaled numbers in exponents, or the kernel."""
    return _Differences.rewrite(fn, drawn)


def with_summed_powers(fn: Any, drawn: Sketch, target: Target) -> Any:
    """Return a kernel with products whose exponentials in sums with constants are powers of two, or the kernel."""
    multiplies = any(name == "gl.portable.mma" for name in drawn.functions.values())
    if not multiplies or not target.has("nvidia.cp_async"):
        return fn
    return _Summed.rewrite(fn, drawn)


class _Exponents(Definitions):
    """Read the exponents of differences in loops of products."""

    functions: tuple[Any, ...] = ()  # that have them

    def text(self) -> Optional[str]:
        edits = list(self.edits()) if self.space else []
        return edited(self.source, edits) if edits else None

    def edits(self) -> Edits:
        """Yield expressions, and their new texts."""
        for loop in self.loops_of_products():
            for node in nodes_in(loop):
                if isinstance(node, ast.Call) and self.called(node) in self.functions:
                    value = argument(node, 0, "x")
                    if value is not None and self.elements_of(value) == {_KIND}:
                        yield from self.changed(node, value, loop)

    def changed(self, node: ast.Call, value: ast.expr, loop: ast.For) -> Edits:
        """Yield the edits of one exponential."""
        raise NotImplementedError

    def values(self, name: str, loop: ast.AST) -> list[Optional[ast.expr]]:
        """Return the values that a loop's statements assign to a name, None of those that are no plain assignments."""
        kinds = ast.Assign, ast.AugAssign, ast.For, ast.If
        statements = [s for s in nodes_in(loop) if isinstance(s, kinds) and s is not loop]
        statements = [s for s in statements if name in stores(s)]
        plain = [
            isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) for s in statements
        ]
        return [s.value if own else None for s, own in zip(statements, plain)]  # type: ignore[union-attr]


class _Powers(_Exponents):
    functions = (language.exp,)

    def changed(self, node: ast.Call, value: ast.expr, loop: ast.For) -> Edits:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
            if self._is_largest(value.right, loop, frozenset()):
                text = one_line(self.text_of(value))
                yield node, f"{self.space}.exp2(({text}) * {_LOG2_E})"

    def _is_largest(self, node: Any, loop: ast.AST, seen: frozenset[str]) -> bool:
        """Return True for a number that each step computes as a maximum, or selects where there is one."""
        if isinstance(node, ast.Subscript):
            return self._is_largest(node.value, loop, seen)
        if isinstance(node, ast.Name):
            values, more = self.values(node.id, loop), seen | {node.id}
            fresh = node.id not in seen and bool(values)
            return fresh and all(self._is_largest(value, loop, more) for value in values)
        if isinstance(node, ast.Call) and self.called(node) is language.where:
            sides = [argument(node, 1, "x"), argument(node, 2, "y")]
            return any(self._is_largest(side, loop, seen) for side in sides)
        return self.called(node) in (language.maximum, language.max)


class _Summed(_Exponents):
    def edits(self) -> Edits:
        for node in nodes_in(self.tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                for call, other in ((node.left, node.right), (node.right, node.left)):
                    value = self._argument(call, language.exp)
                    if value and _constant(other) >= _LEAST:
                        yield call, f"{self.space}.exp2({factor(one_line(value))} * {_LOG2_E})"
            value = self._argument(node, _SIGMOID)
            if value:
                power = f"{self.space}.exp2({factor(one_line(value))} * -{_LOG2_E})"
                yield node, f"(1.0 / (1.0 + {power}))"  # type: ignore[misc]

    def _argument(self, node: ast.AST, function: Any) -> Optional[str]:
        """Return the argument of a call of a function, a tile of float32; None of others."""
        called = self.called(node)
        value = (
            argument(node, 0, "x") if isinstance(node, ast.Call) and called is function else None
        )
        if value is None or self.elements_of(value) != {_KIND}:
            return None
        parts = [part for part in nodes_in(value) if isinstance(part, ast.Call)]
        return (
            None
            if any(self.called(part) in (language.exp, _SIGMOID) for part in parts)
            else self.text_of(value)
        )


class _Differences(_Exponents):
    functions = (language.exp2,)

    def changed(self, node: ast.Call, value: ast.expr, loop: ast.For) -> Edits:
        scaled = value if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) else None
        inner, number = (scaled.left, scaled.right) if scaled else (None, None)
        if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
            return
        if isinstance(number, ast.Constant) and isinstance(inner.right, ast.Subscript):
            if self._is_near(inner.left, loop, frozenset()):
                score, row, axes, text = (
                    one_line(self.text_of(one))
                    for one in (inner.left, inner.right.value, inner.right.slice, number)
                )
                scaled_row = f"({factor(row)} * {text})[{axes}]"
                yield value, f"{factor(score)} * {text} - {scaled_row}"

    def _is_near(self, node: Any, loop: ast.AST, seen: frozenset[str]) -> bool:
        """Return True for scores that are no sums with loaded numbers, and have no masks but -inf and small numbers."""
        if isinstance(node, ast.Subscript):
            return self._is_near(node.value, loop, seen)
        if node is None or self._rank(node) is None:
            return node is not None and _is_small(node)
        if self.elements_of(node) <= _INTEGERS or self.called(node) in (portable.mma, _SIGMOID):
            return True
        place = self.place_of(node)
        function = self.drawn.called.get(place) if place else None
        if function is not None:
            return _returns_near(function, self.drawn)
        if isinstance(node, ast.Name):
            values, more = self.values(node.id, loop), seen | {node.id}
            return node.id in seen or (
                bool(values) and all(self._is_near(value, loop, more) for value in values)
            )
        sides: list[Any] = []
        if isinstance(node, ast.BinOp):
            both = node.left, node.right
            if isinstance(node.op, ast.Mult):
                return any(self._is_near(side, loop, seen) for side in both if self._rank(side))
            sides += both if isinstance(node.op, (ast.Add, ast.Sub)) else ()
            if isinstance(node.op, ast.Div) and self._exceeds_one(node.right):
                sides.append(node.left)
        elif isinstance(node, ast.Call) and self.called(node) is language.where:
            sides = [argument(node, 1, "x"), argument(node, 2, "y")]
        return bool(sides) and all(self._is_near(side, loop, seen) for side in sides)

    def _exceeds_one(self, node: ast.expr) -> bool:
        """Return True for sums of exponentials and numbers of at least one."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return False
        pairs = (node.left, node.right), (node.right, node.left)
        return any(
            self.called(call) in (language.exp, language.exp2) and _constant(other) >= 1
            for call, other in pairs
        )


def _returns_near(function: Any, drawn: Sketch) -> bool:
    """Return True for a function of one statement that returns such a score, without its parameters."""
    number = next((n for n, jit in enumerate(drawn.jits) if jit is function), None)
    if number is None:
        return False
    reader = _Differences(function, number, drawn)
    body = [s for s in reader.tree.body if not isinstance(getattr(s, "value", None), ast.Constant)]
    last = body[0] if len(body) == 1 else None
    return isinstance(last, ast.Return) and reader._is_near(last.value, reader.tree, frozenset())


def _constant(node: ast.expr) -> float:
    """Return a number that a function has in its text, 0 for others."""
    value = node.value if isinstance(node, ast.Constant) else 0
    return value if isinstance(value, (int, float)) else 0


def _is_small(node: ast.expr) -> bool:
    """Return True for scalars but large constants, and results of calls; -inf is the same number on both sides."""
    value = node.operand if isinstance(node, ast.UnaryOp) else node
    if ast.unparse(node) in ("float('-inf')", "-float('inf')"):
        return True
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and abs(value.value) <= _HIGHEST
    return not isinstance(value, ast.Call)
