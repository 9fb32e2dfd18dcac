"""The state of one program during model checking: barriers, work in flight, vector clocks.

It mirrors the simulator's state for race detection, in a form of which there are finitely many.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Callable, Optional

from gluon_prove.accesses import BEFORE, Seen, Slot
from gluon_prove.barriers import Barriers
from gluon_prove.events import (
    Access,
    Barrier,
    Commit,
    Event,
    Fence,
    ImpliedFence,
    Issue,
    Places,
    WaitGroups,
)
from gluon_prove.flights import Flight
from gluon_prove.order import Phases
from gluon_prove.reasons import Waited
from gluon_prove.values import CannotSay
from gluon_sim.tracing.ir import Location

__all__ = ["World"]

MOST_FLIGHTS = 48


@dataclass
class World(Barriers):
    """See the module.

    Attributes:
        tasks: how many there may be.
        waited: queues that somebody waits for by groups.
        loose: by task, the waits (barrier, parity) it passed at once, and after which it did nothing that
            others can tell: it could as well still stand there. None where waits are not hurried.
        writers: by barrier, the tasks that arrive there, or whose work does.
        phases: who knows of the ends of phases, where one schedule represents all; else None.
        idle: of all states, barriers that arrivals may come to in any order; None where that is not asked.
        busy: of all states, barriers at which more is done than to arrive once.
        watched: the buffers whose accesses are followed; None for all.
        owners: of all states, by buffer, the tasks that access it; None where that is known.
        far: by barrier, and by place, the bits of all but the barriers of other rings; None where these tell of it, too.
    """

    places: Places
    tasks: int
    strict: bool
    waited: frozenset[str]
    slots: list[Slot]
    seen: list[Seen]
    flights: list[Flight]
    serials: dict[tuple[int, str], int]
    loose: Optional[list[tuple[tuple[int, int], ...]]]
    writers: dict[int, frozenset[int]]
    phases: Optional[Phases] = None
    idle: Optional[set[int]] = None
    busy: set[int] = field(default_factory=set)
    watched: Optional[frozenset[int]] = None
    owners: Optional[dict[int, set[int]]] = None
    far: Optional[tuple[dict[int, int], dict[int, int]]] = None

    def copy(self) -> "World":
        return World(
            self.places, self.tasks, self.strict, self.waited, list(self.slots), list(self.seen),
            list(self.flights), dict(self.serials), None if self.loose is None else list(self.loose),
            self.writers, self.phases, self.idle, self.busy, self.watched, self.owners, self.far,
        )  # fmt: skip

    # ---- steps of tasks -----------------------------------------------------------------------------

    def _free_bit(self) -> int:
        taken = {f.bit for f in self.flights}
        bit = self._first_flight
        while bit in taken:
            bit += 1
        return bit

    def local(self, event: Event, task: int, loc: Location, issuer: str) -> None:
        """Record an event whose time no other task can observe."""
        me = 1 << task
        if isinstance(event, Access):
            self._touch(event, task, me, False, loc, issuer)
        elif isinstance(event, Issue):
            self._issue(event, task, loc, issuer)
        elif isinstance(event, Commit):
            self.flights = [
                f._replace(behind=min(f.behind + 1, 64))
                if f.task == task and f.queue == event.queue
                else f
                for f in self.flights
            ]
        elif isinstance(event, WaitGroups):
            self._wait_groups(event, task)
        elif isinstance(event, Fence):
            self._fence(me)
        elif isinstance(event, ImpliedFence):
            self._implied(event, task, me)

    def _issue(self, event: Issue, task: int, loc: Location, issuer: str) -> None:
        if event.accesses and self.watched is not None:
            followed = [self._follows(access, task) for access in event.accesses]
            if event.signals and self.owners is not None:
                for access in event.accesses:  # whoever waits for them takes part
                    self.owners[self.places.all[access.place].buffer].add(BEFORE)
            if not any(followed) and not event.signals and not event.fills:
                return
        bit = self._free_bit()
        mine = 1 << bit
        source = 1 << task
        if event.after:
            for f in self.flights:
                if f.task == task and f.queue == event.queue:
                    source |= 1 << f.bit
        self._learn(mine, source)
        for access in event.accesses:
            self._touch(
                access, task, mine, event.proxied, loc, f"work that line {loc.line} started"
            )
        serial = self.serials.get((task, event.queue), 0)
        self.serials[task, event.queue] = serial + 1
        self.flights.append(
            Flight(
                task, event.queue, serial, 0, event.after, event.reads, event.signals, bit, loc.line,
                len(self.loose[task]) if self.loose is not None else 0,
            )
        )  # fmt: skip
        self._settle()
        if len(self.flights) > MOST_FLIGHTS:
            raise CannotSay(
                f"more than {MOST_FLIGHTS} pieces of work may be in flight at once", loc
            )

    def due(self, event: WaitGroups, task: int) -> list[Flight]:
        return [
            f
            for f in self.flights
            if f.task == task and f.queue == event.queue and f.behind > event.pending
            if f.reads or not event.reads
        ]

    def _wait_groups(self, event: WaitGroups, task: int) -> None:
        if event.queue not in self.waited:
            raise Waited(event.queue)
        for flight in self.due(event, task):
            self.complete(flight, all_before=True)
        source = 0
        gone = self.due(event, task)
        for flight in gone:
            source |= 1 << flight.bit
        self._learn(1 << task, source)
        self._drop([f for f in self.flights if any(f == g for g in gone)])

    def _drop(self, gone: list[Flight]) -> None:
        if gone:
            self.flights = [f for f in self.flights if f not in gone]
            bits = 0
            for f in gone:
                bits |= 1 << f.bit
            self._forget_bit(bits)

    def _settle(self) -> None:
        """Forget work that is over and that nobody will ask for."""
        gone = []
        last: dict[tuple[int, str], int] = {}
        for f in self.flights:
            if f.after:
                last[f.task, f.queue] = f.serial
        for f in self.flights:
            if f.signals or f.queue in self.waited or f.reads:
                continue
            newest = last.get((f.task, f.queue))
            if newest is not None and f.serial < newest:
                gone.append(f)  # the newest covers its knowledge
        self._drop(gone)

    # ---- work that is over ----------------------------------------------------------------------------

    def may_land(self, flight: Flight) -> bool:
        """Return whether work has signals left, and nothing to wait for."""
        if not flight.signals:
            return False
        if not flight.after:
            return True
        return not any(
            f.signals and f.serial < flight.serial
            for f in self.flights
            if f.task == flight.task and f.queue == flight.queue
        )

    def complete(self, flight: Flight, all_before: bool = False) -> None:
        """Let it tell barriers that it is over."""
        if all_before and flight.after:
            for f in list(self.flights):
                if (f.task, f.queue) == (flight.task, flight.queue) and f.serial < flight.serial:
                    self.complete(f)
        index = next((i for i, f in enumerate(self.flights) if f.serial == flight.serial
                   and f.task == flight.task and f.queue == flight.queue), None)  # fmt: skip
        if index is None or not self.flights[index].signals:
            return
        flight = self.flights[index]
        for signal in flight.signals:
            self.barrier(signal, flight.bit, Location("", flight.line), flight.task, flight.mark)
        over = self.flights[index] = self.flights[index]._replace(signals=())
        if not (over.after or over.reads or over.queue in self.waited):
            self._drop([over])  # its signals are done, and nothing waits for it
        self._settle()

    # ---- partitions ---------------------------------------------------------------------------------

    def fork(self, tasks: list[int]) -> None:
        bits = 0
        for task in tasks:
            bits |= 1 << task
        self._learn(bits, 1)
        self.seen = [s._replace(by=BEFORE) if s.by == 0 else s for s in self.seen]

    def join(self, tasks: list[int]) -> None:
        bits = 0
        for task in tasks:
            bits |= 1 << task
        self._learn(1, bits)
        self._forget_bit(bits)

    # ---- partial-order reduction: steps that need not be tried against others -----------------------------------------------------

    def hurries(self, event: Barrier, task: int) -> bool:
        """Return whether an event of a task has the same effect whenever it happens: no other task affects that barrier."""
        if self.loose is None:
            return False
        if event.action == "wait":
            return True  # to come late is to be `Overtaken`, or to know more
        if event.action not in ("expect", "arrive"):
            return False
        if self.writers.get(event.slot, frozenset()) - {task}:
            return False
        return not any(s.slot == event.slot for f in self.flights for s in f.signals)

    def lands_early(self, flight: Flight) -> bool:
        """Return whether the time at which work lands makes no difference, as other bytes of its phase are yet to come."""
        if self.loose is None or flight.after or flight.queue in self.waited:
            return False
        if len(flight.signals) != 1 or flight.signals[0].action != "bytes":
            return False
        signal = flight.signals[0]
        return self._slot(signal.slot).bytes > signal.amount

    def _forget_known(self, asking: Callable[[int], int]) -> None:
        """Forget events that everybody knows of who can still ask, and what barriers of other rings know.

        Whoever comes later knows the former, too: work that is issued, and ends of phases, know what tasks and work know.

        Args:
            asking: returns the tasks that may still act on a buffer, as bits.
        """
        of, ask = self.places, lru_cache(None)(asking)
        if self.far is not None:
            slots, places = self.far
            self.seen = [s._replace(known=s.known & places.get(s.place, -1)) for s in self.seen]
            if self.phases is not None:
                self.phases = self.phases.only(
                    k._replace(known=k.known & slots.get(k.slot, -1)) for k in self.phases.all
                )
        kept = []
        for s in self.seen:
            # the kernel's own task asks at the end
            all = ask(of.all[s.place].buffer) | (s.kind == "write")
            if ~s.known & all or self.fences(s) and ~s.fenced & all:
                kept.append(s)
        self.seen = kept
        if self.phases is None:
            return
        signals: dict[int, int] = {}
        for f in self.flights:
            for signal in f.signals:
                signals[signal.slot] = signals.get(signal.slot, 0) | 1 << f.bit
        asks = [ask(of.slots[k.slot][0]) | signals.get(k.slot, 0) for k in self.phases.all]
        self.phases = self.phases.only(k for k, all in zip(self.phases.all, asks) if ~k.known & all)

    def frozen(self, asking: Callable[[int], int]) -> tuple[Any, dict[tuple[int, str, int], int]]:
        """As a key that equal states share, and the serials of flights as they are called in it.

        Args:
            asking: returns the tasks that may still act on a buffer, as bits.
        """
        self._forget_known(asking)
        order = sorted(self.flights, key=lambda f: (f.task, f.queue, f.serial))
        renamed: dict[int, int] = {}
        serials: dict[tuple[int, str, int], int] = {}
        counts: dict[tuple[int, str], int] = {}
        flights = []
        for place, f in enumerate(order):
            renamed[f.bit] = self._first_flight + place
            number = counts.get((f.task, f.queue), 0)
            counts[f.task, f.queue] = number + 1
            serials[f.task, f.queue, f.serial] = number
            flights.append(f._replace(serial=number, bit=renamed[f.bit]))
        if any(a != b for a, b in renamed.items()):
            low = (1 << self._first_flight) - 1
            pairs = [(1 << a, 1 << b) for a, b in renamed.items()]

            @lru_cache(None)
            def moved(bits: int) -> int:
                out = bits & low
                if bits >> self._first_flight:
                    for old, new in pairs:
                        if bits & old:
                            out |= new
                return out

            self.seen = [Seen(*s[:6], moved(s.known), moved(s.fenced)) for s in self.seen]
            if self.phases is not None:
                renamed_too = (k._replace(known=moved(k.known)) for k in self.phases.all)
                self.phases = self.phases.only(renamed_too)
        self.flights = flights
        self.serials = {key: count for key, count in counts.items()}
        self.seen = sorted(set(self.seen))
        loose: Any = None if self.loose is None else tuple(self.loose)
        if self.phases is not None:
            self.phases = self.phases.only(sorted(self.phases.all))
            loose = self.phases.all
        return (tuple(self.slots), tuple(self.seen), tuple(flights), loose), serials
