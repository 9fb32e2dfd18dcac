"""Relations between events, as one integer of bits for the successors of each event."""

from __future__ import annotations

from typing import Iterable

__all__ = ["Relation", "closed", "cyclic", "members"]

Relation = list[int]


def members(bits: int) -> Iterable[int]:
    """Yield the positions of the bits that are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def closed(relation: Relation) -> Relation:
    """Return the transitive closure."""
    result = list(relation)
    for middle, bit in enumerate(1 << n for n in range(len(result))):
        through = result[middle]
        for start, bits in enumerate(result):
            if bits & bit:
                result[start] = bits | through
    return result


def cyclic(relation: Relation) -> bool:
    """Return True if the closed relation relates an event to itself."""
    return any(bits >> index & 1 for index, bits in enumerate(relation))
