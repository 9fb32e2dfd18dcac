"""Batches of one launch on several cores: a thread each, over the one memory.

Threads pay where NumPy's calls are long, for it lets go of Python's lock inside them. They change
nothing that can be seen: only kernels whose programs have no order among each other run so (no
atomics, no loops that wait for memory), and race detection sees every access of every thread. When
anything is reported, or turns out to depend on an order, memory is put back and the launch starts
again with one batch after the other, which then reports as usual.
"""

from __future__ import annotations

import os
import threading
from contextvars import copy_context
from typing import Optional, Protocol, Sequence

import numpy as np

from gluon_core.errors import SourceSpan
from gluon_sim.errors import TimeLimitError
from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.memory.global_memory import GlobalMemory
from gluon_sim.settings import Settings
from gluon_sim.tracing.origins import (
    ANYWHERE,
    origins,
    positions_in,
    written_arguments,
)
from gluon_sim.tracing.program import Program

__all__ = ["Stopped", "Workers", "cores", "keep", "meets", "ordered", "restore", "workers_for"]

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


def workers_for(
    program: CompiledProgram, settings: Settings, total: int, size: int
) -> tuple[int, int]:
    """Return how many threads share `total` programs, and the programs of a batch.

    Args:
        size: programs of a batch in one thread.
    """
    wanted = min(cores(), _MOST) if settings.workers is None else settings.workers
    if wanted < 2 or total < 2 or not settings.races or program.spins or ordered(program.program):
        return 1, size
    wide = 8 * program.widest
    part = min(size, max(1, -(-total // wanted), _WORTH // wide))
    if part * wide < _WORTH or total * wide < _WORTH_ALL or part == total:
        return 1, size
    return min(wanted, -(-total // part)), part


def ordered(program: Program) -> bool:
    """Return True if the order of programs matters, or their writes are unknown."""
    known = program.findings.ordered
    if known is None:
        known = ANYWHERE in written_arguments(program) or any(
            op.name.startswith(_ORDERED)
            or "atomic" in op.name
            or op.name.endswith("_reduce")
            or bool(op.attrs.get("effects"))
            for op in program.walk_ops()
        )
        program.findings.ordered = known
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
    known = program.findings.rewritten
    if known is None:
        origins_of = origins(program)
        written = written_arguments(program)
        known = set()
        for op in program.walk_ops():
            if op.name not in ("store", "masked_store", "addptr", "splat", "broadcast"):
                for value in op.operands():
                    known |= positions_in(written & origins_of.get(id(value.resolve()), set()))
        program.findings.rewritten = known
    return known


class Worker(Protocol):
    """A machine of one thread, over the memory and the race detection of the launch."""

    stopped: Optional[threading.Event]

    def step(self, numbers: np.ndarray, arguments: Sequence[np.ndarray]) -> None:
        """Run a batch of programs to its end."""
        ...


class Workers:
    """The threads of one launch, each with a machine of its own."""

    def __init__(self, machines: Sequence[Worker]):
        self.machines = machines
        self.stopped = threading.Event()
        for machine in machines:
            machine.stopped = self.stopped
        self.failed = False
        self.late: Optional[TimeLimitError] = None  # there is no time left to start again
        self.spans: list[SourceSpan] = []  # where the threads were when they were stopped
        self._next = 0
        self._lock = threading.Lock()

    def run(self, total: int, size: int, arguments: Sequence[np.ndarray]) -> bool:
        """Run all programs; false where the launch must start again, one batch after the other."""
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
        if self.late is not None:
            raise self.late
        return not self.failed

    def _work(
        self, machine: Worker, total: int, size: int, arguments: Sequence[np.ndarray]
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
        except BaseException as error:  # whatever it was, one thread alone reports it
            self.failed = True
            self.late = error if isinstance(error, TimeLimitError) else self.late
            self.stopped.set()


Kept = list[tuple[np.ndarray, np.ndarray]]  # bytes, and a copy of them


def keep(program: Program, memory: GlobalMemory, arguments: Sequence[np.ndarray]) -> Kept:
    """Copy the memory that a kernel may read and write."""
    allocations = {id(one): one for one in memory.behind(arguments, _rewritten(program))}
    return [(one.data, one.data.copy()) for one in allocations.values()]


def restore(kept: Kept) -> None:
    """Put memory back."""
    for there, before in kept:
        there[...] = before
