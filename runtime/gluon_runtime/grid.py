"""Grids: how many instances of a kernel run."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import Any, Callable, Iterable, Optional, Sequence

__all__ = ["check_grid", "measured"]

Sizes = tuple[int, int, int]
_LIMITS = (2**31 - 1, 65535, 65535)


def measured(
    grid: Any, names: Sequence[str], values: Iterable[Any], error: Callable[..., Exception]
) -> Optional[Sizes]:
    """Return `grid`, which may be a function of the arguments by name, as three ints; None when one is 0.

    Args:
        names, values: the arguments.
        error: see `check_grid`.
    """
    sizes = check_grid(grid(dict(zip(names, values))) if callable(grid) else grid, error)
    return sizes if all(sizes) else None


def check_grid(grid: Any, error: Callable[..., Exception]) -> Sizes:
    """`grid` (an int, or up to three of them) as three ints.

    Args:
        error: the class of the error for all else: not ints, too many of them, negative or larger than devices allow.
    """
    sizes = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        checked = [operator.index(size) for size in sizes]
    except TypeError:
        checked = []
    if not 1 <= len(checked) <= 3:
        fractional = any(isinstance(n, Real) and not isinstance(n, Integral) for n in sizes)
        rounding = "Divide by gluon.cdiv(n, block), which rounds up, or by //."
        raise error(
            "not a grid",
            argument="grid",
            expected="an int, one to three ints, or a function of the arguments that returns those",
            got=f"a {type(grid).__name__}" if " at 0x" in repr(grid) else repr(grid),
            remedy=rounding if fractional else None,
        )
    for axis, (size, most) in enumerate(zip(checked, _LIMITS)):
        if not 0 <= size <= most:
            largest = "Put the largest axis first: it may reach 2**31 - 1."
            raise error(
                f"axis {axis} of the grid is out of range",
                argument="grid",
                expected=f"0 to {most}",
                got=size,
                remedy=largest if size > most else None,
            )
    checked += [1] * (3 - len(checked))
    return checked[0], checked[1], checked[2]
