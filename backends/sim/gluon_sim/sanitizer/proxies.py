"""Fences between the proxies that a compiler adds: whose accesses it knows of, and when it needs one.

A compiler looks at the text of a function: the accesses of a partition itself, those of the program before its partitions started, perhaps those of finished partitions. It never looks across partitions
that run side by side.
"""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

from gluon_sim.errors import RaceError, related, tolerate
from gluon_sim.sanitizer.advice import fence
from gluon_sim.sanitizer.agents import GENERIC, Agent, Epoch, Task
from gluon_sim.sanitizer.races import ShadowedView
from gluon_sim.sanitizer.tracking import Tracking
from gluon_sim.tracing.source import span_of

__all__ = ["History", "missing_fence", "report_added_fence"]

_NEWEST = np.iinfo(np.int64).max


class History:
    """A compiler's knowledge of accesses before an op of one task.

    Attributes:
        before: (slot, clock) of agents up to whose clock the program ran before this task started.
        ended: slots of partitions of this task that are over.
    """

    def __init__(self, before: Sequence[tuple[int, int]] = ()):
        self.before = list(before)
        self.ended: list[int] = []
        # Clocks of the task that functions which stay functions hide from each other.
        self._calls: list[int] = []
        self._hidden: list[tuple[int, int]] = []

    def fork(self, agent: Agent) -> "History":
        """Return the history of a partition that starts now."""
        slots = [(slot, _NEWEST) for slot in self.ended]
        return History([*self.before, *slots, (agent.slot, agent.clock)])

    def enter(self, agent: Agent) -> None:
        """Enter a function that is compiled on its own."""
        agent.tick()
        self._calls.append(agent.clock)

    def leave(self, agent: Agent) -> None:
        first = self._calls.pop()
        self._hidden = [h for h in self._hidden if h[0] < first]
        self._hidden.append((first, agent.clock))
        agent.tick()

    def fenced(self) -> None:
        """Fence all earlier accesses."""
        self._hidden.clear()

    def unfenced(
        self,
        tracking: Tracking,
        agent: Agent,
        view: ShadowedView,
        known: Sequence[str],
        reads: bool,
    ) -> Optional[Epoch]:
        """Return an access to a view that the compiler knows of and that has no fence yet."""
        epochs = tracking.epochs
        ids = tracking.last_accesses(view, reads)
        if ids is None or not len(ids):
            return None
        slots, clocks = epochs.slots[ids], epochs.clocks[ids]
        seen = agent.known.widen(int(slots.max()) + 1)[1].min(0)
        open_ = ~epochs.asynchronous[ids] & (seen[slots] < clocks)
        if not open_.any():
            return None
        slots, clocks = _issuers(tracking, ids[open_])
        unordered = self._own(agent, slots, clocks, "calls" in known) & ("own" in known)
        if "before" in known:
            for slot, limit in self.before:
                unordered |= (slots == slot) & (clocks <= limit)
        if "partitions" in known:
            unordered |= np.isin(slots, self.ended)
        return epochs.all[int(ids[open_][int(np.argmax(unordered))])] if unordered.any() else None

    def _own(self, agent: Agent, slots: np.ndarray, clocks: np.ndarray, calls: bool) -> np.ndarray:
        mine: np.ndarray = slots == agent.slot
        if not calls:
            if self._calls:
                mine &= clocks >= self._calls[-1]
            for first, last in self._hidden:
                mine &= (clocks < first) | (clocks > last)
        return mine


def _issuers(tracking: Tracking, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots and clocks of who made accesses; of asynchronous ones, of who issued them."""
    issuers = []
    for number in ids.tolist():
        epoch = tracking.epochs.all[number]
        assert epoch is not None and epoch.agent is not None
        flight = epoch.agent.flight
        accessor = (epoch.agent, epoch.clock) if flight is None else (flight.issuer, flight.issued)
        issuers.append((accessor[0].slot, accessor[1]))
    slots, clocks = np.array(issuers, np.int64).T
    return slots, clocks


def missing_fence(
    tracking: Optional[Tracking], history: History, agent: Optional[Agent], views: Sequence[ShadowedView],
    known: Sequence[str], writes: bool,
) -> Optional[Epoch]:  # fmt: skip
    """Return the access for which the compiler adds a fence before an op that accesses `views`."""
    if tracking is None or agent is None or agent.proxy != GENERIC:
        return None
    candidates = (history.unfenced(tracking, agent, view, known, writes) for view in views)
    return next((epoch for epoch in candidates if epoch is not None), None)


def report_added_fence(task: Task, earlier: Epoch, releases: str) -> None:
    """Report a fence that the installed compiler adds and that an older one does not."""
    error = RaceError(
        f"`{task.op.called}` accesses shared memory through another proxy than `{earlier.op.called}` of "
        f"line {earlier.op.loc.line}, and no fence is between them: the installed compiler adds one "
        f"({releases}), an older one does not",
        report="race.fence",
        program=task.batch.program(int(task.rows.index[0])),
        remedy=fence(task, "async", earlier.op, task.op),
        span=span_of(task.op.loc),
    )
    error.related = related(error.span, span_of(earlier.op.loc))
    tolerate(error, task.machine.settings.fences, task.memory.warned)
