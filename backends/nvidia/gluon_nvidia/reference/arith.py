"""Arithmetic of the portable language that this hardware's code does its own way."""

from __future__ import annotations

from typing import Callable

import numpy as np

__all__ = ["ELEMENTWISE"]

_SPLIT = 134217729.0  # 2**27 + 1


def _frem(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return `a - trunc(a / b) * b` with the quotient rounded (PTX div.rn, cvt.rzi, fma.rn), in float32
    for
    narrower types. Near a multiple of `b` it is a tiny number of either sign, not C's `fmod`."""
    kind = np.dtype(np.float64 if a.dtype == np.float64 else np.float32)
    x, y = a.astype(kind), b.astype(kind)
    count = np.trunc(x / y)
    if kind == np.float64:
        high, low = _product(count, y)
        error = (x - high) - low  # the first difference is exact
    else:
        error = (x.astype(np.float64) - count.astype(np.float64) * y).astype(kind)
    return np.where(np.isinf(y), x, error).astype(a.dtype)


def _product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the product in float64 and its rounding error (Dekker)."""
    high = a * b
    a1 = a * _SPLIT - (a * _SPLIT - a)
    b1 = b * _SPLIT - (b * _SPLIT - b)
    a2, b2 = a - a1, b - b1
    return high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2


# Builder ops of the portable language -> their models here.
ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {"frem": _frem}
