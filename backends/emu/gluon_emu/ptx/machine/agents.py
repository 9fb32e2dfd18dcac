"""Asynchronous work: what copies do between their start and the wait for them.

A copy is a task that runs when somebody waits for it, when no group can go on, or, by the schedule "eager",
at once. So a kernel that reads before it waits reads what was there before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.ptx.machine.group import Group

__all__ = ["Agents", "Task"]


@dataclass(eq=False)
class Task:
    """Work that was started.

    Args:
        kind: "cp" (of cp.async), "bulk", or "tcgen05".
        run: does it.
        threads: numbers of the threads that started it, over all resident warps; their groups count it.
        place: index of its instruction.
        barrier: whether it signals an mbarrier.

    Attributes:
        clusters: of its threads; None before anybody asked.
    """

    kind: str
    run: Callable[[], None]
    threads: np.ndarray
    place: int = 0
    barrier: bool = False
    done: bool = False
    clusters: Optional[frozenset[int]] = None


class Agents:
    """The tasks of the resident blocks, oldest first.

    Threads collect tasks into groups of their kind: `commit` closes a group, and `wait` runs all but the
    newest ones.
    """

    def __init__(self, machine: Any, settings: Any):
        self.machine = machine
        self.eager = settings.schedule == "eager"
        self.random = (
            np.random.default_rng(settings.seed + 1) if settings.schedule == "random" else None
        )
        self.tasks: deque[Task] = deque()
        threads = machine.block_of.size * 32
        self.clusters = np.unique(machine.block_of // machine.cluster_size).size
        # By kind: how many groups a thread has committed, and the tasks with the groups they are in.
        self.committed = {kind: np.zeros(threads, np.int64) for kind in ("cp", "bulk")}
        self.grouped: dict[str, list[tuple[Task, np.ndarray, np.ndarray]]] = {"cp": [], "bulk": []}

    def pending(self) -> bool:
        return bool(self.tasks)

    def start(self, task: Task, grouped: bool = False) -> None:
        """Start a task.

        Args:
            grouped: it belongs to the open group of its threads.
        """
        if self.eager or self.random is not None and self.random.integers(2):
            self._do(task)
            if grouped and self.machine.observer is not None:
                self._count(task)  # nobody has waited for it yet
            return
        if grouped:
            self._count(task)
        self.tasks.append(task)

    def _count(self, task: Task) -> None:
        number = self.committed[task.kind][task.threads].copy()
        self.grouped[task.kind].append((task, task.threads, number))

    def _do(self, task: Task) -> None:
        if not task.done:
            task.done = True
            self.machine.changes += 1
            task.run()

    def run_some(self) -> None:
        """Run the oldest task of each cluster, so that their warps go on together; by "random" any one task."""
        if self.random is not None:
            self.tasks.rotate(-int(self.random.integers(len(self.tasks))))
            self._do(self.tasks.popleft())
            return
        served: set[int] = set()
        tasks, self.tasks = iter(self.tasks), deque()
        later = []
        for task in tasks:
            clusters = task.clusters or self._clusters(task)
            if served.isdisjoint(clusters):
                self._do(task)
            elif not task.done:
                later.append(task)
            served |= clusters
            if len(served) == self.clusters:
                later.extend(tasks)
        self.tasks.extendleft(reversed(later))

    def _clusters(self, task: Task) -> frozenset[int]:
        if task.clusters is None:
            rows = task.threads // 32
            blocks = self.machine.block_of[rows if rows.size == 1 else np.unique(rows)]
            task.clusters = frozenset((blocks // self.machine.cluster_size).tolist())
        return task.clusters

    def finish(self) -> None:
        """Do all that is left when the threads are through."""
        while self.tasks:
            self._do(self.tasks.popleft())

    def threads_of(self, group: Group) -> np.ndarray:
        """Return the numbers of the threads that execute the current instruction."""
        number = group.rows[:, None] * 32 + np.arange(32)
        return np.asarray(number[group.lanes()])

    def commit(self, group: Group, kind: str) -> None:
        self.committed[kind][self.threads_of(group)] += 1
        if self.machine.observer is not None:
            self.machine.observer.groups(group, kind, None)

    def wait(self, group: Group, kind: str, newest: int, reads: bool = False) -> None:
        """Finish the tasks of all groups of these threads but the newest ones.

        Args:
            reads: the threads wait for the reads of these tasks alone.
        """
        self.wait_of(self.threads_of(group), kind, newest)
        if self.machine.observer is not None:
            self.machine.observer.groups(group, kind, newest, reads)

    def wait_of(self, threads: np.ndarray, kind: str, newest: int, opened: bool = False) -> None:
        here = np.zeros(self.committed[kind].size, bool)
        here[threads] = True
        last = self.committed[kind] - newest + opened
        left = []
        for entry in self.grouped[kind]:
            task, owners, number = entry
            mine = here[owners] & (number < last[owners])
            if mine.any():
                if self.machine.observer is not None and kind == "cp":
                    self.machine.observer.drained(task, owners[mine])
                    if not mine.all():
                        left.append((task, owners[~mine], number[~mine]))
                if not task.done:
                    self._do(task)
                continue
            if not task.done or self.machine.observer is not None and kind == "cp":
                left.append(entry)
        self.grouped[kind] = left
        if any(task.done for task in self.tasks):
            self.tasks = deque(task for task in self.tasks if not task.done)
