"""The simulator: runs Gluon kernels on the CPU, in NumPy, behind the same frontend as a GPU."""
