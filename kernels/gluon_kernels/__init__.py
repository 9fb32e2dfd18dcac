"""Kernels as a product: operators of PyTorch that launch kernels written in Gluon Core."""

__all__: list[str] = []

__version__ = "0.1.0"
