"""The programs of a batch that run together."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Parted", "Rows"]


class Parted(Exception):
    """Programs part ways that were to stay together."""


class Rows:
    """Programs of a batch that run together: sorted positions.

    Attributes:
        whole: whether these are all of the batch.
        together: whether none of them may part from the others.
    """

    __slots__ = ("index", "count", "whole", "together")

    def __init__(self, index: np.ndarray, whole: bool = False, together: bool = False):
        self.index = index
        self.count = len(index)
        self.whole = whole
        self.together = together

    def pick(self, positions: np.ndarray) -> "Rows":
        if self.together:
            raise Parted
        return Rows(self.index[positions])

    def where(self, mask: Any) -> "Rows":
        """Return those for which a boolean per program holds."""
        live = np.broadcast_to(np.asarray(mask).reshape(-1), self.count)
        return self if live.all() else Rows(self.index[live])
