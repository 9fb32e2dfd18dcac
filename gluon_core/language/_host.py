"""Arithmetic that host code and kernels share: sizes of grids and blocks."""

from __future__ import annotations

from gluon_core.errors import ArgumentError
from gluon_core.language.elementwise import cdiv
from gluon_core.plugin.ops import compile_time

__all__ = ["cdiv", "next_power_of_2"]


@compile_time
def next_power_of_2(n: int) -> int:
    """Return the least power of two that is not less than `n`, 1 for 0; in kernels, of a compile-time
    value.

    Raises:
        ArgumentError: `n` is negative, or no integer.
    """
    if not hasattr(n, "__index__") or n < 0:
        raise ArgumentError("must be a non-negative integer", argument="n", got=repr(n))
    return 1 << max(0, int(n) - 1).bit_length()
