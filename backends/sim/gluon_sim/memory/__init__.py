"""Simulated memory: global, shared and tensor memory, asynchronous copies, barriers."""
