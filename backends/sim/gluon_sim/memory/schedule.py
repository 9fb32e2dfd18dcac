"""When asynchronous work lands, and whose turn it is: what may happen in several orders is asked here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, TypeVar

import numpy as np

if TYPE_CHECKING:
    from gluon_sim.memory.flight import Flight, Flights
    from gluon_sim.settings import Settings

__all__ = ["Eager", "Random", "Schedule", "schedule_of"]

T = TypeVar("T")


class Schedule:
    """The order of things in one run of a launch. This one: asynchronous work as late as the memory
    model allows, tasks in the order they came, each until it waits.

    Attributes:
        between_ops: whether `between` wants to be asked.
        sampled: whether the order is drawn, so that programs may not run as one.
    """

    between_ops = False
    sampled = False

    def issued(self, flights: Flights, flight: Flight) -> None:
        """Work was issued."""

    def between(self, flights: Flights, several: bool) -> bool:
        """A task is about to run an op: whether it gives way to the others first."""
        return False

    def turns(self, tasks: Sequence[T]) -> list[T]:
        """Tasks in the order in which they get their turn."""
        return list(tasks)

    def resident(self, usual: int) -> int:
        """How many programs start at once where others may be claimed."""
        return usual


class Eager(Schedule):
    """Asynchronous work happens when it is issued."""

    def issued(self, flights: Flights, flight: Flight) -> None:
        flights.land(flight)


class Random(Schedule):
    """Asynchronous work at moments, and turns in an order, that are drawn from a seed."""

    between_ops = True
    sampled = True

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def _shuffle(self, flights: Flights) -> None:
        if flights.pending and self._random.random() < 0.25:
            flights.land(flights.pending[int(self._random.integers(len(flights.pending)))])

    def issued(self, flights: Flights, flight: Flight) -> None:
        self._shuffle(flights)

    def between(self, flights: Flights, several: bool) -> bool:
        self._shuffle(flights)
        return several and bool(self._random.random() < 0.1)

    def turns(self, tasks: Sequence[T]) -> list[T]:
        if len(tasks) < 2:
            return list(tasks)
        return [tasks[i] for i in self._random.permutation(len(tasks))]

    def resident(self, usual: int) -> int:
        return int(self._random.integers(1, 2 * usual))


def schedule_of(settings: Settings) -> Schedule:
    """The one that a setting names."""
    if settings.schedule == "random":
        return Random(settings.seed)
    known: dict[str, type[Schedule]] = {"eager": Eager}
    chosen: Optional[type[Schedule]] = known.get(settings.schedule)
    return Schedule() if chosen is None else chosen()
