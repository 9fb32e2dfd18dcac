"""Digits of 2/pi, with which large arguments of float64 sine and cosine are reduced.

ISA: CDNA3 12.11, RDNA3 16.12, RDNA4 16.12, v_trig_preop_f64.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gluon_emu.amdgcn.isa.table import vector

__all__ = ["trig_preop", "two_over_pi"]

_DIGITS = 1201  # binary, behind the point


@functools.lru_cache(maxsize=None)
def two_over_pi() -> int:
    """2/pi times 2**1201, rounded down."""
    one = 1 << (_DIGITS + 64)

    def arctangent(inverse: int) -> int:  # of 1 / inverse
        term = one // inverse
        total, k = 0, 0
        while term:
            total += (-term if k & 1 else term) // (2 * k + 1)
            term //= inverse * inverse
            k += 1
        return total

    pi = 16 * arctangent(5) - 4 * arctangent(239)
    return (2 * one << _DIGITS) // pi


def trig_preop(x: Any, segment: Any) -> Any:
    """53 digits of 2/pi from digit 53 * segment on, further in for an exponent of `x` past 1077."""
    x, segment = np.broadcast_arrays(x, segment)
    exponent = (x.view(np.uint64) >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int64)
    shift = 53 * (segment & np.uint32(31)).astype(np.int64) + np.maximum(exponent - 1077, 0)
    result = np.empty(x.shape, np.float64)
    for one in np.unique(shift):
        left = _DIGITS - 53 - int(one)
        digits = two_over_pi() >> left if left >= 0 else two_over_pi() << -left
        result[shift == one] = float(digits & (1 << 53) - 1)
    return np.ldexp(result, (-53 - shift + np.where(exponent >= 1968, 128, 0)).astype(np.int32))


vector("v_trig_preop_f64", dst="f64", src="f64 u32")(trig_preop)
