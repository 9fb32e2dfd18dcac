"""Products of matrices."""

from gluon_kernels.gemm.fp8 import matmul_fp8
from gluon_kernels.gemm.invariant_ops import matmul_batch_invariant
from gluon_kernels.gemm.ops import bmm, matmul

__all__ = ["bmm", "matmul", "matmul_batch_invariant", "matmul_fp8"]
