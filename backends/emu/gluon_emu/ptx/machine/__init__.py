"""The machine that executes PTX: groups of warps, their memory, barriers and asynchronous copies."""
