"""Traced kernels: their ops, and the index and pointer tensors that they compute."""
