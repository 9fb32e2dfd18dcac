"""Tensors without memory, for which kernels are compiled ahead of a call."""

from __future__ import annotations

import sys
from typing import Any, Sequence

__all__ = ["Placeholder", "stand_in"]


class Placeholder:
    """A row-major tensor without memory: its address is divisible by 16, and its storage is small.

    Args:
        dtype: of torch, NumPy or the language.
        shape: offered as `.shape`, as it is given.
    """

    def __init__(self, dtype: Any, shape: Sequence[int] = (1,)):
        self.dtype = dtype
        self.shape = shape

    def stride(self) -> tuple[int, ...]:
        """Return the strides in elements."""
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.append(strides[-1] * size)
        return tuple(reversed(strides))

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


def stand_in(value: Any) -> Any:
    """Return the argument of a warm-up: torch and NumPy dtypes stand for aligned tensors of them."""
    cls = type(value)
    if cls.__name__ == "dtype" and cls.__module__ == "torch":
        return Placeholder(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.dtype):
        return Placeholder(value)
    return value
