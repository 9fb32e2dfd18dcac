"""libdevice's functions, computed in float64."""

from __future__ import annotations

import math
from typing import Callable, Union

import numpy as np

from gluon_core.plugin.reference import MATH
from gluon_nvidia.reference.libdevice_numbers import EXTERNS as _NUMBERS
from gluon_nvidia.reference.libdevice_numbers import to_integer

__all__ = ["EXTERNS"]

Function = Callable[..., np.ndarray]
Model = Union[str, Function]


def _wide(fn: Function) -> Function:
    """Return `fn` computed in float64; the machine rounds to the function's type."""
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


def _root_of_squares(*xs: np.ndarray) -> np.ndarray:
    root: np.ndarray = np.sqrt(sum(x * x for x in xs))
    return root


def _remainder(x: float, y: float) -> float:
    return math.nan if math.isinf(x) or y == 0 else math.remainder(x, y)


def _remainders(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(np.frompyfunc(_remainder, 2, 1)(x, y)).astype(np.float64)


def _round(x: np.ndarray) -> np.ndarray:
    nearest: np.ndarray = np.copysign(np.floor(np.abs(x) + 0.5), x)
    return nearest


def _scaled(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = np.ldexp(x.astype(np.float64), n)
    return scaled


def _whole(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    to_ll = to_integer("rn", 64, False, True)
    return lambda x: to_ll(fn(x.astype(np.float64)))


_FLOATS: dict[str, Function] = {
    "cospi": lambda x: np.cos(np.pi * x), "sinpi": lambda x: np.sin(np.pi * x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "fdim": lambda x, y: np.where(x > y, x - y, np.where(np.isnan(x + y), np.nan, 0.0)),
    "logb": lambda x: np.where(
        np.isfinite(x) & (x != 0), np.frexp(x)[1] - 1.0, np.where(x == 0, -np.inf, np.abs(x))
    ),
    "norm3d": _root_of_squares, "norm4d": _root_of_squares,
    "rnorm3d": lambda *xs: 1 / _root_of_squares(*xs),
    "rnorm4d": lambda *xs: 1 / _root_of_squares(*xs),
    "rhypot": lambda x, y: 1 / np.hypot(x, y), "remainder": _remainders,
}  # fmt: skip
_NAMED = {
    **{name: name for name in (*MATH, "erfcinv", "ilogb", "jn", "normcdf", "normcdfinv", "yn")},
    "cyl_bessel_i0": "i0", "cyl_bessel_i1": "i1", "powi": "pow",
}  # fmt: skip

EXTERNS: dict[str, Model] = {}
for _name, _named in _NAMED.items():
    EXTERNS[f"__nv_{_name}"] = EXTERNS[f"__nv_{_name}f"] = _named
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
    EXTERNS[f"__nv_ldexp{_suffix}"] = EXTERNS[f"__nv_scalbn{_suffix}"] = _scaled
    EXTERNS[f"__nv_llrint{_suffix}"] = _whole(np.rint)
    EXTERNS[f"__nv_llround{_suffix}"] = _whole(_round)
EXTERNS |= _NUMBERS
