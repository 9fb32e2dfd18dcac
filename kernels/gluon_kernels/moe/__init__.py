"""Products of groups of rows with the matrix of their expert."""

from gluon_kernels.moe.layer import moe
from gluon_kernels.moe.ops import grouped_matmul

__all__ = ["grouped_matmul", "moe"]
