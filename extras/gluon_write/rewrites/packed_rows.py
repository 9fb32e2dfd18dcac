"""Load a row of packed numbers once, where several rows of a tile are parts of it.

    for k in range(0, K, BK):
        index = k + gl.arange(0, BK)
        words = gl.load(w_ptr + (index // 8)[:, None] * N + columns[None, :])
        weights = ((words >> (index % 8 * 4)[:, None]) & 15) - 8
        acc = gl.portable.mma(x, weights.to(gl.float16), acc)

loads each word eight times, and copies it to shared memory as often. Here it is loaded once:

        words_once = gl.load(w_ptr + (k // 8 + gl.arange(0, 8))[:, None] * N + columns[None, :])
        words_wide, words_rows = gl.broadcast(gl.expand_dims(words_once, 1), gl.zeros([1, 8, 1], words_once.dtype))
        words = gl.reshape(words_wide, [64, 128])

Scales of groups of rows are loaded like that, too.
"""

from __future__ import annotations

import ast
from typing import Any, Iterator, Optional

from gluon_core import language, portable
from gluon_write.text.form import edited, factor, free_name, one_line, rewritten
from gluon_write.text.polynomials import Polynomial
from gluon_write.text.syntax import nodes_in
from gluon_write.tracing.index_forms import IndexForms, NoIndex, Range
from gluon_write.tracing.sketch import Sketch

__all__ = ["with_packed_rows"]

_RANK = 2


def with_packed_rows(fn: Any, drawn: Sketch) -> Any:
    """Return a kernel whose loops of products load no row of a tile several times, or the kernel."""
    return rewritten(fn, drawn.jits, lambda jit, n: None if n else _Packed(jit, drawn).text())


class _Packed(IndexForms):
    def text(self) -> Optional[str]:
        self.taken = self.names_in_use()
        edits: list[tuple[ast.stmt, list[str]]] = []
        for statement in sorted(self._loads(), key=lambda s: s.lineno, reverse=True):
            if self.space and self.begins_line(statement) and self.ends_line(statement):
                indent = " " * statement.col_offset
                lines = [indent + line for line in self._once(statement)]
                edits += [(statement, lines)] if lines else []
        return self.with_lines(edits)

    def _loads(self) -> Iterator[ast.Assign]:
        """Yield the loads of tiles in the blocks of loops of products."""
        for loop in nodes_in(self.tree):
            if not isinstance(loop, ast.For):
                continue
            if not any(self.called(n) is portable.mma for s in loop.body for n in nodes_in(s)):
                continue
            for statement in loop.body:
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    plain = isinstance(statement.targets[0], ast.Name)
                    if plain and self.called(statement.value) is language.load:
                        yield statement

    def _once(self, statement: ast.Assign) -> list[str]:
        """Return the lines that load each row once; [] where no rows are alike."""
        call = statement.value
        assert isinstance(call, ast.Call) and isinstance(statement.targets[0], ast.Name)
        dims = self.dims_of(call)
        parts = [*call.args, *(word.value for word in call.keywords)]
        if dims is None or len(dims) != _RANK or any(isinstance(p, ast.Starred) for p in parts):
            return []
        try:
            vectors = [pair for part in parts for pair in self._vectors(part)]
            for axis in range(_RANK):
                along = [node for node, own in vectors if own == axis]
                if along and (alike := self._alike(along, dims[axis], statement)):
                    return self._lines(statement, along, axis, dims, *alike)
        except NoIndex:
            pass
        return []

    def _vectors(self, node: ast.expr) -> Iterator[tuple[ast.expr, int]]:
        """Yield the vectors in an expression, each with its dimension.

        Raises:
            NoIndex: it has other tensors.
        """
        dims = self.dims_of(node)
        if isinstance(node, ast.Subscript) and dims:
            sides = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            kept = [i for i, side in enumerate(sides) if isinstance(side, ast.Slice)]
            if len(sides) != _RANK or len(kept) != 1:
                raise NoIndex
            inner = self.dims_of(node.value)
            if inner is None or len(inner) != 1:
                raise NoIndex
            if isinstance(node.value, (ast.Compare, ast.BoolOp)):
                for part in ast.iter_child_nodes(node.value):
                    if isinstance(part, ast.expr) and self.dims_of(part):
                        yield part, kept[0]
            else:
                yield node.value, kept[0]
        elif isinstance(node, (ast.BinOp, ast.Compare)):
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.expr):
                    yield from self._vectors(part)
        elif dims:
            raise NoIndex

    def _alike(
        self, vectors: list[ast.expr], size: int, use: ast.stmt
    ) -> Optional[tuple[int, Polynomial]]:
        """Return how many neighbours along a dimension are alike, and the first number of these vectors before the division; None where none are."""
        facts = {self._quotient(node) for node in vectors}
        if len(facts) != 1 or None in facts:
            return None
        count, form = facts.pop()  # type: ignore[misc]
        ranges = form.names & set(self.ranges)
        known = self.ranges[next(iter(ranges))] if len(ranges) == 1 else None
        if known != Range(size) or size % count:
            return None
        first = form - Polynomial.of(*ranges)
        if self._varies(first) or self.multiple_of(first) % count:
            return None
        return (count, first) if self.is_known(first, use, positive=True) else None

    def _quotient(self, node: ast.expr) -> Optional[tuple[int, Polynomial]]:
        """Return the divisor of a vector, and the form of its dividend; None of others."""
        if isinstance(node, ast.Name):
            source = self.reaching(node.id, node)
            value = source.value if isinstance(source, ast.Assign) else None
            return self._quotient(value) if isinstance(value, ast.BinOp) else None
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.FloorDiv):
            return None
        count = self.form_of(node.right).number
        return (count, self.form_of(node.left)) if count and count > 1 else None

    def _lines(
        self,
        statement: ast.Assign,
        along: list[ast.expr],
        axis: int,
        dims: tuple[int, ...],
        count: int,
        first: Polynomial,
    ) -> list[str]:
        gl, name = self.space, statement.targets[0].id  # type: ignore[attr-defined]
        once, wide, rows = (
            free_name(f"{name}_{end}", self.taken) for end in ("once", "wide", "rows")
        )
        number = first.number
        start = str(number // count) if number is not None else f"{factor(first.text())} // {count}"
        vector = f"{gl}.arange(0, {dims[axis] // count})"
        if number != 0:
            vector = f"({start} + {vector})"
        shorter = ast.parse(edited(self.source, [(node, vector) for node in along]))
        load = next(
            node
            for node in nodes_in(shorter)
            if isinstance(node, ast.Assign) and node.lineno == statement.lineno
        )
        shape = [1] * (_RANK + 1)
        shape[axis + 1] = count
        return [
            f"{once} = {one_line(ast.unparse(load.value))}",
            f"{wide}, {rows} = {gl}.broadcast({gl}.expand_dims({once}, {axis + 1}), {gl}.zeros({shape}, {once}.dtype))",
            f"{name} = {gl}.reshape({wide}, {list(dims)})",
        ]
