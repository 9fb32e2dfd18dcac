"""The workgroups of a large launch over several processes.

A forked process runs its share over memory of its own and hands back the bytes that it changed. That is
the same as running all here only where no workgroup looks at what another wrote, and without atomic
operations none may: their order is undefined.
"""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from typing import BinaryIO, Callable, Optional

import numpy as np

from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.machine.memory import GlobalMemory
from gluon_emu.amdgcn.machine.trace import Tally

__all__ = ["separable", "spread", "usable_cores"]

Parts = list[tuple[int, int]]
Share = list[tuple[int, tuple[int, int]]]
Run = Callable[[int, int, Tally], None]
# What a share ends with: the number of the part that failed and its error, changed bytes, counts.
Outcome = tuple[Optional[tuple[int, Exception]], list[tuple[int, np.ndarray, np.ndarray]], Tally]


def usable_cores() -> int:
    """Processes that can run at once; 1 where there is no fork."""
    if not hasattr(os, "fork"):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def separable(program: Program) -> bool:
    """Whether workgroups cannot wait for or add to what others wrote."""
    return not any(
        "atomic" in ins.name and not ins.name.startswith("ds_") for ins in program.instructions
    )


def spread(parts: Parts, run: Run, memory: GlobalMemory, tally: Tally, processes: int) -> None:
    """Run `run(first, end, tally)` of each part, in turn over so many processes, this one included.

    Raises:
        Exception: that of the first part that failed.
    """
    shares = [list(enumerate(parts))[i::processes] for i in range(processes)]
    children: list[tuple[int, BinaryIO, Share]] = []
    try:
        for share in shares[1:]:
            children.append((*_start(share, run, memory, tally), share))
        failures = [_work(shares[0], run, tally)]
        while children:
            pid, pipe, share = children[0]
            try:
                failure, changes, counted = pickle.load(pipe)
            except (EOFError, pickle.UnpicklingError):  # it was killed: do its share here
                failures.append(_work(share, run, tally))
            else:
                failures.append(failure)
                for index, places, values in changes:
                    memory.allocations[index].data[places] = values
                tally.add(counted)
            pipe.close()
            os.waitpid(pid, 0)
            children.pop(0)
    finally:
        for pid, pipe, _ in children:
            pipe.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    found = [failure for failure in failures if failure is not None]
    if found:
        raise min(found, key=lambda failure: failure[0])[1]


def _work(share: Share, run: Run, tally: Tally) -> Optional[tuple[int, Exception]]:
    for number, (first, end) in share:
        try:
            run(first, end, tally)
        except Exception as error:
            return number, error
    return None


def _start(share: Share, run: Run, memory: GlobalMemory, tally: Tally) -> tuple[int, BinaryIO]:
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of others are not touched
        pid = os.fork()
    if pid:
        os.close(write)
        return pid, os.fdopen(read, "rb")
    status = 1
    try:
        os.close(read)
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(_outcome(share, run, memory, tally), pipe)
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's is flushed or torn down twice


def _outcome(share: Share, run: Run, memory: GlobalMemory, tally: Tally) -> Outcome:
    before = [(i, a, a.data.copy()) for i, a in enumerate(memory.allocations) if a.writable]
    own = Tally(tally.size, tally.watched)
    failure = _work(share, run, own)
    changes = []
    for index, allocation, old in before:
        places = np.flatnonzero(old != allocation.data)
        changes.append((index, places, allocation.data[places]))
    return failure, changes, own
