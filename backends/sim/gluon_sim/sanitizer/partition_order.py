"""The happens-before order of a program's partitions besides barriers: releases and acquires by atomics.

Within a program each scope reaches everybody, and an acquire extends an agent's clock, as a barrier does: of shared and tensor memory, too.
"""

from __future__ import annotations

import numpy as np

from gluon_sim.sanitizer.agents import Agent, Clock, Task

__all__ = ["PartitionOrder"]


class PartitionOrder:
    """The releases at each address, by program."""

    def __init__(self) -> None:
        self._released: dict[tuple[int, int], Clock] = {}

    def atomic(
        self, task: Task, agent: Agent, addresses: np.ndarray, programs: np.ndarray, acquire: bool,
        release: bool, overwrites: bool, threads: bool,
    ) -> None:  # fmt: skip
        """Record an atomic access.

        Args:
            overwrites: whether it ends the earlier release there.
            threads: whether one thread makes it, and the others come before a release of it only by
                a barrier.
        """
        if not (acquire or release or overwrites):
            return
        numbers = np.broadcast_to(programs, addresses.shape).ravel().tolist()
        places = sorted(set(zip(numbers, addresses.ravel().tolist())))
        rows = {n: int(np.searchsorted(task.batch.numbers, n)) for n, _ in places}
        for place in places:
            there = self._released.get(place)
            if acquire and there is not None:
                agent.known.join(there, np.array([rows[place[0]]]), task.batch.count)
            if overwrites:
                self._released.pop(place, None)
        if not release:
            return
        for place in places:
            seen = agent.known.seen
            row = rows[place[0]] if seen.shape[1] > 1 else 0
            published = Clock(seen[:, row : row + 1].copy())
            if threads:
                own = published.seen[..., agent.slot]
                np.minimum(own, max(task.joined[1] - 1, 0), out=own)
            there = self._released.get(place)
            if there is None:
                self._released[place] = published
            else:
                there.join(published, None, 1)
        agent.tick()
