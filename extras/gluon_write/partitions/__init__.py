"""Warp specialization: partitions that copy, multiply and store, and the programs that walk over blocks."""
