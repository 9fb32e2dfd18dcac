"""Quantization of rows and blocks."""

from gluon_kernels.quant.ops import quantize

__all__ = ["quantize"]
