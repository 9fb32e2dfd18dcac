"""The largest elements of rows, and running sums."""

from gluon_kernels.topk.ops import TopK, topk
from gluon_kernels.topk.sums import cumsum

__all__ = ["TopK", "cumsum", "topk"]
