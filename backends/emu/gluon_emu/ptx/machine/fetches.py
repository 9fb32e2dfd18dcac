"""Loads from shared memory that may be on their way when their warp arrives at a barrier.

A load has read memory once an instruction has used its value. Neither `bar.sync` nor an arrival at an mbarrier waits for one
before it: on an H200 a bulk copy overwrote data that an `ldmatrix` in front of the arrival had not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gluon_emu.ptx.machine.shadow import LATE, Accesses, Shadow

__all__ = ["Fetches"]


@dataclass
class _Load:
    """The executions of a load whose value some warps have not used.

    Args:
        place: index of the instruction.
        open: those warps; `late`: those that have released since.
        reads: (accesses, units) of the shared memory, and the agent of each access.
    """

    place: int
    open: np.ndarray
    late: np.ndarray
    reads: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)


class Fetches:
    """The loads under way, by the registers that get their values.

    Args:
        fetched: the machine's registers of such loads -> index of the load.
        rows: warps.
    """

    def __init__(self, fetched: dict[str, int], shared: Shadow, rows: int):
        self.fetched, self.shared, self.rows = fetched, shared, rows
        self.loads: dict[int, _Load] = {}

    def start(self, bound: Any, index: np.ndarray, agents: np.ndarray) -> None:
        """Note a load of units by the agents of its threads."""
        load = self.loads.get(bound.index)
        if load is None:
            none = np.zeros(self.rows, bool)
            load = self.loads[bound.index] = _Load(bound.index, none, none.copy())
        warps = np.zeros(self.rows, bool)
        warps[agents - 1 >> 5] = True
        kept = [(i, a, (~warps & load.open)[a - 1 >> 5]) for i, a in load.reads]
        load.reads = [(i[some], a[some]) for i, a, some in kept if some.any()]
        load.reads.append((index, agents))
        load.open |= warps
        load.late &= ~warps
        self.fetched.update(dict.fromkeys(bound.writes, bound.index))

    def used(self, rows: np.ndarray, bound: Any, now: np.ndarray) -> None:
        """Note that warps use registers, in their epochs `now`."""
        for place in {self.fetched[name] for name in bound.reads if name in self.fetched}:
            load = self.loads[place]
            for reads, flat in self._of(load, rows, load.late):
                reads.later[flat] = now[reads.agent[flat] - 1 >> 5]
            load.open[rows] = load.late[rows] = False
            if not load.open.any():
                del self.loads[place]
                for name in [n for n, other in self.fetched.items() if other == place]:
                    del self.fetched[name]

    def released(self, rows: np.ndarray) -> None:
        """Mark the reads of warps that let others go on."""
        for load in self.loads.values():
            for reads, flat in self._of(load, rows, load.open & ~load.late):
                reads.strong[flat], reads.later[flat] = LATE, 0
            load.late[rows] = load.open[rows]

    def _of(
        self, load: _Load, rows: np.ndarray, chosen: np.ndarray
    ) -> list[tuple[Accesses, np.ndarray]]:
        """Return the records of a load by those of some warps that are chosen, with their units."""
        mine = np.zeros(self.rows, bool)
        mine[rows] = chosen[rows]
        records: list[tuple[Accesses, np.ndarray]] = []
        if not mine.any():
            return records
        for index, agents in load.reads:
            some = mine[agents - 1 >> 5]
            flat = index[some].ravel()
            agent = np.repeat(agents[some], index.shape[1])
            for reads in self.shared.reads:
                own = (reads.agent[flat] == agent) & (reads.place[flat] == load.place)
                records.append((reads, flat[own]))
        return records
