"""The last accesses to each unit of memory: the write, an atomic write before it, and up to two reads after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["LATE", "Accesses", "Shadow"]

LATE = -1


@dataclass(frozen=True)
class Accesses:
    """Accesses, one for each unit.

    Args:
        agent: row * 32 + lane + 1 of a thread; below 0 of what works asynchronously; 0 for none.
        epoch: of the agent.
        place: index of the instruction.
        strong: the scope, 0 of a weak access, LATE of a load that nothing had used when its warp released.
        later: the epoch in which an instruction used the value of such a load; 0 as long as none has.
    """

    agent: np.ndarray
    epoch: np.ndarray
    place: np.ndarray
    strong: np.ndarray
    later: np.ndarray

    def of(self, index: Any) -> "Accesses":
        return Accesses(
            self.agent[index], self.epoch[index], self.place[index], self.strong[index], self.later[index]
        )  # fmt: skip

    def put(self, index: Any, other: "Accesses") -> None:
        self.agent[index], self.epoch[index] = other.agent, other.epoch
        self.place[index], self.strong[index] = other.place, other.strong
        self.later[index] = other.later

    @classmethod
    def empty(cls, size: int) -> "Accesses":
        agent, epoch, place, later = (np.zeros(size, np.int32) for _ in range(4))
        return cls(agent, epoch, place, np.zeros(size, np.int8), later)


class Shadow:
    """The accesses to a space.

    Args:
        size: bytes.
        unit: the bytes of one record.

    Attributes:
        update: of each unit a strong write that did not happen before the last one, which is strong, too.
        updated: whether there is one.
    """

    def __init__(self, size: int, unit: int):
        self.unit = unit
        count = -(-size // unit)
        self.write = Accesses.empty(count)
        self.update = Accesses.empty(count)
        self.updated = False
        self.reads = (Accesses.empty(count), Accesses.empty(count))

    def units(self, places: np.ndarray, size: int) -> np.ndarray:
        """Return the units of accesses of `size` bytes from each place on, (accesses, units of one)."""
        first = places // self.unit
        count = max(1, size // self.unit)
        return np.asarray(first[:, None] + np.arange(count))
