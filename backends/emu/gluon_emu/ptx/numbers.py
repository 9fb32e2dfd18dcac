"""Floats of PTX as float64, and back with one rounding.

Values of up to 53 bits are exact in float64; sums and products that need more are rounded to
odd there, after which a rounding to any narrower format is the only one that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["FORMATS", "Format", "decode", "encode", "flushed", "rounded", "sum_to_odd", "uint"]


@dataclass(frozen=True)
class Format:
    """A binary float.

    Args:
        digits: of the significand, the hidden one among them.
        least: the exponent of the smallest normal number.
        most: the largest finite number.
        nan: the pattern that results have; None where there is no NaN.
        infinite: whether there are infinities.
    """

    bits: int
    digits: int
    least: int
    most: float
    nan: int | None
    infinite: bool = True


FORMATS = {
    "f16": Format(16, 11, -14, 65504.0, 0x7FFF),
    "bf16": Format(16, 8, -126, float(2**128 - 2**120), 0x7FFF),
    "f32": Format(32, 24, -126, float(2**128 - 2**104), 0x7FFFFFFF),
    "tf32": Format(32, 11, -126, float(2**128 - 2**117), 0x7FFFE000),
    "e4m3": Format(8, 4, -6, 448.0, 0x7F, False),
    "e5m2": Format(8, 3, -14, 57344.0, 0x7F),
    "e2m3": Format(6, 4, 0, 7.5, None, False),
    "e3m2": Format(6, 3, -2, 28.0, None, False),
    "e2m1": Format(4, 2, 0, 6.0, None, False),
    "ue8m0": Format(8, 1, -127, 2.0**127, 0xFF, False),
}
_WIDTHS: dict[int, Any] = {4: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_WIDTHS[128] = [("low", np.uint64), ("high", np.uint64)]  # moved and compared, not computed with


def uint(bits: int) -> np.dtype:
    """Return the unsigned integers that hold registers of so many bits."""
    words: np.dtype = np.dtype(_WIDTHS[bits])
    return words


@lru_cache(maxsize=None)
def _values(name: str) -> np.ndarray:
    """Return the number of each pattern of a format of at most eight bits."""
    form = FORMATS[name]
    codes = np.arange(1 << form.bits)
    if name == "ue8m0":
        return np.where(codes == 255, np.nan, np.ldexp(1.0, codes - 127))
    fraction = form.digits - 1
    body = codes & ((1 << (form.bits - 1)) - 1)
    exponent, rest = body >> fraction, body & ((1 << fraction) - 1)
    normal = exponent > 0
    significand = np.where(normal, rest + (1 << fraction), rest).astype(np.float64)
    values = np.ldexp(significand, np.where(normal, exponent - 1, 0) + form.least - fraction)
    if form.infinite:
        top = exponent == exponent.max()
        values = np.where(top, np.where(rest == 0, np.inf, np.nan), values)
    elif form.nan is not None:
        values = np.where(body == form.nan, np.nan, values)
    return np.asarray(np.where(codes >> (form.bits - 1), -values, values))


def decode(raw: np.ndarray, name: str) -> np.ndarray:
    """Patterns of a format as float64."""
    if name == "f64":
        return raw.view(np.float64)
    if name in ("f32", "tf32"):
        return raw.view(np.float32).astype(np.float64)
    if name == "f16":
        return raw.view(np.float16).astype(np.float64)
    if name == "bf16":
        return np.asarray(
            (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
        )
    values: np.ndarray = _values(name)[raw & ((1 << FORMATS[name].bits) - 1)]
    return values


def encode(x: np.ndarray, name: str) -> np.ndarray:
    """float64 that the format has exactly, as patterns; NaN as results have it."""
    if name == "f64":
        return np.ascontiguousarray(x).view(np.uint64)
    form = FORMATS[name]
    nan = np.isnan(x)
    if name in ("f32", "tf32", "f16"):
        narrow = x.astype(np.float16 if name == "f16" else np.float32)
        raw = narrow.view(uint(form.bits))
    elif name == "bf16":
        raw = (x.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif name == "ue8m0":
        raw = (np.frexp(np.where(nan, 1.0, x))[1] + 126).astype(np.uint8)
    else:
        size, fraction = np.abs(np.where(nan, 0, x)), form.digits - 1
        code = size.view(np.int64) >> 52 - fraction  # exponent and fraction
        code -= 1022 + form.least << fraction
        low = np.ldexp(np.minimum(size, 2.0**form.least), fraction - form.least)
        code = np.where(size < 2.0**form.least, low.astype(np.int64), code)
        if np.isinf(size).any():
            top = (1 << form.bits - 1) - (1 << fraction) if form.infinite else form.nan
            code = np.where(np.isinf(size), np.int64(top or 0), code)
        raw = code.astype(np.uint8)
        raw = np.where(np.signbit(x), raw | (1 << (form.bits - 1)), raw).astype(np.uint8)
    if form.nan is None or not nan.any():
        return raw
    return np.where(nan, raw.dtype.type(form.nan), raw)


def rounded(x: np.ndarray, name: str, mode: str = "rn", saturate: bool = False) -> np.ndarray:
    """float64, exact or rounded to odd, rounded to the format's precision, still as float64.

    Args:
        mode: rn, rz, rm (down), rp (up), or rna (nearest, ties away from zero).
        saturate: too large values become the largest, infinity too.
    """
    form = FORMATS[name]
    if mode == "rn" and not saturate and name in ("f32", "f16"):
        return x.astype(np.float32 if name == "f32" else np.float16).astype(np.float64)
    finite = np.isfinite(x)
    live = np.where(finite, x, 0.0)
    unit = np.maximum(np.frexp(live)[1] - form.digits, form.least - form.digits + 1)
    scaled = np.ldexp(live, -unit)
    if mode == "rn":
        whole = np.rint(scaled)
    elif mode == "rz":
        whole = np.trunc(scaled)
    elif mode == "rm":
        whole = np.floor(scaled)
    elif mode == "rp":
        whole = np.ceil(scaled)
    else:  # rna
        size = np.abs(scaled)
        base = np.floor(size)
        whole = np.copysign(base + (size - base >= 0.5), scaled)
    near = np.copysign(np.ldexp(whole, unit), live)
    beyond = finite & (np.abs(near) > form.most)
    if beyond.any():
        stays = {"rz": beyond, "rm": beyond & (x > 0), "rp": beyond & (x < 0)}.get(mode)
        near = np.where(beyond, np.copysign(np.inf, x), near)
        if stays is not None:
            near = np.where(stays, np.copysign(form.most, x), near)
    near = np.where(finite, near, x)
    if saturate:
        near = np.where(np.isinf(near), np.copysign(form.most, near), near)
    return near


def sum_to_odd(a: np.ndarray, b: np.ndarray, mode: str = "rn") -> np.ndarray:
    """Return a + b in float64, the last bit set where that is inexact; zeros have the sign of `mode`."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & ((bits & 1) == 0) & (total != 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    odd: np.ndarray = np.where(inexact, bits + step, bits).view(np.float64)
    if mode == "rm":
        odd = np.where((odd == 0) & (np.signbit(a) | np.signbit(b)), -0.0, odd)
    return odd


def flushed(x: np.ndarray, least: float) -> np.ndarray:
    """Numbers below the smallest normal one as zeros of their sign."""
    return np.where(np.abs(x) < least, np.copysign(0.0, x), x)
