"""Sizes for grids and blocks, in host code; kernels may call them on compile-time values."""

from __future__ import annotations

from gluon_core.errors import ArgumentError
from gluon_core.values.builtin import compile_time

__all__ = ["cdiv", "next_power_of_2"]


@compile_time
def cdiv(size: int, block: int) -> int:
    """How many blocks of `block` cover `size`: the quotient rounded up.

    Raises:
        ArgumentError: `block` is not positive.
    """
    if block <= 0:
        raise ArgumentError("must be positive", argument="block", got=block)
    return -(-size // block)


@compile_time
def next_power_of_2(size: int) -> int:
    """The smallest power of two that is `size` or more; 1 for sizes below.

    Raises:
        ArgumentError: `size` is negative.
    """
    if size < 0:
        raise ArgumentError("must not be negative", argument="size", got=size)
    return 1 << max(0, int(size) - 1).bit_length()
