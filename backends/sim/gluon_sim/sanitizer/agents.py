"""Who acts inside a program, and what each knows of the others: vector clocks.

An agent is a partition, or one piece of asynchronous work from its issue to the wait for it. Its
clock counts up where others may learn of what it did: at an issue, an arrival, a fence. What an
agent knows is the clock up to which it has seen each other agent; an access is ordered before it
if its clock is not later than that.

Knowledge has two planes. The first orders ordinarily. The second is what the asynchronous proxy
may rely on: it follows the first only at a fence between the proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np

if TYPE_CHECKING:
    from gluon_sim.memory.flight import Flight

__all__ = ["GENERIC", "Agent", "Agents", "Clock"]

GENERIC = "generic"
# Of an access: the op, its kind, its time, the epochs of the launch, the task, which threads.
EpochKey = tuple[int, str, int, Optional[int], str, bool]
_WIDTH = 8


class Clock:
    """Clocks seen, shape (2 planes, 1 or programs of the batch, agents)."""

    __slots__ = ("seen",)

    def __init__(self, seen: Optional[np.ndarray] = None):
        self.seen = np.zeros((2, 1, _WIDTH), np.int64) if seen is None else seen

    def copy(self) -> "Clock":
        return Clock(self.seen.copy())

    def widen(self, width: int) -> np.ndarray:
        have = self.seen.shape[2]
        if have < width:
            more = (1 << (width - 1).bit_length()) - have  # powers of two, so that two can be equal
            self.seen = np.pad(self.seen, ((0, 0), (0, 0), (0, more)))
        return self.seen

    def join(self, other: "Clock", rows: Optional[np.ndarray], total: int) -> None:
        """Learn what `other` knows; only in the batch rows `rows` (None for all of `total`)."""
        mine = self.widen(other.seen.shape[2])
        theirs = other.widen(mine.shape[2])
        if rows is None:
            self.seen = np.maximum(mine, theirs)
            return
        if mine.shape[1] == 1:
            mine = self.seen = np.repeat(mine, total, axis=1)
        new = theirs if theirs.shape[1] == 1 else theirs[:, rows]
        mine[:, rows] = np.maximum(mine[:, rows], new)

    def knows(self, slot: int, clock: int, rows: Optional[np.ndarray] = None) -> np.ndarray:
        """Per row: is everything up to `clock` of agent `slot` ordered before?"""
        seen = self.widen(slot + 1)[0, :, slot]
        return (seen if rows is None or len(seen) == 1 else seen[rows]) >= clock


class Agent:
    """One agent of all programs of a batch.

    Attributes:
        slot: its place in the clocks.
        clock: its own count.
        known: what it knows.
        proxy: through which its accesses go.
        flight: the asynchronous work that it is, or None.
    """

    __slots__ = ("slot", "clock", "known", "proxy", "name", "flight", "epochs")

    def __init__(
        self,
        slot: int,
        clock: int,
        known: Clock,
        name: str,
        proxy: str = GENERIC,
        flight: Optional[Flight] = None,
    ):
        self.slot = slot
        self.clock = clock
        self.known = known
        self.name = name
        self.proxy = proxy
        self.flight = flight
        self.epochs: dict[EpochKey, int] = {}
        self._mark()

    def _mark(self) -> None:
        self.known.widen(self.slot + 1)[0, :, self.slot] = self.clock

    def tick(self) -> None:
        """What comes now is later than what others have learned so far."""
        self.clock += 1
        self.epochs = {}
        self._mark()

    def fence(self) -> None:
        """Everything known becomes visible to the asynchronous proxy."""
        seen = self.known.seen
        np.maximum(seen[1], seen[0], out=seen[1])
        self.tick()


class Agents:
    """The agents of one batch."""

    def __init__(self, rows: int):
        self.rows = rows
        self.clocks: list[int] = []  # the last clock given out, by slot

    def first(self, name: str) -> Agent:
        return self._make(self._slot(), Clock(), name)

    def _slot(self) -> int:
        self.clocks.append(0)
        return len(self.clocks) - 1

    def _make(self, slot: int, known: Clock, name: str, **more: Any) -> Agent:
        self.clocks[slot] += 1
        return Agent(slot, self.clocks[slot], known, name, **more)

    def fork(self, parent: Agent, name: str, slot: Optional[int] = None, **more: Any) -> Agent:
        """An agent that starts with what `parent` knows now; `slot` is one to use again."""
        made = self._make(self._slot() if slot is None else slot, parent.known.copy(), name, **more)
        parent.tick()
        return made
