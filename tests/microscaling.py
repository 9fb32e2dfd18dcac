"""The narrow numbers of microscaling formats, for NumPy."""

from __future__ import annotations

import numpy as np

_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def of_fp4(codes: np.ndarray) -> np.ndarray:
    """Two numbers of each byte of `codes`, the low half first, along the last dimension."""
    halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    return np.where(halves & 8, -1.0, 1.0) * _MAGNITUDES[halves & 7]


def of_scales(exponents: np.ndarray, run: int = 32) -> np.ndarray:
    """The power of two of each biased exponent, once for every element of its run."""
    return np.repeat(np.exp2(exponents.astype(np.float64) - 127), run, axis=-1)
