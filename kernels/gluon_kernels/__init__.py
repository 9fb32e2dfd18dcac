"""Kernels as a product: operators of PyTorch that launch kernels written in Gluon Core."""

from gluon_kernels.gemm import bmm, matmul

__all__ = ["bmm", "matmul"]

__version__ = "0.1.0"
