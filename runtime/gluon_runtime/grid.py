"""Grids: how many instances of a kernel run."""

from __future__ import annotations

import operator
from typing import Any, Callable, Optional, Sequence, Union

from gluon_runtime.errors import BundleGridError

__all__ = ["Grid", "checked"]

Grid = Union[int, Sequence[int], Callable[[dict[str, Any]], Any]]
_MOST = (2**31 - 1, 65535, 65535)


def checked(grid: Any) -> Optional[tuple[int, int, int]]:
    """Return a grid as three sizes; None for an empty one.

    Raises:
        BundleGridError: it is no grid.
    """
    sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        counts = [operator.index(size) for size in sizes]
    except TypeError:
        counts = []
    if not 1 <= len(counts) <= 3 or any(not 0 <= n <= most for n, most in zip(counts, _MOST)):
        raise BundleGridError(
            "not a grid",
            argument="grid",
            expected="one to three sizes of at most 2**31 - 1, 65535 and 65535, or a function of the "
            "arguments that returns those",
            got=repr(grid),
        )
    x, y, z = *counts, *[1] * (3 - len(counts))
    return (x, y, z) if x and y and z else None
