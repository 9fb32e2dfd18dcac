"""Schedules: when asynchronous work lands, and whose turn it is."""

from __future__ import annotations

from typing import Optional, Sequence, TypeVar

import numpy as np

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

    def issued(self, pending: Sequence[T], work: T) -> Optional[T]:
        """Return which of the pending work happens now that some was issued."""
        return None

    def between(self, pending: Sequence[T]) -> Optional[T]:
        """Return which of the pending work happens before a task runs its next op."""
        return None

    def gives_way(self, several: bool) -> bool:
        """Return whether that task lets others go first; `several`: whether there are any."""
        return False

    def turns(self, tasks: Sequence[T]) -> list[T]:
        """Tasks in the order in which they get their turn."""
        return list(tasks)

    def resident(self, usual: int) -> int:
        """Return how many programs start at once where others may be claimed."""
        return usual


class Eager(Schedule):
    """Asynchronous work happens when it is issued."""

    def issued(self, pending: Sequence[T], work: T) -> Optional[T]:
        return work


class Random(Schedule):
    """Asynchronous work at moments, and turns in an order, that are drawn from a seed."""

    between_ops = True
    sampled = True

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def issued(self, pending: Sequence[T], work: T) -> Optional[T]:
        return self.between(pending)

    def between(self, pending: Sequence[T]) -> Optional[T]:
        if pending and self._random.random() < 0.25:
            return pending[int(self._random.integers(len(pending)))]
        return None

    def gives_way(self, several: bool) -> bool:
        return several and bool(self._random.random() < 0.1)

    def turns(self, tasks: Sequence[T]) -> list[T]:
        if len(tasks) < 2:
            return list(tasks)
        return [tasks[i] for i in self._random.permutation(len(tasks))]

    def resident(self, usual: int) -> int:
        return int(self._random.integers(1, 2 * usual))


def schedule_of(settings: Settings) -> Schedule:
    """Return the one that a setting names."""
    if settings.schedule == "random":
        return Random(settings.seed)
    known: dict[str, type[Schedule]] = {"eager": Eager}
    chosen: Optional[type[Schedule]] = known.get(settings.schedule)
    return Schedule() if chosen is None else chosen()
