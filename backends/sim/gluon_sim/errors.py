"""Errors and warnings of the simulated machine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Optional

from gluon_core.errors import GluonError, LimitError, SourceSpan

__all__ = [
    "REPORTS",
    "Access",
    "BarrierError",
    "CapacityError",
    "DeadlockError",
    "DeviceAssertionError",
    "LaunchInterrupted",
    "LeakError",
    "MisalignedError",
    "OffsetOverflowError",
    "OutOfBoundsError",
    "PipelineError",
    "RaceError",
    "Scene",
    "ScopeError",
    "SimulatorError",
    "SimulatorWarning",
    "TimeLimitError",
    "UninitialisedError",
    "related",
    "tolerate",
]  # fmt: skip


# Every kind of report, and the setting that switches it on and off.
REPORTS = {
    "race.programs": "races",  # two programs of the grid
    "race.global": "races",  # two agents of one program, in global memory
    "race.threads": "races",  # two threads of one partition, in global memory
    "race.blocks": "races",  # two blocks of a cluster, in each other's shared memory
    "race.shared": "races",  # ... in shared memory
    "race.lifetime": "races",  # in shared memory that a buffer had which nothing names any more
    "race.registers": "races",  # of a result that asynchronous work still writes
    "race.steps": "races",  # of a pipeline of tiles, by its contract
    "race.fence": "fences",  # a fence between proxies that a newer compiler adds
    "race.scope": "races",  # atomics of two ranks, one of which does not reach the other
    "bounds.global": "bounds",
    "bounds.index": "bounds",  # of a buffer, a gather or a scatter
    "bounds.view": "bounds",  # a buffer seen as something larger
    "bounds.before": "bounds",  # a box or tile that may not begin before its tensor, and does
    "bounds.readonly": "bounds",
    "uninitialised.shared": "uninitialised",
    "uninitialised.global": "uninitialised",  # of arrays that are marked
    "alignment.address": "alignment",
    "alignment.promise": "alignment",  # multiple_of and its like
    "alignment.argument": "alignment",
    "overflow.offset": "overflow",
    "capacity.shared": "capacity",
    "capacity.tensor": "capacity",  # columns of tensor memory
    "barrier.initialised": "barriers",  # twice
    "barrier.invalidated": "barriers",
    "barrier.uninitialised": "barriers",
    "barrier.arrivals": "barriers",
    "barrier.bytes": "barriers",
    "barrier.missed": "barriers",  # a phase, by a wait
    "barrier.reused": "barriers",
    "barrier.overwritten": "barriers",
    "barrier.unused": "barriers",  # and its bytes a buffer's, which a copy engine writes
    "leak.copy": "leaks",
    "leak.signal": "leaks",  # between ranks
    "assertion.device": "assertions",
    "deadlock.tasks": "deadlocks",
    "deadlock.loop": "deadlocks",  # its step leads nowhere
    "time.limit": "timeout",
}


class SimulatorError(GluonError, RuntimeError):
    """A kernel did something that the simulated machine cannot do, or must not do.

    Args:
        report: the kind of mistake, one of `REPORTS`; None where the simulator is at its limits.
        program: (x, y, z) of the first program that did it.
        element: of the tensor or buffer, the first at fault.
    """

    def __init__(
        self,
        message: str,
        *,
        report: Optional[str] = None,
        program: Optional[tuple[int, int, int]] = None,
        element: Optional[tuple[int, ...]] = None,
        **fields: Any,
    ):
        super().__init__(message, **fields)
        self.report = report
        self.program = program
        self.element = element
        self.order: tuple[str, ...] = ()  # the order of actions, where only some schedules fail
        self.related: tuple[SourceSpan, ...] = ()  # other lines involved

    def __str__(self) -> str:
        lines = [super().__str__(), *(f"and {span.render()}" for span in self.related)]
        return "\n  ".join([*lines, *(["in this order:"] if self.order else ()), *self.order])


class SimulatorWarning(UserWarning):
    """A kernel did something that its manual does not allow and that hardware is known to tolerate.

    Args:
        error: the report as an error; `report`, `span` and `as_dict()` are there.
    """

    def __init__(self, error: SimulatorError):
        super().__init__(str(error))
        self.error = error


_warned: dict[Any, Any] = {}


def tolerate(error: SimulatorError, how: str, reported: set[tuple[Any, ...]]) -> None:
    """Report what hardware tolerates: a warning, once for each line; or raise it; or nothing.

    Args:
        how: "warn", "error" or "ignore".
        reported: reports of this launch so far.

    Raises:
        SimulatorError: it is an error, also by the filters of `warnings`.
    """
    if how == "error":
        raise error
    span = error.span
    where = (error.report, span and span.file, span and span.line)
    if how == "ignore" or where in reported:
        return
    reported.add(where)
    file, line = (span.file, span.line) if span is not None else ("<kernel>", 0)
    try:
        warnings.warn_explicit(
            SimulatorWarning(error), SimulatorWarning, file, line, registry=_warned
        )
    except SimulatorWarning:
        raise error from None


class OutOfBoundsError(SimulatorError, IndexError):
    """An access outside every argument's storage, or outside a tensor or a shared buffer."""


class UninitialisedError(SimulatorError):
    """A read of memory that nobody wrote."""


class MisalignedError(SimulatorError):
    """An address that is no multiple of the access's alignment."""


class OffsetOverflowError(SimulatorError, ArithmeticError):
    """Address arithmetic wrapped, and the address was used."""


class CapacityError(SimulatorError, LimitError):
    """More memory in use at once than the architecture has."""


class DeviceAssertionError(SimulatorError, AssertionError):
    """`device_assert` failed in a kernel."""


@dataclass(frozen=True)
class Access:
    """One side of a race.

    Args:
        op: the builder op.
        span: its line in the kernel.
        kind: read, write or atomic update.
        program: (x, y, z), or None for one of several.
        task: the partition.
        proxy: through which it went.
        queue: of asynchronous work, or None.
    """

    op: str
    span: Optional[SourceSpan]
    kind: str
    program: Optional[tuple[int, int, int]]
    task: str
    proxy: str
    queue: Optional[str]

    def describe(self) -> str:
        how = "asynchronous " if self.queue is not None else ""
        line = f" at line {self.span.line}" if self.span is not None else ""
        proxy = f" through the {self.proxy} proxy" if self.proxy != "generic" else ""
        program = f"program {self.program}" if self.program is not None else "another program"
        if self.task.endswith(program):
            return f"{how}{self.kind} by `{self.op}`{line}{proxy} in {self.task}"
        return f"{how}{self.kind} by `{self.op}`{line}{proxy} in {self.task}, {program},"


class RaceError(SimulatorError):
    """Two accesses to one element, at least one a write, that nothing orders.

    Args:
        accesses: the two, in the order in which this run took them.
        place: index of the element (of global memory) or byte (of a shared buffer).
    """

    epoch: Any = None  # of the earlier access, for who looks for the right remedy

    def __init__(
        self,
        message: str,
        *,
        accesses: tuple[Access, ...] = (),
        place: Optional[int] = None,
        **fields: Any,
    ):
        super().__init__(message, **fields)
        self.accesses = accesses
        self.place = place


class ScopeError(SimulatorError):
    """Atomics of two ranks meet, and the scope of one ends at its own device."""


class LeakError(SimulatorError):
    """The kernel ends while asynchronous work may still be in flight, or signals between ranks are
    left over."""


class BarrierError(SimulatorError):
    """A barrier was used against its protocol."""


class PipelineError(SimulatorError):
    """The steps of a `gl.portable.pipeline` are not fetched and waited for in their order: some target
    copies over tiles that are in use, reads bytes that have not come, or waits for ever."""


class LaunchInterrupted(KeyboardInterrupt):
    """Somebody pressed Ctrl-C while a kernel ran.

    Args:
        span: the kernel line that it was at.
        done: programs of the grid that were over.
        tasks: for each partition under way, in words, where it was.
    """

    def __init__(self, span: Optional[SourceSpan], done: int, total: int, tasks: tuple[str, ...]):
        self.span = span
        self.done = done
        self.total = total
        self.tasks = tasks
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"the launch was interrupted; {self.done} of {self.total} programs are over"
        for task in self.tasks:
            text += f"\n  {task}"
        if self.span is not None:
            text += f"\n  at {self.span.render()}"
        return text


class TimeLimitError(SimulatorError, TimeoutError):
    """The launch took longer than its timeout."""


@dataclass(frozen=True)
class Scene:
    """The wait of one task in a deadlock.

    Args:
        task: the partition.
        span: the line where it waits.
        text: all of it in words.
        phase: parity that it waits for.
        pending: arrivals that are missing.
        size: bytes that are missing.
        arrived: lines at which somebody arrived before.
        candidates: lines that use the barrier and were never reached.
    """

    task: str
    span: Optional[SourceSpan]
    text: str
    phase: Optional[int] = None
    pending: Optional[int] = None
    size: Optional[int] = None
    arrived: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()


class DeadlockError(SimulatorError):
    """Every task waits for another.

    Args:
        waiting: a `Scene` of each task.
        ended: the tasks that were over before.
    """

    def __init__(
        self,
        message: str,
        *,
        waiting: tuple[Scene, ...] = (),
        ended: tuple[str, ...] = (),
        **fields: Any,
    ):
        super().__init__(message, **fields)
        self.waiting = waiting
        self.ended = ended


def related(span: Optional[SourceSpan], *others: Optional[SourceSpan]) -> tuple[SourceSpan, ...]:
    """Return the places in the source among `others` that a report does not show yet, each once."""
    places = dict.fromkeys(other for other in others if other is not None)
    return tuple(p for p in places if span is None or (p.file, p.line) != (span.file, span.line))
