"""Barriers during model checking: arrivals, bytes and phases, and the waits that pass.

It mirrors the simulator's state of barriers, in a form of which there are finitely many.
"""

from __future__ import annotations

from typing import Optional

from gluon_prove.accesses import Accesses, Slot
from gluon_prove.events import Barrier
from gluon_prove.flights import Flight
from gluon_prove.order import Depends
from gluon_prove.reasons import Found, Overtaken, Widened
from gluon_sim.tracing.ir import Location

__all__ = ["Barriers"]


class Barriers(Accesses):
    """The part of a world that knows barriers.

    Attributes: see `World`.
    """

    flights: list[Flight]
    loose: Optional[list[tuple[tuple[int, int], ...]]]
    writers: dict[int, frozenset[int]]
    idle: Optional[set[int]]
    busy: set[int]

    def _slot(self, number: int) -> Slot:
        while len(self.slots) <= number:
            self.slots.append(Slot(0, 0, 0, 0))
        return self.slots[number]

    def passes(self, event: Barrier) -> bool:
        """Return whether a wait passes."""
        return self._slot(event.slot).phase != event.amount

    def _wrote(self, slot: int, task: int) -> None:
        known = self.writers.get(slot, frozenset())
        if task not in known:
            self.writers[slot] = known | {task}
            if known and self.loose is not None:
                raise Widened  # states were left out because there was one writer

    def _acted(self, task: int, mark: Optional[int]) -> None:
        """Record an action that others can observe, of a task or of work that it started after so many waits."""
        if self.loose is None:
            return
        first = len(self.loose[task]) if mark is None else mark
        if first:
            self.loose[task] = self.loose[task][first:]
            self.flights = [
                f._replace(mark=max(0, f.mark - first)) if f.task == task and f.mark else f
                for f in self.flights
            ]

    def barrier(
        self, event: Barrier, bit: int, loc: Optional[Location], task: int, mark: Optional[int] = None
    ) -> None:  # fmt: skip
        """Apply the effect of a task (or of its finished work) with that bit to a barrier."""
        slot = self._slot(event.slot)
        action, amount = event.action, event.amount
        if action in ("init", "invalidate", "raise"):
            self._acted(task, mark)
        if self.phases is not None and action in ("init", "invalidate", "raise"):
            self.phases.settled(event.slot, bit)
        if action == "init":
            if slot.wanted:
                raise Found("barrier.initialised", "a barrier is initialized while in use", loc)
            self.slots[event.slot] = Slot(amount, amount, 0, 0)
            if self.phases is not None:
                self.phases = self.phases.reset(event.slot, bit, self.idle is not None)
            return
        if not slot.wanted:
            raise Found(
                "barrier.uninitialised", f"{action} at a barrier that is not initialized", loc
            )
        if action == "invalidate":
            self.slots[event.slot] = Slot(0, 0, 0, 0)
            if self.phases is not None:
                self.phases = self.phases.reset(event.slot, bit, self.idle is not None)
            return
        if self.phases is not None:
            self._asked(event, bit)
        if action == "wait":
            self._learn(1 << bit, self._over(event.slot))
            if self.phases is not None:
                self.phases = self.phases.did(event.slot, "wait", bit)
            if self.loose is not None:
                wait = (event.slot, event.amount)
                if wait not in self.loose[bit]:
                    self.loose[bit] = (*self.loose[bit], wait)
            return
        self._wrote(event.slot, task)
        if action == "raise":
            self.slots[event.slot] = slot._replace(pending=slot.pending + amount)
            return
        if action == "expect":
            self.slots[event.slot] = slot._replace(bytes=slot.bytes + amount)
            return
        if action == "arrive":
            if slot.pending < amount:
                raise Found(
                    "barrier.arrivals", "more arrivals at a barrier than its phase expects", loc
                )
            slot = slot._replace(pending=slot.pending - amount)
        else:
            slot = slot._replace(bytes=slot.bytes - amount)
        if slot.bytes < 0 and not slot.pending:
            raise Found("barrier.bytes", "more bytes come to a barrier than its phase expects", loc)
        over = slot.pending <= 0 and not slot.bytes
        if over or len(self.writers[event.slot]) > 1:
            self._acted(task, mark)  # till then only the one who did it can tell
        if self.phases is not None:
            self.phases = self.phases.did(event.slot, "arrival", bit)
        self._learn(self._coming(event.slot), 1 << bit)
        if over:
            slot = slot._replace(pending=slot.wanted, phase=1 - slot.phase)
            if self.loose is not None:
                if any((event.slot, slot.phase) in passed for passed in self.loose):
                    raise Overtaken
            if self.phases is not None:
                bits = self._coming(event.slot), self._over(event.slot)
                self.phases = self.phases.ended(event.slot, *bits)
            self._learn(self._over(event.slot), self._coming(event.slot))
        self.slots[event.slot] = slot

    def _asked(self, event: Barrier, bit: int) -> None:
        """Refuse an operation at a barrier that could precede one it must follow. Where no task ever waits, and each arrival counts one, their order cannot be observed."""
        assert self.phases is not None
        if event.action != "arrive" or event.amount != 1:
            self.busy.add(event.slot)
        if self.idle is not None and event.slot in self.idle & self.busy:
            raise Depends
        try:
            self.phases.asked(event.slot, "before" if event.action == "wait" else "last", bit)
        except Depends:
            if self.idle is None or event.slot in self.busy:
                raise
            self.phases.asked(event.slot, "made", bit)
            self.idle.add(event.slot)
