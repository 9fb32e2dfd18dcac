"""Scale the largest product of a row in place of all of them.

    q = gl.portable.load(q_tiles, [row, 0])
    for start in range(0, length, BN):
        score = gl.portable.mma(q, key.T, gl.zeros([BM, BN], gl.float32))
        score = score * scale
        higher = gl.maximum(largest, gl.max(score, 1))
        weight = gl.exp2(score - higher[:, None])

multiplies each score twice: for the maximum, and within the difference, where that is one operation. It becomes

    q = gl.portable.load(q_tiles, [row, 0])
    size = scale
    if size < 0:
        q = -q
        size = -size
    for start in range(0, length, BN):
        score = gl.portable.mma(q, key.T, gl.zeros([BM, BN], gl.float32))
        higher = gl.maximum(largest, gl.max(score, 1) * size)
        weight = gl.exp2(score * size - higher[:, None])

Rounding keeps the order of numbers, so that the largest score is the same number. Masks select -inf, which no scale but 0 changes:

        score = gl.where(seen, score, float("-inf"))
        higher = gl.maximum(largest, gl.max(score, 1) * size)

A number next to 0 takes the place of that scale. A factor of the score in a difference multiplies the scale.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Optional

from gluon_core import language, portable
from gluon_write.rewrites.recompute import Definitions
from gluon_write.text.form import changed_copy, edited, free_name, one_line
from gluon_write.text.syntax import argument, mentions, nodes_in, stores
from gluon_write.tracing.sketch import Sketch

__all__ = ["negated", "with_scaled_maxima"]

_MOST_DEEP = 4  # definitions within definitions
_KINDS = ("fp16", "bf16")  # of an operand whose sign changes without rounding
_SCORES = "fp32"
_ABOUT = ("shape", "dtype")
_LOWEST = ("float('-inf')", "-float('inf')")
_SELECTED = 3  # arguments of a selection
_LEAST = "1.1754943508222875e-38"  # the number next to 0 that units do not flush


def with_scaled_maxima(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel that scales the maxima of its products, or the kernel.

    Args:
        fn: the kernel, with its loops of products in its own text. drawn: its trace.
    """
    text = _Scaler(fn, 0, drawn).text()
    return fn if text is None else changed_copy(fn, drawn.jits, {0: text}, {})


def negated(statement: ast.stmt) -> str:
    """Return the name of a tensor that gets the other sign under a condition, "" of other statements."""
    for one in statement.body if isinstance(statement, ast.If) and not statement.orelse else ():
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.UnaryOp):
            name = ast.unparse(one.targets[0])
            if isinstance(one.value.op, ast.USub) and ast.unparse(one.value.operand) == name:
                return name
    return ""


@dataclass
class _Scores:
    """Hold the products of a loop, and what scales them.

    Attributes:
        scale: the expression, in the statement `scaled`. product: the name that is scaled later.
        kept: the text of that statement without the scale, "" where it has no other effect.
        maxima: calls of the maximum of what is scaled. others: its names in differences and the like. None of
            both: the statement stays, since another one masks the scores.
        masked: selections keep -inf in the place of scores.
    """

    scaled: ast.stmt
    scale: ast.expr
    product: str
    kept: str
    maxima: list[ast.Call]
    others: list[ast.Name]
    masked: bool


class _Scaler(Definitions):
    def text(self) -> Optional[str]:
        loads = [s for s in nodes_in(self.tree) if isinstance(s, ast.Assign) and self._loads(s)]
        texts = (self._scaled(s, s.targets[0].id) for s in loads)  # type: ignore[attr-defined]
        return next((text for text in texts if text is not None), None)

    def _loads(self, statement: ast.Assign) -> bool:
        """Return True for the only assignment to an operand of 16 bits."""
        target = statement.targets[0]
        if len(statement.targets) > 1 or not isinstance(target, ast.Name):
            return False
        if self.called(statement.value) is not portable.load:
            return False
        return len(self.stores.get(target.id, [])) == 1 and self._kind(statement.value) in _KINDS

    def _scaled(self, load: ast.Assign, name: str) -> Optional[str]:
        """Return the text where the products of an operand are scaled later; None where they have other uses."""
        read = [self._scores(use) for use in self._uses(name)]
        listed = [one for one in read if one is not None]
        if len(listed) < len(read) or not any(one.maxima for one in listed):
            return None
        block = self.parents[id(load)]
        if not isinstance(block, (ast.FunctionDef, ast.For)):
            return None
        if not all(self._encloses(block, one.scaled) for one in listed):
            return None
        texts = {self._number(one.scale) for one in listed}
        scale = texts.pop()
        if texts or scale is None:
            return None
        size = free_name("size", self.names_in_use())
        edits: list[tuple[ast.expr, str]] = []
        for one in listed:
            if not one.maxima:
                edits.append((one.scale, size))
            for call in one.maxima:
                rest = one_line(self.text_of(call)).partition(",")[2]
                text = f"{self.text_of(call.func)}({one.product},{rest}"
                edits.append((call, self._times(call, text, size)))
            edits += [self._use(node, one.product, size) for node in one.others]
        lines = edited(self.source, edits).splitlines()
        for one in sorted(listed, key=lambda one: one.scaled.lineno, reverse=True):
            if one.maxima:
                inner = " " * one.scaled.col_offset
                kept = [f"{inner}{one.kept}"] if one.kept else []
                lines[one.scaled.lineno - 1 : one.scaled.end_lineno] = kept
        indent = " " * load.col_offset
        nonzero = f"{self.space}.where({size} == 0, {_LEAST}, {size})"
        more = [f"{size} = {nonzero}"] if any(one.masked for one in listed) else []
        lines[load.end_lineno or 0 : load.end_lineno or 0] = [
            f"{indent}{line}"
            for line in (
                "# The largest score is the largest product, scaled by a number that is not negative.",
                f"{size} = {scale}",
                f"if {size} < 0:",
                f"    {name} = -{name}",
                f"    {size} = -{size}",
                *more,
            )
        ]
        return "\n".join(lines) + "\n"

    def _uses(self, name: str) -> list[ast.Name]:
        """Return the nodes that read a tensor, without questions about its type."""
        nodes = _loads(self.tree, name)
        return [n for n in nodes if getattr(self.parents[id(n)], "attr", None) not in _ABOUT]

    def _scores(self, use: ast.Name) -> Optional[_Scores]:
        """Return the scores that a statement of a loop computes from an operand; None where they are more than scaled."""
        call = self.parents[id(use)]
        statement = self.parents.get(id(call))
        if not isinstance(call, ast.Call) or self.called(call) is not portable.mma:
            return None
        if argument(call, 0, "a") is not use or not isinstance(statement, ast.Assign):
            return None
        loop, target = self.parents[id(statement)], statement.targets[0]
        if not isinstance(loop, ast.For) or not isinstance(target, ast.Name):
            return None
        zeros = argument(call, 2, "acc")
        if self.called(zeros) is not language.zeros or self._kind(call) != _SCORES:
            return None
        product = target.id
        later = loop.body[loop.body.index(statement) + 1 :]
        scaled = next((s for s in later if product in mentions(s)), None)
        targets = (
            scaled.targets if isinstance(scaled, ast.Assign) else [getattr(scaled, "target", None)]
        )
        if len(targets) > 1 or not isinstance(targets[0], ast.Name):
            return None
        name, masked = targets[0].id, False
        if isinstance(scaled, ast.AugAssign):
            scale = scaled.value if isinstance(scaled.op, ast.Mult) else None
        elif isinstance(scaled, ast.Assign):
            masked = self.called(scaled.value) is language.where
            value = argument(scaled.value, 1, "x") if masked else scaled.value  # type: ignore[arg-type]
            scale = self._scale(value, product)
        else:
            return None
        if scale is None or self._rank(scale) is not None or product in mentions(scale):
            return None
        read = _loads(loop, product)
        if name != product and (len(read) > 1 or self._leaves(product, loop)):
            return None
        after = later[later.index(scaled) + 1 :]
        masks = [s for s in after if self._masks(s, name)]
        selected = {id(s.value.args[1]) for s in masks}  # type: ignore[attr-defined]
        nodes = [n for s in after for n in _loads(s, name) if id(n) not in selected]
        asked = [n for n in nodes if getattr(self.parents[id(n)], "attr", None) in _ABOUT]
        maxima = [one for n in nodes if (one := self._maximum(n)) is not None]
        within = {id(one.args[0]) for one in maxima}
        others = [n for n in nodes if n not in asked and id(n) not in within]
        lines = {s.lineno for s in loop.body if s is not scaled}
        known = {id(n) for n in nodes} | selected
        early = [
            n for n in _loads(loop, name) if id(n) not in known and not self._encloses(scaled, n)
        ]
        stays = masked or not maxima
        stays |= any({name, product} & stores(s) for s in after if s not in masks)
        stays |= bool(early or {scaled.lineno, scaled.end_lineno} & lines)
        stays |= self._leaves(name, loop)
        kept = f"{name} = {product}" if masks and name != product else ""
        uses: Any = ([], [], False) if stays else (maxima, others, bool(masks))
        return _Scores(scaled, scale, name if masks else product, kept, *uses)

    def _masks(self, statement: ast.stmt, name: str) -> bool:
        """Return True for `name = where(mask, name, -inf)`."""
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or self.called(call) is not language.where:
            return False
        assert isinstance(statement, ast.Assign)
        own = [ast.unparse(target) for target in statement.targets] == [name]
        if (
            not own
            or len(call.args) != _SELECTED
            or call.keywords
            or name in mentions(call.args[0])
        ):
            return False
        return ast.unparse(call.args[1]) == name and ast.unparse(call.args[2]) in _LOWEST

    def _scale(self, node: Any, product: str) -> Optional[ast.expr]:
        """Return the scalar that a product of matrices is multiplied by; None of other expressions."""
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
            return None
        for tensor, scalar in ((node.left, node.right), (node.right, node.left)):
            if isinstance(tensor, ast.Name) and tensor.id == product:
                return scalar
        return None

    def _leaves(self, name: str, loop: ast.For) -> bool:
        """Return True if a name of a loop is read elsewhere before it is assigned there."""
        for node in _loads(self.tree, name):
            if self._encloses(loop, node):
                continue
            own = self._loop(node)
            if not isinstance(own, ast.For) or own.body.index(self._within(node, own)) <= min(
                (i for i, s in enumerate(own.body) if name in stores(s)), default=len(own.body)
            ):
                return True
        return False

    def _within(self, node: ast.AST, loop: ast.For) -> ast.stmt:
        """Return the statement of a loop's body around a node."""
        while self.parents[id(node)] is not loop:
            node = self.parents[id(node)]
        assert isinstance(node, ast.stmt)
        return node

    def _maximum(self, node: ast.Name) -> Optional[ast.Call]:
        """Return the call of `gl.max` with a tensor and an axis."""
        call = self.parents[id(node)]
        if not isinstance(call, ast.Call) or self.called(call) is not language.max:
            return None
        plain = call.args[:1] == [node] and len(call.args) + len(call.keywords) == 2
        return call if plain and all(word.arg == "axis" for word in call.keywords) else None

    def _use(self, node: ast.Name, product: str, size: str) -> tuple[ast.expr, str]:
        """Return an expression with a score, and its text with what is scaled there."""
        outer = self.parents[id(node)]
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult):
            other = outer.right if outer.left is node else outer.left
            if isinstance(other, ast.Constant):
                return outer, f"{product} * ({size} * {self.text_of(other)})"
        return node, self._times(node, product, size)

    def _times(self, node: ast.expr, text: str, size: str) -> str:
        """Return a text times a number, in the place of an expression."""
        outer = self.parents[id(node)]
        sum_ = isinstance(outer, ast.BinOp) and isinstance(outer.op, (ast.Add, ast.Sub))
        plain = sum_ or isinstance(outer, (ast.Call, ast.stmt))
        return f"{text} * {size}" if plain else f"({text} * {size})"

    def _number(self, node: ast.expr, deep: int = _MOST_DEEP) -> Optional[str]:
        """Return the text of a number by parameters and constants alone; None of others."""
        if isinstance(node, ast.Constant):
            return ast.unparse(node)
        if isinstance(node, ast.BinOp):
            sides = [self._number(side, deep) for side in (node.left, node.right)]
            left, right = (ast.parse(side or "0", mode="eval").body for side in sides)
            return None if None in sides else ast.unparse(ast.BinOp(left, node.op, right))
        if not isinstance(node, ast.Name):
            return None
        assigned = self.stores.get(node.id, [])
        if not assigned:
            return node.id
        definition = self._definition(node) if len(assigned) == 1 and deep else None
        return None if definition is None else self._number(definition.value, deep - 1)

    def _kind(self, node: ast.expr) -> str:
        """Return the type of a tensor's elements, "" where it is not known."""
        kinds = self.elements_of(node)
        return kinds.pop() if len(kinds) == 1 else ""


def _loads(node: ast.AST, name: str) -> list[ast.Name]:
    """Return the nodes that read a name."""
    names = (n for n in nodes_in(node) if isinstance(n, ast.Name) and n.id == name)
    return [n for n in names if isinstance(n.ctx, ast.Load)]
