"""Batches of one launch on several cores: a thread each, over the one memory.

Threads pay where NumPy's calls are long, for it lets go of Python's lock inside them. They change
nothing that can be seen: only kernels whose programs have no order among each other run so (no
atomics, no loops that wait for memory), and race detection sees every access of every thread. When
anything is reported, or turns out to depend on an order, memory is put back and the launch starts
again with one batch after the other, which then reports what it always does.
"""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Callable, Optional, Sequence

import numpy as np

from gluon_sim.errors import TimeLimitError
from gluon_sim.tracing.origins import (
    ANYWHERE,
    address_of,
    origins,
    positions_in,
    written_arguments,
)
from gluon_sim.tracing.program import Program

if TYPE_CHECKING:
    from gluon_core.errors import SourceSpan
    from gluon_sim.executor.compile import CompiledProgram
    from gluon_sim.executor.machine import Machine

__all__ = ["Stopped", "Workers", "cores", "keep", "meets", "ordered", "workers_for"]

# A batch whose widest value is smaller than this is done before another thread gets its turn, and a
# launch whose widest values are smaller altogether before the threads have started.
_WORTH = 1 << 20
_WORTH_ALL = 4 << 20
_ORDERED = ("atomic", "print", "breakpoint", "assert", "barrier_", "cluster")


class Stopped(KeyboardInterrupt):
    """A worker ends because another one failed, or because the launch was interrupted."""


# More are asked for by name: each holds arrays of its own, and NumPy's memory traffic is shared.
_MOST = 4


def cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def workers_for(machine: Machine, total: int, size: int) -> tuple[int, int]:
    """(threads, programs of a batch) for `total` programs in batches of `size`."""
    settings, program = machine.settings, machine.program
    wanted = min(cores(), _MOST) if settings.workers is None else settings.workers
    if wanted < 2 or total < 2 or machine.schedule.sampled or not settings.races:
        return 1, size
    if program.spins or machine.one_by_one or machine.watched or ordered(program.program):
        return 1, size
    wide = 8 * program.widest
    size = min(size, max(1, -(-total // wanted), _WORTH // wide))
    if size * wide < _WORTH or total * wide < _WORTH_ALL or size == total:
        return 1, machine.batch_size(total)
    return min(wanted, -(-total // size)), size


def ordered(program: Program) -> bool:
    """Does the order of programs matter, or what they write cannot be told?"""
    known = program.found.ordered
    if known is None:
        known = ANYWHERE in written_arguments(program) or any(
            op.name.startswith(_ORDERED)
            or "atomic" in op.name
            or op.name.endswith("_reduce")
            or bool(op.attrs.get("effects"))
            for op in program.walk_ops()
        )
        program.found.ordered = known
    return known


def meets(compiled: CompiledProgram) -> bool:
    """May programs order each other, or see in which order they come?"""
    if compiled.spins or compiled.claims:
        return True
    return any(
        "atomic" in op.name
        or op.name.endswith("_reduce")
        or bool(op.attrs.get("volatile") or op.attrs.get("atomic"))
        for op in compiled.program.walk_ops()
    )


def _rewritten(program: Program) -> set[int]:
    """Positions of arguments that the kernel writes and may read, too."""
    known = program.found.rewritten
    if known is None:
        found = origins(program)
        written = written_arguments(program)
        known = set()
        for op in program.walk_ops():
            if op.name not in ("store", "masked_store", "addptr", "splat", "broadcast"):
                for value in op.operands():
                    known |= positions_in(written & found.get(id(value.resolve()), set()))
        program.found.rewritten = known
    return known


class Workers:
    """The threads of one launch.

    Args:
        count: how many.
        make: gives each a machine of its own, over the memory and the race detection of the launch.
    """

    def __init__(self, count: int, make: Callable[[], Machine]):
        self.machines = [make() for _ in range(count)]
        self.stopped = threading.Event()
        for machine in self.machines:
            machine.stopped = self.stopped
        self.failed = False
        self.late: Optional[TimeLimitError] = None  # there is no time left to start again
        self.spans: list[SourceSpan] = []  # where the threads were when they were stopped
        self._next = 0
        self._lock = threading.Lock()

    def run(self, total: int, size: int, arguments: Sequence[np.ndarray]) -> bool:
        """All programs; false where the launch must start again, one batch after the other."""
        # Errors ask for what was there before, if the kernel reads what it writes.
        machine = self.machines[0]
        kept = keep(machine, arguments)
        machine.memory.several = True
        threads = [
            threading.Thread(
                target=copy_context().run, args=(self._work, m, total, size, arguments), daemon=True
            )
            for m in self.machines
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)  # so that Ctrl-C is heard
        except BaseException as error:
            self.stopped.set()
            for thread in threads:
                thread.join()
            error.span = next(iter(self.spans), None)  # type: ignore[attr-defined]  # for `Machine`
            raise
        machine.memory.several = False
        if self.late is not None:
            raise self.late
        if self.failed:
            for there, bytes in kept:
                there[...] = bytes
        return not self.failed

    def _work(
        self, machine: Machine, total: int, size: int, arguments: Sequence[np.ndarray]
    ) -> None:
        numbers = np.arange(total, dtype=np.int64)
        try:
            with np.errstate(all="ignore"):
                while not self.stopped.is_set():
                    with self._lock:
                        start, self._next = self._next, self._next + size
                    if start >= total:
                        return
                    machine.step(numbers[start : start + size], arguments)
        except Stopped as stop:
            span = getattr(stop, "span", None)
            if span is not None:
                self.spans.append(span)
        except BaseException as error:  # whatever it was, one thread alone will tell
            self.failed = True
            self.late = error if isinstance(error, TimeLimitError) else self.late
            self.stopped.set()


def keep(machine: Machine, arguments: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What memory holds that the kernel may read and write: (the bytes, a copy of them)."""
    kept = {}
    for position in _rewritten(machine.program.program):
        found = machine.memory.find(address_of(arguments[position]))
        if found is not None:
            kept[id(found)] = (found.data, found.data.copy())
    return list(kept.values())
