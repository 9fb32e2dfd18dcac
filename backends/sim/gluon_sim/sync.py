"""Tasks that take turns, barriers they wait at, and the error when everybody waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional

import numpy as np

from .errors import DeadlockError, SimulatorError, span_of

__all__ = ["Barriers", "Scheduler", "Wait"]


@dataclass
class Wait:
    """What a task yields: go on when `ready()`; `describe()` is for the error when that never is.

    A wait that `expires` also ends when nothing else can happen any more.
    """

    ready: Callable[[], bool]
    describe: Callable[[], str]
    loc: Any = None
    expires: bool = False


@dataclass
class _Task:
    name: str
    run: Iterator[Wait]
    waits: Optional[Wait] = None


class Scheduler:
    """Runs tasks in turn, each until it waits. Deterministic: always in the order they came."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def add(self, name: str, run: Iterator[Wait]) -> None:
        self._tasks.append(_Task(name, run))

    def run(self) -> None:
        try:
            self._loop()
        finally:
            for task in self._tasks:
                task.run.close()  # type: ignore[attr-defined]
            self._tasks.clear()

    def _loop(self) -> None:
        tasks = self._tasks
        while tasks:
            moved = False
            late = not any(task.waits is None or task.waits.ready() for task in tasks)
            for task in list(tasks):
                if task.waits is not None and not task.waits.ready():
                    if not (late and task.waits.expires and not moved):
                        continue
                moved = True
                try:
                    task.waits = next(task.run)
                except StopIteration:
                    tasks.remove(task)
            if not moved:
                self._deadlock(tasks)

    def _deadlock(self, tasks: list[_Task]) -> None:
        lines = []
        for task in tasks[:16]:
            assert task.waits is not None
            line = getattr(task.waits.loc, "line", 0)
            at = f" (line {line})" if line else ""
            lines.append(f"{task.name} waits for {task.waits.describe()}{at}")
        if len(tasks) > 16:
            lines.append(f"and {len(tasks) - 16} more")
        waits = tasks[0].waits
        raise DeadlockError(
            "every task waits and nothing can happen any more: " + "; ".join(lines),
            span=span_of(waits.loc if waits else None),
        )


class Barriers:
    """The barriers that live in one shared buffer: per program and 8-byte slot.

    A barrier counts `pending` arrivals (and bytes still to come) down; at zero the phase flips and
    the count starts again. A wait for parity p passes once the phase with parity p has completed.
    """

    def __init__(self, rows: int, size: int):
        shape = (rows, max(1, size // 8))
        self.count = np.zeros(shape, np.int64)
        self.pending = np.zeros(shape, np.int64)
        self.bytes = np.zeros(shape, np.int64)
        self.phase = np.zeros(shape, np.int64)

    def init(self, at: tuple, count: int) -> None:
        self.count[at] = count
        self.pending[at] = count
        self.bytes[at] = 0
        self.phase[at] = 0

    def invalidate(self, at: tuple) -> None:
        self.count[at] = 0

    def check(self, at: tuple, what: str) -> None:
        if (self.count[at] == 0).any():
            raise SimulatorError(
                f"{what} on a barrier that is not initialized",
                remedy="Initialize it first, and do not use it after it was invalidated.",
            )

    def arrive(self, at: tuple, count: int) -> None:
        self.check(at, "arrive")
        if (self.pending[at] < count).any():
            raise SimulatorError(
                "more arrivals at a barrier than its phase expects",
                expected=f"at most {int(self.pending[at].min())}",
                got=count,
            )
        self.pending[at] -= count
        self._turn(at)

    def expect(self, at: tuple, size: int) -> None:
        """`size` more bytes belong to this phase."""
        self.check(at, "expect")
        self.bytes[at] += size

    def complete(self, at: tuple, size: int) -> None:
        """`size` bytes have come."""
        self.check(at, "complete")
        self.bytes[at] -= size
        self._turn(at)

    def _turn(self, at: tuple) -> None:
        done = (self.pending[at] == 0) & (self.bytes[at] == 0)
        self.phase[at] += done
        self.pending[at] = np.where(done, self.count[at], self.pending[at])

    def passed(self, at: tuple, parity: np.ndarray) -> np.ndarray:
        """Per program: has the phase with this parity completed?"""
        return (self.phase[at] & 1) != (parity & 1)
