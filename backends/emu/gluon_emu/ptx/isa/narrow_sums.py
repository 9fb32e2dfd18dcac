"""Sums of tensor cores in 32 bits, where the exponents allow it: several times faster than in float64, with the same bits."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

__all__ = ["narrow_sums"]

_NONE = -3000  # the exponent of zero
_SMALL, _LARGE = -35, 35  # exponents of factors
_LEAST, _MOST = -100, 100  # exponents of sums
_CHUNK = 1 << 14  # elements of a sum, so that all intermediate values stay in a cache
_NARROW = 32  # columns below which products follow each other in memory


def _exponents(x: np.ndarray, least: int) -> np.ndarray:
    """Return the exponents of float32 as int16, at least `least`; -127 or 128 where they are no normal numbers."""
    field = (x.view(np.uint32) >> np.uint32(23)).astype(np.int16)
    exponent = (field & np.int16(0xFF)) - np.int16(127)
    known = (exponent > -127) & (exponent < 128)
    exponent = np.where(known, np.maximum(exponent, np.int16(least)), exponent)
    return np.asarray(np.where(x == 0, np.int16(_NONE), exponent))


def _within(exponent: np.ndarray, low: int, high: int) -> bool:
    return bool((((exponent >= low) & (exponent <= high)) | (exponent == _NONE)).all())


def narrow_sums(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, least: tuple[int, int], steps: int, bits: int
) -> Optional[np.ndarray]:
    """Return a @ b + c as tensor cores sum it (`isa.products`), in float32; None where the exponents are too far apart.

    Args:
        a, b, c: (products, M, K), (products, M or 1, K, N) and (products, M, N), float32.
        least: exponents of the smallest normal numbers of a and b.
        steps: along K that are added at once; their sum, at most steps << bits + 2, has to fit in 32 bits.
        bits: that are kept below the largest exponent.
    """
    ea, eb = _exponents(a, least[0]), _exponents(b, least[1])
    ec = _exponents(c, -126)
    if not (_within(ea, _SMALL, _LARGE) and _within(eb, _SMALL, _LARGE) and _within(ec, _LEAST, _MOST)):  # fmt: skip
        return None
    inner = c.shape[2] < _NARROW and b.shape[1] == 1 and c.shape[0] > c.shape[2]
    if inner:  # products follow each other in memory
        left = [np.ascontiguousarray(x.transpose(2, 1, 0))[:, :, None] for x in (a, ea)]
        right = [np.ascontiguousarray(x[:, 0].transpose(1, 2, 0))[:, None] for x in (b, eb)]
        c = np.ascontiguousarray(c.transpose(1, 2, 0))
    else:
        left = [np.moveaxis(x, 2, 0)[..., None] for x in (a, ea)]
        right = [np.moveaxis(x, 2, 0) for x in (b, eb)]
    total = np.empty_like(c)
    count = c.shape[2] if inner else c.shape[0]
    each = max(1, _CHUNK * count // c.size)
    for first in range(0, count, each):
        some: Any = (..., slice(first, first + each)) if inner else slice(first, first + each)
        factors: Any = some if inner else (slice(None), some)
        parts = [[x[factors] for x in side] for side in (left, right)]
        total[some] = _sums(parts[0], parts[1], c[some], steps, bits)
    return np.ascontiguousarray(total.transpose(2, 0, 1)) if inner else total


def _sums(
    left: list[np.ndarray], right: list[np.ndarray], total: np.ndarray, steps: int, bits: int
) -> np.ndarray:
    """Return the sums of a chunk.

    Args:
        left, right: factors and their exponents, by K first.
    """
    (a, ea), (b, eb) = left, right
    fields = np.empty(total.shape, np.int16)
    term = np.empty(total.shape, np.float32)
    cut = np.empty(total.shape, np.int32)
    mask = np.int64(-1 << 52 - min(bits, 23))
    for start in range(0, len(a), steps):
        stop = min(start + steps, len(a))
        top = _exponents(total, -126)
        for k in range(start, stop):
            np.add(ea[k], eb[k], out=fields)
            np.maximum(top, fields, out=top)
        shift = bits - np.maximum(top, np.int16(_LEAST)).astype(np.int32)
        scale = (127 + shift << 23).view(np.float32)
        added = np.zeros(total.shape, np.int32)
        for k in range(start, stop):
            np.multiply(a[k], b[k], out=term)
            np.multiply(term, scale, out=term)
            np.copyto(cut, term, casting="unsafe")  # toward zero
            added += cut
        exact = added.astype(np.float64)
        exact += np.trunc(np.multiply(total, scale, out=term), out=term)
        kept = (exact.view(np.int64) & mask).view(np.float64).astype(np.float32)
        total = kept * (127 - shift << 23).view(np.float32)
    return total
