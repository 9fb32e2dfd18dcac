"""Registers that work in flight will write: arrays that nobody may look at before a wait."""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluon_sim.errors import RaceError, related
from gluon_sim.memory.flight import Flight
from gluon_sim.tracing.source import span_of

__all__ = ["Promise", "joined", "promise", "settled"]


class Promise(np.ndarray):
    """An array that flights fill in place. It may be passed on; any other use before the wait is
    reported.

    Attributes:
        flights: the work that writes it, once it was issued.
        which: of these flights, by program, or -1 for none; None where there is but one.
    """

    flights: tuple[Flight, ...] = ()
    which: Optional[np.ndarray] = None

    def __array_finalize__(self, origin: Any) -> None:
        self.flights = getattr(origin, "flights", ())
        self.which = getattr(origin, "which", None)

    def read(self) -> np.ndarray:
        """Return the plain array, for an op that needs its elements."""
        flight = self.pending()
        if flight is not None:
            _report(flight)
        return np.asarray(self)

    def pending(self) -> Optional[Flight]:
        """Return the first flight that the task, as far as it is at work now, does not know to be over."""
        for number, flight in enumerate(self.flights):
            places = None if self.which is None else np.flatnonzero(self.which == number)
            if not _known(flight, places):
                return flight
        return None

    def landed(self) -> np.ndarray:
        """Return the plain array with its elements there: where programs part, the work happens early."""
        for flight in self.flights:
            flight.task.machine.flights.land(flight)
        return np.asarray(self)

    def part(self, positions: np.ndarray) -> "Promise":
        """Return the part of some of its programs, which may diverge from here."""
        part: Promise = self.landed()[positions].view(Promise)
        part.flights = self.flights
        part.which = None if self.which is None else self.which[positions]
        return part

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return getattr(ufunc, method)(*map(_plain, inputs), **named)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*_plain(args), **{k: _plain(v) for k, v in kwargs.items()})

    def __getitem__(self, index: Any) -> Any:
        return self.read()[index]

    def astype(self, *args: Any, **named: Any) -> Any:
        return self.read().astype(*args, **named)

    def reshape(self, *args: Any, **named: Any) -> Any:
        return self.read().reshape(*args, **named)

    def transpose(self, *args: Any) -> Any:
        return self.read().transpose(*args)


def _plain(value: Any) -> Any:
    if isinstance(value, Promise):
        return value.read()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value


def promise(shape: tuple[int, ...], dtype: np.dtype) -> Promise:
    """Return an array whose elements are not there yet."""
    placeholder = np.zeros(shape, dtype)
    placeholder.view(np.uint8)[...] = 0xFF  # NaN, where the type has one
    return placeholder.view(Promise)


def _known(flight: Flight, places: Optional[np.ndarray]) -> bool:
    """Return whether the task that issued the work knows that it is over, in the programs at some places of
    those that are at work now."""
    agent = flight.task.agent
    if not flight.landed:
        return places is not None and not len(places)
    if agent is None or agent is flight.agent:
        return True
    rows = flight.task.rows.index if places is None else flight.task.rows.index[places]
    return bool(agent.known.knows(flight.agent.slot, flight.agent.clock, rows).all())


def joined(parts: Sequence[tuple[np.ndarray, np.ndarray]], whole: np.ndarray) -> np.ndarray:
    """`whole`, which was put together from values for disjoint positions: a promise where one of
    them still is."""
    flights: list[Flight] = []
    which = np.full(len(whole), -1)
    for positions, value in parts:
        if isinstance(value, Promise):
            own = np.zeros(1, np.intp) if value.which is None else value.which
            which[positions] = np.where(own < 0, -1, own + len(flights))
            flights += value.flights
    if not flights:
        return whole
    joined = whole.view(Promise)
    joined.flights, joined.which = tuple(flights), which
    return joined


def settled(value: np.ndarray) -> np.ndarray:
    """Return the plain array, if the work that fills it is known to be over; else the promise."""
    if isinstance(value, Promise) and value.pending() is None:
        return np.asarray(value)
    return value


def _report(flight: Flight) -> None:
    task = flight.task
    if task.machine.tracking is None:
        return
    error = RaceError(
        f"`{task.op.called}` of {task.name} reads registers that `{flight.op.called}` of line "
        f"{flight.op.loc.line} may still be writing",
        report="race.registers",
        program=task.batch.program(int(flight.rows.index[0])),
        remedy=flight.remedy(task),
        span=span_of(task.op.loc),
    )
    error.related = related(error.span, span_of(flight.op.loc))
    raise error
