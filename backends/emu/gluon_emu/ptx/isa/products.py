"""Sums of products as tensor cores make them.

The products of a few steps along K and the sum so far are aligned to the largest exponent among them, cut off
below a number of bits, and added exactly; the sum is cut off to the accumulator's precision (of f16 it is
rounded to nearest), and too large ones are infinite. How many steps and bits depends on the generation and the
type of the elements; `wgmma` of 8-bit floats keeps 13 bits of the sum's fraction. On an H100 these are the same
bits; the numbers for sm_80 are from publications.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.ptx.doubles import fused
from gluon_emu.ptx.isa.narrow_sums import narrow_sums
from gluon_emu.ptx.numbers import FORMATS, decode, encode, rounded

__all__ = ["ELEMENTS", "bit_products", "fused_double", "integer_products", "products"]

# (generation, type) -> (steps along K that are added at once, bits below the largest exponent)
_SUMS = {
    (80, "f16"): (8, 24), (80, "bf16"): (8, 24), (80, "tf32"): (4, 24),
    (90, "f16"): (16, 25), (90, "bf16"): (16, 25), (90, "tf32"): (8, 25),
    (90, "e4m3"): (16, 25), (90, "e5m2"): (16, 25),
    (80, "e4m3"): (16, 24), (80, "e5m2"): (16, 24),
}  # fmt: skip
_SHORT = (32, 13)  # of `wgmma` with 8-bit floats
ELEMENTS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f64": 64,
            "s4": 4, "u4": 4, "b1": 1}  # fmt: skip
_NONE = -(2**20)  # the exponent of zero
_CHUNK = 1 << 18


def _exponents(x: np.ndarray, least: int) -> np.ndarray:
    """Return the exponents of finite numbers; those of subnormal numbers are the least."""
    exponent = np.maximum(np.frexp(x)[1] - 1, least)
    return np.where(x == 0, _NONE, exponent).astype(np.int32)


def products(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    kinds: tuple[str, str],
    result: str,
    generation: int,
    short: bool = False,
    steps: int = 0,
) -> np.ndarray:
    """Return a @ b + c as patterns.

    Args:
        a, b: (..., M, K) and (..., K, N), values of the kinds in float64 or float32; b may be (..., M, K, N), one for each row.
        c: (..., M, N), float64 or float32.
        result: "f32" or "f16".
        generation: such as 90.
        short: keep few bits of 8-bit floats, as `wgmma` does.
        steps: along K that are added at once; 0 for those of the unit.
    """
    generation = 90 if generation >= 90 else 80
    usual, bits = _SHORT if short and kinds[0] in ("e4m3", "e5m2") else _SUMS[generation, kinds[0]]
    steps = steps or usual
    shape = c.shape
    own = b.ndim > a.ndim
    a, c = (x.reshape(-1, *x.shape[-2:]) for x in (a, c))
    b = b.reshape(-1, *b.shape[-3:]) if own else b.reshape(-1, 1, *b.shape[-2:])
    raw = np.empty(c.shape, np.uint16 if result == "f16" else np.uint32)
    each = max(1, _CHUNK // (c.shape[1] * c.shape[2]))
    narrow = result == "f32" and steps << bits + 2 <= 1 << 31
    least = FORMATS[kinds[0]].least, FORMATS[kinds[1]].least
    for first in range(0, c.shape[0], each):
        some = slice(first, first + each)
        terms = a[some], b[some], c[some]
        sums = None
        if narrow:
            x, y, z = (np.ascontiguousarray(term, np.float32) for term in terms)
            sums = narrow_sums(x, y, z, least, steps, bits)
        if sums is None:
            wide = [term.astype(np.float64, copy=False) for term in terms]
            total = _chain(wide[0], wide[1], wide[2], kinds, result, steps, bits)
            raw[some] = encode(total, result)
        else:
            raw[some] = sums.view(np.uint32)
    return raw.reshape(shape)


def _chain(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, kinds: tuple[str, str], result: str, steps: int, bits: int
) -> np.ndarray:  # fmt: skip
    # a: (products, M, K), b: (products, M or 1, K, N)
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(c).all())
    if not finite:
        plain = _matmul(*(np.where(np.isfinite(x), x, 0) for x in (a, b))) + c
        special = _special(a, b, c)
        a, b, c = (np.where(np.isfinite(x), x, 0.0) for x in (a, b, c))
        clean = _chain(a, b, c, kinds, result, steps, bits)
        return np.where(np.isfinite(special) & np.isfinite(plain), clean, special)
    ea = _exponents(a, FORMATS[kinds[0]].least)
    eb = _exponents(b, FORMATS[kinds[1]].least)
    least = FORMATS[result].least
    total = c
    for start in range(0, a.shape[2], steps):
        top = _exponents(total, least)
        stop = min(start + steps, a.shape[2])
        for k in range(start, stop):
            np.maximum(top, ea[:, :, k, None] + eb[:, :, k, :], out=top)
        np.maximum(top, -900, out=top)
        scale = np.ldexp(1.0, bits - top)
        summed = np.trunc(total * scale)
        for k in range(start, stop):
            term = a[:, :, k, None] * b[:, :, k, :]
            term *= scale
            np.trunc(term, out=term)
            summed += term
        summed = np.ldexp(summed + 0.0, top - bits)  # zero is positive
        total = _kept(summed, result, bits)
    return total


def _kept(x: np.ndarray, result: str, bits: int) -> np.ndarray:
    """Cut sums off to the precision of the result; of f16, round them."""
    if result != "f32":
        return rounded(x, result, "rn") + 0.0  # zero is positive
    if bits < 23:
        fraction, exponent = np.frexp(x)
        x = np.ldexp(np.trunc(fraction * 2.0 ** (bits + 1)), exponent - bits - 1)
    return np.where(np.abs(x) >= 2.0**128, np.copysign(np.inf, x), rounded(x, "f32", "rz"))


def _special(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Infinities and NaN among the sums, zero elsewhere."""
    total = np.where(np.isfinite(c), 0.0, c)
    for k in range(a.shape[2]):
        term = a[:, :, k, None] * b[:, :, k, :]
        total = total + np.where(np.isfinite(term), 0.0, term)
    return total


def _matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b, where b may have an axis more: one for each row of a."""
    if b.ndim == a.ndim:
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a[..., None, :], b)[..., 0, :])


def integer_products(a: np.ndarray, b: np.ndarray, c: np.ndarray, saturate: bool) -> np.ndarray:
    """Return a @ b + c of integers, as int32 patterns."""
    total = _matmul(a.astype(np.float64), b.astype(np.float64)) + c
    if saturate:
        total = np.clip(total, -(2.0**31), 2.0**31 - 1)
    return np.asarray(total.astype(np.int64).astype(np.uint32))


def bit_products(a: np.ndarray, b: np.ndarray, c: np.ndarray, operation: str) -> np.ndarray:
    """Return c and the number of ones in the bits of a row `xor` or `and` those of a column, as int32 patterns."""
    both = np.matmul(a, b)
    if operation == "xor":
        both = a.sum(-1)[..., None] + b.sum(-2)[..., None, :] - 2 * both
    return integer_products(np.zeros((1, 1)), np.zeros((1, 1)), both + c, False)


def fused_double(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return a @ b + c of float64, each product added with one rounding, in the order of K."""
    total = c
    for k in range(a.shape[-1]):
        x, y = np.broadcast_arrays(a[..., :, k, None], b[..., None, k, :])
        total = fused(x, y, total)
    return np.asarray(total)


def unpack(words: Any, kind: str, count: int) -> np.ndarray:
    """Return the elements of registers as float64, along a new last axis.

    Args:
        count: of elements in a register.
    """
    bits = ELEMENTS[kind]
    raw = np.ascontiguousarray(words)
    if bits >= 32:
        if kind == "tf32":  # the low bits do not count
            raw = raw & np.uint32(0xFFFFE000)
        return decode(raw, kind)[..., None]
    if bits < 8:
        fields = raw[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & np.uint32(
            (1 << bits) - 1
        )
        top = 1 << bits - 1 if kind == "s4" else 1 << bits
        return np.asarray(fields - np.where(fields >= top, 2.0**bits, 0.0))
    parts = raw[..., None].view(np.dtype(f"u{bits // 8}"))
    if kind == "s8":
        return np.asarray(parts.view(np.int8).astype(np.float64))
    if kind == "u8":
        return np.asarray(parts.astype(np.float64))
    return decode(parts, kind)
