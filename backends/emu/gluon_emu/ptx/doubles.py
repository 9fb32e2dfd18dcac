"""Arithmetic of float64 in each rounding mode: computed exactly, then rounded once."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any, Callable

import numpy as np

from gluon_emu.ptx.numbers import sum_to_odd

__all__ = ["double", "fused"]


def double(kind: str, mode: str) -> Callable[..., np.ndarray]:
    """Return the operation `kind` of float64 arrays.

    Args:
        mode: rn, rz, rm (down) or rp (up).
    """
    if mode == "rn" and kind in _NEAREST:
        return _propagating(kind, _NEAREST[kind])
    if mode == "rn" and kind in ("fma", "mad"):
        return _propagating(kind, fused)
    scalar = np.frompyfunc(lambda *xs: _rounded(kind, mode, *xs), _ARITY.get(kind, 2), 1)
    return _propagating(kind, lambda *xs: np.asarray(scalar(*xs)).astype(np.float64))


def _propagating(kind: str, fn: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return `fn` whose NaN is that of its operands, as on an H100: of the second, then the third, then the first."""
    order = {"fma": (0, 2, 1), "mad": (0, 2, 1)}.get(kind, (0, 1))
    if kind not in ("add", "sub", "mul", "fma", "mad"):
        return fn

    def run(*xs: np.ndarray) -> np.ndarray:
        result = np.asarray(fn(*xs))
        if np.isnan(result).any():
            for place in order:
                x = np.broadcast_to(xs[place], result.shape)
                quiet = x.view(np.uint64) | np.uint64(1 << 51)
                result = np.where(np.isnan(x), quiet.view(np.float64), result)
        return result

    return run


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a * b + c, rounded once to nearest.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
    odd". Products near the ends of the range are computed exactly, one by one.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    high = a * b
    low = _error_of_product(a, b, high)
    some, rest = _two_sum(c, low)
    top, more = _two_sum(high, some)
    near = np.asarray(top + sum_to_odd(rest, more))
    # An infinite term is the sum, however large the product.
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, high + c)
    size = np.abs(high)
    simple = (size == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    inside = (
        (size > 2.0**-900) & (size < 2.0**900) & (np.abs(a) < 2.0**900) & (np.abs(b) < 2.0**900)
    )
    inside &= (np.abs(c) < 2.0**900) & (near != 0)
    result = np.where(simple, plain, near)
    hard = ~simple & ~inside
    if hard.any():
        scalar = np.frompyfunc(lambda *xs: _rounded("fma", "rn", *xs), 3, 1)
        result[hard] = scalar(a[hard], b[hard], c[hard]).astype(np.float64)
    return result


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _error_of_product(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return a * b - product, exactly."""
    a1, b1 = _upper(a), _upper(b)
    a2, b2 = a - a1, b - b1
    return np.asarray(((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2)


def _upper(x: np.ndarray) -> np.ndarray:
    """Return the upper half of the bits of a float64."""
    return np.asarray((x.view(np.uint64) & np.uint64(0xFFFFFFFFF8000000)).view(np.float64))


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
