"""Take several steps of an online softmax at once.

    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        score = gl.portable.mma(query, key_of(columns), gl.zeros([BM, BN], gl.float32))
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        acc = gl.portable.mma(weight, value_of(columns), acc * kept[:, None])
        largest = higher

with 64 columns becomes a loop with 128 of them: units then wait for half as many tiles, and half as many products rescale
the sums before. A row has the sum of `exp2(score - largest)` at the end, and that of its products with the values, however
its columns are divided into steps. That holds where

- each element of a step depends on its own column alone, until a maximum or a sum over the step,
- sums are rescaled by `exp(before - after)` of the number that the weights subtract,
- the columns of the last step that are behind the end have a mask, in the scores and in all loads.

Rows whose mask leaves no column have no such sum: what they get depends on the columns of a step.
"""

from __future__ import annotations

import ast
from typing import Any, Optional

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.loops.softmax_steps import NoSteps, SoftmaxSteps
from gluon_write.text.form import changed_copy, edited
from gluon_write.text.syntax import argument, nodes_in, stores
from gluon_write.tracing.index_forms import NoIndex
from gluon_write.tracing.sketch import Sketch

__all__ = ["WIDE", "takes_any_order", "with_wider_steps"]

WIDE = 128  # columns of a step: on an H200 attention took 0.87 to 0.98 of the time with 64
_LEAST = 16  # columns that a matrix unit takes
_FILLED = (language.zeros, language.full)


def with_wider_steps(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel that takes several steps of its online softmaxes at once, or the kernel.

    Args:
        fn: the kernel, with these loops in its own text. drawn: its trace.
    """
    reader = _WideSteps(fn, drawn)
    for name, value in drawn.constants.items():
        value = unwrap(value)
        if type(value) is int and _LEAST <= value < WIDE and WIDE % value == 0:
            try:
                text = reader.text(name, value)
            except (NoIndex, NoSteps):
                continue
            if text is not None:
                return changed_copy(fn, drawn.jits, {0: text}, {})
    return fn


def takes_any_order(fn: Any, drawn: Sketch) -> bool:
    """Return True if all loops of a kernel are online softmaxes, whose steps may come in any order.

    Args:
        fn: the kernel, with these loops in its own text. drawn: its trace.
    """
    try:
        return _WideSteps(fn, drawn).takes_any_order()
    except (NoIndex, NoSteps):
        return False


class _WideSteps(SoftmaxSteps):
    inside: set[int]  # nodes that are read

    def takes_any_order(self) -> bool:
        """Return True if all loops are online softmaxes; there is one.

        Raises:
            NoSteps, NoIndex: one is none.
        """
        loops = self.for_loops()
        self.inside = set()
        for loop in loops:
            self.step = self._step_of(loop)
            self._read(loop)
        return bool(loops)

    def text(self, step: str, size: int) -> Optional[str]:
        """Return the text with more columns in the loops that a constant is the step of; None without one.

        Raises:
            NoSteps, NoIndex: the constant has other uses, or one of its loops is no online softmax.
        """
        loops = self.for_loops()
        loops = [loop for loop in loops if self._step_of(loop) == step]
        if not loops or step in stores(self.tree):
            return None
        self.step = step
        self.inside = set()
        for loop in loops:
            self._check(loop)
            self.inside |= {id(node) for node in nodes_in(loop)}
        edits: list[tuple[ast.expr, str]] = []
        for node in nodes_in(self.tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id == step and not self._asserted(node):
                if not self._divides(node, loops):
                    raise NoSteps
                edits.append((node, str(WIDE)))
            elif self.is_range(node) and id(node) not in self.inside:
                raise NoSteps
        lines = edited(self.source, edits).splitlines()
        for loop in sorted(loops, key=lambda loop: loop.lineno, reverse=True):
            note = f"# {WIDE // size} steps of {step} columns at once."
            lines.insert(loop.lineno - 1, " " * loop.col_offset + note)
        return "\n".join(lines) + "\n"

    def _step_of(self, loop: ast.For) -> str:
        call = loop.iter
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "range":
            return ""
        return ast.unparse(call.args[2]) if len(call.args) == 3 and not call.keywords else ""

    def _asserted(self, node: ast.AST) -> bool:
        """Return True within `gl.static_assert`."""
        while not isinstance(node, ast.stmt):
            if self.called(node) is language.static_assert:
                return True
            node = self.parents[id(node)]
        return False

    def _divides(self, node: ast.Name, loops: list[ast.For]) -> bool:
        """Return True for the step of a loop, the end of a range, and an extent of a tensor of one value."""
        parent = self.parents[id(node)]
        if any(parent is loop.iter for loop in loops) or self.ranges_columns(parent):
            return True
        filled = isinstance(parent, (ast.List, ast.Tuple)) and self.parents[id(parent)]
        return self.called(filled) in _FILLED and argument(filled, 0, "shape") is parent  # type: ignore[arg-type]

    # -- a loop ---------------------------------------------------------------------------------------

    def _read(self, loop: ast.For) -> None:
        """Raise `NoSteps` where a loop is no online softmax."""
        if not isinstance(loop.target, ast.Name) or loop.orelse:
            raise NoSteps
        self.begin(loop, loop.target.id)
        assert isinstance(loop.iter, ast.Call)
        if any(self.kind_of(arg).word != "fixed" for arg in loop.iter.args[:2]):
            raise NoSteps
        self.read(loop.body)
        self._ends()

    def _check(self, loop: ast.For) -> None:
        """Raise `NoSteps` where more columns in a step change what a loop computes."""
        self._read(loop)
        if self.tiles:
            raise NoSteps
        assert isinstance(loop.iter, ast.Call)
        first = self.form_of(loop.iter.args[0])
        for last in self.least(loop.iter.args[1]):
            if self.multiple_of(last - first) % WIDE and last not in (self.limits or ()):
                raise NoSteps

    def _ends(self) -> None:
        """Raise `NoSteps` where another name than those of the sums leaves the loop, or one of them does not."""
        for name, kind in self.now.items():
            own = kind.name == name and kind.word in ("done", "new")
            if name in self.carried and not own:
                raise NoSteps
        within = {id(node) for node in nodes_in(self.loop)}
        for node in nodes_in(self.tree):
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            left = id(node) not in within and node.id in self.now and node.id not in self.carried
            if left and not self._is_again(node):
                raise NoSteps
        if not any(kind.word == "done" for kind in self.now.values()):
            raise NoSteps

    def _is_again(self, name: ast.Name) -> bool:
        """Return True for a name that surely gets another value between the loop and the place that reads it."""
        node: Any = self.statement_of(name)
        while node is not self.tree:
            parent = self.parents[id(node)]
            for block in (getattr(parent, "body", []), getattr(parent, "orelse", [])):
                for before in reversed(block[: block.index(node)] if node in block else []):
                    if before is self.loop:
                        return False
                    if isinstance(before, ast.Assign) and name.id in stores(before):
                        return True
            node = parent
        return False
