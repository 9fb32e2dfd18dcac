"""Checks that the units share; each raises before the builder can abort."""

from __future__ import annotations

from typing import Any

from gluon_core.errors import LayoutError
from gluon_core.semantic.base import shape_of
from gluon_core.semantic.operands import check_matmul_shapes

__all__ = ["check_matmul"]


def check_matmul(semantic: Any, a: Any, b: Any, acc: Any) -> None:
    """Shapes that multiply, and operands of `acc`'s layout. A tensor may be smaller than the
    instruction: the compiler repeats it along M and N and makes up for repetitions along K."""
    check_matmul_shapes(shape_of(a), shape_of(b), shape_of(acc))
    semantic.check_dot_operands(a, b, acc)
    widths = a.type.layout.k_width, b.type.layout.k_width
    if widths[0] != widths[1] or widths[0] < 1:
        raise LayoutError(
            "the operands' k_width does not fit",
            argument="k_width",
            expected="one width for both",
            got=f"{widths[0]} and {widths[1]}",
        )
