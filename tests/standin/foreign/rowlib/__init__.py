"""A library as others write them: Gluon and plain Triton kernels, operators and modules of torch."""

from rowlib.ops import RowNorm, double, fused_softmax, row_sum, scaled

__all__ = ["RowNorm", "double", "fused_softmax", "row_sum", "scaled"]
