"""Lanes: the tasks of a block and the units that work for it, with their spans of time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Optional

from gluon_sim.timing.stream import Where

__all__ = ["Cause", "Done", "Lane", "Span"]


@dataclass
class Span:
    """One activity of a lane from `begin` to `end`, in cycles.

    Args:
        kind: "compute", "issue", "wait", "scope", or "work" of a unit of its own.
        cause: of a wait, whose signal ended it, and when that came; of work, the task that issued it, and when.
    """

    where: Where
    begin: float
    end: float
    kind: str
    cause: Optional["Cause"] = None
    depth: int = 0


@dataclass
class Lane:
    """A task of a block, or a unit that works for it.

    Args:
        name: of the task or the unit.
        warps: first warp and number of warps; None for a unit.
    """

    name: str
    block: int
    warps: Optional[tuple[int, int]] = None
    spans: list[Span] = field(default_factory=list)


Cause = tuple[Lane, float]  # whose signal ended a wait, and when it came


class Done:
    """The end of a piece of work: of the whole of it, and of its reads of shared memory.

    `time` is None as long as it is not known.
    """

    __slots__ = ("by", "read", "time", "waiting")

    def __init__(self, lane: "Lane", time: Optional[float] = None, read: Optional[float] = None):
        self.by = lane
        self.time = time
        self.read = time if read is None else read
        self.waiting: list[Callable[[], None]] = []

    def known(self, time: float) -> None:
        """Set the time, and tell those who asked for it."""
        self.time = self.read = time
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()
