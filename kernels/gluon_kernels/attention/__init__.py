"""Attention over whole sequences."""

from gluon_kernels.attention.ops import attention

__all__ = ["attention"]
