"""libdevice's functions, computed in float64."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

from gluon_core import special
from gluon_core.special import each
from gluon_nvidia.reference.libdevice_numbers import EXTERNS as _NUMBERS
from gluon_nvidia.reference.libdevice_numbers import to_integer

__all__ = ["EXTERNS"]


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Computed in float64; the machine rounds to the function's type."""
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


def _root_of_squares(*xs: np.ndarray) -> np.ndarray:
    return np.sqrt(sum(x * x for x in xs))


def _remainder(x: float, y: float) -> float:
    return math.nan if math.isinf(x) or y == 0 else math.remainder(x, y)


def _of_order(make: Callable[[int], Callable[..., np.ndarray]]) -> Callable[..., np.ndarray]:
    one = each(lambda n, x: float(make(int(n))(np.float64(x))))
    return lambda n, x: one(*np.broadcast_arrays(n, x))


def _scaled(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.ldexp(x.astype(np.float64), n)


def _exponent(x: np.ndarray) -> np.ndarray:
    """The exponent; INT_MIN of zero and NaN, INT_MAX of infinity."""
    limits = np.iinfo(np.int32)
    special_case = np.where(np.isinf(x), limits.max, limits.min)
    return np.where(np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1, special_case).astype(np.int32)


def _whole(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    to_ll = to_integer("rn", 64, False, True)
    return lambda x: to_ll(fn(x.astype(np.float64)))


_FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "cospi": lambda x: np.cos(np.pi * x),
    "erf": each(math.erf), "erfc": each(math.erfc), "exp": np.exp, "exp10": lambda x: 10.0**x,
    "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmax": np.fmax,
    "fmin": np.fmin, "fmod": np.fmod, "hypot": np.hypot, "lgamma": special.lgamma, "log": np.log,
    "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "pow": np.power, "rcbrt":
    lambda x: 1 / np.cbrt(x), "rint": np.rint, "nearbyint": np.rint, "rsqrt":
    lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh, "sinpi": lambda x: np.sin(np.pi * x),
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "tgamma": special.tgamma, "trunc": np.trunc,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    "cyl_bessel_i0": special.bessel_i(0), "cyl_bessel_i1": special.bessel_i(1),
    "j0": special.bessel_j(0), "j1": special.bessel_j(1), "y0": special.bessel_y(0),
    "y1": special.bessel_y(1), "erfinv": special.erfinv, "erfcinv": special.erfcinv,
    "erfcx": special.erfcx, "normcdf": special.normcdf, "normcdfinv": special.normcdfinv,
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x + y), np.nan, 0.0)),
    "logb": lambda x: np.where(
        np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1.0, np.where(x == 0, -np.inf, np.abs(x))
    ),
    "norm3d": _root_of_squares, "norm4d": _root_of_squares,
    "rnorm3d": lambda *xs: 1 / _root_of_squares(*xs),
    "rnorm4d": lambda *xs: 1 / _root_of_squares(*xs),
    "rhypot": lambda x, y: 1 / np.hypot(x, y), "remainder": each(_remainder),
}  # fmt: skip

EXTERNS: dict[str, Callable[..., np.ndarray]] = {}
for _name, _fn in _FLOATS.items():
    EXTERNS[f"__nv_{_name}"] = EXTERNS[f"__nv_{_name}f"] = _wide(_fn)
for _name in ("cos", "exp", "log", "log10", "log2", "pow", "sin", "tan", "exp10"):
    EXTERNS[f"__nv_fast_{_name}f"] = EXTERNS[f"__nv_{_name}f"]
for _suffix in ("", "f", "d"):
    EXTERNS[f"__nv_isnan{_suffix}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__nv_isinf{_suffix}"] = lambda x: np.isinf(x).astype(np.int32)
    EXTERNS[f"__nv_signbit{_suffix}"] = lambda x: np.signbit(x).astype(np.int32)
EXTERNS["__nv_finitef"] = EXTERNS["__nv_isfinited"] = lambda x: np.isfinite(x).astype(np.int32)
EXTERNS["__nv_abs"] = EXTERNS["__nv_llabs"] = np.abs
EXTERNS["__nv_fast_fdividef"] = _wide(np.divide)
EXTERNS["__nv_saturatef"] = lambda x: np.nan_to_num(x, nan=0.0).clip(0, 1)
for _suffix in ("", "f"):
    _dtype = np.float32 if _suffix else np.float64
    EXTERNS[f"__nv_nextafter{_suffix}"] = lambda x, y, d=_dtype: np.nextafter(
        x.astype(d), y.astype(d)
    )
    EXTERNS[f"__nv_powi{_suffix}"] = _wide(np.power)
    EXTERNS[f"__nv_ldexp{_suffix}"] = EXTERNS[f"__nv_scalbn{_suffix}"] = _scaled
    EXTERNS[f"__nv_ilogb{_suffix}"] = _exponent
    EXTERNS[f"__nv_llrint{_suffix}"] = _whole(np.rint)
    EXTERNS[f"__nv_llround{_suffix}"] = _whole(_FLOATS["round"])
    EXTERNS[f"__nv_jn{_suffix}"] = _of_order(special.bessel_j)
    EXTERNS[f"__nv_yn{_suffix}"] = _of_order(special.bessel_y)
EXTERNS |= _NUMBERS
