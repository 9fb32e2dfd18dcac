"""The trace of a kernel: the program of ops that the builder records."""
