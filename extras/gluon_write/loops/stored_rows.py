"""Prove that no step of a loop needs its masks in blocks that store anything.

    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    for start in range(0, gl.program_id(0) * BM, BN):
        columns = start + gl.arange(0, BN)
        score = gl.where(columns[None, :] < length, score, -1e30)
        ...
    gl.store(out + rows[:, None] * D + depth[None, :], acc, mask=rows[:, None] < length)

The last step begins at `gl.program_id(0) * BM - BN` where BM is a multiple of BN, and the mask is false in a step from
`length - BN + 1` on: in a block whose first row is behind the length alone. Such a block stores nothing, so it may compute anything,
unless its scores decide where it loads, how often a loop runs, or what other memory gets.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Iterator, Optional, Sequence

from gluon_core import language, portable
from gluon_write.text.polynomials import Polynomial
from gluon_write.text.syntax import argument, calls_in, nodes_in, reads, stores
from gluon_write.tracing.index_forms import IndexForms, NoIndex
from gluon_write.tracing.sketch import Sketch

__all__ = ["StoredRows"]

_EFFECTS = re.compile(r"store|atomic|print|(?<!static_)assert|asm|copy|barrier|arrive|fetch")
_ADDRESSES = re.compile(r"load|gather|index|slice|range")
_AT_MOST_ONE = re.compile(r"min\(max\(\w+, 0\), 1\)")
_FROM_ONE = re.compile(r"max\((.+), 1\)")
_INDEX = re.compile(r"\w+\.(program_id|num_programs)\(\w*=?\d\)")
_ONE = Polynomial.of(1)


class StoredRows(IndexForms):
    """Read the rows that a kernel stores.

    Args:
        fn: the kernel itself. drawn: its trace.
    """

    def __init__(self, fn: Any, drawn: Sketch):
        super().__init__(fn, drawn)
        self.limits: Optional[list[tuple[Polynomial, Polynomial]]] = None

    def leave(self, loop: ast.For, names: set[str], ends: Sequence[str]) -> bool:
        """Return True if masks leave all steps as they are in each block that stores anything.

        Args:
            loop: of another tree of the same text. names: that the masked statements assign.
            ends: values of the loop's variable; masks leave the steps before each of them as they are.
        """
        own = next((n for n in nodes_in(self.tree) if _place(n) == _place(loop)), None)
        if not isinstance(own, ast.For) or not isinstance(own.iter, ast.Call):
            return False
        try:
            if not self._are_limited(names):
                return False
            first, _, step = self._bounds(own)
            if step.number is None or step.number <= 0 or len(own.iter.args) < 2:
                return False
            last = self.form_of(own.iter.args[1])
            whole = self.multiple_of(last - first) % step.number == 0
            behind = last - step if whole else last - _ONE  # the last step begins there or before
            return all(
                self._is_before(behind, self._form_at(end, own), last - first) for end in ends
            )
        except NoIndex:
            return False

    def reach(self, first: ast.For, second: ast.For, names: set[str]) -> bool:
        """Return True if a loop has steps in each block that stores anything and has steps of the loop before it.

        Args:
            first, second: of another tree of the same text. names: the results of both.
        """
        loops = self.for_loops()
        own = [
            next((n for n in loops if _place(n) == _place(one)), None) for one in (first, second)
        ]
        if None in own or any(len(getattr(n.iter, "args", ())) < 2 for n in own if n):
            return False
        try:
            if not self._are_limited(names):
                return False
            begin, span = self.form_of(own[1].iter.args[0]), self.form_of(own[0].iter.args[1])  # type: ignore[union-attr]
            span = span - self.form_of(own[0].iter.args[0])  # type: ignore[union-attr]
            return all(
                self._is_at_most_zero(begin + _ONE - end) or self._is_before(begin, end, span)
                for end in self.least(own[1].iter.args[1])  # type: ignore[union-attr]
            )
        except NoIndex:
            return False

    def _are_limited(self, names: set[str]) -> bool:
        """Return True if stores have limits, and names decide nothing but what is stored.

        Raises:
            NoIndex: the limits cannot be read.
        """
        if self.limits is None:
            self.limits = list(self._limits())
        return bool(self.limits) and not self._decide(names)

    def _form_at(self, text: str, loop: ast.For) -> Polynomial:
        """Return the form of an expression in front of a loop."""
        node = ast.parse(text, mode="eval").body
        for part in nodes_in(node):
            for child in ast.iter_child_nodes(part):
                self.parents[id(child)] = part
        self.parents[id(node)] = loop
        self.added = node  # its parts keep their ids
        return self.form_of(node)

    # -- what a block stores ------------------------------------------------------------------------

    def _limits(self) -> Iterator[tuple[Polynomial, Polynomial]]:
        """Yield numbers of which the first is less than the second in each block that stores anything."""
        if any(_EFFECTS.search(jit.src) for jit in self.drawn.jits[1:]):
            return
        if any(
            isinstance(n, ast.While)
            for jit in self.drawn.jits
            for n in nodes_in(ast.parse(jit.src))
        ):
            return
        calls = calls_in(self.tree)
        wrote = [c for c in calls if _EFFECTS.search(ast.unparse(c.func))]
        if len(wrote) != 1:
            return
        self.wrote = wrote[0]
        if self.called(self.wrote) is portable.store:
            yield from self._limits_of_tile(self.wrote)
        elif self.called(self.wrote) is language.store:
            mask = argument(self.wrote, 2, "mask")
            yield from self._limits_of_mask(mask) if mask is not None else ()

    def _limits_of_tile(self, call: ast.Call) -> Iterator[tuple[Polynomial, Polynomial]]:
        """Yield the first place of a stored tile and the extent, along each dimension."""
        tiles, place = argument(call, 0, "ptr"), argument(call, 1, "offsets")
        maker = self.reaching(tiles.id, call) if isinstance(tiles, ast.Name) else None
        described = maker.value if isinstance(maker, ast.Assign) else None
        if self.called(described) is not portable.descriptor or not isinstance(place, ast.List):
            return
        assert isinstance(described, ast.Call)
        shape = argument(described, 1, "shape")
        if not isinstance(shape, ast.List):
            return
        for one, size in zip(place.elts, shape.elts):
            try:
                yield self.form_of(one), self.form_of(size)
            except NoIndex:
                continue

    def _limits_of_mask(self, mask: ast.expr) -> Iterator[tuple[Polynomial, Polynomial]]:
        """Yield the least value of a vector that a mask holds below a number, and the number."""
        if isinstance(mask, ast.Name):
            source = self.reaching(mask.id, mask)
            if isinstance(source, ast.Assign) and isinstance(source.targets[0], ast.Name):
                yield from self._limits_of_mask(source.value)
        elif isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
            yield from self._limits_of_mask(mask.left)
            yield from self._limits_of_mask(mask.right)
        elif isinstance(mask, ast.Compare) and len(mask.ops) == 1:
            if not isinstance(mask.ops[0], ast.Lt):
                return
            try:
                rows, size = self.form_of(mask.left), self.form_of(mask.comparators[0])
            except NoIndex:
                return
            ranges = set(self.ranges)
            more = rows.having(lambda names: bool(ranges & set(names)))
            known = all(count > 0 and len(names) == 1 for names, count in more.terms.items())
            plain = all(self.ranges[name].bound is None for name in more.names)
            if known and plain and not size.names & ranges:
                yield rows - more, size

    # -- steps --------------------------------------------------------------------------------------

    def _is_before(self, begin: Polynomial, end: Polynomial, span: Polynomial) -> bool:
        """Return True if `begin < end` in each block that stores anything and has steps: those with 0 < span."""
        assert self.limits is not None
        for place, size in self.limits:
            name = next(iter(size.names)) if len(size.terms) == 1 and len(size.names) == 1 else ""
            match = _FROM_ONE.fullmatch(name) if size == Polynomial.of(name) else None
            inner = Polynomial.of(match[1]) if match and match[1].isidentifier() else None
            if inner is None:  # place < size
                if self._is_at_most_zero(begin - end - (place - size)):
                    return True
            elif self._is_at_most_zero(begin - end - (place - inner)):
                if self._is_at_most_zero(span - place):  # place < 1 where the extent is 1: no steps
                    return True
        return False

    def _is_at_most_zero(self, form: Polynomial) -> bool:
        """Return True for a sum that is surely not above 0."""
        most = form.terms.get((), 0)
        for names, count in form.terms.items():
            if names and all(map(_AT_MOST_ONE.fullmatch, names)):
                most += max(count, 0)
            elif names and (count > 0 or not all(map(_INDEX.fullmatch, names))):
                return False
        return most <= 0

    # -- what scores decide -------------------------------------------------------------------------

    def _decide(self, names: set[str]) -> bool:
        """Return True if values that are computed from names decide more than what the kernel stores."""
        known = set(names)
        statements = [n for n in nodes_in(self.tree) if isinstance(n, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For))]  # fmt: skip
        while True:
            more = {n for s in statements if not isinstance(s, ast.For) and reads(s) & known for n in stores(s)}  # fmt: skip
            if more <= known:
                break
            known |= more
        value = argument(self.wrote, 2 if self.called(self.wrote) is portable.store else 1, "value")
        for node in nodes_in(self.tree):
            if isinstance(node, (ast.If, ast.IfExp)) and reads(node.test) & known:
                return True
            if isinstance(node, ast.For) and reads(node.iter) & known:
                return True
            if not isinstance(node, ast.Call):
                continue
            called = self.called(node)
            if node is self.wrote:
                rest = [
                    one
                    for one in (*node.args, *(k.value for k in node.keywords))
                    if one is not value
                ]
                if any(reads(one) & known for one in rest):
                    return True
            elif (
                _ADDRESSES.search(ast.unparse(node.func))
                or called in self.drawn.jits
                and _decides(called)
            ):
                own = [*node.args, *(k.value for k in node.keywords)]
                if any(reads(one) & known for one in own):
                    return True
        return False


def _decides(fn: Any) -> bool:
    """Return True for a function with loads, branches or loops."""
    parts = list(nodes_in(ast.parse(fn.src)))
    branches = any(isinstance(n, (ast.If, ast.IfExp, ast.For, ast.While)) for n in parts)
    calls = (ast.unparse(n.func) for n in parts if isinstance(n, ast.Call))
    return branches or any(map(_ADDRESSES.search, calls))


def _place(node: ast.AST) -> tuple[Any, ...]:
    return type(node), getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
