"""Bit vectors, added by xor: elimination over F2. A vector is an integer."""

from __future__ import annotations

from typing import Iterable

__all__ = ["Span", "independent_rows"]


class Span:
    """Hold the span of some vectors, each kept with the combination of inputs that makes it."""

    def __init__(self) -> None:
        self._pivots: dict[int, tuple[int, int]] = {}  # by the highest bit

    def reduce(self, vector: int) -> tuple[int, int]:
        """Return (the rest of a vector, the combination that makes the remainder): the rest of a vector
        in the span is zero."""
        combination = 0
        while vector and vector.bit_length() in self._pivots:
            pivot, origin = self._pivots[vector.bit_length()]
            vector ^= pivot
            combination ^= origin
        return vector, combination

    def add(self, vector: int, combination: int) -> int:
        """Reach a vector too, the image of `combination`; 0, or where it was reached already a
        combination whose image is zero."""
        rest, known = self.reduce(vector)
        combination ^= known
        if not rest:
            return combination
        self._pivots[rest.bit_length()] = (rest, combination)
        return 0


def independent_rows(rows: Iterable[int]) -> list[int]:
    """Return a basis of the span of `rows`: independent bit vectors, one per rank."""
    basis: list[int] = []
    for row in rows:
        for pivot in basis:
            # No later pivot has the lowest bit of an earlier one, so one pass clears them all.
            if row & (pivot & -pivot):
                row ^= pivot
        if row:
            basis.append(row)
    return basis
