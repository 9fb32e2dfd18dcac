"""libdevice's functions, computed in float64."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

__all__ = ["EXTERNS"]


def _each(fn: Callable[..., float]) -> Callable[..., np.ndarray]:
    lifted = np.frompyfunc(fn, 1, 1)
    return lambda x: lifted(x.astype(np.float64)).astype(np.float64)


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Computed in float64; the machine rounds to the function's type."""
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except (OverflowError, ValueError):
        return math.inf if x > 0 else math.nan


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


_FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "cospi": lambda x: np.cos(np.pi * x),
    "erf": _each(math.erf), "erfc": _each(math.erfc), "exp": np.exp, "exp10": lambda x: 10.0**x,
    "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmax": np.fmax,
    "fmin": np.fmin, "fmod": np.fmod, "hypot": np.hypot, "lgamma": _each(_lgamma), "log": np.log,
    "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "pow": np.power, "rcbrt":
    lambda x: 1 / np.cbrt(x), "rint": np.rint, "nearbyint": np.rint, "rsqrt":
    lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh, "sinpi": lambda x: np.sin(np.pi * x),
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "tgamma": _each(_gamma), "trunc": np.trunc,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip

EXTERNS: dict[str, Callable[..., np.ndarray]] = {}
for _name, _fn in _FLOATS.items():
    EXTERNS[f"__nv_{_name}"] = EXTERNS[f"__nv_{_name}f"] = _wide(_fn)
for _name in ("cos", "exp", "log", "log10", "log2", "pow", "sin", "tan", "exp10"):
    EXTERNS[f"__nv_fast_{_name}f"] = EXTERNS[f"__nv_{_name}f"]
for _suffix in ("", "f", "d"):
    EXTERNS[f"__nv_isnan{_suffix}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__nv_isinf{_suffix}"] = lambda x: np.isinf(x).astype(np.int32)
EXTERNS["__nv_finitef"] = EXTERNS["__nv_isfinited"] = lambda x: np.isfinite(x).astype(np.int32)
EXTERNS["__nv_abs"] = EXTERNS["__nv_llabs"] = np.abs
EXTERNS["__nv_fmaf"] = lambda a, b, c: a.astype(np.float64) * b.astype(np.float64) + c
EXTERNS["__nv_popc"] = EXTERNS["__nv_popcll"] = lambda x: np.array(
    [bin(int(v) & ((1 << (8 * x.dtype.itemsize)) - 1)).count("1") for v in x.ravel()], np.int32
).reshape(x.shape)
