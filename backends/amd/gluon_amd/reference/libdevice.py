"""ocml's functions, computed in float64."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

from gluon_core import special
from gluon_core.special import each

__all__ = [
    "EXTERNS",
]


_FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "erf": each(math.erf),
    "erfc": each(math.erfc), "exp": np.exp, "exp10": lambda x: 10.0**x, "exp2": np.exp2,
    "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmax": np.fmax, "fmin": np.fmin,
    "fmod": np.fmod, "hypot": np.hypot, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "pow": np.power, "rint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "trunc": np.trunc, "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "erfcx": special.erfcx, "erfinv": special.erfinv, "i0": special.bessel_i(0),
    "i1": special.bessel_i(1), "j0": special.bessel_j(0), "j1": special.bessel_j(1),
    "y0": special.bessel_y(0), "y1": special.bessel_y(1), "lgamma": special.lgamma,
    "tgamma": special.tgamma, "nearbyint": np.rint, "pown": np.power, "fdivide": np.divide,
}  # fmt: skip


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


def _fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Products of float32 are exact in float64; what is wider is added in the widest type."""
    wide = np.float64 if x.dtype == np.float32 else np.longdouble
    return (x.astype(wide) * y.astype(wide) + z.astype(wide)).astype(np.float64)


def _exponent(x: np.ndarray) -> np.ndarray:
    """The exponent; INT_MIN of zero and NaN, INT_MAX of infinity."""
    limits = np.iinfo(np.int32)
    others = np.where(np.isinf(x), limits.max, limits.min)
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1, others).astype(np.int32)


EXTERNS: dict[str, Callable[..., np.ndarray]] = {}
for _name, _fn in _FLOATS.items():
    for _bits in (16, 32, 64):
        EXTERNS[f"__ocml_{_name}_f{_bits}"] = _wide(_fn)
    EXTERNS[f"__triton_hip_fast_{_name}f"] = _wide(_fn)
for _bits in (16, 32, 64):
    EXTERNS[f"__ocml_isnan_f{_bits}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__ocml_isinf_f{_bits}"] = lambda x: np.isinf(x).astype(np.int32)
    EXTERNS[f"__ocml_isfinite_f{_bits}"] = lambda x: np.isfinite(x).astype(np.int32)
    _dtype = np.dtype(f"f{_bits // 8}")
    EXTERNS[f"__ocml_signbit_f{_bits}"] = lambda x: np.signbit(x).astype(np.int32)
    EXTERNS[f"__ocml_ilogb_f{_bits}"] = _exponent
    EXTERNS[f"__ocml_fma_f{_bits}"] = _fma
    EXTERNS[f"__ocml_ldexp_f{_bits}"] = lambda x, n: np.ldexp(x.astype(np.float64), n)
    EXTERNS[f"__ocml_nextafter_f{_bits}"] = lambda x, y, d=_dtype: np.nextafter(
        x.astype(d), y.astype(d)
    )
EXTERNS["__triton_hip_iabs"] = EXTERNS["__triton_hip_fabs"] = np.abs
EXTERNS["__triton_hip_rint"] = np.rint
EXTERNS["__triton_hip_llrint"] = lambda x: np.rint(x).astype(np.int64)
