"""Waves, memory, LDS, counters of outstanding operations, and the loop that runs a program."""
