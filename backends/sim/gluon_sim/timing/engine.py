"""The clock of one multiprocessor: the blocks that it holds share its schedulers, matrix unit, copy engine and port to memory.

Events happen in the order of time. Instructions of several tasks slow each other down where together they exceed a pipe; units of
their own serve one piece of work after the other; a wait ends when what it waits for has happened, and remembers it.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, Callable, Generator, Iterable, Optional

from gluon_sim.timing.lanes import Cause, Done, Lane, Span
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
from gluon_sim.timing.units import ISSUE, Unit

__all__ = ["Stuck", "execute"]


class Stuck(Exception):
    """No event is left while tasks wait: the sample lacks what they wait for."""


def execute(
    unit: Unit, blocks: Iterable[Block], resident: int, gap: float = 0.0, pace: float = 0.0
) -> float:
    """Run blocks on a unit, `resident` at a time, and return the cycles until the last store has arrived.

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
            time = max(unit.now + delay, earliest)
            earliest = time + pace
            unit.at(time, lambda: begin(block))

    def begin(block: Block) -> None:
        _Run(unit, next(numbers), block, end)

    def end(begun: float) -> None:
        left[0] -= 1
        unit.ends.append((begun, unit.now))
        start(gap)

    for _ in range(resident):
        start()
    unit.settle()
    if left[0]:
        raise Stuck
    return max(unit.now, unit.drained)


class _Barrier:
    __slots__ = ("by", "bytes", "count", "pending", "phase", "waiting")

    def __init__(self, count: int):
        self.count = self.pending = count
        self.bytes = 0
        self.phase = 0
        self.by: Optional[Cause] = None
        self.waiting: list[Callable[[], None]] = []


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
        self.done: dict[int, Done] = {}
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
        self.groups: dict[str, list[list[Done]]] = {}
        self.open: dict[str, list[Done]] = {}
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
        yield self.until(begin + ISSUE + event.issue)
        done = self.unit.serve(event, self.run.unit_lane, self.lane)
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

    def _signal(self, done: Done, signal: tuple[Place, str, int]) -> None:
        """Signal a barrier when work is over."""
        assert done.time is not None
        place, kind, amount = signal
        call = partial(self.run.signal, place, kind, amount, (done.by, done.time))
        self.unit.at(done.time, call)

    def _over(self, done: Done, reads: bool) -> _Steps:
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
