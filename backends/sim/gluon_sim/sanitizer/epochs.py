"""Epochs: who made which access, and when, by a number that shadows keep."""

from __future__ import annotations

import threading
from typing import Mapping, Optional

import numpy as np

from gluon_sim.sanitizer.agents import ALONE, GENERIC, Agent, Epoch, EpochKey, Task
from gluon_sim.tracing.uses import is_late

__all__ = ["Epochs"]


class Epochs:
    """All epochs of a launch by number; 0 is "never"."""

    COLUMNS = ("slots", "clocks", "times", "asynchronous", "late", "places", "stamps", "rest")

    def __init__(self) -> None:
        self.strict = False  # whether reads, too, need a fence before a write through another proxy
        self.all: list[Optional[Epoch]] = [None]
        self.slots = np.zeros(64, np.int32)
        self.clocks = np.zeros(64, np.int64)
        self.times = np.zeros(64, np.int64)
        self.asynchronous = np.zeros(64, bool)
        self.late = np.zeros(64, bool)  # loads that may be on their way when others learn of them
        # As other programs see them: who, when, and whether by threads that do not act for all.
        self.places = np.zeros(64, np.int32)
        self.stamps = np.zeros(64, np.int64)
        self.rest = np.zeros(64, bool)
        self._plain: dict[EpochKey, int] = {}
        self._lock = threading.Lock()

    def of(self, task: Task, kind: str, time: int = 0, rest: bool = False) -> int:
        """Return the number for an access by `task` now; equal accesses share one.

        Args:
            rest: by threads other than the one that makes the task's atomics.
        """
        agent = task.agent
        cache = self._plain if agent is None else agent.epochs
        key = (id(task.op), kind, time, None if agent is None else id(self), task.name, rest)
        epoch = cache.get(key)
        if epoch is None:
            with self._lock:
                epoch = cache[key] = self._new(task, kind, time, rest)
        return epoch

    def _new(self, task: Task, kind: str, time: int, rest: bool) -> int:
        agent = task.agent
        number = len(self.all)
        clock = agent.clock if agent is not None else 0
        closed: Optional[Mapping[str, np.ndarray]] = None
        if agent is not None and agent.flight is not None:
            closed = agent.flight.closed  # the task that issued it must wait
        elif agent is not None:
            closed = {queue.name: queue.closed for queue in task.queues.values()}
        self.all.append(Epoch(task.op, kind, agent, clock, task.name, time, closed))
        if number >= len(self.slots):
            for name in self.COLUMNS:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self.slots[number] = agent.slot if agent is not None else 0
        self.clocks[number] = clock
        self.times[number] = time
        self.asynchronous[number] = agent is not None and agent.proxy != GENERIC
        self.late[number] = kind == "read" and agent is not None and is_late(task.op)
        self.places[number] = ALONE if agent is None else agent.slot + 1
        self.stamps[number] = time if agent is None else clock
        self.rest[number] = rest
        return number

    def ordered(
        self, agent: Agent, ids: np.ndarray, rows: Optional[np.ndarray], free: bool = False
    ) -> np.ndarray:
        """Return True where an epoch happens before the current access of `agent`; `rows` broadcasts like `ids`.

        `free`: they need no fence to be seen through another proxy, but for loads that may be on their way.
        """
        low = int(ids.min()) if ids.size else 0
        if not ids.size or low == int(ids.max()):
            ids = np.full((1,) * ids.ndim, low, np.int64)  # the usual case: one epoch
        slots, clocks = self.slots[ids], self.clocks[ids]
        seen = agent.known.widen(int(slots.max()) + 1)
        seen_rows = rows if seen.shape[1] > 1 and rows is not None else 0
        if seen.shape[1] > 1 and rows is None:
            known = seen[0][:, slots.reshape(-1)].min(0).reshape(slots.shape)
            fenced = seen[1][:, slots.reshape(-1)].min(0).reshape(slots.shape)
        else:
            known = seen[0][seen_rows, slots]
            fenced = seen[1][seen_rows, slots] if agent.proxy != GENERIC else known
        if agent.proxy != GENERIC:
            landed = self.asynchronous[ids] | (free & ~self.late[ids])
            known = np.where(landed, known, fenced)
        fine: np.ndarray = known >= clocks
        return fine
