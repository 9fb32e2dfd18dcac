"""Products of matrices."""

from gluon_kernels.gemm.ops import bmm, matmul

__all__ = ["bmm", "matmul"]
