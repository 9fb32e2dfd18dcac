"""The units of one multiprocessor: schedulers and pipes, matrix unit, copy engine and port to memory.

Instructions of several tasks slow each other down where together they exceed a pipe; units of their own serve one piece of work
after the other.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Callable, Optional

from gluon_core.plugin.timing import Timing
from gluon_sim.timing.lanes import Cause, Done, Lane, Span
from gluon_sim.timing.stream import Compute, Start

__all__ = ["ISSUE", "Memory", "Unit"]

ISSUE = 4.0  # cycles of an instruction that starts something


@dataclass
class Memory:
    """Global memory as one unit sees it.

    Args:
        rate: bytes per cycle of its port.
        cost: bytes -> cycles of the port, for (reads, writes).
        latency: cycles until the first bytes come.
    """

    read: Callable[[int], float]
    write: Callable[[int], float]
    latency: float
    store_latency: float


class _Job:
    """Instructions that are executed now."""

    __slots__ = ("left", "loads", "rate", "resume")

    def __init__(self, left: float, loads: list[tuple[str, float]], resume: Callable[[], None]):
        self.left = left
        self.loads = loads
        self.rate = 1.0
        self.resume = resume


@dataclass
class _Product:
    """Work of the matrix unit, of which `left` cycles are left; the `number`th that was issued."""

    left: float
    start: Start
    done: Done
    issued: Cause
    number: int
    begun: Optional[float] = None


class _Matrix:
    """The matrix unit: tasks that have work for it share it equally, each with its own work in order.

    Hardware takes the instructions of several groups of warps in turns. Work that is `alone`, however, is done to its end, in the
    order of issue, before any other.
    """

    def __init__(self, unit: "Unit"):
        self.unit = unit
        self.queues: dict[int, deque[_Product]] = {}
        self._updated = 0.0
        self._version = 0
        self._issued = 0

    def put(self, task: Lane, start: Start, done: Done) -> None:
        """Add work of a task."""
        self._progress()
        queue = self.queues.setdefault(id(task), deque())
        self._issued += 1
        cause = (task, self.unit.now)
        queue.append(_Product(max(start.busy, 1e-3), start, done, cause, self._issued))
        self._next()

    def _served(self) -> list[_Product]:
        """Return the work that is done now: one of several that are alone, or the first of each task."""
        heads = [queue[0] for queue in self.queues.values()]
        alone = [head for head in heads if head.start.alone]
        if not alone:
            return heads
        return [min(alone, key=lambda head: (head.begun is None, head.number))]

    def _progress(self) -> None:
        now = self.unit.now
        heads = self._served()
        if heads:
            each = (now - self._updated) / len(heads)
            for head in heads:
                if head.begun is None:
                    head.begun = self._updated
                head.left -= each
        self._updated = now

    def _next(self) -> None:
        self._version += 1
        version = self._version
        heads = self._served()
        if heads:
            first = min(head.left for head in heads) * len(heads)
            self.unit.at(self.unit.now + max(0.0, first), lambda: self._ended(version))

    def _ended(self, version: int) -> None:
        if version != self._version:
            return
        self._progress()
        over = []
        for task, queue in list(self.queues.items()):
            if queue[0].left <= 1e-6:
                over.append(queue.popleft())
                if not queue:
                    del self.queues[task]
        self._next()
        for product in over:
            begun = self.unit.now if product.begun is None else product.begun
            where = product.start.where
            span = Span(where, begun, self.unit.now, "work", product.issued)
            product.done.by.spans.append(span)
            product.done.known(self.unit.now + product.start.latency)


class Unit:
    """One multiprocessor.

    Args:
        timing: of the architecture.
        memory: its share of the memory.
        keep: keep spans of so many blocks.

    Attributes:
        now: cycles.
        drained: when the last piece of work on memory ended.
    """

    def __init__(self, timing: Timing, memory: Memory, keep: int = 1):
        self.timing = timing
        self.memory = memory
        self.keep = keep
        self.now = 0.0
        self.lanes: list[Lane] = []
        self.busy: dict[str, float] = {}
        self.ends: list[tuple[float, float]] = []
        self.moved = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._jobs: list[_Job] = []
        self._updated = 0.0
        self._version = 0
        self._matrix = _Matrix(self)
        self._engine = self._port = self._threads = 0.0
        self.drained = 0.0

    # ---- time -------------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (max(time, self.now), self._number, call))

    def settle(self) -> None:
        """Pass all events, in the order of time."""
        while self._heap:
            self.now, _, call = heapq.heappop(self._heap)
            call()

    # ---- instructions -------------------------------------------------------------------------------

    def compute(self, price: Compute, warps: int, resume: Callable[[], None]) -> None:
        """Execute instructions of a task, then go on."""
        alone = max(price.busy(), 1.0)
        share = min(1.0, warps / self.timing.schedulers)
        loads = [("issue", price.issue * share / alone)]
        for pipe, cycles in price.pipes.items():
            loads.append((pipe, cycles * (1.0 if pipe == "shared" else share) / alone))
            self.busy[pipe] = self.busy.get(pipe, 0.0) + cycles * (
                1.0 if pipe == "shared" else share
            )
        self.busy["issue"] = self.busy.get("issue", 0.0) + price.issue * share
        self._progress()
        self._jobs.append(_Job(alone, loads, resume))
        self._rates()

    def _progress(self) -> None:
        passed = self.now - self._updated
        if passed:
            for job in self._jobs:
                job.left -= passed * job.rate
        self._updated = self.now

    def _rates(self) -> None:
        """Set the rates of all jobs anew, and the time at which the next one ends."""
        self._version += 1
        jobs = self._jobs
        if not jobs:
            return
        if len(jobs) == 1:
            jobs[0].rate = 1.0
        else:
            total: dict[str, float] = {}
            for job in jobs:
                for pipe, load in job.loads:
                    total[pipe] = total.get(pipe, 0.0) + load
            for job in jobs:
                job.rate = 1.0 / max(
                    1.0, *(total[pipe] for pipe, load in job.loads if load > 0.02), 1.0
                )
        first = min(job.left / job.rate for job in jobs)
        version = self._version
        self.at(self.now + max(first, 0.0), lambda: self._ended(version))

    def _ended(self, version: int) -> None:
        if version != self._version:
            return
        self._progress()
        done = [job for job in self._jobs if job.left <= 1e-6]
        self._jobs = [job for job in self._jobs if job.left > 1e-6]
        self._rates()
        for job in done:
            job.resume()

    # ---- units of their own -----------------------------------------------------------------------------

    def serve(self, start: Start, lane_of: Callable[[str], Lane], task: Lane) -> Done:
        """Return when work of a task ends that is started now; the units that do it are busy meanwhile."""
        timing = self.timing
        if start.unit == "matrix":
            self.busy["matrix"] = self.busy.get("matrix", 0.0) + start.busy
            product = Done(lane_of("matrix unit"))
            self._matrix.put(task, start, product)
            return product
        self.moved += start.bytes
        if start.unit == "copy":
            begin = max(self.now, self._engine)
            rate = timing.store_bytes if start.writes else timing.copy_bytes
            self._engine = begin + max(timing.copy_issue * start.requests, start.bytes / rate)
            ready, extra = self._engine, timing.latency["copy"]
            lane = lane_of("copies out" if start.writes else "copies in")
        else:
            begin = max(self.now, self._threads)
            self._threads = begin + start.requests
            ready, extra = begin + ISSUE, 0.0
            lane = lane_of("stores" if start.writes else "loads")
        if not start.bytes:
            return Done(lane, ready)
        served = max(ready, self._port)
        self._port = served + (self.memory.write if start.writes else self.memory.read)(start.bytes)
        self.busy["memory"] = self.busy.get("memory", 0.0) + self._port - served
        latency = self.memory.store_latency if start.writes else self.memory.latency
        if start.unit == "atomic":
            latency = start.latency
        done = self._port + latency + extra
        lane.spans.append(Span(start.where, begin, done, "work", (task, self.now)))
        self.drained = max(self.drained, done)
        return Done(lane, done, self._port if start.writes else done)
