"""The options of a launch as compilers get them."""

from __future__ import annotations

from numbers import Number
from typing import Any, Mapping

__all__ = ["whole"]

_COUNTS = ("num_warps", "num_ctas", "num_stages", "maxnreg")


def whole(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with integers for numbers that equal one: a launch finds its kernel again by options that
    are equal to those of an earlier one, as 4.0 is to 4, and no launch is to depend on the one before."""
    return {name: _whole(name, value) for name, value in requested.items()}


def _whole(name: str, value: Any) -> Any:
    flag = isinstance(value, bool) and name not in _COUNTS
    if type(value) is int or flag or not isinstance(value, Number):
        return value
    exact: Any = value
    try:
        number = int(getattr(exact, "real", exact))
    except (TypeError, ValueError, OverflowError):
        return value
    return number if number == exact else value
