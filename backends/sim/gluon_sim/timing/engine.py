"""The clock of one multiprocessor: the blocks that it holds share its schedulers, matrix unit, copy engine and port to memory.

Events happen in the order of time. Instructions of several tasks slow each other down where together they exceed a pipe; units of
their own serve one piece of work after the other; a wait ends when what it waits for has happened, and remembers it.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Callable, Generator, Iterable, Optional

from gluon_core.plugin.timing import Timing
from gluon_sim.timing.stream import (
    Arrive,
    Block,
    Commit,
    Compute,
    Expect,
    Fork,
    Init,
    Join,
    Mark,
    Need,
    Place,
    Start,
    Stream,
    Sync,
    WaitBarrier,
    WaitGroups,
    Where,
)

__all__ = ["Lane", "Memory", "Span", "Stuck", "Unit"]

_ISSUE = 4.0  # cycles of an instruction that starts something


class Stuck(Exception):
    """No event is left while tasks wait: the sample lacks what they wait for."""


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


@dataclass
class Span:
    """One activity of a lane from `begin` to `end`, in cycles.

    Args:
        kind: "compute", "issue", "wait", "scope", or "work" of a unit of its own.
        cause: of a wait, whose signal ended it, and when that came; of work, the task that issued it, and when.
    """

    where: Where
    begin: float
    end: float
    kind: str
    cause: Optional["Cause"] = None
    depth: int = 0


@dataclass
class Lane:
    """A task of a block, or a unit that works for it.

    Args:
        name: of the task or the unit.
        warps: first warp and number of warps; None for a unit.
    """

    name: str
    block: int
    warps: Optional[tuple[int, int]] = None
    spans: list[Span] = field(default_factory=list)


Cause = tuple[Lane, float]  # whose signal ended a wait, and when it came


class _Job:
    """Instructions that are executed now."""

    __slots__ = ("left", "loads", "rate", "resume")

    def __init__(self, left: float, loads: list[tuple[str, float]], resume: Callable[[], None]):
        self.left = left
        self.loads = loads
        self.rate = 1.0
        self.resume = resume


class _Barrier:
    __slots__ = ("by", "bytes", "count", "pending", "phase", "waiting")

    def __init__(self, count: int):
        self.count = self.pending = count
        self.bytes = 0
        self.phase = 0
        self.by: Optional[Cause] = None
        self.waiting: list[Callable[[], None]] = []


class _Done:
    """The end of a piece of work: of the whole of it, and of its reads of shared memory.

    `time` is None as long as it is not known.
    """

    __slots__ = ("by", "read", "time", "waiting")

    def __init__(self, lane: "Lane", time: Optional[float] = None, read: Optional[float] = None):
        self.by = lane
        self.time = time
        self.read = time if read is None else read
        self.waiting: list[Callable[[], None]] = []

    def known(self, time: float) -> None:
        """Set the time, and tell those who asked for it."""
        self.time = self.read = time
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


@dataclass
class _Product:
    """Work of the matrix unit, of which `left` cycles are left."""

    left: float
    start: Start
    done: _Done
    issued: Cause
    begun: Optional[float] = None


class _Matrix:
    """The matrix unit: tasks that have work for it share it equally, each with its own work in order.

    Hardware takes the instructions of several groups of warps in turns.
    """

    def __init__(self, unit: "Unit"):
        self.unit = unit
        self.queues: dict[int, deque[_Product]] = {}
        self._updated = 0.0
        self._version = 0

    def put(self, task: Lane, start: Start, done: _Done) -> None:
        """Add work of a task."""
        self._progress()
        queue = self.queues.setdefault(id(task), deque())
        queue.append(_Product(max(start.busy, 1e-3), start, done, (task, self.unit.now)))
        self._next()

    def _progress(self) -> None:
        now = self.unit.now
        heads = [queue[0] for queue in self.queues.values()]
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
        heads = [queue[0] for queue in self.queues.values()]
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
        self._drained = 0.0

    # ---- time -------------------------------------------------------------------------------------

    def at(self, time: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._heap, (max(time, self.now), self._number, call))

    def run(
        self, blocks: Iterable[Block], resident: int, gap: float = 0.0, pace: float = 0.0
    ) -> float:
        """Run blocks, `resident` at a time, and return the cycles until the last store has arrived.

        Args:
            gap: cycles from the end of a block to the start of the next one in its place.
            pace: cycles between the starts of two blocks at least.

        Raises:
            Stuck: tasks wait for what never happens.
        """
        waiting = iter(list(blocks))
        left = [0]
        earliest = 0.0
        numbers = count()

        def start(delay: float = 0.0) -> None:
            block = next(waiting, None)
            if block is not None:
                left[0] += 1
                nonlocal earliest
                time = max(self.now + delay, earliest)
                earliest = time + pace
                self.at(time, lambda: _begin(block))

        def _begin(block: Block) -> None:
            _Run(self, next(numbers), block, end)

        def end(begin: float) -> None:
            left[0] -= 1
            self.ends.append((begin, self.now))
            start(gap)

        for _ in range(resident):
            start()
        while self._heap:
            self.now, _, call = heapq.heappop(self._heap)
            call()
        if left[0]:
            raise Stuck
        return max(self.now, self._drained)

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

    def serve(self, start: Start, run: "_Run", task: Lane) -> _Done:
        """Return when work of a task ends that is started now; the units that do it are busy meanwhile."""
        timing = self.timing
        if start.unit == "matrix":
            self.busy["matrix"] = self.busy.get("matrix", 0.0) + start.busy
            product = _Done(run.unit_lane("matrix unit"))
            self._matrix.put(task, start, product)
            return product
        self.moved += start.bytes
        if start.unit == "copy":
            begin = max(self.now, self._engine)
            rate = timing.store_bytes if start.writes else timing.copy_bytes
            self._engine = begin + max(timing.copy_issue * start.requests, start.bytes / rate)
            ready, extra = self._engine, timing.latency["copy"]
            lane = run.unit_lane("copies out" if start.writes else "copies in")
        else:
            begin = max(self.now, self._threads)
            self._threads = begin + start.requests
            ready, extra = begin + _ISSUE, 0.0
            lane = run.unit_lane("stores" if start.writes else "loads")
        if not start.bytes:
            return _Done(lane, ready)
        served = max(ready, self._port)
        self._port = served + (self.memory.write if start.writes else self.memory.read)(start.bytes)
        self.busy["memory"] = self.busy.get("memory", 0.0) + self._port - served
        latency = self.memory.store_latency if start.writes else self.memory.latency
        if start.unit == "atomic":
            latency = start.latency
        done = self._port + latency + extra
        lane.spans.append(Span(start.where, begin, done, "work", (task, self.now)))
        self._drained = max(self._drained, done)
        return _Done(lane, done, self._port if start.writes else done)


_Resume = Callable[[], None]
_Wait = Callable[[_Resume], None]  # calls the function when it is time to go on
_Steps = Generator[_Wait, None, None]


class _Run:
    """One block on a unit."""

    def __init__(self, unit: Unit, number: int, block: Block, end: Callable[[float], None]):
        self.unit = unit
        self.number = number
        self.kept = number < unit.keep
        self.barriers: dict[Place, _Barrier] = {}
        self.done: dict[int, _Done] = {}
        self.ended: set[int] = set()
        self.awaiting: dict[int, list[_Resume]] = {}
        self._units: dict[str, Lane] = {}
        self._begin = unit.now
        self._end = end
        assert block.main is not None
        self._main = block.main
        self.go(block.main)

    def unit_lane(self, name: str) -> Lane:
        """Return the lane of a unit that works for the block."""
        lane = self._units.get(name)
        if lane is None:
            lane = self._units[name] = Lane(name, self.number)
            if self.kept:
                self.unit.lanes.append(lane)
        elif not self.kept:
            lane.spans.clear()
        return lane

    def go(self, stream: Stream) -> None:
        """Start a task."""
        lane = Lane(stream.name, self.number, (stream.first_warp, stream.warps))
        if self.kept:
            self.unit.lanes.append(lane)
        steps = _Task(self, stream, lane).steps()

        def step() -> None:
            wait = next(steps, None)
            if wait is not None:
                wait(step)
                return
            self.ended.add(id(stream))
            for resume in self.awaiting.pop(id(stream), ()):
                resume()
            if stream is self._main:
                self._end(self._begin)

        step()

    def barrier(self, place: Place) -> _Barrier:
        barrier = self.barriers.get(place)
        if barrier is None:
            barrier = self.barriers[place] = _Barrier(1)
        return barrier

    def signal(self, place: Place, kind: str, count: int, by: tuple[Lane, float]) -> None:
        """Count arrivals or bytes at a barrier, and wake those who wait for its phase."""
        barrier = self.barrier(place)
        if kind == "bytes":
            barrier.bytes -= count
        else:
            barrier.pending -= count
        if barrier.pending <= 0 and barrier.bytes <= 0:
            barrier.phase += 1
            barrier.pending = barrier.count
            barrier.by = by
            waiting, barrier.waiting = barrier.waiting, []
            for resume in waiting:
                resume()


class _Task:
    """A task of a block, which passes the events of its stream."""

    def __init__(self, run: _Run, stream: Stream, lane: Lane):
        self.run, self.unit = run, run.unit
        self.stream = stream
        self.lane = lane
        self.groups: dict[str, list[list[_Done]]] = {}
        self.open: dict[str, list[_Done]] = {}
        self.scopes: list[Span] = []

    def steps(self) -> _Steps:
        """Pass all events; each yielded function makes the task wait."""
        table: dict[type, Callable[[Any], _Steps]] = {
            Compute: self.compute, Start: self.start, Need: self.need, Commit: self.commit,
            WaitGroups: self.wait_groups, Init: self.init, Expect: self.expect, Arrive: self.arrive,
            WaitBarrier: self.wait_barrier, Sync: self.sync, Mark: self.mark, Fork: self.fork, Join: self.join,
        }  # fmt: skip
        for event in self.stream.events:
            yield from table[type(event)](event)

    def until(self, time: float) -> _Wait:
        return lambda resume: self.unit.at(time, resume)

    def span(self, where: Where, begin: float, kind: str, cause: Optional[Cause] = None) -> None:
        """Note what the task did since `begin`."""
        if self.run.kept and self.unit.now > begin:
            depth = len(self.scopes)
            self.lane.spans.append(Span(where, begin, self.unit.now, kind, cause, depth))

    def compute(self, event: Compute) -> _Steps:
        begin = self.unit.now
        yield lambda resume: self.unit.compute(event, self.stream.warps, resume)
        self.span(event.where, begin, "compute")

    def start(self, event: Start) -> _Steps:
        begin = self.unit.now
        yield self.until(begin + _ISSUE + event.issue)
        done = self.unit.serve(event, self.run, self.lane)
        self.run.done[id(event)] = done
        if event.queue:
            self.open.setdefault(event.queue, []).append(done)
        for signal in event.signals:
            call = partial(self._signal, done, signal)
            if done.time is None:
                done.waiting.append(call)
            else:
                call()
        self.span(event.where, begin, "issue")

    def need(self, event: Need) -> _Steps:
        begin, done = self.unit.now, self.run.done[id(event.start)]
        yield from self._over(done, False)
        assert done.time is not None
        self.span(event.where, begin, "wait", (done.by, done.time))

    def _signal(self, done: _Done, signal: tuple[Place, str, int]) -> None:
        """Signal a barrier when work is over."""
        assert done.time is not None
        place, kind, amount = signal
        call = partial(self.run.signal, place, kind, amount, (done.by, done.time))
        self.unit.at(done.time, call)

    def _over(self, done: _Done, reads: bool) -> _Steps:
        """Wait until work is over, or its reads of shared memory are."""
        if done.time is None:
            yield done.waiting.append
        time = done.read if reads else done.time
        if time is not None and time > self.unit.now:
            yield self.until(time)

    def commit(self, event: Commit) -> _Steps:
        self.groups.setdefault(event.queue, []).append(self.open.pop(event.queue, []))
        return
        yield

    def wait_groups(self, event: WaitGroups) -> _Steps:
        begin, known = self.unit.now, self.groups.get(event.queue, [])
        over = max(0, len(known) - event.pending)
        ends = [done for group in known[:over] for done in group]
        if not event.reads:
            self.groups[event.queue] = known[over:]
        last: Optional[Cause] = None
        for done in ends:
            before = self.unit.now
            yield from self._over(done, event.reads)
            if self.unit.now > before:
                last = (done.by, self.unit.now)
        self.span(event.where, begin, "wait", last)

    def init(self, event: Init) -> _Steps:
        self.run.barriers[event.place] = _Barrier(event.count)
        return
        yield

    def expect(self, event: Expect) -> _Steps:
        self.run.barrier(event.place).bytes += event.bytes
        return
        yield

    def arrive(self, event: Arrive) -> _Steps:
        yield self.until(self.unit.now + self.unit.timing.latency["arrive"])
        self.run.signal(event.place, "arrive", event.count, (self.lane, self.unit.now))

    def wait_barrier(self, event: WaitBarrier) -> _Steps:
        begin, barrier = self.unit.now, self.run.barrier(event.place)
        if barrier.phase & 1 != event.parity:
            yield self.until(begin + self.unit.timing.latency["pass"])
            self.span(event.where, begin, "compute")
            return
        delay = self.unit.timing.latency["signal"]

        def wait(resume: _Resume) -> None:
            barrier.waiting.append(lambda: self.unit.at(self.unit.now + delay, resume))

        yield wait
        self.span(event.where, begin, "wait", barrier.by)

    def sync(self, event: Sync) -> _Steps:
        begin = self.unit.now
        yield self.until(begin + self.unit.timing.latency[event.kind])
        self.span(event.where, begin, "wait")

    def mark(self, event: Mark) -> _Steps:
        now = self.unit.now
        if event.begins:
            where = Where(event.name, event.line, event.file)
            self.scopes.append(Span(where, now, now, "scope", None, len(self.scopes)))
        elif self.scopes:
            scope = self.scopes.pop()
            scope.end = now
            if self.run.kept:
                self.lane.spans.append(scope)
        return
        yield

    def fork(self, event: Fork) -> _Steps:
        for child in event.children:
            self.run.go(child)
        return
        yield

    def join(self, event: Join) -> _Steps:
        for child in event.fork.children:
            if id(child) not in self.run.ended:
                yield partial(self._await, child)

    def _await(self, child: Stream, resume: _Resume) -> None:
        self.run.awaiting.setdefault(id(child), []).append(resume)
