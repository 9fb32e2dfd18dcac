"""Measure kernels in the styles of engineers' work without layouts against the same text compiled as Triton's `tl`.

The kernels are those of twin_attention.py, twin_products.py, twin_rows.py, twin_kinds.py, twin_elements.py, twin_gemms.py,
twin_serving.py and twin_library_gemms.py, the launches those of twin_cases.py, twin_kind_cases.py, twin_element_cases.py, twin_gemm_cases.py,
twin_serving_cases.py and twin_library_gemm_cases.py. Each is compiled as it is, and with the decorator `@gluon.jit(layouts="auto")` and `gl.portable.mma` for
`tl.dot`; both results are compared, then both are timed in one process, in CUDA graphs, with intervals
(paired.py). Options are those of layout_free.py:

  python benchmarks/triton_twins.py [--only WORDS] [--seed N] [--workers N] [--json FILE [--resume]]
"""

from __future__ import annotations

from layout_free import main
from twin_cases import twin_cases
from twin_element_cases import element_cases
from twin_gemm_cases import gemm_twin_cases
from twin_kind_cases import kind_cases
from twin_library_gemm_cases import library_gemm_cases
from twin_serving_cases import serving_cases

if __name__ == "__main__":
    gemms = gemm_twin_cases, library_gemm_cases
    raise SystemExit(main((twin_cases, kind_cases, element_cases, *gemms, serving_cases), __doc__))
