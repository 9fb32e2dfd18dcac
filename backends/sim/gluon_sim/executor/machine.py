"""The machine: one launch, its programs in batches that run as one.

Where programs part ways (an `if` on a loaded value, loops of different lengths) the batch splits:
the part that takes a path runs it, with outer values picked for that part, and the results merge.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any, ContextManager, Optional, Sequence, TextIO

import numpy as np

from gluon_sim.errors import LaunchInterrupted, TimeLimitError
from gluon_sim.executor.batch import Batch
from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.executor.parallel import (
    Stopped,
    Workers,
    keep,
    meets,
    ordered,
    restore,
    workers_for,
)
from gluon_sim.executor.progress import Progress
from gluon_sim.executor.stepping import run_function
from gluon_sim.executor.task import Task
from gluon_sim.memory.flight import Flights
from gluon_sim.memory.global_memory import GlobalMemory
from gluon_sim.memory.guided import Guided
from gluon_sim.memory.schedule import Schedule, schedule_of
from gluon_sim.memory.scheduler import Scheduler
from gluon_sim.memory.shared import SharedBuffer
from gluon_sim.memory.turns import Turns, Wait
from gluon_sim.sanitizer.blocks import Blocks
from gluon_sim.sanitizer.clusters import ended
from gluon_sim.sanitizer.lifetimes import Lifetimes
from gluon_sim.sanitizer.ranks import AcrossRanks
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.sanitizer.tracking import Tracking
from gluon_sim.settings import Settings, current
from gluon_sim.tracing.words import buffer_name

__all__ = ["Machine", "Place"]

# The widest value of a batch stays about this large: small enough for the caches of one core.
BATCH_BYTES = 4 << 20
SHARED_BYTES = 64 << 20
RESIDENT = 4  # programs that start at once where others may be claimed


@dataclass(frozen=True)
class Place:
    """The state that launches of one simulation share."""

    rank: int
    lane: int
    scheduler: Scheduler
    flights: Flights
    across: AcrossRanks


class Machine:
    """One launch of one compiled program.

    Args:
        program: the program to run.
        memory: the arguments' storage.
        grid: programs in x, y, z.
        num_warps: of one program, for the ops that ask.
        num_ctas: blocks of a cluster, which are one program.
        target: the simulated target.
        schedule: in which order things happen; by default the one in the settings.
        place: where it runs, if on one of several ranks; then `begin` and not `run` starts it.
    """

    def __init__(
        self,
        program: CompiledProgram,
        memory: GlobalMemory,
        grid: tuple[int, int, int],
        num_warps: int = 4,
        target: Any = None,
        output: Optional[TextIO] = None,
        settings: Optional[Settings] = None,
        num_ctas: int = 1,
        schedule: Optional[Schedule] = None,
        place: Optional[Place] = None,
    ):
        self.place = place
        self.first = 0  # the number of its first program
        self.under_way = 0  # tasks of a launch that others run
        self.num_ctas = num_ctas
        self.program = program
        self.memory = memory
        self.grid = grid
        self.num_warps = num_warps
        self.target = target
        self.output = output
        self.models = program.models
        self.settings = memory.settings = settings or current()
        chosen = self.settings
        if place is None:
            flights = Flights(schedule or schedule_of(chosen))
            deadline = None if chosen.timeout is None else monotonic() + chosen.timeout
            self.scheduler = Scheduler(flights, deadline, chosen.timeout, chosen.deadlocks)
        else:
            flights, self.scheduler = place.flights, place.scheduler
            deadline = self.scheduler.deadline
        self.flights, self.schedule = flights, flights.schedule
        self.guided = memory.guided = flights.guided
        self.scheduler.home = program.kernel.function.loc
        self.hurried = deadline is not None or self.schedule.between_ops
        self.tracking: Optional[Tracking] = None
        self.lifetimes: Optional[Lifetimes] = None  # where buffers may take each other's place
        self.watched = False
        self.stopped: Optional[Event] = None  # set where other threads work at the launch, too
        self.machines: list[Machine] = []  # those of the threads
        self.unstarted: Optional[deque[int]] = None  # where programs claim each other
        self.ticks = 0  # of its clock
        self.done = 0  # programs that this one brought to their end
        memory.check_alignment = program.pointer_casts

    def run(self, arguments: Sequence[np.ndarray]) -> None:
        """Run all programs of the grid; `arguments` are the kernel's, each with a leading axis of 1."""
        total = self.total
        if self.settings.progress:
            name = self.program.program.kernel.name
            shown: ContextManager[object] = Progress(name, total, lambda: (self.over, self.line))
        else:
            shown = nullcontext()
        try:
            with shown:
                self._all(total, arguments)
        except KeyboardInterrupt as interrupt:
            span = getattr(interrupt, "span", None)
            scene = self.scheduler.scene or tuple(
                where for m in self.machines for where in m.scheduler.scene
            )
            raise LaunchInterrupted(span, self.over, total, scene) from interrupt

    def begin(self, arguments: Sequence[np.ndarray]) -> None:
        """Enter all programs of the grid into the scheduler of several ranks; see `ended`."""
        place = self.place
        assert place is not None
        self.first = place.across.order.begin(place.rank, place.lane, self.grid)
        numbers = self.first + np.arange(self.total, dtype=np.int64)
        self._track(arguments)
        if self.program.claims:
            self._enter(numbers, arguments)
            return
        size = self.batch_size(self.total)
        for start in range(0, self.total, size):
            self._start(numbers[start : start + size], arguments)

    @property
    def ended(self) -> bool:
        """Return whether all that `begin` started has come to its end."""
        return not self.under_way and not self.unstarted

    def release(self) -> None:
        """Let go of everything after a run: tasks, agents and shadows of the memory refer to each
        other and to their machine, and would stay until the next collection of such cycles."""
        for machine in (*self.machines, self):
            machine.__dict__.clear()

    @property
    def in_step(self) -> int:
        """Return how many threads act as one: those of a warp, where they go in lockstep."""
        return int(self.target.warp_size) if self.models.lockstep else 1

    @property
    def total(self) -> int:
        """Programs of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def over(self) -> int:
        """Programs that have come to their end."""
        return self.done + sum(m.done for m in self.machines)

    @property
    def line(self) -> int:
        """Set the op that runs now."""
        for machine in (self, *self.machines):
            task = machine.scheduler.now
            if task is not None and task.op is not None:
                return getattr(task.op.loc, "line", 0)
        return 0

    def _all(self, total: int, arguments: Sequence[np.ndarray]) -> None:
        numbers = np.arange(total, dtype=np.int64)
        size = self.batch_size(total)
        self._track(arguments)
        if self.program.claims:
            self._claiming(numbers, arguments)
            return
        if self.guided is not None:
            self._steered(self.guided, numbers, arguments)
            return
        if self.one_by_one and self._together(numbers, arguments):
            return
        count, part = 1, size
        if not (self.schedule.sampled or self.watched or self.one_by_one):
            count, part = workers_for(self.program, self.settings, total, size)
        if count > 1:
            self.machines = [self._another() for _ in range(count)]
            # Errors need the bytes from before, if the kernel reads its own writes.
            kept = keep(self.program.program, self.memory, arguments)
            self.memory.several = True
            done = Workers(self.machines).run(total, part, arguments)
            self.memory.several = False
            if done:
                return
            restore(kept)
            self.machines = []
            self._track(arguments)
        with np.errstate(all="ignore"):
            if self.program.spins:
                # Programs that wait for each other must all be under way.
                for start in range(total):
                    self._start(numbers[start : start + 1], arguments)
                self.scheduler.run()
                self.done = total
                return
            for start in range(0, total, size):
                self.step(numbers[start : start + size], arguments)

    def _steered(
        self, guided: Guided, numbers: np.ndarray, arguments: Sequence[np.ndarray]
    ) -> None:
        """Run all programs at once where they may meet, else one after the other."""
        with np.errstate(all="ignore"):
            if meets(self.program):
                for number in numbers:
                    self._start(numbers[number : number + 1], arguments)
                self.scheduler.run()
                return
            for number in numbers.tolist():
                guided.resume(number)
                self.step(numbers[number : number + 1], arguments)

    def _together(self, numbers: np.ndarray, arguments: Sequence[np.ndarray]) -> bool:
        """Programs that may part, which their partitions could not follow, in batches all the same.

        False where they do part, or anything is reported: then memory is as before, and one program
        after the other reports as usual.
        """
        program, total = self.program.program, len(numbers)
        size = self._fitting(total)
        if size < 2 or self.program.spins or self.watched or self.schedule.sampled:
            return False
        if program.findings.parted == self.grid or ordered(program):
            return False
        kept = keep(program, self.memory, arguments)
        machine = self._another()
        machine.hurried = self.hurried
        self.machines = [machine]
        try:
            with np.errstate(all="ignore"):
                for start in range(0, total, size):
                    machine.step(numbers[start : start + size], arguments, together=True)
            return True
        except TimeLimitError:
            raise
        except Exception:
            program.findings.parted = self.grid
        self.machines = []
        restore(kept)
        self._track(arguments)
        return False

    def _claiming(self, numbers: np.ndarray, arguments: Sequence[np.ndarray]) -> None:
        """Start a few programs, and another whenever one ends that nobody has claimed."""
        self._enter(numbers, arguments)
        with np.errstate(all="ignore"):
            self.scheduler.run()

    def _enter(self, numbers: np.ndarray, arguments: Sequence[np.ndarray]) -> None:
        self.unstarted = deque(numbers.tolist())
        for _ in range(min(self.schedule.resident(RESIDENT), len(numbers))):
            self._next(arguments)

    def _next(self, arguments: Sequence[np.ndarray]) -> None:
        if self.unstarted:
            self._start(np.array([self.unstarted.popleft()], np.int64), arguments)

    def claim(self) -> Optional[tuple[int, int, int]]:
        """Take a program that has not started; None where none is left."""
        if self.guided is not None:
            self.guided.claims()
        if not self.unstarted:
            return None
        self.done += 1
        number = np.array([self.unstarted.popleft()], np.int64)
        return self._batch(number).program(0)

    def _batch(self, numbers: np.ndarray) -> Batch:
        return Batch(
            numbers, self.grid, self.first, None if self.place is None else self.place.rank
        )

    def _track(self, arguments: Sequence[np.ndarray]) -> None:
        self.memory.mark()
        self.memory.tracking = None  # that of an earlier run, such as a prover's
        if self.settings.races:
            program = self.program.program
            across = None if self.place is None else self.place.across
            traffic = self.program.traffic
            reached = self.memory.reached(arguments, traffic)
            self.tracking = Tracking(traffic, self.memory, reached, self.grid, across)
            self.memory.tracking = self.tracking
            if self.program.asynchronous:
                if program.findings.lifetimes is None:
                    program.findings.lifetimes = Lifetimes(program)
                self.lifetimes = program.findings.lifetimes

    def _another(self) -> "Machine":
        """Return a machine for a further thread of this launch."""
        machine = Machine(
            self.program, self.memory, self.grid, self.num_warps, self.target, self.output,
            self.settings, self.num_ctas,
        )  # fmt: skip
        machine.tracking, machine.lifetimes = self.tracking, self.lifetimes
        machine.scheduler.deadline = self.scheduler.deadline
        machine.hurried = True
        return machine

    def step(
        self, numbers: np.ndarray, arguments: Sequence[np.ndarray], together: bool = False
    ) -> None:
        """Run one batch to its end; `together` where no program of it may part from the others."""
        if self.tracking is not None:
            self.tracking.begin(self)
        self._start(numbers, arguments, together)
        self.scheduler.run()
        self.done += len(numbers)

    @property
    def one_by_one(self) -> bool:
        """Return whether programs that diverge cannot go on in one batch: their partitions could not follow, and a batch has one vector clock for the blocks of its clusters."""
        return self.program.one_by_one or self.num_ctas > 1 and self.settings.races

    def batch_size(self, total: int) -> int:
        """Return how many programs run together."""
        if self.program.spins or self.one_by_one:
            return 1
        return self._fitting(total)

    def _fitting(self, total: int) -> int:
        program = self.program
        size = BATCH_BYTES // (8 * program.widest)
        if program.shared:
            size = min(size, SHARED_BYTES // program.shared)
        return max(1, min(total, size))

    def _start(
        self, numbers: np.ndarray, arguments: Sequence[np.ndarray], together: bool = False
    ) -> None:
        batch = self._batch(numbers)
        if self.num_ctas > 1 and self.tracking is not None:
            batch.blocks = Blocks(self.num_ctas)
        name = "the kernel"
        if self.program.spins or self.program.claims:
            name = f"program {tuple(int(i[0]) for i in batch.ids)}"
        elif self.guided is not None and self.total > 1:
            name = f"program {batch.program(0)}"
        if batch.rank is not None:
            name += f" of rank {batch.rank}"
        task = Task(self, batch, name)
        if self.guided is not None:
            self.guided.name_task(task)
        rows = Rows(np.arange(batch.count), whole=True, together=together)
        self.under_way += 1
        self.scheduler.add(name, self._run(task, arguments, rows), task)

    def _run(self, task: Task, arguments: Sequence[np.ndarray], rows: Rows) -> Turns[None]:
        if self.program.asynchronous:
            task.active()  # its actions before count, too
        yield from run_function(task, self.program.kernel, arguments, rows)
        if task.agent is not None:
            self.flights.finish(task, self.settings.leaks)
            for barriers in task.batch.barriers:
                barriers.finish()
        if task.batch.blocks is not None:
            ended(task, task.batch.blocks)
        if self.unstarted is not None:
            self.done += 1
            if self.guided is not None:
                self.guided.claims()
            self._next(arguments)
        self.under_way -= 1

    def interrupt(self, task: Task) -> Turns[None]:
        """Check the timeout between ops, and let a random schedule act."""
        if self.stopped is not None and self.stopped.is_set():
            raise Stopped
        self.scheduler.check_time(task.op.loc)
        if self.schedule.between_ops:
            due = self.schedule.between(self.flights.pending)
            if due is not None:
                self.flights.land(due)
            if self.schedule.gives_way(self.scheduler.several):
                step = self.guided is not None
                yield Wait(lambda: True, lambda: "its turn", task.op.loc, step=step)

    def allocate(self, task: Task, size: int) -> SharedBuffer:
        buffer = SharedBuffer(task.batch.count, size, buffer_name(task.op))
        _, buffer.remedy = task.op.attrs.get("called", ("", ""))
        if self.guided is not None:
            self.guided.name_buffer(task, buffer)
        if self.settings.uninitialised:
            buffer.watch()
        buffer.alloc = task.op
        frame, buffer.earlier = task.batch.allocated.get(task.op, (None, None))
        if frame is not task.frame:
            buffer.earlier = None  # of another call, and perhaps in use next to this one
        elif buffer.earlier is not None:
            buffer.earlier.earlier = None
        task.batch.allocated[task.op] = task.frame, buffer
        return buffer
