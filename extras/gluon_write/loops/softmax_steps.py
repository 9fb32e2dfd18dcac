"""Read the values of a step of an online softmax: what they depend on, and which sums they are."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from gluon_core import language, portable
from gluon_core._triton import unwrap
from gluon_core.launch.jit import GluonJITFunction
from gluon_write.text.polynomials import Polynomial
from gluon_write.text.syntax import argument, mentions, nodes_in, stores
from gluon_write.tracing.index_forms import IndexForms, NoIndex
from gluon_write.tracing.sketch import Sketch

__all__ = ["Kind", "NoSteps", "SoftmaxSteps"]

_EXPONENTIALS = (language.exp, language.exp2)
_ELEMENTWISE = (
    *_EXPONENTIALS, language.where, language.maximum, language.minimum, language.abs, language.log,
    language.log2, language.sqrt, language.rsqrt, language.fma,
)  # fmt: skip
_UNTOUCHED = (language.multiple_of, language.max_contiguous)
_LIBRARIES = (
    "gluon_core",
    "gluon_nvidia",
    "gluon_amd",
    "triton",
)  # their functions may have effects
_LOW = 10_000  # below 0
_HINTS = ("cache_modifier", "eviction_policy", "volatile")


class NoSteps(Exception):
    """Say that a loop is no online softmax."""


@dataclass(frozen=True)
class Kind:
    """Say what a value of a step is.

    Attributes:
        word: "fixed": the same in all steps; "step": the loop's variable; "range": `gl.arange(0, BN)`;
            "column": each element depends on its column; "largest": of columns, "new": and of all before;
            "shifted": a column less the largest, "shift": the largest before less that; "weight" and "kept": their exponentials;
            "sum": over the columns of a step, of weights or their products;
            "old", "scaled", "done": a carried name before, rescaled, and with the sum of the step.
        axis: along which columns are. name: the carried name. by: the largest number, and the exponential.
        exact: the number of the column, the variable and the range themselves.
        limits: numbers that the columns are below where a condition holds, or behind which they have a mask.
    """

    word: str
    axis: int = 0
    name: str = ""
    by: tuple[Any, ...] = ()
    exact: bool = False
    limits: frozenset[Polynomial] = frozenset()


_FIXED = Kind("fixed")
_ROWS = ("new", "kept", "old")  # a number for each row


class SoftmaxSteps(IndexForms):
    """Read the steps of a loop over columns.

    Args:
        fn: the kernel, with the loop in its own text. drawn: its trace.

    Attributes:
        step: name of the number of columns of a step. loop, variable: the loop, and its variable.
        now: name -> what it is behind the statements that were read. carried: names that a step reads of the one before.
        assigned: name -> the statements that assign it, loops and branches around them left out.
        limits: numbers that columns of all loads and weights are below; None of neither.
        tiles: the loop loads tiles of descriptors, whose sizes it does not say.
    """

    def __init__(self, fn: Any, drawn: Sketch):
        super().__init__(fn, drawn)
        self.step = ""
        self.assigned: dict[str, list[Any]] = {}
        for node in nodes_in(self.tree):
            if isinstance(node, ast.stmt) and not isinstance(
                node, (ast.FunctionDef, ast.For, ast.If)
            ):
                for name in stores(node):
                    self.assigned.setdefault(name, []).append(node)

    def begin(self, loop: ast.For, variable: str) -> None:
        """Begin to read a loop."""
        self.loop, self.variable = loop, variable
        self.changed = stores(loop)
        self.now: dict[str, Kind] = {}
        self.carried: set[str] = set()
        self.limits: Optional[frozenset[Polynomial]] = None
        self.tiles = False

    def ranges_columns(self, node: Any) -> bool:
        """Return True for `gl.arange(0, step)`."""
        if self.called(node) is not language.arange or node.keywords:
            return False
        return [ast.unparse(arg) for arg in node.args] == ["0", self.step]

    def is_range(self, node: ast.Name) -> bool:
        """Return True for a name of `gl.arange(0, step)`."""
        assigned = self.assigned.get(node.id, [])
        values = [s.value for s in assigned if isinstance(s, ast.Assign)]
        ranges = [value for value in values if self.ranges_columns(value)]
        if ranges and (len(assigned) > 1 or not isinstance(assigned[0].targets[0], ast.Name)):
            raise NoSteps
        return bool(ranges)

    def read(self, statements: list[ast.stmt]) -> None:
        """Read statements of a step.

        Raises:
            NoSteps: one of them is none of an online softmax.
        """
        for statement in statements:
            if isinstance(statement, ast.If):
                self.read(statement.body if self._holds(statement.test) else statement.orelse)
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], statement.value)
            elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                old = ast.copy_location(ast.Name(statement.target.id, ast.Load()), statement.target)
                self.parents[id(old)] = statement
                left, right = self.kind_of(old), self.kind_of(statement.value)
                self.now[statement.target.id] = self._combined(
                    statement.op, left, right, statement.value
                )
            elif not isinstance(statement, ast.Expr) or not (
                isinstance(statement.value, ast.Constant)
                or self.called(statement.value) is language.static_assert
            ):
                raise NoSteps

    def _holds(self, test: ast.expr) -> bool:
        """Return the value of a condition by numbers and constants.

        Raises:
            NoSteps: it has others.
        """
        names = mentions(test)
        known = {n: unwrap(self.drawn.constants[n]) for n in names & set(self.drawn.constants)}
        calls = any(isinstance(n, (ast.Call, ast.Attribute)) for n in nodes_in(test))
        if names - set(known) or calls or names & {self.step}:
            raise NoSteps
        return bool(eval(compile(ast.Expression(test), "<test>", "eval"), {}, known))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) != len(value.elts):
                raise NoSteps
            kinds = [self.kind_of(one) for one in value.elts]
            for one, kind in zip(target.elts, kinds):
                self._bind(one, kind)
        else:
            self._bind(target, self.kind_of(value))

    def _bind(self, target: ast.expr, kind: Kind) -> None:
        if not isinstance(target, ast.Name) or target.id == self.variable:
            raise NoSteps
        self.now[target.id] = kind

    def kind_of(self, node: Any) -> Kind:
        """Return what an expression of a step is.

        Raises:
            NoSteps: more columns in a step may change it in another way.
        """
        if isinstance(node, ast.Constant):
            return _FIXED
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(node, ast.UnaryOp):
            kind = self.kind_of(node.operand)
            if kind.word not in ("fixed", "column"):
                raise NoSteps
            return _FIXED if kind.word == "fixed" else Kind("column", kind.axis)
        if isinstance(node, ast.BinOp):
            left, right = self.kind_of(node.left), self.kind_of(node.right)
            factor = node.right if right.word == "fixed" else node.left
            return self._combined(node.op, left, right, factor)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._comparison(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if isinstance(node, ast.Call):
            return self._called(node)
        raise NoSteps

    def _of_name(self, node: ast.Name) -> Kind:
        if node.id in self.now:
            return self.now[node.id]
        if node.id == self.variable:
            return Kind("step", exact=True)
        if node.id in self.changed:
            self.carried.add(node.id)
            return Kind("old", name=node.id)
        if node.id == self.step:
            raise NoSteps
        return Kind("range", exact=True) if self.is_range(node) else _FIXED

    def _combined(self, op: ast.operator, left: Kind, right: Kind, factor: ast.expr) -> Kind:
        """Return what the result of an operator is; `factor` is its side that is fixed, if one is."""
        words = {left.word, right.word}
        add, times = isinstance(op, ast.Add), isinstance(op, ast.Mult)
        if words == {"fixed"}:
            return _FIXED
        if words <= {"fixed", "column"}:
            return _of_columns(op, left, right, factor)
        if add and words == {"step", "range"}:
            axis = (left if left.word == "range" else right).axis
            return Kind("column", axis, exact=left.exact and right.exact)
        if add and "fixed" in words and words & {"step", "range"}:
            moved = left if right.word == "fixed" else right
            return Kind(moved.word, moved.axis)
        if times and "fixed" in words and words & {"shifted", "shift", "largest"}:
            one = left if right.word == "fixed" else right
            by = () if one.word == "largest" else (*one.by, ast.unparse(factor))
            limits = one.limits if _is_above(factor) else frozenset()
            return Kind(one.word, one.axis, one.name, by, limits=limits)
        if times and "weight" in words and words <= {"weight", "column", "fixed"} and left != right:
            one, other = (left, right) if left.word == "weight" else (right, left)
            if other.word == "weight" or other.word == "column" and other.axis != one.axis:
                raise NoSteps
            return one
        if isinstance(op, ast.Sub) and right.word == "new":
            if left.word == "column" and left.axis == right.axis:
                return Kind("shifted", left.axis, right.name, limits=left.limits)
            if left.word == "old" and left.name == right.name:
                return Kind("shift", right.axis, right.name)
        if times and words == {"old", "kept"}:
            old, kept = (left, right) if left.word == "old" else (right, left)
            return Kind("scaled", name=old.name, by=kept.by)
        if add and words == {"scaled", "sum"} and left.by == right.by:
            return Kind("done", name=left.name or right.name)
        raise NoSteps

    def _comparison(self, node: ast.Compare) -> Kind:
        """Return what a comparison is; `columns < limit` and `range < limit - start` have a limit."""
        low, high = node.left, node.comparators[0]
        if isinstance(node.ops[0], ast.Gt):
            low, high = high, low
        strict = isinstance(node.ops[0], (ast.Lt, ast.Gt))
        if strict and isinstance(high, ast.BinOp) and isinstance(high.op, ast.Sub):
            ends = self.kind_of(high.left), self.kind_of(high.right)
            if ends[0].word == "fixed" and ends[1].word == "step" and ends[1].exact:
                index = self.kind_of(low)
                if index.word == "range" and index.exact:
                    return Kind("column", index.axis, limits=self._limit(high.left))
        left, right = self.kind_of(low), self.kind_of(high)
        kind = self._combined(ast.BitAnd(), left, right, high)
        if strict and left.exact and left.word == "column" and right.word == "fixed":
            return Kind("column", left.axis, limits=self._limit(high))
        return kind if kind.word == "fixed" else Kind("column", kind.axis)

    def _limit(self, node: ast.expr) -> frozenset[Polynomial]:
        try:
            return frozenset([self.form_of(node)])
        except NoIndex:
            return frozenset()

    def _attribute(self, node: ast.Attribute) -> Kind:
        base = node.value
        if node.attr == "T":
            return self._transposed(self.kind_of(base))
        if isinstance(base, ast.Name) and base.id not in self.changed or node.attr == "dtype":
            return _FIXED
        if isinstance(base, ast.Attribute):
            return self._attribute(base)
        raise NoSteps

    def _transposed(self, kind: Kind) -> Kind:
        if kind.word not in ("fixed", "column", "weight"):
            raise NoSteps
        return kind if kind.word == "fixed" else replace(kind, axis=1 - kind.axis)

    def _subscript(self, node: ast.Subscript) -> Kind:
        """Return what `x[None, :]` and `x[:, None]` are."""
        kind = self.kind_of(node.value)
        if kind.word == "fixed":
            return kind
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        kept = [i for i, part in enumerate(parts) if isinstance(part, ast.Slice)]
        new = [part for part in parts if isinstance(part, ast.Constant) and part.value is None]
        if len(parts) != 2 or len(kept) != 1 or len(new) != 1:
            raise NoSteps
        if kind.word in ("column", "range"):
            return replace(kind, axis=kept[0])
        if kind.word in _ROWS and (kind.word == "old" or kept[0] == 1 - kind.axis):
            return kind
        raise NoSteps

    def _called(self, node: ast.Call) -> Kind:
        called, method = self.called(node), isinstance(node.func, ast.Attribute)
        if self.ranges_columns(node):
            return Kind("range", exact=True)
        readers: dict[Any, Callable[[ast.Call], Kind]] = {
            portable.mma: self._product, language.load: self._loaded, language.where: self._where,
            portable.load: self._tile,
            language.max: self._reduced, language.sum: self._reduced, language.permute: self._permuted,
            language.zeros: self._filled, language.full: self._filled,
        }  # fmt: skip
        for one, read in readers.items():  # a kernel's hash takes the text of all that it calls
            if one is called:
                return read(node)
        if called is None and method and node.func.attr == "to":  # type: ignore[attr-defined]
            kind = self.kind_of(node.func.value)  # type: ignore[attr-defined]
            if kind.word not in ("fixed", "column", "weight"):
                raise NoSteps
            return replace(kind, exact=False)
        values = [*node.args, *(word.value for word in node.keywords)]
        return self._applied(node, called, [self.kind_of(one) for one in values])

    def _applied(self, node: ast.Call, called: Any, kinds: list[Kind]) -> Kind:
        """Return what a function of single elements gives."""
        words = {kind.word for kind in kinds}
        if called in _UNTOUCHED:
            return kinds[0]
        if called in _EXPONENTIALS and words <= {"shifted", "shift"} and len(kinds) == 1:
            (kind,) = kinds
            by = (kind.name, called, *kind.by)
            if kind.word == "shift":
                return Kind("kept", kind.axis, by=by)
            self._masked(kind.limits)
            return Kind("weight", kind.axis, by=by)
        if called is language.maximum and words == {"old", "largest"} and len(kinds) == 2:
            old, largest = kinds if kinds[0].word == "old" else kinds[::-1]
            return Kind("new", largest.axis, old.name)
        if words <= {"fixed"} and (called in _ELEMENTWISE or self._is_plain(node, called)):
            return _FIXED
        axes = {kind.axis for kind in kinds if kind.word == "column"}
        if called in _ELEMENTWISE and words <= {"fixed", "column"} and len(axes) == 1:
            return Kind("column", axes.pop())
        raise NoSteps

    def _permuted(self, node: ast.Call) -> Kind:
        order = [ast.unparse(arg) for arg in node.args[1:]]
        if order not in (["(1, 0)"], ["[1, 0]"], ["1", "0"]) or node.keywords:
            raise NoSteps
        return self._transposed(self.kind_of(node.args[0]))

    def _is_plain(self, node: ast.Call, called: Any) -> bool:
        """Return True for a function of numbers and types alone."""
        if called in (language.program_id, language.num_programs, language.cdiv):
            return True
        if called is None:
            return isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "float")
        module = str(getattr(getattr(called, "fn", called), "__module__", ""))
        kernel = isinstance(called, GluonJITFunction)
        return not kernel and module.partition(".")[0] not in _LIBRARIES

    def _filled(self, node: ast.Call) -> Kind:
        """Return what a tensor of one value is, whose extents may be those of columns."""
        shape = argument(node, 0, "shape")
        others = [
            one for one in (*node.args, *(word.value for word in node.keywords)) if one is not shape
        ]
        if not isinstance(shape, (ast.List, ast.Tuple)) or any(
            self.kind_of(one).word != "fixed" for one in others
        ):
            raise NoSteps
        for extent in shape.elts:
            own = isinstance(extent, ast.Name) and extent.id == self.step
            asked = isinstance(extent, ast.Subscript) and isinstance(extent.value, ast.Attribute)
            asked = asked and extent.value.attr == "shape"  # type: ignore[attr-defined]
            if not own and not asked and self.kind_of(extent).word != "fixed":
                raise NoSteps
        return _FIXED

    def _product(self, node: ast.Call) -> Kind:
        left, right = (self.kind_of(argument(node, *one)) for one in ((0, "a"), (1, "b")))
        acc = argument(node, 2, "acc")
        zeros = acc is None or self.called(acc) is language.zeros and self.kind_of(acc) == _FIXED
        if zeros and left.word == "fixed" and right.word == "column" and right.axis == 1:
            return Kind("column", 1)
        if zeros and right.word == "fixed" and left.word == "column" and left.axis == 0:
            return Kind("column", 0)
        weights = left if left.word == "weight" else right
        if {left.word, right.word} != {"weight", "column"} or (left.axis, right.axis) != (1, 0):
            raise NoSteps
        if zeros:
            return Kind("sum", by=weights.by)
        return self._combined(ast.Add(), self.kind_of(acc), Kind("sum", by=weights.by), acc)  # type: ignore[arg-type]

    def _loaded(self, node: ast.Call) -> Kind:
        words = {word.arg: word.value for word in node.keywords if word.arg not in _HINTS}
        pointer, mask, other = (
            argument(node, *one) for one in ((0, "pointer"), (1, "mask"), (2, "other"))
        )
        if len(node.args) > 3 or set(words) - {"pointer", "mask", "other"}:
            raise NoSteps
        kind = self.kind_of(pointer)
        masked = _FIXED if mask is None else self.kind_of(mask)
        if other is not None and self.kind_of(other).word != "fixed":
            raise NoSteps
        loaded = self._combined(ast.BitAnd(), kind, masked, node)
        if loaded.word == "column":
            self._masked(masked.limits)
        return replace(loaded, limits=frozenset())

    def _tile(self, node: ast.Call) -> Kind:
        """Return what a tile is, whose place depends on the step along one axis."""
        place = argument(node, 1, "offsets")
        if not isinstance(place, (ast.List, ast.Tuple)) or len(node.args) + len(node.keywords) > 2:
            raise NoSteps
        words = [self.kind_of(one).word for one in place.elts]
        axes = words[-2:]  # before them, indices of matrices
        if words.count("step") != 1 or axes.count("step") != 1 or {*words} - {"step", "fixed"}:
            raise NoSteps
        self.tiles = True
        return Kind("column", axes.index("step"))

    def _masked(self, limits: frozenset[Polynomial]) -> None:
        """Keep the limits that all loads and scores have."""
        self.limits = limits if self.limits is None else self.limits & limits

    def _where(self, node: ast.Call) -> Kind:
        if len(node.args) != 3 or node.keywords:
            raise NoSteps
        mask, value, other = (self.kind_of(one) for one in node.args)
        if value.word == "weight" and ast.unparse(node.args[2]) in ("0", "0.0"):
            if mask.word == "fixed" or mask.word == "column" and mask.axis == value.axis:
                return value
        selected = self._combined(
            ast.BitAnd(), mask, self._combined(ast.Add(), value, other, node), node
        )
        if other.word != "fixed" or not self._is_low(node.args[2]):
            return replace(selected, exact=False, limits=frozenset())
        return replace(selected, exact=False, limits=mask.limits | value.limits)

    def _is_low(self, node: ast.expr) -> bool:
        """Return True for a number so low that its weight is 0."""
        text = ast.unparse(node)
        if re.fullmatch(r"-?float\('-?inf'\)", text):
            return text.count("-") == 1
        low = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        value = getattr(node.operand, "value", None) if low else None  # type: ignore[attr-defined]
        return isinstance(value, (int, float)) and value >= _LOW

    def _reduced(self, node: ast.Call) -> Kind:
        value, axis = argument(node, 0, "input"), argument(node, 1, "axis")
        if value is None or axis is None or len(node.args) + len(node.keywords) != 2:
            raise NoSteps
        kind, along = self.kind_of(value), ast.unparse(axis)
        if along != str(kind.axis) or self.dims_of(value) is None:
            raise NoSteps
        if self.called(node) is language.max and kind.word == "column":
            return Kind("largest", kind.axis)
        if self.called(node) is language.sum and kind.word == "weight":
            return Kind("sum", by=kind.by)
        raise NoSteps


def _of_columns(op: ast.operator, left: Kind, right: Kind, factor: ast.expr) -> Kind:
    """Return what an operator gives of columns: limits stay where a mask's number stays below all others."""
    axes = {one.axis for one in (left, right) if one.word == "column"}
    if len(axes) > 1:
        raise NoSteps
    limits: frozenset[Polynomial] = frozenset()
    if isinstance(op, ast.Sub):
        limits = left.limits
    elif isinstance(op, (ast.Add, ast.BitAnd)) or isinstance(op, ast.Mult) and _is_above(factor):
        limits = left.limits | right.limits
    return Kind("column", axes.pop(), limits=limits)


def _is_above(node: ast.expr) -> bool:
    """Return True for a number above 0."""
    value = node.value if isinstance(node, ast.Constant) else None
    return isinstance(value, (int, float)) and value > 0
