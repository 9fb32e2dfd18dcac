"""The workgroups of a large launch over several processes.

A forked process runs its share over memory of its own and hands back the bytes that it changed. That is
the same as running all here only where no workgroup reads the stores of another, and without atomic
operations none may: their order is undefined.
"""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np

from gluon_core.processes import Ended, Link, Process
from gluon_emu.amdgcn.decode.program import Program
from gluon_emu.amdgcn.machine.trace import Tally
from gluon_emu.memory import GlobalMemory

__all__ = ["separable", "spread"]

Parts = list[tuple[int, int]]
Share = list[tuple[int, tuple[int, int]]]
Run = Callable[[int, int, Tally], None]
# The result of a share: the number of the part that failed and its error, changed bytes, counts.
Outcome = tuple[Optional[tuple[int, Exception]], list[tuple[int, np.ndarray, np.ndarray]], Tally]


def separable(program: Program) -> bool:
    """Return whether workgroups cannot wait for, or add to, stores of others."""
    return not any(
        "atomic" in ins.name and not ins.name.startswith("ds_") for ins in program.instructions
    )


def spread(parts: Parts, run: Run, memory: GlobalMemory, tally: Tally, processes: int) -> None:
    """Run `run(first, end, tally)` of each part, in turn over so many processes, this one included.

    Raises:
        Exception: that of the first part that failed.
    """
    shares = [list(enumerate(parts))[i::processes] for i in range(processes)]
    children: list[tuple[Process, Share]] = []
    try:
        for share in shares[1:]:
            children.append((Process(_worker(share, run, memory, tally)), share))
        failures = [_work(shares[0], run, tally)]
        for process, share in children:
            try:
                failure, changes, counted = process.receive()[1]
            except Ended:  # it was killed: do its share here
                failures.append(_work(share, run, tally))
            else:
                failures.append(failure)
                for index, places, values in changes:
                    memory.allocations[index].data[places] = values
                tally.add(counted)
    finally:
        for process, _ in children:
            process.end()
    failed = [failure for failure in failures if failure is not None]
    if failed:
        raise min(failed, key=lambda failure: failure[0])[1]


def _worker(share: Share, run: Run, memory: GlobalMemory, tally: Tally) -> Callable[[Link], None]:
    return lambda link: link.answer("done", _outcome(share, run, memory, tally))


def _work(share: Share, run: Run, tally: Tally) -> Optional[tuple[int, Exception]]:
    for number, (first, end) in share:
        try:
            run(first, end, tally)
        except Exception as error:
            return number, error
    return None


def _outcome(share: Share, run: Run, memory: GlobalMemory, tally: Tally) -> Outcome:
    before = [(i, a, a.data.copy()) for i, a in enumerate(memory.allocations) if a.writable]
    own = Tally(tally.size, tally.watched)
    failure = _work(share, run, own)
    changes = []
    for index, allocation, old in before:
        places = np.flatnonzero(old != allocation.data)
        changes.append((index, places, allocation.data[places]))
    return failure, changes, own
