"""Asynchronous work: issued to a queue, in flight, landed when somebody needs it to have happened.

**When* work lands is the schedule's choice and decides the results of a kernel. The *happens-before order* does not depend on it: a wait makes the waiting agent know the work, whenever it landed.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Optional, Protocol, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_sim.errors import LeakError, RaceError, SimulatorError, tolerate
from gluon_sim.memory import barriers
from gluon_sim.memory.barriers import Barriers
from gluon_sim.memory.guided import Guided
from gluon_sim.memory.schedule import Schedule
from gluon_sim.memory.shared import SharedBuffer, SharedView, named_by
from gluon_sim.memory.turns import Wait
from gluon_sim.sanitizer import agents, observed
from gluon_sim.sanitizer.advice import barrier_wait, group_wait, signal_and_wait, wait_before_end
from gluon_sim.sanitizer.agents import Agent, Agents, Epoch, Task
from gluon_sim.sanitizer.lifetimes import Lifetimes
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.sanitizer.tracking import Tracking
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.source import span_of

__all__ = ["Flight", "Flights", "Issuer", "Queue"]

MOST_WRITES = 64  # of a queue, that are distinguished when their sources have been read


class Queue:
    """Work of one kind that one task issued and that it does not know to be over.

    Attributes:
        closed: groups closed so far, per batch row (or one number for all).
    """

    def __init__(self, name: str):
        self.name = name
        self.closed = np.zeros(1, np.int64)
        self.flights: list[Flight] = []
        # Slots of clocks to use again, those of parts that only read apart: a buffer keeps the last
        # read of each slot, so few of them should ever read.
        self.free: dict[bool, list[int]] = {False: [], True: []}

    def settle(self, agent: Agent) -> None:
        """Forget work that the issuing agent knows to be over."""
        left = []
        for index, flight in enumerate(self.flights):
            if flight.in_order and not flight.landed:
                left += self.flights[index:]  # the rest has not landed either, or is small
                break
            if not (flight.landed and flight.known_by(agent)):
                left.append(flight)
        if len(left) < len(self.flights):
            kept = {flight.agent.slot for flight in left}
            for reads, free in self.free.items():
                gone = {f.agent.slot for f in self.flights if f.reads == reads} - kept
                free += sorted(gone.difference(free))
        self.flights = left


class Flight:
    """One piece of asynchronous work.

    Attributes:
        rows: the programs that issued it.
        group: the number of its group, per batch row (or one for all).
        closed: by queue of its task, the groups closed when it was issued.
        issuer: who issued it, and at which of its clocks.
        landed, landing: whether it has happened, and happens now.
        moved: whether it touched global memory; a copy that tells a barrier does so in any case.
        remote: whether it reaches memory of other blocks.
        filled: whether it wrote shared memory.
        reads: whether it only reads the sources of work that writes later.
        after: whether it starts when all earlier work of its queue is over.
        source: of work that writes, the part that reads its sources, if that is distinguished.
        began: the phase of its barrier when it was issued.
        blocks: the clocks of the blocks of a cluster at its issue.
        portable: whether a portable op issued it, whose fence nobody adds.
        leads: for each block, the one that does its part, where one does it for several.
        buffers: that it may use, if somebody asks how long these are in use.
    """

    def __init__(
        self, task: Issuer, queue: Queue, rows: Rows, perform: Callable[[], Any],
        signal: Optional[Callable[[], Any]] = None, barrier: Optional[SharedView] = None,
        reads: bool = False, remote: bool = False,
    ):  # fmt: skip
        self.task = task
        self.op = task.op
        self.rows = rows
        self.home = queue
        self.queue = queue.name
        self.perform: Optional[Callable[[], Any]] = perform
        self.signal = signal
        self.barrier = barrier
        self.group = queue.closed
        self.closed = {q.name: q.closed for q in task.queues.values()}
        self.issuer = task.active()
        self.issued = self.issuer.clock
        self.agent: Agent = None  # type: ignore[assignment]  # from its start on
        self.before: list[Flight] = []
        self.landed = self.landing = False
        self.moved = False
        self.remote = remote
        self.filled = False
        self.reads = reads
        self.after = self.portable = False
        self.source: Optional[Flight] = None
        signals = self._phase()
        self.began = signals[2] if signals is not None else None
        blocks = task.batch.blocks
        self.blocks: Optional[np.ndarray] = blocks.current() if blocks is not None else None
        self.leads: Optional[np.ndarray] = None
        self.buffers: tuple[SharedBuffer, ...] = ()
        if task.machine.lifetimes is not None:
            self.buffers = named_by(task.given)

    @property
    def awaited(self) -> bool:
        """Return whether a wait must precede the end of the kernel. Work that only writes global memory completes without one, once shared memory, which goes away, has been read."""
        return self.reads or self.remote or (self.moved and self.source is None)

    @property
    def tolerated(self) -> bool:
        """Return whether hardware is known to end correctly without a wait: work that only fills the shared
        memory of its own block, which is held until it came."""
        return self.filled and not (self.reads or self.remote)

    @property
    def in_order(self) -> bool:
        """Return whether it follows all earlier work of its queue, in every program."""
        return self.after and self.rows.whole

    @property
    def only_signals(self) -> bool:
        """Return whether it only signals a barrier that earlier work is over."""
        return self.after and self.barrier is not None

    def live(self) -> Optional[np.ndarray]:
        return None if self.rows.whole else self.rows.index

    def known_by(self, agent: Agent) -> bool:
        mine = self.agent
        return bool(agent.known.knows(mine.slot, mine.clock, self.live()).all())

    def precedes(self, other: agents.Flight) -> bool:
        """Return whether the issuer of the other knew that this one was issued."""
        rows = np.intersect1d(self.rows.index, other.rows.index)
        return bool(other.agent.known.knows(self.issuer.slot, self.issued, rows).all())

    def remedy(self, task: Task, before: Optional[Epoch] = None) -> str:
        """Return the missing wait before the current access of `task`, or that of the epoch `before`."""
        here = before.op if before is not None else task.home()
        if self.barrier is not None:
            return self.uncounted() or (
                barrier_wait(task, self.op, here, self.barrier)
                + self._other_phase(task.name if before is None else before.task)
            )
        closed = self.home.closed
        if not closed.any():
            return self._untracked(task, here)
        if before is not None and before.closed:
            closed = before.closed.get(self.queue, closed)
        meets = task.agent.flight if before is None and task.agent is not None else None
        if meets is not None and meets.task is self.task:  # it had to wait when it was issued
            closed = meets.closed.get(self.queue, closed)
        last = self if before is None else self._last_like(before, closed)
        behind = int((closed - last.group).max())
        return group_wait(
            task, self.queue, last.op, here, max(behind - 1, 0), commit=behind <= 0,
            finish=self.source is not None,
        )  # fmt: skip

    def _phase(self) -> Optional[tuple[Barriers, int, int]]:
        """Return the barriers among which it signals one, which of them, and the phase that this one is
        in, as the first program sees it."""
        if self.barrier is None or self.barrier.buffer.barriers is None:
            return None
        barriers = self.barrier.buffer.barriers
        base = self.barrier.base.reshape(-1)
        row = int(np.argmax(self.task.rows.index == self.rows.index[0])) if base.size > 1 else 0
        slot = (int(base[min(row, base.size - 1)]) + int(self.barrier.table.min())) // 8
        return barriers, slot, int(barriers.phase[int(self.rows.index[0]), slot])

    def uncounted(self) -> str:
        """Return the mistake where the phase that it belongs to was over before its bytes came."""
        places = self._phase()
        over = self.landed and not self.landing
        if self.began is None or places is None or self.after or over:
            return ""
        barriers, slot, phase = places
        if phase <= self.began:
            return ""
        line = self.op.loc.line
        lines = ", ".join(map(str, sorted(barriers.announced.get(slot, ()))))
        return (
            f"The phase of the barrier that `{self.op.called}` of line {line} signals was over before "
            f"its bytes came. Expect the bytes of all copies of a phase"
            f"{f', at line {lines}' if lines else ', before its last arrival'}."
        )

    def _other_phase(self, name: str) -> str:
        """Report that a task has waited for the barrier, but for another phase than this one's."""
        places = self._phase()
        if places is None:
            return ""
        barriers, slot, phase = places
        line, parity = barriers.waited.get((slot, name), (0, 0))
        mine = phase & 1
        if not line or parity == mine:
            return ""
        return (
            f" The wait of line {line} was for phase {parity}, which is over; what `{self.op.called}` "
            f"brings belongs to phase {mine}."
        )

    def _last_like(self, before: Epoch, closed: np.ndarray) -> "Flight":
        """Return the last of the pieces of work like this one that miss the access `before`: the first
        is reported, but a wait must reach that far."""
        flights, last = self.task.machine.flights, self
        alike = [
            f
            for f in self.home.flights
            if f.reads == self.reads and not f.landed
            if (f.group < closed).all() and (f.group > self.group).all()
        ]
        if flights.probing:
            return last
        flights.probing = True
        try:
            for flight in alike:
                try:
                    flights.land(flight)
                except RaceError as race:
                    if race.epoch is before:
                        last = flight
                except GluonError:
                    pass
        finally:
            flights.probing = False
        return last

    def _untracked(self, task: Task, here: Op) -> str:
        """Close a group of the work that belongs to none yet."""
        flights = self.home.flights
        position = flights.index(self) if self in flights else len(flights)
        later = next((f for f in flights[position:] if f.barrier is not None and f.after), None)
        if later is not None:
            return barrier_wait(task, later.op, here, later.barrier)
        if self.after:
            return signal_and_wait(task, self.queue, self.op, here)
        return group_wait(task, self.queue, self.op, here, 0, commit=True)


class Batch(barriers.Batch, Protocol):
    """Programs that run together.

    Attributes:
        agents: who acts in them; None as long as that is one task.
    """

    @property
    def agents(self) -> Optional[Agents]: ...

    @property
    def queues(self) -> Sequence[Queue]: ...


class Machine(observed.Machine, Protocol):
    """The launch of a task.

    Attributes:
        tracking: race detection, if that is on.
        lifetimes: where buffers may take each other's place.
    """

    @property
    def flights(self) -> Flights: ...

    @property
    def tracking(self) -> Optional[Tracking]: ...

    @property
    def lifetimes(self) -> Optional[Lifetimes]: ...


class Issuer(barriers.Task, Protocol):
    """A task that issues asynchronous work.

    Attributes:
        given: the arguments of the op that runs.
        portable: whether a portable op is about to issue work.
    """

    frame: Any
    op: Op
    agent: Optional[Agent]
    portable: bool

    @property
    def given(self) -> Sequence[Any]: ...

    @property
    def batch(self) -> Batch: ...

    @property
    def machine(self) -> Machine: ...

    @property
    def queues(self) -> Mapping[str, Queue]: ...

    def active(self) -> Agent:
        """Return this task as an agent."""
        ...

    def queue(self, name: str) -> Queue: ...


class Flights:
    """All work in flight of one launch, and the schedule by which it lands."""

    def __init__(self, schedule: Schedule):
        self.schedule = schedule
        self.guided = schedule if isinstance(schedule, Guided) else None
        self.pending: list[Flight] = []
        self.probing = False  # whether work lands only to find out which of it is at fault

    # ---- queries of a task -------------------------------------------------------------------

    def issue(
        self, task: Issuer, queue: str, perform: Callable[[], Any],
        signal: Optional[Callable[[], Any]], barrier: Optional[SharedView], after: bool, proxy: str,
        read: Optional[Callable[[], Any]] = None, where: Optional[np.ndarray] = None,
        remote: bool = False,
    ) -> Optional[Flight]:  # fmt: skip
        agent = task.active()
        home = task.queue(queue)
        home.settle(agent)
        self._forget(agent, home)
        rows = task.rows if where is None else task.rows.where(where)
        if not rows.count:
            return None
        parts = []
        if read is not None:
            parts.append(Flight(task, home, rows, read, reads=True))
        parts.append(Flight(task, home, rows, perform, signal, barrier, remote=remote))
        earlier = _last_in_order(home.flights) if after else []
        slot = None
        if len(parts) == 1 and rows.whole and earlier and earlier[0].in_order:
            slot = earlier[0].agent.slot  # of one that knows nothing this will not know
        for flight in parts:
            flight.after = after
            self._start(task, home, flight, proxy, earlier, slot)
            if read is not None and flight is not parts[0]:
                flight.source, flight.buffers = parts[0], ()
                self._follow(flight, [parts[0]])
        task.portable = False
        due = self.schedule.issued(self.pending, parts[-1])
        if due is not None:
            self.land(due)
        return parts[-1]

    def _start(
        self, task: Issuer, home: Queue, flight: Flight, proxy: str, earlier: list[Flight],
        slot: Optional[int] = None,
    ) -> None:  # fmt: skip
        if slot is None:
            free = home.free[flight.reads]
            slot = free.pop() if free else None
        name = f"{task.op.called} of {task.name}"
        known = task.batch.agents
        assert known is not None  # the task is one of them
        flight.portable = task.portable
        flight.agent = known.fork(task.active(), name, slot, proxy=proxy, flight=flight)
        self._follow(flight, earlier)
        home.flights.append(flight)
        self.pending.append(flight)
        if self.guided is not None:
            self.guided.name_flight(flight)

    def _follow(self, flight: Flight, earlier: list[Flight]) -> None:
        """Let a flight start when others are over."""
        flight.before += earlier
        for other in earlier:
            total = flight.task.batch.count
            flight.agent.known.join(other.agent.known, other.live(), total)

    def _forget(self, agent: Agent, home: Queue) -> None:
        """Take the oldest writes that nobody waits for as over, so that their number is bounded."""
        writes = [flight for flight in home.flights if flight.source is not None]
        for flight in writes[: max(0, len(writes) - MOST_WRITES)]:
            assert flight.source is not None
            if flight.source.landed and flight.source.known_by(agent):
                self.land(flight)
                total = flight.task.batch.count
                agent.known.join(flight.agent.known, flight.live(), total)
        if len(writes) > MOST_WRITES:
            home.settle(agent)

    def commit(self, task: Issuer, queue: str) -> None:
        home = task.queue(queue)
        rows = task.rows
        if rows.whole:
            home.closed = home.closed + 1
        else:
            closed = np.array(np.broadcast_to(home.closed, task.batch.count))
            closed[rows.index] += 1
            home.closed = closed

    def wait_groups(self, task: Issuer, queue: str, pending: int, reads: bool = False) -> None:
        home = task.queues.get(queue)
        if home is None or not home.flights or pending < 0:  # as unsigned, more than there are
            return
        agent = task.active()
        limit = home.closed - int(pending)
        for flight in list(home.flights):
            if reads and not flight.reads:
                continue
            due = flight.group < limit
            here = task.rows.index
            if len(due) == 1 and task.rows.whole and flight.rows.whole:
                if not due[0]:
                    continue
                rows = None
            else:
                due = np.broadcast_to(due, task.batch.count)
                rows = np.intersect1d(here, flight.rows.index)
                rows = rows[due[rows]]
                if not len(rows):
                    continue
            self.land(flight)
            agent.known.join(flight.agent.known, rows, task.batch.count)
            if self.guided is not None:
                self.guided.learned(task, flight)
        home.settle(agent)

    def last_signals(self, barrier: SharedView, agent: Agent) -> None:
        """Let the signals come that nobody waits for, before their barrier goes away: those of work
        that `agent` knows to be over, as of one multiplication that tells several barriers."""
        for flight in list(self.pending):
            signalled = flight.barrier if flight.only_signals else None
            if signalled is not None and signalled.buffer is barrier.buffer:
                if _tells_known_work(flight, agent):
                    self.land(flight)

    # ---- landing ----------------------------------------------------------------------------

    def land(self, flight: Flight) -> None:
        """Let it happen now, with the work that it must come after."""
        stack = [flight]  # chains may be longer than Python recurses
        while stack:
            due = [f for f in stack[-1].before if not f.landed]
            if due:
                stack += reversed(due)
            else:
                self._land(stack.pop())

    def land_all(self) -> None:
        """Let everything happen that does not come after work that is happening now."""
        for flight in list(self.pending):
            if not any(f.landing for f in _before(flight)):
                try:
                    self.land(flight)
                except SimulatorError as error:
                    if error.report is not None:  # else of the simulator itself: it tells nothing
                        raise

    def _land(self, flight: Flight) -> None:
        if flight.landed:
            return
        flight.landed = flight.landing = True
        before, flight.before = flight.before, []
        if flight in self.pending:
            self.pending.remove(flight)
        task = flight.task
        saved = task.frame, task.op, task.agent
        task.op, task.agent = flight.op, flight.agent
        task.frame = _Away(flight.rows)
        guided = None if self.probing else self.guided
        if guided is not None:
            guided.landing(flight, before)
        try:
            assert flight.perform is not None
            flight.perform()
            if flight.signal is not None:
                flight.signal()
        except GluonError as error:
            if error.span is None:
                error.span = span_of(flight.op.loc)
            raise
        except Exception as error:
            raise SimulatorError(
                f"the simulator failed in `{flight.op.name}`: {type(error).__name__}: {error}",
                span=span_of(flight.op.loc),
            ) from error
        finally:
            task.frame, task.op, task.agent = saved
            flight.landing = False
            if guided is not None:
                guided.landed()
            flight.perform = flight.signal = None
            task.memory.version += 1

    def push(self, waits: Sequence[Optional[Wait]]) -> bool:
        """Nobody can go on: let work land that somebody waits for; false where there is none."""
        if not self.pending:
            return False
        wanted = [w.buffer for w in waits if w is not None and w.buffer is not None]
        for flight in self.pending:
            if flight.barrier is not None and any(flight.barrier.buffer is b for b in wanted):
                self.land(flight)
                return True
        self.land(self.pending[0])
        return True

    def finish(self, task: Issuer, report: bool) -> None:
        """End the kernel for a batch: report work in flight without a wait."""
        agent = task.agent
        assert agent is not None
        mine = [flight for queue in task.batch.queues for flight in queue.flights]
        for flight in mine:
            self.land(flight)
        left = [f for f in mine if f.awaited and not f.known_by(agent)]
        if not report:
            return
        for flight in sorted(left, key=lambda f: f.tolerated):  # certain mistakes first
            line = flight.op.loc.line
            alike = sum(f.op.loc.line == line for f in left)
            more = f" ({alike} such)" if alike > 1 else ""
            target = "the memory of another block" if flight.remote else ""
            error = LeakError(
                f"the kernel ends while `{flight.op.called}` of {flight.task.name} may still be in "
                f"flight{target and f' to {target}'}: nobody waited for it{more}",
                report="leak.copy",
                remedy=wait_before_end(task, flight.queue, flight.op, flight.barrier),
                span=span_of(flight.op.loc),
            )
            if not flight.tolerated:
                raise error
            tolerate(error, task.machine.settings.tolerated, task.memory.warned)


def _before(flight: Flight) -> Iterator[Flight]:
    """Return all work that must be over before."""
    left, seen = [flight], {id(flight)}
    while left:
        for earlier in left.pop().before:
            if id(earlier) not in seen:
                seen.add(id(earlier))
                left.append(earlier)
                yield earlier


def _tells_known_work(flight: Flight, agent: Agent) -> bool:
    """Return whether all work before a signal is over, as far as `agent` knows."""
    left = [flight]
    while left:
        for earlier in left.pop().before:
            if earlier.only_signals:
                left.append(earlier)
            elif not earlier.known_by(agent):
                return False
    return True


def _last_in_order(flights: list[Flight]) -> list[Flight]:
    """Return the predecessors of a flight that follows all: the last such one, and those after it."""
    for index in range(len(flights) - 1, -1, -1):
        if flights[index].in_order:
            return flights[index:]
    return list(flights)


class _Away:
    """The frame of a task while its work lands: only the programs are known."""

    def __init__(self, rows: Rows):
        self.rows = rows
