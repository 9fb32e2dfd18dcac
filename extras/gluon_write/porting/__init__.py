"""Port kernels of plain Triton."""
