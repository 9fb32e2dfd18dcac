"""The largest elements of rows, and running sums."""

from gluon_kernels.topk.ops import TopK, topk

__all__ = ["TopK", "topk"]
