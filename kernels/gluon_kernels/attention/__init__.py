"""Attention over whole sequences, and rotary embedding."""

from gluon_kernels.attention.ops import attention
from gluon_kernels.attention.rotary import rotary

__all__ = ["attention", "rotary"]
