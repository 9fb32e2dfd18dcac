"""Read index and pointer tensors of a kernel as polynomials: ranges along dimensions, and scalars.

    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    x = gl.load(a_ptr + rows[:, None] * stride + gl.arange(0, BK)[None, :])

has the pointers `a_ptr + program_id(0) * BM * stride + (range of BM along 0) * stride + (range of BK along 1)`.
Variables that a loop moves on have the value of a step; other scalars keep their names.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, Optional

from gluon_core import language
from gluon_core._triton import tl, unwrap
from gluon_write.text.polynomials import Polynomial
from gluon_write.text.syntax import argument, mentions, nodes_in, stores
from gluon_write.tracing.signs import POSITIVE, UNTOUCHED, is_positive, positive_results
from gluon_write.tracing.sketch import Sketch
from gluon_write.tracing.traced_form import TracedForm

__all__ = ["IndexForms", "NoIndex", "Range"]

_BOUNDED = (language.cdiv, language.minimum, language.maximum)
_MOST_DEEP = 40


class NoIndex(Exception):
    """Say that an expression has no such form."""


@dataclass(frozen=True)
class Range:
    """Hold the numbers 0, 1, ... along a dimension.

    Attributes:
        size: of them. axis: the dimension; None of a vector that has no other one yet.
        begin, bound: where the numbers `begin + 0`, `begin + 1`, ... are taken modulo `bound`.
    """

    size: int
    axis: Optional[int] = None
    begin: Optional[Polynomial] = None
    bound: Optional[Polynomial] = None


@dataclass(frozen=True)
class _Atom:
    """Hold a scalar expression.

    Attributes:
        defined: name -> the statement that gave it its value. positive: it is not known to be below 0.
        fixed: all programs have the same value at any time. multiple: a number that it is a multiple of.
    """

    defined: tuple[tuple[str, Any], ...]
    positive: bool
    fixed: bool
    multiple: int = 1


_PARAMETER, _GLOBAL = "parameter", "global"


class IndexForms(TracedForm):
    """Read the expressions of a kernel.

    Args:
        fn: the kernel itself. drawn: its trace.

    Attributes:
        atoms: text of a scalar -> its facts. ranges: name of a range -> its facts.
    """

    def __init__(self, fn: Any, drawn: Sketch):
        super().__init__(fn, 0, drawn)
        self.atoms: dict[str, _Atom] = {}
        self.widened: set[str] = set()  # atoms that the kernel multiplies with 64 bits
        self.ranges: dict[str, Range] = {}
        self.depth = 0
        self.named: dict[tuple[str, ast.stmt], Polynomial] = {}  # scalar and its statement -> form

    # -- questions ------------------------------------------------------------------------------

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the statement around an expression."""
        while not isinstance(node, ast.stmt):
            node = self.parents[id(node)]
        return node

    def dims_of(self, node: ast.AST) -> Optional[tuple[int, ...]]:
        """Return the shape of an expression's values, () of scalars; None where it had none, as a constant, or several."""
        shapes = self.shapes_of(node)
        return shapes.pop() if len(shapes) == 1 else None

    def is_fixed(self, names: Any) -> bool:
        """Return True if a product is the same in all programs at any time."""
        return all(name in self.atoms and self.atoms[name].fixed for name in names)

    def multiple_of(self, form: Polynomial) -> int:
        """Return a number that a sum is surely a multiple of; 0 of no terms."""
        factors = (
            count * prod(self.atoms[name].multiple if name in self.atoms else 1 for name in names)
            for names, count in form.terms.items()
        )
        return gcd(*factors)

    def is_known(self, form: Polynomial, use: ast.stmt, positive: bool = False) -> bool:
        """Return True if a statement can compute a sum: the names still have those values there.

        Args:
            positive: it must also be one that is not below 0.
        """
        for name in form.names:
            atom = self.atoms.get(name)
            if atom is None or positive and not atom.positive:
                return False
            if any(self.reaching(word, use) is not source for word, source in atom.defined):
                return False
        return not positive or all(count > 0 for count in form.terms.values())

    def shortened(self, form: Polynomial, use: ast.stmt) -> Polynomial:
        """Return a sum with the names that a statement has for parts of it, which become scalars of their own."""
        known = sorted(self.named.items(), key=lambda one: -len(one[1].terms))
        for (name, source), part in known:
            try:
                if self.reaching(name, use) is not source:
                    continue
            except NoIndex:
                continue
            names, count = next(iter(part.terms.items()))
            factor, rest = divmod(form.terms.get(names, 0), count)
            if (
                factor > 0
                and not rest
                and form - part * Polynomial.of(factor)
                == form.having(
                    lambda own, part=part: own not in part.terms  # type: ignore[misc]
                )
            ):
                positive = self._is_positive(part)
                own = _Atom(((name, source),), positive, False, self.multiple_of(part))
                if self.atoms.setdefault(name, own) == own:
                    form = form - part * Polynomial.of(factor) + Polynomial({(name,): factor})
        return form

    def _is_positive(self, form: Polynomial) -> bool:
        return all(
            count > 0 and all(self.atoms[name].positive for name in names)
            for names, count in form.terms.items()
        )

    # -- where a name gets its value ----------------------------------------------------------------

    def reaching(self, name: str, use: ast.AST) -> Any:
        """Return the statement that gives a name its value at `use`: an assignment, or a loop whose variable or carried value it is.

        "parameter" and "global" are those of names that no statement before changes.

        Raises:
            NoIndex: a branch may give it, or a loop with a condition.
        """
        node: Any = self.statement_of(use)
        while node is not self.tree:
            parent: Any = self.parents[id(node)]
            for block in (getattr(parent, "body", []), getattr(parent, "orelse", [])):
                for before in reversed(block[: block.index(node)] if node in block else []):
                    if name in stores(before):
                        if isinstance(before, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                            return before
                        raise NoIndex
            if isinstance(parent, ast.For) and name in stores(parent):
                return parent
            if isinstance(parent, ast.While) and name in stores(parent):
                raise NoIndex
            node = parent
        return _PARAMETER if name in self.parameters else _GLOBAL

    # -- forms --------------------------------------------------------------------------------------

    def form_of(self, node: ast.expr) -> Polynomial:
        """Return the polynomial of an integer or pointer expression.

        Raises:
            NoIndex: it has none.
        """
        self.depth += 1
        try:
            if self.depth > _MOST_DEEP:
                raise NoIndex
            return self._form(node)
        finally:
            self.depth -= 1

    def _form(self, node: ast.expr) -> Polynomial:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Polynomial.of(node.value)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Subscript):
            return self._widened(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        return self._opaque(node)

    def _name(self, node: ast.Name) -> Polynomial:
        name = node.id
        source = self.reaching(name, node)
        if source is _PARAMETER:
            if name in self.drawn.constants:
                return self._number(unwrap(self.drawn.constants[name]), node)
            return self._atom(name, ((name, source),), True, True)
        if source is _GLOBAL:
            return self._number(unwrap(self.scope.get(name)), node)
        if isinstance(source, ast.For):
            if name in stores(source.target):
                return self._variable(name, source)
            return self._carried(node, source)
        return self._assigned(name, source, node)

    def _number(self, value: Any, node: ast.expr) -> Polynomial:
        if type(value) is not int:
            raise NoIndex
        return Polynomial.of(value)

    def _assigned(self, name: str, source: Any, node: ast.expr) -> Polynomial:
        if isinstance(source, ast.AugAssign):
            old = self._name_at(name, source)
            more = self.form_of(source.value)
            if isinstance(source.op, ast.Add):
                return old + more
            if isinstance(source.op, ast.Sub):
                return old - more
            raise NoIndex
        target = source.targets[0] if isinstance(source, ast.Assign) else source.target
        if isinstance(target, ast.Name) and source.value is not None:
            try:
                form = self.form_of(source.value)
            except NoIndex:
                return self._scalar(node, name, source)
            if form.number is None and not self._varies(form):
                self.named[name, source] = form
            return form
        values = source.value
        if isinstance(target, ast.Tuple) and isinstance(values, ast.Tuple):
            words = [getattr(part, "id", "") for part in target.elts]
            if len(values.elts) == len(words) and words.count(name) == 1:
                return self.form_of(values.elts[words.index(name)])
        return self._scalar(node, name, source)

    def _name_at(self, name: str, statement: ast.stmt) -> Polynomial:
        """Return the form of a name before a statement."""
        word = ast.copy_location(ast.Name(name, ast.Load()), statement)
        self.parents[id(word)] = statement
        word.end_lineno = word.end_col_offset = None
        return self._name(word)

    def _scalar(self, node: ast.expr, name: str, source: Any) -> Polynomial:
        """Return a scalar by the name that it has."""
        if self.dims_of(node) != ():
            raise NoIndex
        return self._atom(name, ((name, source),), self._positive(node), False)

    def _atom(
        self, text: str, defined: Any, positive: bool, fixed: bool, multiple: int = 1
    ) -> Polynomial:
        new = _Atom(tuple(defined), positive, fixed, multiple)
        old = self.atoms.setdefault(text, new)
        if old.defined != new.defined:  # one text, two values
            raise NoIndex
        return Polynomial.of(text)

    def least(self, node: ast.expr) -> list[Polynomial]:
        """Return numbers of which the least is an expression's value."""
        if isinstance(node, ast.Name):
            source = self.reaching(node.id, node)
            value = source.value if isinstance(source, ast.Assign) else None
            target = source.targets[0] if isinstance(source, ast.Assign) else None
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                words = [getattr(part, "id", "") for part in target.elts]
                value = value.elts[words.index(node.id)] if words.count(node.id) == 1 else None
            if value is not None:
                return self.least(value)
        if isinstance(node, ast.Call) and not node.keywords:
            if ast.unparse(node.func) == "min" or self.called(node) is language.minimum:
                return [form for arg in node.args for form in self.least(arg)]
        return [self.form_of(node)]

    def _variable(self, name: str, loop: ast.For) -> Polynomial:
        first, _, step = self._bounds(loop)
        number = step.number
        if number is None or number <= 0:
            raise NoIndex
        positive = all(
            count >= 0 and all(self.atoms[n].positive for n in names if n in self.atoms)
            for names, count in first.terms.items()
        )
        multiple = gcd(number, self.multiple_of(first))
        return self._atom(name, ((name, loop),), positive, False, multiple)

    def _bounds(self, loop: ast.For) -> tuple[Polynomial, Any, Polynomial]:
        call = loop.iter
        if not isinstance(call, ast.Call) or not (
            self.called(call) is tl.range or ast.unparse(call.func) == "range"
        ):
            raise NoIndex
        if not call.args or len(call.args) > 3:
            raise NoIndex
        zero, one = Polynomial.of(0), Polynomial.of(1)
        first = self.form_of(call.args[0]) if len(call.args) > 1 else zero
        return first, None, self.form_of(call.args[2]) if len(call.args) == 3 else one

    def _carried(self, node: ast.Name, loop: ast.For) -> Polynomial:
        """Return the value that a variable has in a step of a loop that moves it on by the same distance."""
        name = node.id
        moves = [s for s in loop.body if name in stores(s)]
        inner = [s for s in nodes_in(loop) if isinstance(s, ast.stmt) and s is not loop
                 and name in stores(s)]  # fmt: skip
        if len(moves) != 1 or inner != moves or not isinstance(loop.target, ast.Name):
            raise NoIndex
        move: Any = moves[0]
        if isinstance(move, ast.AugAssign) and isinstance(move.op, ast.Add):
            distance = self.form_of(move.value)
        else:
            distance = self._distance(name, move)
        first, _, step = self._bounds(loop)
        variable = self._variable(loop.target.id, loop)
        changed = stores(loop)
        for word in distance.names | first.names:
            atom = self.atoms.get(word)
            if atom is None or {one for one, _ in atom.defined} & changed:
                raise NoIndex
        each = distance.over(step)
        if each is None:
            raise NoIndex
        begin = self._name_at(name, loop)
        return begin + each * (variable - first)

    def _distance(self, name: str, move: Any) -> Polynomial:
        """Return the distance of `x = x + distance`."""
        value = getattr(move, "value", None)
        if not isinstance(move, ast.Assign) or not isinstance(value, ast.BinOp):
            raise NoIndex
        if not isinstance(value.op, ast.Add) or getattr(value.left, "id", "") != name:
            raise NoIndex
        return self.form_of(value.right)

    def _operation(self, node: ast.BinOp) -> Polynomial:
        if isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            one, other = self.form_of(node.left), self.form_of(node.right)
            if isinstance(node.op, ast.Add):
                return one + other
            if isinstance(node.op, ast.Sub):
                return one - other
            if self._varies(one) and self._varies(other):
                raise NoIndex
            return one * other
        dims = self.dims_of(node)
        if isinstance(node.op, ast.Mod) and dims:
            return self._wrapped(self.form_of(node.left), self.form_of(node.right))
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            one, other = self.form_of(node.left), self.form_of(node.right)
            if one.number is not None and other.number:
                floor = isinstance(node.op, ast.FloorDiv)
                return Polynomial.of(
                    one.number // other.number if floor else one.number % other.number
                )
        return self._opaque(node)

    def _varies(self, form: Polynomial) -> bool:
        return bool(form.names & set(self.ranges))

    def _wrapped(self, index: Polynomial, bound: Polynomial) -> Polynomial:
        names = index.names & set(self.ranges)
        if len(names) != 1 or self._varies(bound):
            raise NoIndex
        (name,) = names
        known = self.ranges[name]
        if index.terms.get((name,)) != 1 or known.bound is not None:
            raise NoIndex
        return self._range(Range(known.size, known.axis, index - Polynomial.of(name), bound))

    def _range(self, new: Range) -> Polynomial:
        name = next((n for n, one in self.ranges.items() if one == new), "")
        if not name:
            name = f"[{len(self.ranges)}]"
            self.ranges[name] = new
        return Polynomial.of(name)

    def _widened(self, node: ast.Subscript) -> Polynomial:
        """Return the form of `x[:, None]` and `x[None, :]`."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        kept = [i for i, part in enumerate(parts) if isinstance(part, ast.Slice)]
        new = [p for p in parts if isinstance(p, ast.Constant) and p.value is None]
        if len(parts) != 2 or len(kept) != 1 or len(new) != 1:
            raise NoIndex
        return self._along(self.form_of(node.value), kept[0])

    def _along(self, form: Polynomial, axis: int) -> Polynomial:
        """Return a vector as a tensor along a dimension."""
        total = Polynomial.of(0)
        for term in form.each():
            for name in term.names & set(self.ranges):
                known = self.ranges[name]
                if known.axis is not None:
                    raise NoIndex
                moved = self._range(Range(known.size, axis, known.begin, known.bound))
                quotient = term.over(Polynomial.of(name))
                assert quotient is not None
                term = quotient * moved
            total += term
        return total

    def _call(self, node: ast.Call) -> Polynomial:
        called = self.called(node)
        if called is language.arange:
            first, last = argument(node, 0, "start"), argument(node, 1, "end")
            sides = [self.form_of(one).number for one in (first, last) if one is not None]
            if len(sides) != 2 or None in sides:
                raise NoIndex
            return Polynomial.of(sides[0]) + self._range(Range(sides[1] - sides[0]))  # type: ignore[arg-type,operator]
        if called in UNTOUCHED and node.args:
            return self.form_of(node.args[0])
        if called is language.expand_dims and len(node.args) == 2:
            axis = self.form_of(node.args[1]).number
            if axis not in (0, 1):
                raise NoIndex
            return self._along(self.form_of(node.args[0]), 1 - axis)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to" and called is None:
            kind = ast.unparse(node.args[0] if node.args else node).rpartition(".")[2]
            if kind in ("int32", "int64"):
                form = self.form_of(node.func.value)
                self.widened |= form.names if kind == "int64" else set()
                return form
        return self._opaque(node)

    def _opaque(self, node: ast.expr) -> Polynomial:
        """Return a scalar expression as a name of its own."""
        if self.dims_of(node) != () or not self._repeats(node):
            raise NoIndex
        words = sorted(mentions(node) - self._modules())
        defined = [(word, self.reaching(word, node)) for word in words]
        text = " ".join(ast.unparse(node).split())
        if not isinstance(node, ast.Call):
            text = f"({text})"
        fixed = all(source in (_PARAMETER, _GLOBAL) for _, source in defined)
        own = any(self.called(n) in POSITIVE for n in nodes_in(node))
        return self._atom(text, defined, self._positive(node), fixed and not own)

    def _modules(self) -> set[str]:
        return {name for name, value in self.scope.items() if not isinstance(unwrap(value), int)}

    def _repeats(self, node: ast.expr) -> bool:
        """Return True if an expression may be evaluated again."""
        known = (*POSITIVE, *_BOUNDED)
        for part in nodes_in(node):
            if isinstance(part, ast.Call):
                method = isinstance(part.func, ast.Attribute) and part.func.attr == "to"
                plain = isinstance(part.func, ast.Name) and part.func.id in ("min", "max")
                if self.called(part) not in known and not method and not plain:
                    return False
        return True

    def _positive(self, node: Any, deep: int = 0) -> bool:
        """Return True if a scalar is not below 0; parameters are taken for sizes."""
        if node is None or deep > _MOST_DEEP:
            return False
        return is_positive(node, lambda name: self._positive_name(name, deep + 1), self.called)

    def _positive_name(self, node: ast.Name, deep: int) -> bool:
        try:
            source = self.reaching(node.id, node)
        except NoIndex:
            return False
        if source in (_PARAMETER, _GLOBAL):
            return True
        if isinstance(source, ast.For):
            call = source.iter
            first = call.args[0] if isinstance(call, ast.Call) and len(call.args) > 1 else None
            known = node.id in stores(source.target)
            return known and (first is None or self._positive(first, deep))
        if not isinstance(source, ast.Assign):
            return False
        target, value = source.targets[0], source.value
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        words = [getattr(part, "id", "") for part in names]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            return self._positive(value.elts[words.index(node.id)], deep)
        if isinstance(target, ast.Name) and self._positive(value, deep):
            return True
        if not isinstance(value, ast.Call):
            return False
        # A function, as the one that orders programs by groups of rows.
        results = positive_results(self.called(value), value, lambda arg: self._positive(arg, deep))
        signs: dict[str, bool] = dict(zip(words, results or ()))
        return signs.get(node.id, False)
