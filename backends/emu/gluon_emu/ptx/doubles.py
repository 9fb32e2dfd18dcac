"""Arithmetic of float64 in each rounding mode: computed exactly, then rounded once."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any, Callable

import numpy as np

__all__ = ["double"]


def double(kind: str, mode: str) -> Callable[..., np.ndarray]:
    """Return the operation `kind` of float64 arrays.

    Args:
        mode: rn, rz, rm (down) or rp (up).
    """
    if mode == "rn" and kind in _NEAREST:
        return _NEAREST[kind]
    scalar = np.frompyfunc(lambda *xs: _rounded(kind, mode, *xs), _ARITY.get(kind, 2), 1)
    return lambda *xs: np.asarray(scalar(*xs)).astype(np.float64)


_NEAREST: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt,
    "rcp": np.reciprocal,
}  # fmt: skip
_EXACT: dict[str, Callable[..., Fraction]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "rcp": lambda x: 1 / x, "fma": lambda x, y, z: x * y + z, "mad": lambda x, y, z: x * y + z,
}  # fmt: skip
_ARITY = {"rcp": 1, "sqrt": 1, "fma": 3, "mad": 3}


def _rounded(kind: str, mode: str, *operands: float) -> float:
    xs = [np.float64(x) for x in operands]
    with np.errstate(all="ignore"):
        near = _NEAREST[kind](*xs) if kind in _NEAREST else _fused(*xs)
    if not all(map(math.isfinite, xs)):
        return float(near)
    exact = [Fraction(float(x)) for x in xs]
    if kind == "sqrt":
        if xs[0] <= 0:
            return float(near)
        return _directed(float(near), Fraction(float(near)) ** 2 - exact[0], mode, False)
    if kind in ("div", "rcp") and exact[-1] == 0:
        return float(near)
    value = _EXACT[kind](*exact)
    if value == 0:
        return -0.0 if mode == "rm" and any(_signs(kind, xs)) else float(near)
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf if value > 0 else -math.inf
    nearest = math.copysign(nearest, -1 if value < 0 else 1)
    error = nearest if math.isinf(nearest) else Fraction(nearest) - value
    return _directed(nearest, error, mode, value < 0)


def _fused(x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z where it is exact, infinite or NaN."""
    infinite = math.isinf(z) and math.isfinite(x) and math.isfinite(y)  # however large the product
    return z if infinite else x * y + z


def _signs(kind: str, xs: list[Any]) -> list[bool]:
    """Return whether each term of a sum is negative, zeros included; nothing for a product."""
    if kind in ("fma", "mad"):
        xs = [math.copysign(1, xs[0]) * math.copysign(1, xs[1]), xs[2]]
    elif kind == "sub":
        xs = [xs[0], -xs[1]]
    elif kind != "add":
        return []
    return [math.copysign(1, x) < 0 for x in xs]


def _directed(nearest: float, error: Any, mode: str, negative: bool) -> float:
    """Return the neighbour of an exact value that `mode` asks for.

    Args:
        nearest: the float nearest to the value.
        error: positive where `nearest` is above the value, negative where it is below.
        negative: whether the value is.
    """
    if mode == "rz":
        mode = "rp" if negative else "rm"
    if mode == "rm" and error > 0:
        return math.nextafter(nearest, -math.inf)
    if mode == "rp" and error < 0:
        return math.nextafter(nearest, math.inf)
    return nearest
