"""A launch, and the counts of what it executed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from gluon_emu.memory import Allocation
from gluon_emu.ptx.machine.code import Code

__all__ = ["Counts", "Launch", "Waiting"]


@dataclass
class Counts:
    """Count the warps that executed each instruction of a launch.

    Args:
        counts: of each instruction.
        jumped: of each conditional branch, the warps of which some thread jumped.
        whole: of each conditional branch, the warps of which all threads jumped.
    """

    counts: list[int]
    jumped: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jumped, self.whole = [0] * len(self.counts), [0] * len(self.counts)


@dataclass
class Launch:
    """One launch.

    Args:
        grid: blocks along x, y and z.
        block: threads along x, y and z.
        cluster: blocks of a cluster along x, y and z.
        shared: bytes of shared memory that the code does not declare.
        parameters: the address of the arguments.
        heap: the pieces of memory that `malloc` gave, where the code calls it.
        together: whether all blocks have to be resident.
    """

    code: Code
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    allocations: list[Allocation] = field(default_factory=list)
    together: bool = False
    parameters: int = 0
    heap: Any = None


class Waiting:
    """The clusters of a grid that have not started.

    Args:
        clusters: their number.
        size: blocks of a cluster.
    """

    def __init__(self, clusters: int, size: int):
        self.size = size
        self.started, self.clusters = 0, clusters

    def __bool__(self) -> bool:
        return self.started < self.clusters

    def take(self, blocks: int) -> np.ndarray:
        """Return the numbers of the blocks that start now, at most so many."""
        count = min(max(1, blocks // self.size), self.clusters - self.started)
        clusters = np.arange(self.started, self.started + count)
        self.started += count
        return np.asarray((clusters[:, None] * self.size + np.arange(self.size)).ravel())

    def claim(self) -> Optional[int]:
        """Return a cluster that will not start any more; None where all have started."""
        if not self:
            return None
        self.started += 1
        return self.started - 1
