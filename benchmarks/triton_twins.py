"""Measure kernels in the styles of engineers' work without layouts against the same text compiled as Triton's `tl`.

The kernels are those of twin_*.py, the launches those of twin_*_cases.py. Each is compiled as it is, and with the decorator `@gluon.jit(layouts="auto")` and `gl.portable.mma` for
`tl.dot`; both results are compared, then both are timed in one process, in CUDA graphs, with intervals
(paired.py). Options are those of layout_free.py:

  python benchmarks/triton_twins.py [--only WORDS] [--seed N] [--workers N] [--json FILE [--resume]]
"""

from __future__ import annotations

from layout_free import main
from twin_cases import twin_cases
from twin_element_cases import element_cases
from twin_engine_cases import engine_cases
from twin_gemm_cases import gemm_twin_cases
from twin_kind_cases import kind_cases
from twin_library_cases import library_cases
from twin_library_gemm_cases import library_gemm_cases
from twin_serving_cases import serving_cases

if __name__ == "__main__":
    gemms = gemm_twin_cases, library_gemm_cases
    rows = kind_cases, element_cases, library_cases, engine_cases
    raise SystemExit(main((twin_cases, *rows, *gemms, serving_cases), __doc__))
