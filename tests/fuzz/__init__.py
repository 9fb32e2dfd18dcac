"""Whole kernels at random, run on the simulator against NumPy and through the compilers.

    python -m tests.fuzz --count 300 --log kernels.jsonl

A run that was stopped goes on where it was: what the log has is not done again. A kernel that
fails is made smaller, as long as it fails alike, and written beside the log.
"""
