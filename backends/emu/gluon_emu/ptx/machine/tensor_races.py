"""The search for races in tensor memory: PTX ISA 9.7.16.6, consistency of `tcgen05` instructions.

The unit's products and copies of a block are one agent, which works in the order of their issue; a commit lets an mbarrier
know of its work so far. Loads and stores of a warp are agents, too, until it waits for them.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluon_emu.ptx.machine.clocks import CAUSAL, Clock
from gluon_emu.ptx.machine.observe import DEVICE
from gluon_emu.ptx.machine.races import Races
from gluon_emu.ptx.machine.shadow import Accesses, Shadow
from gluon_emu.ptx.machine.tensor import COLUMNS, ROWS

__all__ = ["TensorRaces"]

_LANES = 16  # of a record: the least that an instruction uses at once
_UNITS = ROWS // _LANES * COLUMNS  # records of a block


def _units(cells: np.ndarray) -> np.ndarray:
    """Return the records of cells, each once: a column of 16 lanes."""
    return np.unique(cells // (_LANES * COLUMNS) * COLUMNS + cells % COLUMNS)


class TensorRaces(Races):
    """A search for races that watches tensor memory, too.

    Attributes:
        commits: of each block.
        waits: of each warp, for its loads and for its stores.
    """

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.commits = np.zeros(self.machine.blocks, np.int64)
        self.waits = np.zeros((2, self.machine.block_of.size), np.int64)
        self._cells: Optional[Shadow] = None

    @property
    def cells(self) -> Shadow:
        if self._cells is None:
            self._cells = Shadow(self.machine.blocks * _UNITS, 1)
        return self._cells

    def tensor_accessed(self, group: Any, cells: np.ndarray, writes: bool) -> None:
        name = "tensor.st" if writes else "tensor.ld"
        for i in np.flatnonzero(group.lanes().any(1)):
            row = int(group.rows[i])
            agent = self._agent(int(self.cluster_of[row]), (name, row))
            epoch = int(self.waits[int(writes), row]) + 1
            self._used(group, (row, 0), _units(cells[i]), (agent, epoch), writes, False)

    def tensor_waited(self, group: Any, loads: bool) -> None:
        name = "tensor.ld" if loads else "tensor.st"
        for i in np.flatnonzero(group.lanes().any(1)):
            row = int(group.rows[i])
            epoch = self.waits[int(not loads), row] = self.waits[int(not loads), row] + 1
            cluster, key = int(self.cluster_of[row]), (name, row)
            if (cluster, key) in self.agents:
                here = np.zeros_like(group.lanes())
                here[i] = group.lanes()[i]
                self._know(group, here, cluster, key, int(epoch))

    def tensor_work(
        self, group: Any, lane: tuple[int, int], shared: Sequence[tuple[int, np.ndarray, int]],
        reads: Sequence[np.ndarray], writes: Sequence[np.ndarray],
    ) -> None:  # fmt: skip
        row, block = int(group.rows[lane[0]]), int(group.block[lane[0]])
        agent = self._agent(int(self.cluster_of[row]), ("tensor", block))
        work, thread = (agent, int(self.commits[block]) + 1), (row, lane[1])
        stride = self.machine.memory.stride
        for one, places, size in shared:
            self._async(group, thread, ("shared", one * stride + places, size), work, False, False)
        for cells, wrote in [(c, False) for c in reads] + [(c, True) for c in writes]:
            self._used(group, thread, _units(cells), work, wrote, True)

    def tensor_committed(self, group: Any, lane: tuple[int, int], places: Sequence[int]) -> Any:
        row, block = int(group.rows[lane[0]]), int(group.block[lane[0]])
        index = self.shared.units(np.asarray(places), 8)
        threads = np.full(index.shape[0], row), np.full(index.shape[0], lane[1])
        self._check(group, self.shared, index, threads, ("shared", False, DEVICE), CAUSAL)
        self.commits[block] += 1
        # The unit read what the thread knew of, so its end comes after that, too.
        apart = self.apart.get(row)
        known = self.clock.of([row]) if apart is None else apart.of([lane[1]])
        return block, int(self.commits[block]), known

    def tensor_done(self, place: int, number: Any) -> None:
        block, epoch, known = number
        column = self._column(block // self.machine.cluster_size, ("tensor", block))
        one: Clock = self._fit(known).of([0])
        one.whole[:, 0, column] = np.maximum(one.whole[:, 0, column], epoch)
        key = "mbarrier", place
        before = self.collected.get(key)
        self.collected[key] = one if before is None else before.joined(one)

    def _used(
        self, group: Any, thread: tuple[int, int], units: np.ndarray, agent: tuple[int, int],
        writes: bool, pipelined: bool,
    ) -> None:  # fmt: skip
        """Check and record an access to tensor memory.

        Args:
            agent: whose access it is, and its epoch.
            pipelined: the agent's own accesses happen in the order of issue.
        """
        shadow = self.cells
        earlier: tuple[Accesses, ...] = (shadow.write, *(shadow.reads if writes else ()))
        for accesses in earlier:
            some = units[accesses.agent[units] != agent[0]] if pipelined else units
            threads = np.full(some.size, thread[0]), np.full(some.size, thread[1])
            how = "tensor", writes, 0
            self._ordered(group, accesses.of(some), some, threads, how, CAUSAL, accesses is shadow.write)  # fmt: skip
        agents = np.full(units.size, agent[0], np.int32)
        self._record(group, shadow, units[:, None], agents, np.int32(agent[1]), writes)
