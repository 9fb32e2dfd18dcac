"""Hand operands of `mma.sync` that change their layout on through buffers whose rows and columns are swizzled.

    x = (codes.to(gl.float32) * scale).to(gl.float16)
    acc = gl.portable.mma(q, x, acc)

becomes

    x_buffer = gl.allocate_shared_memory(x.dtype, x.shape, value=x)
    x_operand = x_buffer.load()
    acc = gl.portable.mma(q, x_operand, acc)

A conversion loads what neighbours of the old layout have stored: 16 bits at a time, where these are apart in the new
one. From a buffer `ldmatrix` loads an operand.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Collection

from gluon_core.layouts import BlockedLayout
from gluon_write.rewrites.operand_buffers import Buffered, Loops
from gluon_write.solver.prices import crosses_warps
from gluon_write.solver.solve import Solution, plan_of
from gluon_write.solver.unknowns import Graph
from gluon_write.text.form import free_name, one_line, rewritten
from gluon_write.text.syntax import operands_of
from gluon_write.tracing.sketch import Place, Sketch

__all__ = ["converted_operands", "through_buffers"]

_BITS = 16
_INSTRUCTION = [16, 8]  # rows and columns of `mma.sync`


def converted_operands(graph: Graph, solution: Solution) -> set[Place]:
    """Return the places of operands of `mma.sync` that a solution converts from a tensor's tiling, or across warps."""
    places: set[Place] = set()
    for relation in graph.relations:
        source, result = (solution.chosen[one.number] for one in (relation.source, relation.result))
        parent = getattr(result, "parent", None) if hasattr(result, "operand_index") else None
        unit = list(getattr(parent, "instr_shape", ())) == _INSTRUCTION
        if relation.wrap is None or relation.bits != _BITS or not unit:
            continue
        if relation.kind != "same" or plan_of(relation, source, result)[1] is None:
            continue
        if isinstance(source, BlockedLayout) or crosses_warps(
            source, result, relation.source_shape
        ):
            places.add(relation.wrap[1][1])
    return places


def through_buffers(fn: Any, drawn: Sketch, places: Collection[Place]) -> Any:
    """Return a kernel whose operands at some places come from buffers, or the kernel."""

    def text_of(jit: Any, number: int) -> Any:
        own = {place for place in places if place[-1] == number}
        return _Products(jit, number, drawn, own).text() if own else None

    return rewritten(fn, drawn.jits, text_of) if places else fn


class _Products(Buffered):
    def __init__(self, fn: Any, number: int, drawn: Sketch, places: Collection[Place]):
        super().__init__(fn, number, drawn)
        self.places = places

    def suits(self, call: ast.Call) -> bool:
        return any(map(self._is_converted, operands_of(call)))

    def _is_converted(self, operand: ast.expr) -> bool:
        one_line_alone = operand.lineno == operand.end_lineno
        return one_line_alone and self.place_of(operand) in self.places

    def product(
        self,
        call: ast.Call,
        statement: ast.stmt,
        loops: Loops,
        buffers: dict[str, str],
        loaded: dict[tuple[str, ...], list[str]],
    ) -> list[tuple[ast.expr, str]]:
        lines = self.before.setdefault(statement.lineno, [])
        edits: list[tuple[ast.expr, str]] = []
        for operand in filter(self._is_converted, operands_of(call)):
            name = self.buffer(one_line(self.text_of(operand)), operand, statement, loops, buffers)
            if (name,) not in loaded:
                loaded[(name,)] = [free_name(re.sub("_buffer", "_operand", name), self.taken)]
                lines.append(f"{loaded[(name,)][0]} = {name}.load()")
            edits.append((operand, loaded[(name,)][0]))
        return edits
