"""Kernels one after the other, or in several processes, of which a kernel may take one down."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import wait
from typing import Any, Iterator, Optional, Sequence

from gluon_core.contract.registry import registry
from gluon_core.contract.targets import Target
from gluon_core.testing.fuzz.program import Program, generate
from gluon_core.testing.fuzz.runs import DEVICE_LOST, Ways, outcome

__all__ = ["LOST", "outcomes", "program_for"]

LOST = "the process was lost"


def program_for(seed: int, targets: Sequence[Target]) -> Program:
    """The kernel of a seed, with what all targets have."""
    partitions = all(target.limits.partitions for target in targets)
    tma = all(target.has("nvidia.tma") for target in targets) and partitions
    return generate(seed, partitions, tma=tma)


def outcomes(
    seeds: Sequence[int], targets: Sequence[Target], ways: Ways, jobs: int, seconds: Optional[float]
) -> Iterator[tuple[int, str]]:
    """What became of the kernel of each seed, as they end.

    Args:
        jobs: processes; with 1 it is this one.
        seconds: after which no kernel begins.
    """
    end = None if seconds is None else time.monotonic() + seconds
    left = (seed for seed in seeds if end is None or time.monotonic() < end)
    if jobs <= 1:
        for seed in left:
            yield seed, outcome(program_for(seed, targets), targets, ways)
        return
    names = [str(target) for target in targets]
    at_work = {_Worker(names, ways) for _ in range(jobs)}
    for worker in list(at_work):
        worker.take(left, at_work)
    yield from _until_idle(left, at_work, names, ways)


def _until_idle(
    left: Iterator[int], at_work: set[_Worker], names: Sequence[str], ways: Ways
) -> Iterator[tuple[int, str]]:
    while at_work:
        ready = wait([worker.pipe for worker in at_work])
        for worker in [worker for worker in at_work if worker.pipe in ready]:
            at_work.discard(worker)
            try:
                yield worker.seed, worker.pipe.recv()
            except (EOFError, OSError):  # it died of the kernel
                yield worker.seed, LOST
                worker = _Worker(names, ways)
            at_work.add(worker)
            worker.take(left, at_work)


class _Worker:
    """A process that runs one kernel after the other."""

    def __init__(self, names: Sequence[str], ways: Ways):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.seed = -1
        self.process = context.Process(target=_work, args=(theirs, names, ways), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, left: Iterator[int], at_work: set[_Worker]) -> None:
        """Begin the next kernel; where there is none, leave."""
        seed = next(left, None)
        if seed is None:
            at_work.discard(self)
            self.pipe.close()
            self.process.join()
        else:
            self.seed = seed
            self.pipe.send(seed)


def _work(pipe: Any, names: Sequence[str], ways: Ways) -> None:
    targets = [registry().target(name) for name in names]
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            return
        found = outcome(program_for(seed, targets), targets, ways)
        pipe.send(found)
        if DEVICE_LOST in found:
            return  # the next kernel gets another process
