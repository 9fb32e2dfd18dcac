"""What stands for a tensor where a kernel is only traced or compiled."""

from __future__ import annotations

from typing import Any, Sequence

__all__ = ["Placeholder"]


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
        """In elements."""
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
