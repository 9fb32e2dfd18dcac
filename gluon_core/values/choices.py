"""An argument that names one of several things."""

from __future__ import annotations

from typing import Any, Sequence, TypeVar

from gluon_core._triton import unwrap
from gluon_core.errors import ArgumentError, did_you_mean

__all__ = ["one_of"]

T = TypeVar("T")


def one_of(argument: str, value: Any, choices: Sequence[T]) -> T:
    """`value`, if it is one of `choices`; the empty string among them is not offered.

    Raises:
        ArgumentError: with the choices, and the nearest one.
    """
    value = unwrap(value)
    if isinstance(value, bool) or value not in choices:
        named = [choice for choice in choices if choice != ""]
        raise ArgumentError(
            "unknown choice",
            argument=argument,
            expected=", ".join(map(repr, named)),
            got=repr(value),
            remedy=did_you_mean(value, map(str, named)) if isinstance(value, str) else None,
        )
    chosen: T = value
    return chosen
