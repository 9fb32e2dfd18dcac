"""ocml's functions, computed in float64."""

from __future__ import annotations

from typing import Callable, Union

import numpy as np

from gluon_core.plugin.reference import MATH

__all__ = ["EXTERNS"]

Model = Union[str, Callable[..., np.ndarray]]


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Products of float32 are exact in float64; wider products are added in the widest type."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(np.float64)


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    quotient: np.ndarray = np.divide(x.astype(np.float64), y.astype(np.float64))
    return quotient


_FLOATS: dict[str, Model] = {
    **{name: name for name in (*MATH, "i0", "i1")}, "fdivide": _divide, "pown": "pow"
}  # fmt: skip
EXTERNS: dict[str, Model] = {}
for _name, _fn in _FLOATS.items():
    for _bits in (16, 32, 64):
        EXTERNS[f"__ocml_{_name}_f{_bits}"] = _fn
    EXTERNS[f"__triton_hip_fast_{_name}f"] = _fn
for _bits in (16, 32, 64):
    EXTERNS[f"__ocml_isnan_f{_bits}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__ocml_isinf_f{_bits}"] = lambda x: np.isinf(x).astype(np.int32)
    EXTERNS[f"__ocml_isfinite_f{_bits}"] = lambda x: np.isfinite(x).astype(np.int32)
    _dtype = np.dtype(f"f{_bits // 8}")
    EXTERNS[f"__ocml_signbit_f{_bits}"] = lambda x: np.signbit(x).astype(np.int32)
    EXTERNS[f"__ocml_ilogb_f{_bits}"] = "ilogb"
    EXTERNS[f"__ocml_fma_f{_bits}"] = _fma
    EXTERNS[f"__ocml_ldexp_f{_bits}"] = lambda x, n: np.ldexp(x.astype(np.float64), n)
    EXTERNS[f"__ocml_nextafter_f{_bits}"] = lambda x, y, d=_dtype: np.nextafter(
        x.astype(d), y.astype(d)
    )
EXTERNS["__triton_hip_iabs"] = EXTERNS["__triton_hip_fabs"] = np.abs
EXTERNS["__triton_hip_rint"] = np.rint
EXTERNS["__triton_hip_llrint"] = lambda x: np.rint(x).astype(np.int64)
