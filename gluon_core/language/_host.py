"""Arithmetic that host code and kernels share: sizes of grids and blocks."""

from __future__ import annotations

from gluon_core._triton import constexpr_function
from gluon_core.errors import ArgumentError
from gluon_core.language.elementwise import cdiv

__all__ = ["cdiv", "next_power_of_2"]


@constexpr_function
def next_power_of_2(n: int) -> int:
    """The least power of two that is not less than `n`; in kernels, of a compile-time value.

    Raises:
        ArgumentError: `n` is not positive, or no integer.
    """
    if not hasattr(n, "__index__") or n < 1:
        raise ArgumentError("must be a positive integer", argument="n", got=repr(n))
    return 1 << (int(n) - 1).bit_length()
