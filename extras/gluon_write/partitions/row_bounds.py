"""Bound what a kernel's loops of products walk over by one size of its launch.

    for start in range(0, gl.minimum(length, first + WINDOW), BN):

walks over no more than `length`, an argument, and

    for start in range(0, (gl.program_id(0) + 1) * BM, BN):

over no more than `BM` times the programs along axis 0. Ends are computed for launches of which one size is small: a bound
decides about time alone.
"""

from __future__ import annotations

import ast
import operator
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Union

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_write.partitions.programs import AXES
from gluon_write.text.form import Form
from gluon_write.text.syntax import argument, assigned_in, nodes_in
from gluon_write.tracing.branches import taken_alone
from gluon_write.tracing.sketch import Sketch

__all__ = ["RowBound", "row_bounds"]

_LARGE = 1 << 40  # a size of which no end may consist
_UNIT = 4096  # that a small argument is a multiple of: blocks are rounded up
_DEPTH = 24  # of definitions that are followed
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "minimum": min,
    "max": max,
    "maximum": max,
    "cdiv": lambda a, b: -(-a // b),
    "multiple_of": lambda a, _: a,
}


@dataclass(frozen=True)
class RowBound:
    """Hold a multiple of a size of a launch.

    Attributes:
        size: the name of an integer parameter, or an axis of the grid.
    """

    factor: int
    size: Union[str, int]


_Launch = Mapping[Union[str, int], int]  # sizes; others are large


def row_bounds(fn: Any, drawn: Sketch) -> list[RowBound]:
    """Return what a kernel's innermost loops of products walk over at most, the largest of one or two multiples; none where nothing
    bounds them."""
    reader = _Ends(taken_alone(fn, drawn), drawn)
    ends = [*reader.ends()]

    def most(launch: _Launch) -> int:
        return max(reader.value(end, name, launch) for end, name in ends)

    def of(sizes: tuple[Union[str, int], ...]) -> list[RowBound]:
        """Return the bounds by some sizes, none where other ones count."""
        bounds = []
        for size in sizes:
            unit = _UNIT if isinstance(size, str) else 1
            first, second = (most({**dict.fromkeys(sizes, 0), size: n * unit}) for n in (1, 3))
            if not 0 < first < _LARGE or second != 3 * first or first % unit:
                return []
            bounds.append(RowBound(first // unit, size))
        return bounds

    axes = range(AXES)
    pairs = ((name, axis) for name in reader.sizes for axis in axes)
    try:
        for sizes in (*((name,) for name in reader.sizes), *((axis,) for axis in axes), *pairs):
            bounds = of(sizes) if ends else []
            if bounds:
                return bounds
    except (LookupError, ZeroDivisionError):  # an end that the kernel loads
        pass
    return []


class _Ends:
    """Compute the ends of loops for launches.

    Attributes:
        sizes: the integer parameters of the kernel.
    """

    def __init__(self, fn: Any, drawn: Sketch):
        self.forms: dict[str, Form] = {}
        self.kernel = fn.__name__
        self.constants = {name: unwrap(value) for name, value in drawn.constants.items()}
        self._take(fn.__name__, fn)
        params = [arg.arg for arg in self.forms[self.kernel].tree.args.args]
        self.sizes = [name for name in params if name not in self.constants]

    def _take(self, name: str, fn: Any) -> None:
        form = self.forms[name] = Form(fn)
        for node in nodes_in(form.tree):
            called = form.called(node)
            if isinstance(node, ast.Call) and getattr(called, "src", None):
                word = ast.unparse(node.func)
                if word not in self.forms:
                    self._take(word, called)

    def ends(self) -> Iterator[tuple[ast.expr, str]]:
        """Yield the ends of innermost loops with products, each with the name of its function."""
        for name, form in self.forms.items():
            loops = form.for_loops()
            for loop in loops:
                parts = [n for s in loop.body for n in nodes_in(s)]
                multiplies = any(
                    isinstance(n, ast.Call) and ast.unparse(n.func).endswith((".mma", ".dot"))
                    for n in parts
                )
                if multiplies and not any(inner in loops for inner in parts):
                    args = getattr(loop.iter, "args", ())
                    yield from ((args[len(args) > 1], name) for _ in args[:1])

    def value(self, node: ast.expr, name: str, launch: _Launch, depth: int = 0) -> int:
        """Return the value of an expression in a function, in the last program of a launch; the largest of those that branches give.

        Raises:
            LookupError: it depends on more than the sizes of the launch.
        """
        form, rest = self.forms[name], (name, launch, depth + 1)
        if depth > _DEPTH:
            raise LookupError(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            sides = self.value(node.left, *rest), self.value(node.right, *rest)
            return _OPERATORS[type(node.op)](*sides)
        if isinstance(node, ast.Call):
            called, word = form.called(node), ast.unparse(node.func).rpartition(".")[2]
            if called in (language.program_id, language.num_programs):
                axis: Any = getattr(argument(node, 0, "axis"), "value", None)
                size = launch.get(axis, _LARGE)
                return size - 1 if called is language.program_id else size
            if word == "to" and isinstance(node.func, ast.Attribute):
                return self.value(node.func.value, *rest)
            return _FUNCTIONS[word](*(self.value(arg, *rest) for arg in node.args))
        if isinstance(node, ast.Name):
            return self._of_name(node.id, *rest)
        raise LookupError(ast.unparse(node))

    def _of_name(self, word: str, name: str, launch: _Launch, depth: int) -> int:
        form = self.forms[name]
        nodes = nodes_in(form.tree)
        values = [
            value
            for node in nodes
            if isinstance(node, ast.Assign) and len(node.targets) == 1
            for target, value in assigned_in(node.targets[0], node.value)
            if target == word
        ]
        params = [arg.arg for arg in form.tree.args.args]
        stored = [n for n in nodes if isinstance(n, ast.Name) and n.id == word]
        stored = [n for n in stored if isinstance(n.ctx, ast.Store)]
        if stored:
            if len(stored) != len(values) or word in params:
                raise LookupError(word)
            return max(self.value(value, name, launch, depth) for value in values)
        if word in params and name != self.kernel:
            passed = [
                (argument(node, params.index(word), word), caller)
                for caller, other in self.forms.items()
                for node in nodes_in(other.tree)
                if isinstance(node, ast.Call) and ast.unparse(node.func) == name
            ]
            each = [self.value(node, caller, launch, depth) for node, caller in passed if node]
            if not each or len(each) != len(passed):
                raise LookupError(word)
            return max(each)
        if word in params and word not in self.constants:
            return launch.get(word, _LARGE)
        constant = self.constants.get(word, unwrap(form.scope.get(word)))
        if not isinstance(constant, int):
            raise LookupError(word)
        return constant
