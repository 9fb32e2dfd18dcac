"""The knowledge of warps while PTX runs: which accesses happened before, by their clocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.machine.clocks import CAUSAL, PROXIED, Clock
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.machine.observe import Observer
from gluon_emu.ptx.machine.shadow import Accesses

__all__ = ["COLUMNS", "PENDING", "Knowledge"]

COLUMNS = 12  # bits of a column's number
PENDING = (1 << COLUMNS) - 1  # the column of copies that nobody waited for
_LANE = np.arange(LANES, dtype=np.uint32)


class Knowledge(Observer):
    """The clocks of all warps.

    Attributes:
        own: the column of each warp in clocks of its cluster.
        apart: warps whose lanes know different things, with a clock for each lane.
        now: the epoch of each warp.
        agents: (cluster, key) -> the column of asynchronous work.
        collected: arrivals at barriers that are not complete; `done`: those of complete ones.
    """

    def __init__(self, machine: Any):
        self.machine = machine
        rows = machine.block_of.size
        size = machine.cluster_size
        per = machine.warps * size
        self.cluster_of = machine.block_of // size
        self.own = np.arange(rows) - self.cluster_of * per
        self.clock = Clock.empty(rows, per + 16)
        self.apart: dict[int, Clock] = {}
        self.now = np.ones(rows, np.int32)
        self.agents: dict[tuple[int, Any], int] = {}
        self.used = np.full(machine.blocks // size, per)
        self.collected: dict[Any, Clock] = {}
        self.done: dict[Any, Clock] = {}

    def _column(self, cluster: int, key: Any) -> int:
        """Return the column of an asynchronous agent of a cluster."""
        column = self.agents.get((cluster, key))
        if column is None:
            column = self.agents[cluster, key] = int(self.used[cluster])
            self.used[cluster] += 1
            have = self.clock.whole.shape[2]
            if column >= have:
                self._widen(2 * have)
        return column

    def _widen(self, columns: int) -> None:
        if columns >= PENDING:
            raise EmulatorError(
                "too many barriers and copies of one cluster for the search for races",
                remedy="Leave --check out.",
            )
        self.clock = self.clock.wider(columns)
        every: list[dict[Any, Clock]] = [self.apart, self.collected, self.done]
        for clocks in every:
            clocks.update({key: one.wider(columns) for key, one in clocks.items()})

    def _fit(self, clock: Clock) -> Clock:
        columns = self.clock.whole.shape[2]
        return clock if clock.whole.shape[2] == columns else clock.wider(columns)

    def _sent(self, message: Clock, sender: int, row: int) -> Clock:
        """Return the clock of one warp as another has it, which may be of another cluster."""
        return self._fit(message).elsewhere(int(self.cluster_of[sender]), int(self.cluster_of[row]))

    def _covered(
        self, plane: int, rows: np.ndarray, lanes: np.ndarray, earlier: Accesses
    ) -> np.ndarray:
        """Return whether accesses happen before what threads do now, all flat arrays."""
        thread = earlier.agent > 0
        row = np.where(thread, earlier.agent - 1 >> 5, 0)
        lane = np.where(thread, earlier.agent - 1 & 31, 0).astype(np.uint32)
        code = np.where(thread, 0, -earlier.agent - 1)
        cluster = np.where(thread, self.cluster_of[row], code >> COLUMNS)
        column = np.where(thread, self.own[row], code & PENDING)
        pending = ~thread & (column == PENDING)
        column = np.where(pending, 0, column)
        clock = self.clock
        ok = clock.whole[plane, rows, column] >= earlier.epoch
        later = clock.some[plane, rows, column] >= earlier.epoch
        ok |= later & ((clock.lanes[plane, rows, column] >> lane & 1) != 0)
        if self.apart:
            for one, clocks in self.apart.items():
                here = np.flatnonzero(rows == one)
                if not here.size:
                    continue
                cell = plane, lanes[here], column[here]
                known = clocks.whole[cell] >= earlier.epoch[here]
                some = clocks.some[cell] >= earlier.epoch[here]
                ok[here] = known | some & ((clocks.lanes[cell] >> lane[here] & 1) != 0)
        foreign = np.flatnonzero(cluster != self.cluster_of[rows])
        if foreign.size:
            ok[foreign] = False
            self._covered_far(plane, rows, (cluster, column, lane), earlier.epoch, foreign, ok)
        ok &= ~pending
        if plane == CAUSAL:
            ok |= thread & (row == rows) & (lane == lanes)
        return np.asarray(ok | (earlier.agent == 0))

    def _covered_far(
        self, plane: int, rows: np.ndarray, agents: tuple[np.ndarray, np.ndarray, np.ndarray],
        epoch: np.ndarray, foreign: np.ndarray, ok: np.ndarray,
    ) -> None:  # fmt: skip
        """Set `ok` of accesses by agents of other clusters that happen before."""
        cluster, column, lane = agents
        code = rows[foreign] * self.used.size + cluster[foreign]
        order = np.argsort(code, kind="stable")
        foreign, code = foreign[order], code[order]
        for some in np.split(foreign, np.flatnonzero(np.diff(code)) + 1):
            far = self.clock.far[rows[some[0]]]
            entry = None if far is None else far.get(int(cluster[some[0]]))
            if entry is None:
                continue
            whole, later, lanes = (part[plane] for part in entry)
            there = np.minimum(column[some], whole.size - 1)
            known = whole[there] >= epoch[some]
            known |= (later[there] >= epoch[some]) & ((lanes[there] >> lane[some] & 1) != 0)
            ok[some] = known & (column[some] < whole.size)

    def _message(self, group: Any, lanes: np.ndarray) -> tuple[np.ndarray, Clock]:
        """Return the rows whose threads release, and what each lets others know; their epochs end."""
        chosen = np.flatnonzero(lanes.any(1))
        rows = group.rows[chosen]
        lanes = lanes[chosen]
        message = self.clock.of(rows)
        for i, row in enumerate(rows):
            clocks = self.apart.get(int(row))
            if clocks is not None:
                message.put([i], clocks.of(np.flatnonzero(lanes[i])).together(np.array([0])))
        column = self.own[rows]
        index = np.arange(rows.size)
        bits = (lanes.astype(np.uint32) << _LANE).sum(1, dtype=np.uint32)
        full = (lanes | self.machine.exited[rows]).all(1)
        now = self.now[rows]
        cell = CAUSAL, index, column
        message.whole[cell] = np.where(full, now, message.whole[cell])
        old = np.where(message.some[cell] > message.whole[cell], message.lanes[cell], 0)
        message.lanes[cell] = np.where(full, message.lanes[cell], bits | old)
        message.some[cell] = np.where(full, message.some[cell], now)
        self.now[rows] += 1
        return rows, message

    def _acquire(self, group: Any, lanes: np.ndarray, message: Clock) -> None:
        """Let threads know a message, one clock for all rows that have some, or one for each."""
        chosen = np.flatnonzero(lanes.any(1))
        rows, lanes = group.rows[chosen], lanes[chosen]
        full = (lanes | self.machine.exited[rows]).all(1)
        single = message.whole.shape[1] == 1
        if full.any():
            some = rows[full]
            part = message if single else message.of(np.flatnonzero(full))
            self.clock.put(some, self.clock.of(some).joined(part))
            for row in some:
                clocks = self.apart.get(int(row))
                if clocks is not None:
                    one = message if single else message.of([int(np.flatnonzero(rows == row)[0])])
                    self.apart[int(row)] = clocks.joined(one)
        for i in np.flatnonzero(~full):
            row = int(rows[i])
            clocks = self.apart.get(row) or self.clock.of([row]).repeat(LANES)
            some = np.flatnonzero(lanes[i])
            one = message if single else message.of([int(i)])
            clocks.put(some, clocks.of(some).joined(one))
            self.apart[row] = clocks

    def _converged(self, rows: np.ndarray) -> None:
        """Give all lanes of these warps the knowledge of each."""
        for row in rows:
            clocks = self.apart.pop(int(row), None)
            if clocks is not None:
                self.clock.put([row], clocks.together(np.array([0])))
        cell = CAUSAL, rows, self.own[rows]
        self.clock.whole[cell] = self.now[rows]
        self.now[rows] += 1

    def _know(self, group: Any, here: np.ndarray, cluster: int, key: Any, epoch: int) -> None:
        """Let threads know an asynchronous agent's work up to an epoch."""
        column = self._column(cluster, key)
        rows = group.rows[here.any(1)]
        for plane in (CAUSAL, PROXIED):
            old = self.clock.whole[plane, rows, column]
            self.clock.whole[plane, rows, column] = np.maximum(old, epoch)
            for row in rows:
                clocks = self.apart.get(int(row))
                if clocks is not None:
                    some = np.flatnonzero(here[np.flatnonzero(group.rows == row)[0]])
                    old = clocks.whole[plane, some, column]
                    clocks.whole[plane, some, column] = np.maximum(old, epoch)

    def _agent(self, cluster: int, key: Any) -> int:
        return int(-((cluster << COLUMNS) + self._column(cluster, key)) - 1)

    def _phase(self, place: int) -> int:
        return int(self.machine.mbarriers.total.get(place, 0))

    def _cluster_at(self, place: int) -> int:
        return int(place // self.machine.memory.stride // self.machine.cluster_size)
