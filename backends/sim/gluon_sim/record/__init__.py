"""A kernel as a program of ops: what the builder writes down while a kernel is traced."""
