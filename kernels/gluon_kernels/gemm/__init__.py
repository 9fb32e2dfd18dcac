"""Products of matrices."""

from gluon_kernels.gemm.fp8 import matmul_fp8
from gluon_kernels.gemm.loss import linear_cross_entropy
from gluon_kernels.gemm.ops import bmm, matmul

__all__ = ["bmm", "linear_cross_entropy", "matmul", "matmul_fp8"]
