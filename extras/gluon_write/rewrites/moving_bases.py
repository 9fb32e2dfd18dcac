"""Move a scalar pointer from step to step of a loop, where a tile of pointers would move that needs registers for each.

    a_tile = a_ptr + row[:, None] * K + step[None, :]
    for k in range(0, K, BK):
        a = gl.load(a_tile, mask=..., other=0.0)
        a_tile += BK

becomes, for rows that may begin anywhere,

    a_base = a_ptr + gl.program_id(1) * BK
    for k in range(0, K, BK):
        a = gl.load(a_base + row[:, None] * K + gl.arange(0, BK)[None, :], mask=..., other=0.0)
        a_base += BK

Elements that no copy takes are loaded one by one, from addresses of 64 bits each. Here the scalar has 64 bits, rows have the 32 bits
that the kernel computes them with, and neighbours of a row differ by constants of the instructions.
"""

from __future__ import annotations

import ast
from math import prod
from typing import Any, Collection, Iterator, Optional

from gluon_write.text.form import factor, free_name, one_line, rewritten
from gluon_write.text.polynomials import Polynomial
from gluon_write.text.syntax import argument, nodes_in, parts_of, reads, stores
from gluon_write.tracing.index_forms import IndexForms, NoIndex, Range
from gluon_write.tracing.sketch import Place, Sketch, place_of

__all__ = ["with_moving_bases"]


# Pointers of a thread that the registers have room for: on an H200 a product of tiles of 16x16 and 16x32, which have 2 and 4
# of them, took 1.04 of the time with scalars.
_FEW = 4


def with_moving_bases(fn: Any, drawn: Sketch, places: Collection[Place], threads: int) -> Any:
    """Return a kernel whose loops move scalars in place of tiles of pointers, or the kernel.

    Args:
        places: of loads whose elements are loaded one by one. threads: over which tiles are spread.
    """
    return rewritten(
        fn, drawn.jits, lambda jit, n: None if n else _Bases(jit, drawn, threads).text(places)
    )


class _Bases(IndexForms):
    def __init__(self, fn: Any, drawn: Sketch, threads: int):
        super().__init__(fn, drawn)
        self.threads = threads

    def text(self, places: Collection[Place]) -> Optional[str]:
        self.taken = self.names_in_use()
        edits: list[tuple[ast.AST, str]] = []
        for loop in nodes_in(self.tree):
            if isinstance(loop, ast.For) and self.space:
                for name in dict.fromkeys(self._pointers(loop, places)):
                    edits += self._moved(name, loop) or []
        lines = self.source.split("\n")
        for node, new in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):  # type: ignore[attr-defined]
            first, last = node.lineno - 1, (node.end_lineno or 1) - 1  # type: ignore[attr-defined]
            head = lines[first].encode()[: node.col_offset]  # type: ignore[attr-defined]
            tail = lines[last].encode()[node.end_col_offset :]  # type: ignore[attr-defined]
            lines[first : last + 1] = [(head + new.encode() + tail).decode()]
        return "\n".join(lines) if edits else None

    def _pointers(self, loop: ast.For, places: Collection[Place]) -> Iterator[str]:
        """Yield the names of tiles of pointers that loads in the block of a loop take."""
        for statement in loop.body:
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and place_of(call, 0) in places:
                pointer = argument(call, 0, "pointer")
                size = prod(self.dims_of(pointer) or ()) if pointer is not None else 0
                if isinstance(pointer, ast.Name) and size > _FEW * self.threads:
                    yield pointer.id

    def _moved(self, name: str, loop: ast.For) -> Optional[list[tuple[ast.AST, str]]]:
        """Return the edits that move a scalar in place of a tile of pointers; None where that cannot be."""
        own = [n for n in nodes_in(self.tree) if isinstance(n, ast.Name) and n.id == name]
        inside = {id(n) for s in loop.body for n in nodes_in(s)}
        stored = [n for n in own if isinstance(n.ctx, ast.Store)]
        makers = [s for s in map(self.statement_of, stored) if id(s) not in inside]
        moves = [s for s in map(self.statement_of, stored) if id(s) in inside]
        if len(makers) != 1 or name in self.parameters or len(moves) != 1:
            return None
        maker, move = makers[0], moves[0]
        plain = isinstance(maker, ast.Assign) and isinstance(maker.targets[0], ast.Name)
        if not plain or len(maker.targets) != 1 or move not in loop.body:  # type: ignore[attr-defined]
            return None
        if not isinstance(move, ast.AugAssign) or not isinstance(move.op, ast.Add):
            return None
        read = [n for n in own if isinstance(n.ctx, ast.Load)]
        if any(id(n) not in inside for n in read) or self.dims_of(move.value) not in ((), None):
            return None
        try:
            parts = self._parts(maker.value, maker, loop)  # type: ignore[attr-defined]
        except NoIndex:
            return None
        if parts is None:
            return None
        scalars, tensors = parts
        base = free_name(f"{name}_base", self.taken)
        tile = f"({' + '.join([base, *tensors])})"
        return [
            (maker, f"{base} = {' + '.join(scalars)}"),
            (move, f"{base} += {one_line(self.text_of(move.value))}"),
            *((node, tile) for node in read),
        ]

    def _parts(
        self, value: ast.expr, maker: ast.stmt, loop: ast.For
    ) -> Optional[tuple[list[str], list[str]]]:
        """Return the scalars and the tensors whose sum is a tile of pointers; None where a step would compute other ones.

        The first scalar is a pointer.
        """
        terms = list(parts_of(value, ast.Add))
        scalars = [one for one in terms if self.dims_of(one) in ((), None)]
        tensors = [one for one in terms if one not in scalars]
        if not scalars or terms[0] is not scalars[0] or not tensors:
            return None
        changed = {name for s in loop.body for name in stores(s)} | stores(loop.target)
        texts = [one_line(self.text_of(one)) for one in scalars]
        listed = []
        for one in tensors:
            first, text = self._split(one, maker)
            texts += first
            listed.append(text)
            names = reads(ast.parse(text))
            if names & changed or any(self._differs(n, maker, loop) for n in names):
                return None
        return texts, listed

    def _differs(self, name: str, maker: ast.stmt, loop: ast.For) -> bool:
        return self.reaching(name, maker) is not self.reaching(name, loop)

    def _split(self, node: ast.expr, maker: ast.stmt) -> tuple[list[str], str]:
        """Return the scalars of a range of neighbours in memory, and the range without them; of other tensors no scalars."""
        text = one_line(self.text_of(node))
        if isinstance(node, ast.Subscript):
            form = self.form_of(node.value)
            ranges = form.names & set(self.ranges)
            name = next(iter(ranges), "")
            first = form - Polynomial.of(name) if name else form
            known = self.ranges.get(name)
            plain = known is not None and known == Range(known.size) and not self._varies(first)
            if plain and first and self.is_known(first, maker):
                vector = f"{self.space}.arange(0, {known.size})"  # type: ignore[union-attr]
                return [factor(first.text())], f"{vector}[{self.text_of(node.slice)}]"
        return [], factor(text)
