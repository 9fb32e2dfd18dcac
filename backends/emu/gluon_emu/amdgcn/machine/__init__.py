"""Waves, memory, LDS, counters of what is outstanding, and the loop that runs a program."""
