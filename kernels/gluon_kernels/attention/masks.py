"""The keys that a query sees, and the bound of scores, as operators take them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional, Sequence

from gluon_core.errors import ArgumentError

__all__ = ["LOG2E", "Mask", "checked_window"]

LOG2E = math.log2(math.e)
UNBOUNDED = -1  # in the arguments of operators


@dataclass(frozen=True)
class Mask:
    """The keys that a query at place i sees, from `i - left` to `i + right`, and the cap of scores.

    Args:
        left, right: None is no bound; a bound may be negative.
        cap: scores become `cap * tanh(score / cap)`; 0 leaves them.
    """

    left: Optional[int]
    right: Optional[int]
    cap: float

    @classmethod
    def of(cls, causal: bool, window: Optional[Sequence[Optional[int]]], cap: float) -> Mask:
        """Return the mask of an operator's arguments.

        Raises:
            ArgumentError: no window, or a cap below 0.
        """
        left, right = _window(window)
        if causal:
            right = 0
        if not 0 <= cap < math.inf:
            raise ArgumentError(
                "the cap must be positive",
                argument="softcap",
                expected="a positive number, or 0 for none",
                got=cap,
            )
        return cls(left, right, float(cap))

    @property
    def is_plain(self) -> bool:
        """Return True if the mask is causal or none, and scores have no cap."""
        return self.left is None and self.right in (None, 0) and not self.cap

    def shortened(self, keys: int) -> Mask:
        """Return the mask without bounds past all `keys`."""
        left = None if self.left is not None and self.left >= keys else self.left
        right = None if self.right is not None and self.right >= keys else self.right
        return Mask(left, right, self.cap)

    def shifted(self, shift: int) -> Mask:
        """Return the mask for places that are `shift` higher."""
        left = None if self.left is None else self.left + shift
        right = None if self.right is None else self.right - shift
        return Mask(left, right, self.cap)

    def scales(self, scale: float) -> tuple[float, float]:
        """Return the factor of scores and the cap as kernels for Hopper take them, in powers of 2."""
        if self.cap:
            return 2 * scale * LOG2E / self.cap, self.cap * LOG2E
        return scale * LOG2E, 1.0


def checked_window(window: Sequence[Optional[int]]) -> tuple[Optional[int], ...]:
    """Return a window as a pair, which is part of the keys of plans.

    Raises:
        ArgumentError: it is none.
    """
    _window(window)
    return tuple(window)


def _window(window: Optional[Sequence[Optional[int]]]) -> tuple[Optional[int], Optional[int]]:
    if window is None:
        return None, None
    sides = list(window) if isinstance(window, (tuple, list)) else []
    if len(sides) != 2 or any(type(side) not in (int, type(None)) for side in sides):
        raise ArgumentError(
            "a window is a pair: the keys before and after each query",
            argument="window",
            expected="(before, after), None or -1 for no bound",
            got=repr(window),
        )
    for side in sides:
        if side is not None and side < UNBOUNDED:
            raise ArgumentError(
                "a window cannot be negative",
                argument="window",
                expected="0 or more, None or -1 for no bound",
                got=side,
            )
    left, right = (None if side == UNBOUNDED else side for side in sides)
    return left, right
