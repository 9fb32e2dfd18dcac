"""ocml's functions, computed in float64."""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

__all__ = [
    "EXTERNS",
]


def _each(fn: Callable[..., float]) -> Callable[..., np.ndarray]:
    lifted = np.frompyfunc(fn, 1, 1)
    return lambda x: lifted(x.astype(np.float64)).astype(np.float64)


_FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "erf": _each(math.erf),
    "erfc": _each(math.erfc), "exp": np.exp, "exp10": lambda x: 10.0**x, "exp2": np.exp2,
    "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmax": np.fmax, "fmin": np.fmin,
    "fmod": np.fmod, "hypot": np.hypot, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "pow": np.power, "rint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "trunc": np.trunc, "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


EXTERNS: dict[str, Callable[..., np.ndarray]] = {}
for _name, _fn in _FLOATS.items():
    for _bits in (16, 32, 64):
        EXTERNS[f"__ocml_{_name}_f{_bits}"] = _wide(_fn)
    EXTERNS[f"__triton_hip_fast_{_name}f"] = _wide(_fn)
for _bits in (16, 32, 64):
    EXTERNS[f"__ocml_isnan_f{_bits}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__ocml_isinf_f{_bits}"] = lambda x: np.isinf(x).astype(np.int32)
    EXTERNS[f"__ocml_isfinite_f{_bits}"] = lambda x: np.isfinite(x).astype(np.int32)
