"""Quantization of rows and blocks."""
