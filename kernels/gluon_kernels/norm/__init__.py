"""Softmax, norms, gates and losses of rows."""

from gluon_kernels.norm.gated import swiglu
from gluon_kernels.norm.linear_loss import linear_cross_entropy
from gluon_kernels.norm.loss import cross_entropy
from gluon_kernels.norm.ops import layer_norm, rms_norm, softmax

__all__ = ["cross_entropy", "layer_norm", "linear_cross_entropy", "rms_norm", "softmax", "swiglu"]
