"""The happens-before order of a grid's programs: releases and acquires by atomics, computed on demand.

Almost no kernel has two programs touch one element, so atomics are only logged; the log is read
when two accesses need an order.

A release publishes the accesses of its own task and that task's knowledge of the program's other tasks and
of other programs; an acquire is learned by the task that made it, and by those that learn from it.
The accesses of a task have two parts: by the thread that makes the atomic, and by its other threads,
whose accesses only a barrier before the release puts in front of it.

Where ranks run side by side, an atomic reaches programs of another rank only with the scope `sys`.
A rank's accesses in a launch are known to all programs of its next launch, and where the hosts of all
ranks meet, to the launches of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

import numpy as np

from gluon_sim.sanitizer.agents import ALONE, Task
from gluon_sim.sanitizer.epochs import Epochs
from gluon_sim.tracing.ir import Op

__all__ = ["Actor", "Began", "Joined", "Met", "ProgramOrder", "order_of", "reaches_ranks"]

_ORDERS = {
    "relaxed": (False, False), "acquire": (True, False), "release": (False, True),
    "acquire_release": (True, True), "acq_rel": (True, True),
}  # fmt: skip
_DENSE = 2048  # programs up to which the whole matrix of clocks is kept
_ANY = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Actor:
    """The agent that makes an atomic, or queries its clock.

    Attributes:
        place: `ALONE`, or the slot of its agent and one.
        stamp: the clock of that agent; of a program alone, the time.
        rest: up to which stamp all its threads are known to have come, not only the one that acts.
        known: the agent's knowledge of the others of its program, (programs of the batch or 1, slots).
        numbers: the programs of its batch, sorted.
    """

    place: int = ALONE
    stamp: int = 0
    rest: int = 0
    known: Optional[np.ndarray] = None
    numbers: Optional[np.ndarray] = None

    @classmethod
    def of(cls, task: Task, time: int, threads: bool) -> "Actor":
        """Return the actor that a task is now; `threads`: whether its threads act for themselves."""
        agent = task.agent
        if agent is None:
            return cls(ALONE, time, task.joined[0] - 1 if threads else time)
        rest = task.joined[1] - 1 if threads else agent.clock
        return cls(
            agent.slot + 1, agent.clock, rest, agent.known.seen[0].copy(), task.batch.numbers
        )

    def knows(self, program: int) -> Optional[np.ndarray]:
        """Return the clocks it knows in a program of its batch, by slot."""
        if self.known is None or self.numbers is None:
            return None
        row = int(np.searchsorted(self.numbers, program)) if len(self.known) > 1 else 0
        clocks: np.ndarray = self.known[row]
        return clocks


@dataclass(frozen=True)
class _Atomic:
    addresses: np.ndarray
    programs: np.ndarray
    acquire: bool
    release: bool
    overwrites: bool  # whether it ends the earlier release at the address
    actor: Actor
    wide: bool = False  # whether it reaches programs of other ranks


@dataclass(frozen=True)
class Began:
    """A launch in a lane, which is a rank's own or a concurrent one: its programs are `count` from `first`
    on. It knows the finished launches of its lane and of the lane `after`."""

    lane: int
    first: int
    count: int
    after: int


@dataclass(frozen=True)
class Joined:
    """A lane goes on when another one is over."""

    lane: int
    other: int


@dataclass(frozen=True)
class Met:
    """The hosts of all ranks met, and the launches in these lanes are over."""

    lanes: tuple[int, ...]


_Entry = Union[_Atomic, Began, Joined, Met]


class ProgramOrder:
    """The order of the programs of one launch.

    Attributes:
        time: counts the atomics that were executed, and barriers where `threads`.
        threads: whether a release covers only the accesses of its thread, or those known by a barrier.
    """

    def __init__(self, grid: tuple[int, int, int], threads: bool = False):
        self.grid = grid
        self.total = grid[0] * grid[1] * grid[2]
        self.time = 1
        self.threads = threads
        self._log: list[_Entry] = []
        self._used: dict[int, tuple[Op, bool, bool, bool]] = {}  # atomics, by id of the op
        self._dense: Optional[_Known] = None

    def program(self, number: int) -> tuple[int, int, int]:
        x, rest = number % self.grid[0], number // self.grid[0]
        return x, rest % self.grid[1], rest // self.grid[1]

    def rank_of(self, number: int) -> int:
        """Return the rank that a program runs on."""
        return 0

    def lane_of(self, number: int) -> int:
        """Return the lane that runs one launch after the other."""
        return 0

    @property
    def orders(self) -> bool:
        """Return whether any atomic orders anything at all."""
        return bool(self._log)

    def atomic(
        self, task: Task, addresses: np.ndarray, programs: np.ndarray, acquire: bool, release: bool,
        overwrites: bool, threads: bool,
    ) -> None:  # fmt: skip
        """Record an atomic access, in the order in which its elements were taken.

        Args:
            threads: whether one thread makes it, and acts for itself alone.
        """
        if acquire or release or overwrites:
            actor = Actor.of(task, self.time, threads and self.threads)
            wide = reaches_ranks(task.op)
            self._log.append(
                _Atomic(addresses, programs, acquire, release, overwrites, actor, wide)
            )
            if task.agent is not None:
                task.agent.tick()
        self.time += 1

    def used(self, op: Op, acquire: bool, release: bool, narrow: bool) -> None:
        """Record an executed atomic with its acquire and release semantics."""
        self._used[id(op)] = op, acquire, release, narrow

    def lacks(self) -> str:
        """Explain why the atomics of the launch do not order its programs."""
        used = list(self._used.values())
        missing = [
            f"the atomic of line {op.loc.line} reaches no other program (scope cta)"
            for op, _, _, narrow in used
            if narrow
        ]
        if used and not missing:
            missing += [] if any(releases for _, _, releases, _ in used) else ["no atomic releases"]
            acquires = any(acquires for _, acquires, _, _ in used)
            missing += [] if acquires else ["no atomic whose result is used acquires"]
        return f" Here {' and '.join(missing[:2])}." if missing else ""

    def ordered(
        self, task: Task, epochs: Epochs, before: np.ndarray, ids: np.ndarray, now: np.ndarray,
        acting: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """Do the accesses of programs `before` in the epochs `ids` happen before the current ones of `now`?

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
        """Has any part of program `now` acquired a release of any part of `before`?"""
        return bool(self._log) and self._known(np.array([before])).met(before, now)

    def _known(self, before: np.ndarray) -> _Known:
        if self.total <= _DENSE:
            if self._dense is None:
                self._dense = _Known(np.arange(self.total), self)
            known = self._dense
        else:
            known = _Known(np.unique(before), self)
        known.read(self._log)
        return known


class _Known:
    """The clocks: arrays (programs that count, places, 3), stamps up to which the accesses of others are known: those of all their threads, and those of the acting one; and in the last plane, at the
    first place, whether all is known that a program ever did."""

    def __init__(self, columns: np.ndarray, order: ProgramOrder):
        self._place = {int(c): i for i, c in enumerate(columns)}
        self._rank_of, self._lane_of = order.rank_of, order.lane_of
        # By program and place: the acquired clocks, the last one known at each stamp.
        self._acquired: dict[int, dict[int, list[tuple[int, np.ndarray]]]] = {}
        # By address: for programs of one rank, and (None) for those of all.
        self._released: dict[tuple[int, Optional[int]], np.ndarray] = {}
        self._nothing = np.zeros((len(columns), 1, 3), np.int32)
        self._of_lane: dict[int, np.ndarray] = {}  # the clocks with which its programs begin
        self._of_all = self._nothing  # those of other lanes
        self._running: dict[int, Began] = {}
        self._at = 0

    def read(self, log: Sequence[_Entry]) -> None:
        for entry in log[self._at :]:
            if isinstance(entry, Began):
                self._follow(entry.lane, entry.after)
                self._running[entry.lane] = entry
            elif isinstance(entry, Joined):
                self._follow(entry.lane, entry.other)
            elif isinstance(entry, Met):
                self._meet(entry)
            else:
                self._atomic(entry)
        self._at = len(log)

    def _atomic(self, atomic: _Atomic) -> None:
        for address, program in _pairs(atomic):
            spots: list[tuple[int, Optional[int]]] = [(address, self._rank_of(program))]
            if atomic.wide:
                spots.append((address, None))
            if atomic.acquire:
                for spot in spots:
                    if spot in self._released:
                        self._acquire(program, atomic.actor, self._released[spot])
            if atomic.overwrites:
                for spot in spots:
                    self._released.pop(spot, None)
            if atomic.release:
                published = self._publish(program, atomic.actor)
                for spot in spots:
                    there = self._released.get(spot)
                    whole = published if there is None else _join(there, published)
                    self._released[spot] = whole

    def _end(self, lane: int) -> np.ndarray:
        """End the launch of a lane; the next one begins with all its knowledge."""
        over = self._running.pop(lane, None)
        clocks = self._of_lane.get(lane, self._of_all)
        if over is not None:
            programs = range(over.first, over.first + over.count)
            for program in programs:
                clocks = _join(clocks, self._seen(program, Actor()))
            clocks[[self._place[p] for p in programs if p in self._place], 0, 2] = 1
            self._of_lane[lane] = clocks
        return clocks

    def _follow(self, lane: int, other: int) -> None:
        """Let the next launch of a lane know the accesses of another lane, too."""
        clocks = self._end(lane)
        if other != lane:
            self._of_lane[lane] = _join(clocks, self._end(other))

    def _meet(self, met: Met) -> None:
        for lane in met.lanes:
            self._of_all = _join(self._of_all, self._end(lane))
            self._of_lane.pop(lane, None)

    def _acquire(self, program: int, actor: Actor, there: np.ndarray) -> None:
        by_place = self._acquired.setdefault(program, {})
        kept = by_place.setdefault(actor.place, [])
        whole = _join(kept[-1][1], there) if kept else there
        if actor.place == ALONE:
            kept[:] = [(0, whole)]
        elif not kept or whole.shape != kept[-1][1].shape or (whole != kept[-1][1]).any():
            kept.append((actor.stamp, whole))

    def _seen(self, program: int, actor: Actor) -> np.ndarray:
        """Return an actor's knowledge of other programs."""
        clocks = self._of_lane.get(self._lane_of(program), self._of_all)
        knows = actor.knows(program)
        for place, kept in self._acquired.get(program, {}).items():
            limit = _ANY
            if place != ALONE and knows is not None:
                limit = int(knows[place - 1]) if place <= len(knows) else 0
            known = [row for stamp, row in kept if stamp <= limit]
            clocks = _join(clocks, known[-1]) if known else clocks
        return clocks

    def _publish(self, program: int, actor: Actor) -> np.ndarray:
        clocks = self._seen(program, actor)
        column = self._place.get(program)
        if column is None:
            return clocks
        knows = actor.knows(program)
        width = actor.place + 1 if knows is None else max(len(knows) + 1, actor.place + 1)
        clocks = np.array(_widened(clocks, width))
        if knows is not None:
            clocks[column, ALONE, :2] = _ANY  # there was nobody else then
            clocks[column, 1 : len(knows) + 1, :2] = knows[:, None]
        clocks[column, actor.place, :2] = max(actor.rest, 0), actor.stamp
        return clocks

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
            if self._running or self._of_lane:
                columns = [self._place[b] for b in before[chosen].tolist()]
                out[chosen[row[columns, 0, 2] > 0]] = _ANY
        return out


def _pairs(atomic: _Atomic) -> list[list[int]]:
    """Return the addresses of an atomic, each with a program: one element of each tells it all."""
    addresses = atomic.addresses
    pairs = np.stack([addresses.ravel(), np.broadcast_to(atomic.programs, addresses.shape).ravel()])
    if pairs.shape[1] > 1:
        _, first = np.unique(pairs, axis=1, return_index=True)
        pairs = pairs[:, np.sort(first)]
    as_lists: list[list[int]] = pairs.T.tolist()
    return as_lists


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


_WIDE = frozenset({"sys", "system"})


def reaches_ranks(op: Op) -> bool:
    """Return True if the scope of an atomic includes the devices of other ranks."""
    if op.attrs.get("volatile"):
        return True
    values = (*op.attrs.get("order", ()), *op.args)
    return any(
        str(getattr(value, "name", value)).lower() in _WIDE
        for value in values
        if _enumerated(value)
    )


def _enumerated(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "name") and hasattr(value, "value")
