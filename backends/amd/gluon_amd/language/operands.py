"""Checks that the units share; each raises before the builder can abort."""

from __future__ import annotations

from typing import Any

from gluon_core.errors import LayoutError, ShapeError
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.operands import handle_or_absent

__all__ = ["check_matmul", "handle_or_absent"]


def check_matmul(semantic: Any, a: Any, b: Any, acc: Any) -> None:
    """Shapes that multiply, and operands of `acc`'s layout. A tensor may be smaller than the
    instruction: the compiler repeats it along M and N and makes up for repetitions along K."""
    shapes = [shape_of(value) for value in (a, b, acc)]
    for name, shape in zip(("a", "b", "acc"), shapes):
        if len(shape) not in (2, 3) or len(shape) != len(shapes[2]):
            raise ShapeError(
                "must be a matrix, or a batch of them as acc is", argument=name, got=shape
            )
    (*batch_a, m, k), (*batch_b, rows, n), result = shapes
    if rows != k or batch_a != batch_b or result != [*batch_a, m, n]:
        raise ShapeError(
            "the shapes do not multiply",
            expected="a [M, K], b [K, N], acc [M, N]",
            got=", ".join(map(str, shapes)),
        )
    semantic.check_dot_operands(a, b, acc)
    widths = a.type.layout.k_width, b.type.layout.k_width
    if widths[0] != widths[1] or widths[0] < 1:
        raise LayoutError(
            "the operands' k_width does not fit",
            argument="k_width",
            expected="one width for both",
            got=f"{widths[0]} and {widths[1]}",
        )
