"""The checks on a running kernel: races, bounds, alignment, uninitialized reads, overflows."""
