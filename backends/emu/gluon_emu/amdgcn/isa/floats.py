"""Arithmetic on floats as the hardware rounds it, and formats that NumPy has not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "bf16_to_f32",
    "flush",
    "fma16",
    "fma32",
    "fma64",
    "max_number",
    "maximum",
    "median",
    "min_number",
    "minimum",
    "narrow_dtype",
    "to_bf16",
    "truncate_f16",
]

_TIE = np.uint64(0x10000000)
_BELOW = np.uint64(0x1FFFFFFF)
_TINY = np.float64(2.0**-126)


def fma32(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c of float32, rounded once.

    The product is exact in float64. The sum is rounded there first, which matters only where it then
    is halfway between two float32, or where the result is denormal: those are moved off by the
    error of the sum.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = product + c
    bits = np.asarray(total).view(np.uint64) & _BELOW
    size = np.abs(total)
    doubtful = (bits == _TIE) | ((size < _TINY) & (size > 0))
    if doubtful.any():
        total = np.where(doubtful, _to_odd(product, c, total), total)
    return total.astype(np.float32)


def _to_odd(a: Any, b: Any, total: Any) -> Any:
    """Return a + b in float64, moved by one place towards the exact sum where `total` is not exact."""
    b = np.asarray(b, np.float64)
    t = total - a
    error = (a - (total - t)) + (b - t)
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & np.isfinite(total), np.nextafter(total, towards), total)


def fma16(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c of float16, rounded once."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    product = a * b  # 22 bits
    total = product + np.asarray(c, np.float64)
    return _to_odd(product, c, total).astype(np.float16)


_SPLIT = np.float64(2.0**27 + 1)


def fma64(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c of float64, rounded once, but where the product's error is denormal.

    The product is kept as a sum of two, and so is its sum with c. The remainder is rounded to odd,
    so that adding it rounds as the exact sum does (Boldo and Melquiond, 2008).
    """
    c = np.asarray(c, np.float64)
    product = a * b
    high_a, high_b = _high(a), _high(b)
    low_a, low_b = a - high_a, b - high_b
    error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
    small, small_error = _two_sum(c, error)
    total, rest = _two_sum(product, small)
    left, left_error = _two_sum(small_error, rest)
    even = (np.asarray(left).view(np.uint64) & np.uint64(1)) == 0
    towards = np.where(left_error > 0, np.inf, -np.inf)
    left = np.where(even & (left_error != 0), np.nextafter(left, towards), left)
    exact = np.isfinite(total) & np.isfinite(error) & np.isfinite(left)
    return np.where(exact, total + np.where(exact, left, 0.0), product + c)


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return (a + b rounded, the rounding error)."""
    total = np.asarray(a + b)
    t = total - a
    return total, np.asarray((a - (total - t)) + (b - t))


def _high(value: Any) -> Any:
    big = _SPLIT * value
    return big - (big - value)


def max_number(a: Any, b: Any) -> Any:
    """Return the larger; a number rather than a NaN; +0 over -0."""
    return _number(np.fmax(a, b), a, b, np.bitwise_and)


def min_number(a: Any, b: Any) -> Any:
    """Return the smaller; a number rather than a NaN; -0 under +0."""
    return _number(np.fmin(a, b), a, b, np.bitwise_or)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger; a NaN where one is; +0 over -0."""
    return _number(np.maximum(a, b), a, b, np.bitwise_and)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller; a NaN where one is; -0 under +0."""
    return _number(np.minimum(a, b), a, b, np.bitwise_or)


def median(a: Any, b: Any, c: Any) -> Any:
    """Return the one in the middle; the smallest number where there is a NaN."""
    middle = max_number(min_number(a, b), min_number(max_number(a, b), c))
    odd = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(odd, min_number(min_number(a, b), c), middle) if np.any(odd) else middle


def _number(extremum: Any, a: Any, b: Any, sign: Any) -> Any:
    extremum = np.asarray(extremum)
    zero = extremum == 0
    if zero.any():
        kind = {2: np.uint16, 4: np.uint32, 8: np.uint64}[extremum.dtype.itemsize]
        both = zero & (np.asarray(a) == 0) & (np.asarray(b) == 0)
        bits = sign(np.asarray(a).view(kind), np.asarray(b).view(kind))
        extremum = np.where(both, bits.view(extremum.dtype), extremum)
    return extremum


def truncate_f16(value: Any) -> Any:
    """float32 to float16 towards zero."""
    value = np.asarray(value, np.float32)
    near = value.astype(np.float16)
    over = np.abs(near.astype(np.float32)) > np.abs(value)
    return np.where(over, np.nextafter(near, np.float16(0)), near)


def flush(value: Any) -> Any:
    """Denormal float32 as zero of the same sign."""
    value = np.asarray(value)
    small = np.abs(value) < np.float32(2.0**-126)
    if not small.any():
        return value
    return np.where(small, np.copysign(np.float32(0), value), value)


def to_bf16(value: Any) -> Any:
    """float32 to the bits of bfloat16 (uint16), to nearest even; NaN stays one."""
    return np.asarray(value, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def bf16_to_f32(bits: Any) -> Any:
    """Bits of bfloat16 in the lower half to float32."""
    return (np.asarray(bits).astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow_dtype(name: str, fnuz: bool) -> Any:
    """Return the type behind `fp8` and `bf8` of an architecture, and of fp6, bf6 and fp4."""
    names = {
        "fp8": "float8_e4m3fnuz" if fnuz else "float8_e4m3fn",
        "bf8": "float8_e5m2fnuz" if fnuz else "float8_e5m2",
        "fp6": "float6_e2m3fn",
        "bf6": "float6_e3m2fn",
        "fp4": "float4_e2m1fn",
    }
    return np.dtype(getattr(ml_dtypes, names[name]))
