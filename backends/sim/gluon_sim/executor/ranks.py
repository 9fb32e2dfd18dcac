"""Ranks side by side: the host code of each in a thread of its own, their kernels in one simulation.

A rank's host runs until it launches, meets the others or ends; then its kernel alternates with the kernels in flight on other ranks, and the host goes on when it is over. One thread runs at a time,
so an execution can be repeated.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from time import monotonic
from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_core.errors import ArgumentError, RankMismatchError
from gluon_core.features import ATOMIC_BARRIERS
from gluon_core.layouts.dialect import follows
from gluon_core.simulation.host_memory import storage_of
from gluon_sim.executor.blas import one_thread
from gluon_sim.executor.machine import Machine, Place
from gluon_sim.memory.flight import Flights
from gluon_sim.memory.global_memory import Allocation, GlobalMemory
from gluon_sim.memory.schedule import schedule_of
from gluon_sim.memory.scheduler import Scheduler
from gluon_sim.memory.turns import Turns, Wait
from gluon_sim.sanitizer.ranks import AcrossRanks
from gluon_sim.settings import of_launch

__all__ = ["Rank", "current", "run"]

_current: ContextVar[Optional["Rank"]] = ContextVar("gluon_sim_rank", default=None)


def current() -> Optional["Rank"]:
    """Return the rank whose host code runs in this thread, where ranks are simulated."""
    return _current.get()


def run(bodies: Sequence[Callable[["Rank"], Any]]) -> list[Any]:
    """Run the host code of each rank side by side; return their results.

    Raises:
        ArgumentError: the settings explore schedules, which takes a launch alone.
        RankMismatchError: ranks meet for different reasons.
        SimulatorError: the first mistake of their kernels.
    """
    return _World(bodies).run()


class _Abandoned(BaseException):
    """Ends the host code of a rank when another failed."""


@dataclass
class _Launch:
    """A launch that a host asks for."""

    machine: Machine
    values: Sequence[Any]
    lane: int


@dataclass
class _Join:
    """A host that waits for one of its lanes."""

    lane: int


@dataclass
class _Meeting:
    """Ranks that come together, and the value of each."""

    call: str
    brought: dict[int, Any]


class _World:
    """Several ranks and their shared state."""

    def __init__(self, bodies: Sequence[Callable[["Rank"], Any]]):
        settings, _ = of_launch(None)
        if settings.schedule == "explore" or settings.replay is not None:
            raise ArgumentError(
                "schedules of several ranks are not explored",
                argument="schedule",
                expected="latest, eager or random",
                got=settings.schedule,
            )
        self.settings = settings
        self.flights = Flights(schedule_of(settings))
        deadline = None if settings.timeout is None else monotonic() + settings.timeout
        self.scheduler = Scheduler(self.flights, deadline, settings.timeout, settings.deadlocks)
        self.across = AcrossRanks(not follows(ATOMIC_BARRIERS), settings.proxy == "strict")
        self.changes = [0]
        self.shared: list[Allocation] = []
        self.pads: list[Allocation] = []
        self.meetings: list[_Meeting] = []
        self.count = self.count_lanes = len(bodies)
        self.ranks = [Rank(self, number, body) for number, body in enumerate(bodies)]

    def run(self) -> list[Any]:
        for rank in self.ranks:
            self.scheduler.add(f"the host of rank {rank.number}", self._host(rank))
        try:
            with np.errstate(all="ignore"), one_thread():
                self.scheduler.run()
            if self.settings.leaks:
                for pad in self.pads:
                    self.across.rest(pad)
        finally:
            for rank in self.ranks:
                rank.abandon()
        return [rank.result for rank in self.ranks]

    def _host(self, rank: "Rank") -> Turns[None]:
        """Yield the turns of a rank's host code."""
        while True:
            asked = rank.resume()
            if asked is None:
                return
            if isinstance(asked, _Launch):
                machine = asked.machine
                machine.begin(asked.values)
                rank.lanes.setdefault(asked.lane, []).append(machine)
                if asked.lane == rank.number:
                    yield self._ending(machine)
                    machine.memory.unmark()
            elif isinstance(asked, _Join):
                for machine in rank.lanes.pop(asked.lane, []):
                    yield self._ending(machine)
                    machine.memory.unmark()
                self.across.order.join(rank.number, asked.lane)
            else:
                yield self._gathering(asked)

    def _ending(self, machine: Machine) -> Wait:
        kernel = machine.program.program.kernel
        return Wait(lambda: machine.ended, lambda: f"`{kernel.name}` to end", kernel.loc)

    def _gathering(self, meeting: _Meeting) -> Wait:
        def missing() -> list[int]:
            return [r.number for r in self.ranks if r.number not in meeting.brought]

        def describe() -> str:
            late = ", ".join(map(str, missing()))
            return f"rank {late} to come to `{meeting.call}`"

        return Wait(lambda: not missing(), describe)

    def meet(self, rank: "Rank", call: str, value: Any) -> _Meeting:
        if rank.met == len(self.meetings):
            self.meetings.append(_Meeting(call, {}))
        meeting = self.meetings[rank.met]
        rank.met += 1
        if meeting.call != call:
            first = next(iter(meeting.brought))
            raise RankMismatchError(
                "ranks meet for different reasons",
                expected=f"`{meeting.call}`, as on rank {first}",
                got=f"`{call}` on rank {rank.number}",
                remedy="Every rank makes the same collective calls in the same order.",
            )
        meeting.brought[rank.number] = value
        if len(meeting.brought) == len(self.ranks):
            lanes: dict[int, list[Machine]] = {r.number: [] for r in self.ranks}
            for each in self.ranks:
                lanes.update(each.lanes)
            over = [lane for lane, machines in lanes.items() if all(m.ended for m in machines)]
            self.across.order.meet(over)
        return meeting


class Rank:
    """One rank, to its host code.

    Attributes:
        number: of it, from 0 on.
        world: how many there are.
    """

    def __init__(self, world: _World, number: int, body: Callable[["Rank"], Any]):
        self.number = number
        self.world = world.count
        self.result: Any = None
        self.met = 0
        self.lane = number  # where its launches go
        self.lanes: dict[int, list[Machine]] = {}
        self._kept: dict[int, Allocation] = {}  # storage of its own, while a lane runs
        self._of = world
        self._body = body
        self._asked: Any = None
        self._error: Optional[BaseException] = None
        self._over = self._left = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), daemon=True, name=f"rank {number}"
        )

    # ---- the side of the simulation -----------------------------------------------------------

    def resume(self) -> Any:
        """Let the host code run until it asks for something; None when it is over."""
        self._asked = None
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._asked

    def abandon(self) -> None:
        """End the host code, wherever it is."""
        if self._thread.ident is None or self._over:
            return
        self._left = True
        self._go.release()
        self._thread.join(5)

    def _work(self) -> None:
        _current.set(self)
        try:
            self.result = self._body(self)
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._over = True
            self._asked = None
            self._back.release()

    # ---- the side of the host code ------------------------------------------------------------

    def _ask(self, request: Any) -> None:
        self._asked = request
        self._back.release()
        self._go.acquire()
        if self._left:
            raise _Abandoned

    def meet(self, call: str, value: Any = None) -> list[Any]:
        """Wait until all ranks have come; return their values.

        Raises:
            RankMismatchError: another rank comes for another reason.
        """
        meeting = self._of.meet(self, call, value)
        self._ask(meeting)
        return [meeting.brought[number] for number in sorted(meeting.brought)]

    def share(self, name: str, value: Any, pad: bool = False) -> None:
        """Let the kernels of all ranks reach the storage of a tensor or array of this one."""
        storage = storage_of(name, value, "simulator")
        if storage is not None:
            called = f"{name} of rank {self.number}"
            allocation = Allocation(called, storage.data, owner=self.number)
            self._of.shared.append(allocation)
            if pad:
                self._of.pads.append(allocation)

    def memory(self) -> GlobalMemory:
        """Return the memory that a launch of this rank can reach besides its arguments."""
        memory = GlobalMemory(self._of.changes, self._known)
        for allocation in self._of.shared:
            memory.add(allocation)
        return memory

    def _known(self, allocation: Allocation) -> Allocation:
        """Return the storage of an argument as the lanes know it, while there are any."""
        if allocation.owner is not None:
            return allocation
        if self.lane == self.number and not any(lane != self.number for lane in self.lanes):
            for kept in self._kept.values():
                self._of.across.shadows.pop(id(kept), None)
            self._kept.clear()
            return allocation
        known = self._kept.setdefault(allocation.base, allocation)
        if known.end < allocation.end:
            self._of.across.shadows.pop(id(known), None)
            known = self._kept[allocation.base] = allocation
        known.lasting = True
        return known

    @property
    def place(self) -> Place:
        of = self._of
        return Place(self.number, self.lane, of.scheduler, of.flights, of.across)

    def side_stream(self) -> int:
        """Start a lane: launches go there until `back`, and the host does not wait for them."""
        self._of.count_lanes += 1
        self.lane = self._of.count_lanes
        return self.lane

    def back(self) -> None:
        """Restore the launcher that was there at first."""
        self.lane = self.number

    def join(self, lane: int) -> None:
        """Wait until the launch of a lane is over."""
        self._ask(_Join(lane))

    def launch(self, machine: Machine, values: Sequence[Any]) -> None:
        """Run a launch concurrently with those of other ranks, and wait until it is over."""
        self._ask(_Launch(machine, values, self.lane))
