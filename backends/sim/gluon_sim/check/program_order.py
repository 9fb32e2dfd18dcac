"""What orders the programs of a grid: releases and acquires by atomics, found out when asked for.

Almost no kernel has two programs touch one element, so atomics are only logged; the log is read
when two accesses need an order.

A release publishes what its own task did and what that task knows of the program's other tasks and
of other programs; an acquire is learned by the task that made it, and by those that learn from it.
What a task did is told in two parts: by the thread that makes the atomic, and by its other threads,
whose accesses only a barrier before the release puts in front of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np

if TYPE_CHECKING:
    from gluon_sim.check.epochs import Epochs
    from gluon_sim.record.ir import Op
    from gluon_sim.run.task import Task

__all__ = ["ALONE", "Actor", "ProgramOrder", "order_of"]

_ORDERS = {
    "relaxed": (False, False), "acquire": (True, False), "release": (False, True),
    "acquire_release": (True, True), "acq_rel": (True, True),
}  # fmt: skip
# The place of what a program does while nobody else is at work in it; agents come after it.
ALONE = 0
_DENSE = 2048  # programs up to which the whole matrix of who knows what of whom is kept
_ANY = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Actor:
    """Who makes an atomic, or asks what it knows.

    Attributes:
        place: `ALONE`, or the slot of its agent and one.
        stamp: the clock of that agent; of a program alone, the time.
        rest: up to which stamp all its threads are known to have come, not only the one that acts.
        known: what the agent knows of the others of its program, (programs of the batch or 1, slots).
        numbers: the programs of its batch, sorted.
    """

    place: int = ALONE
    stamp: int = 0
    rest: int = 0
    known: Optional[np.ndarray] = None
    numbers: Optional[np.ndarray] = None

    @classmethod
    def of(cls, task: Task, time: int, threads: bool) -> "Actor":
        """The actor that a task is now; `threads`: whether its threads act for themselves."""
        agent = task.agent
        if agent is None:
            return cls(ALONE, time, task.joined[0] - 1 if threads else time)
        rest = task.joined[1] - 1 if threads else agent.clock
        return cls(
            agent.slot + 1, agent.clock, rest, agent.known.seen[0].copy(), task.batch.numbers
        )

    def knows(self, program: int) -> Optional[np.ndarray]:
        """The clocks it knows in a program of its batch, by slot."""
        if self.known is None or self.numbers is None:
            return None
        row = int(np.searchsorted(self.numbers, program)) if len(self.known) > 1 else 0
        found: np.ndarray = self.known[row]
        return found


@dataclass(frozen=True)
class _Atomic:
    addresses: np.ndarray
    programs: np.ndarray
    acquire: bool
    release: bool
    overwrites: bool  # whether it ends what was released at the address before
    actor: Actor


class ProgramOrder:
    """The order of the programs of one launch.

    Attributes:
        time: counts the atomics that were executed, and barriers where `threads`.
        threads: whether a release is only of what a thread did itself, or knows by a barrier.
    """

    def __init__(self, grid: tuple[int, int, int], threads: bool = False):
        self.grid = grid
        self.total = grid[0] * grid[1] * grid[2]
        self.time = 1
        self.threads = threads
        self._log: list[_Atomic] = []
        self._dense: Optional[_Known] = None

    def program(self, number: int) -> tuple[int, int, int]:
        x, rest = number % self.grid[0], number // self.grid[0]
        return x, rest % self.grid[1], rest // self.grid[1]

    @property
    def orders(self) -> bool:
        """Whether any atomic orders anything at all."""
        return bool(self._log)

    def atomic(
        self, task: Task, addresses: np.ndarray, programs: np.ndarray, acquire: bool, release: bool,
        overwrites: bool, threads: bool,
    ) -> None:  # fmt: skip
        """An atomic access, in the order in which its elements were taken.

        Args:
            threads: whether one thread makes it, and acts for itself alone.
        """
        if acquire or release or overwrites:
            actor = Actor.of(task, self.time, threads and self.threads)
            self._log.append(_Atomic(addresses, programs, acquire, release, overwrites, actor))
            if task.agent is not None:
                task.agent.tick()
        self.time += 1

    def ordered(
        self, task: Task, epochs: Epochs, before: np.ndarray, ids: np.ndarray, now: np.ndarray,
        acting: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Is what programs `before` did in the epochs `ids` ordered before what `now` do now?

        Args:
            acting: as if the threads that acted for their programs had done it all.
        """
        if not self._log:
            return np.zeros(before.shape, bool)
        known = self._known(before)
        actor = Actor.of(task, self.time, False)
        plane = np.ones(ids.shape, np.intp) if acting else 1 - epochs.rest[ids].astype(np.intp)
        reached = known.reach(actor, now, before, epochs.places[ids], plane)
        fine: np.ndarray = reached >= epochs.stamps[ids]
        return fine

    def met(self, before: int, now: int) -> bool:
        """Has any part of program `now` acquired what any part of `before` released?"""
        return bool(self._log) and self._known(np.array([before])).met(before, now)

    def _known(self, before: np.ndarray) -> _Known:
        if self.total <= _DENSE:
            if self._dense is None:
                self._dense = _Known(np.arange(self.total))
            known = self._dense
        else:
            known = _Known(np.unique(before))
        known.read(self._log)
        return known


class _Known:
    """Who knows what: arrays (programs that count, places, 2), stamps up to which what others did
    is known: what all their threads did, and what the acting one did."""

    def __init__(self, columns: np.ndarray):
        self._place = {int(c): i for i, c in enumerate(columns)}
        # By program and place: what was acquired, the last of it known at each stamp.
        self._acquired: dict[int, dict[int, list[tuple[int, np.ndarray]]]] = {}
        self._released: dict[int, np.ndarray] = {}
        self._nothing = np.zeros((len(columns), 1, 2), np.int32)
        self._at = 0

    def read(self, log: Sequence[_Atomic]) -> None:
        for atomic in log[self._at :]:
            addresses = atomic.addresses
            pairs = np.stack(
                [addresses.ravel(), np.broadcast_to(atomic.programs, addresses.shape).ravel()]
            )
            # One element of each program at each address tells it all.
            _, first = np.unique(pairs, axis=1, return_index=True)
            for address, program in pairs[:, np.sort(first)].T.tolist():
                there = self._released.get(address)
                if atomic.acquire and there is not None:
                    self._acquire(program, atomic.actor, there)
                if atomic.overwrites:
                    self._released.pop(address, None)
                    there = None
                if atomic.release:
                    published = self._publish(program, atomic.actor)
                    whole = published if there is None else _join(there, published)
                    self._released[address] = whole
        self._at = len(log)

    def _acquire(self, program: int, actor: Actor, there: np.ndarray) -> None:
        by_place = self._acquired.setdefault(program, {})
        kept = by_place.setdefault(actor.place, [])
        whole = _join(kept[-1][1], there) if kept else there
        if actor.place == ALONE:
            kept[:] = [(0, whole)]
        elif not kept or whole.shape != kept[-1][1].shape or (whole != kept[-1][1]).any():
            kept.append((actor.stamp, whole))

    def _seen(self, program: int, actor: Actor) -> np.ndarray:
        """What an actor of a program knows of other programs."""
        found = self._nothing
        knows = actor.knows(program)
        for place, kept in self._acquired.get(program, {}).items():
            limit = _ANY
            if place != ALONE and knows is not None:
                limit = int(knows[place - 1]) if place <= len(knows) else 0
            known = [row for stamp, row in kept if stamp <= limit]
            found = _join(found, known[-1]) if known else found
        return found

    def _publish(self, program: int, actor: Actor) -> np.ndarray:
        found = self._seen(program, actor)
        column = self._place.get(program)
        if column is None:
            return found
        knows = actor.knows(program)
        width = actor.place + 1 if knows is None else max(len(knows) + 1, actor.place + 1)
        found = np.array(_widened(found, width))
        if knows is not None:
            found[column, ALONE] = _ANY  # there was nobody else then
            found[column, 1 : len(knows) + 1] = knows[:, None]
        found[column, actor.place] = max(actor.rest, 0), actor.stamp
        return found

    def met(self, before: int, now: int) -> bool:
        rows = (kept[-1][1] for kept in self._acquired.get(now, {}).values())
        return any(bool(row[self._place[before]].any()) for row in rows)

    def reach(
        self, actor: Actor, now: np.ndarray, before: np.ndarray, places: np.ndarray, plane: np.ndarray
    ) -> np.ndarray:  # fmt: skip
        out = np.zeros(now.shape, np.int64)
        for program in np.unique(now).tolist():
            chosen = np.flatnonzero(now == program)
            row = self._seen(program, actor)
            inside = chosen[places[chosen] < row.shape[1]]
            columns = [self._place[b] for b in before[inside].tolist()]
            out[inside] = row[columns, places[inside], plane[inside]]
        return out


def _widened(row: np.ndarray, width: int) -> np.ndarray:
    if row.shape[1] >= width:
        return row
    return np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)))


def _join(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    width = max(one.shape[1], other.shape[1])
    joined: np.ndarray = np.maximum(_widened(one, width), _widened(other, width))
    return joined


def order_of(op: Op) -> tuple[bool, bool, bool]:
    """(acquires, releases, within its program alone) of an atomic; it does both if nothing is said."""
    known = op.orders
    if known is None:
        orders, narrow = (True, True), False
        for value in (*op.attrs.get("order", ()), *op.args):
            name = str(getattr(value, "name", value)).lower() if _enumerated(value) else ""
            orders = _ORDERS.get(name, orders)
            narrow |= name == "cta"
        known = op.orders = (*orders, narrow)
    return known


def _enumerated(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "name") and hasattr(value, "value")
