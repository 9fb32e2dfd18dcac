"""Attention over whole sequences and pages, and rotary embedding."""

from gluon_kernels.attention.decode import attention_decode
from gluon_kernels.attention.ops import attention
from gluon_kernels.attention.rotary import rotary

__all__ = ["attention", "attention_decode", "rotary"]
