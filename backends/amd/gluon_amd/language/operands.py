"""Checks that the units share; each raises before the builder can abort."""

from __future__ import annotations

from gluon_core.plugin.ops import tl
from gluon_core.plugin.semantic import SemanticLayer

__all__ = ["check_matmul"]


def check_matmul(semantic: SemanticLayer, a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> None:
    """Shapes that multiply, and operands of `acc`'s layout. A tensor may be smaller than the
    instruction: the compiler repeats it along M and N and makes up for repetitions along K."""
    semantic.check_matmul_shapes(semantic.shape_of(a), semantic.shape_of(b), semantic.shape_of(acc))
    semantic.check_dot_operands(a, b, acc)
    semantic.check_k_width(a, b)
