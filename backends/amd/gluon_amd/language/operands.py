"""Checks that the units share; each raises before the builder can abort."""

from __future__ import annotations

from typing import Any

from gluon_core.vendor import check_k_width, check_matmul_shapes, shape_of, tensor

__all__ = ["check_matmul"]


def check_matmul(semantic: Any, a: tensor, b: tensor, acc: tensor) -> None:
    """Shapes that multiply, and operands of `acc`'s layout. A tensor may be smaller than the
    instruction: the compiler repeats it along M and N and makes up for repetitions along K."""
    check_matmul_shapes(shape_of(a), shape_of(b), shape_of(acc))
    semantic.check_dot_operands(a, b, acc)
    check_k_width(a, b)
