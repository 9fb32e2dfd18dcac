"""Grids: how many instances of a kernel run."""

from __future__ import annotations

import operator
from typing import Any, Optional, Sequence

import numpy as np

from gluon_core.errors import LaunchError

__all__ = ["check_grid", "measured"]

_LIMITS = (2**31 - 1, 65535, 65535)


def measured(
    grid: Any, names: Sequence[str], values: Sequence[Any]
) -> Optional[tuple[int, int, int]]:
    """Return `grid`, which may be a function of the arguments by name, as three ints; None when one is 0."""
    sizes = check_grid(grid(dict(zip(names, values))) if callable(grid) else grid)
    return sizes if all(sizes) else None


def check_grid(grid: Any) -> tuple[int, int, int]:
    """`grid` (an int, or up to three of them) as three ints.

    Raises:
        LaunchError: not ints, too many of them, negative or larger than devices allow.
    """
    sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        checked = [operator.index(size) for size in sizes]
    except TypeError:
        checked = []
    if not 1 <= len(checked) <= 3:
        raise LaunchError(
            "not a grid",
            argument="grid",
            expected="an int, one to three ints, or a function of the arguments that returns those",
            got=f"a {type(grid).__name__}" if " at 0x" in repr(grid) else repr(grid),
            remedy="Divide by gluon.cdiv(n, block), which rounds up, or by //."
            if any(isinstance(size, (float, np.floating)) for size in sizes)
            else None,
        )
    for axis, (size, most) in enumerate(zip(checked, _LIMITS)):
        if not 0 <= size <= most:
            raise LaunchError(
                f"axis {axis} of the grid is out of range",
                argument="grid",
                expected=f"0 to {most}",
                got=size,
                remedy="Put the largest axis first: it may reach 2**31 - 1."
                if size > most
                else None,
            )
    checked += [1] * (3 - len(checked))
    return checked[0], checked[1], checked[2]
