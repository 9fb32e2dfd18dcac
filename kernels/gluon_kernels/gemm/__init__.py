"""Products of matrices."""

from gluon_kernels.gemm.fp8 import matmul_fp8
from gluon_kernels.gemm.invariant_ops import matmul_batch_invariant
from gluon_kernels.gemm.loss import linear_cross_entropy
from gluon_kernels.gemm.ops import bmm, matmul

__all__ = ["bmm", "linear_cross_entropy", "matmul", "matmul_batch_invariant", "matmul_fp8"]
