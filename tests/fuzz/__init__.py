"""Random programs: one grammar of types, layouts, operands and statements, and three drivers.

- `python -m tests.fuzz --count 300 --log kernels.jsonl` runs whole kernels on the simulator against NumPy and
  through the compilers. A kernel that fails is reduced, as long as it fails alike, and written next to the log.
- `python -m tests.compat.sweep --log programs.jsonl` traces programs of many families by Triton's own Gluon and
  by ours, and kernels whose operands seldom fit (`mixed`) by ours alone.
- `tests/frontend/test_fuzz.py` and `tests/compat/test_differences.py` run samples of them.

A run that was stopped continues: it does not repeat what the log holds.
"""
