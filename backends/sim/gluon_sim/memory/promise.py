"""Registers that work in flight will write: arrays that nobody may look at before a wait."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_sim.errors import RaceError, span_of
from gluon_sim.memory.flight import Flight

__all__ = ["Promise", "promise", "settled"]


class Promise(np.ndarray):
    """An array that a flight fills in place. It may be passed on; any other use before the wait is
    reported.

    Attributes:
        flight: the work that writes it, once it was issued.
    """

    flight: Optional[Flight] = None

    def __array_finalize__(self, origin: Any) -> None:
        self.flight = getattr(origin, "flight", None)

    def _read(self) -> np.ndarray:
        """The plain array, for an op that needs its elements."""
        flight = self.flight
        if flight is not None and not known(flight):
            _report(flight)
        return np.asarray(self)

    def landed(self) -> np.ndarray:
        """The plain array with its elements there: where programs part, the work happens early."""
        if self.flight is not None:
            self.flight.task.machine.flights.land(self.flight)
        return np.asarray(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        return getattr(ufunc, method)(*map(_plain, inputs), **named)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return func(*_plain(args), **{k: _plain(v) for k, v in kwargs.items()})

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def astype(self, *args: Any, **named: Any) -> Any:
        return self._read().astype(*args, **named)

    def reshape(self, *args: Any, **named: Any) -> Any:
        return self._read().reshape(*args, **named)

    def transpose(self, *args: Any) -> Any:
        return self._read().transpose(*args)


def _plain(value: Any) -> Any:
    if isinstance(value, Promise):
        return value._read()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value


def promise(shape: tuple[int, ...], dtype: np.dtype) -> Promise:
    """An array whose elements are not there yet."""
    made = np.zeros(shape, dtype)
    made.view(np.uint8)[...] = 0xFF  # NaN, where the type has one
    return made.view(Promise)


def known(flight: Flight) -> bool:
    """Whether the task that issued the work knows that it is over."""
    agent = flight.task.agent
    return flight.landed and (agent is None or agent is flight.agent or flight.known_by(agent))


def settled(value: np.ndarray) -> np.ndarray:
    """The plain array, if the work that fills it is known to be over; else the promise."""
    if isinstance(value, Promise) and (value.flight is None or known(value.flight)):
        return np.asarray(value)
    return value


def _report(flight: Flight) -> None:
    task = flight.task
    if task.machine.tracking is None:
        return
    raise RaceError(
        f"`{task.op.name}` of {task.name} reads registers that `{flight.op.name}` of line "
        f"{flight.op.loc.line} may still be writing",
        report="race.registers",
        program=task.batch.program(int(flight.rows.index[0])),
        remedy=flight.remedy(task),
        span=span_of(task.op.loc),
    )
