"""Quantization of rows and blocks, and layers with quantized weights."""

from gluon_kernels.quant.layer import linear
from gluon_kernels.quant.ops import quantize

__all__ = ["linear", "quantize"]
