"""Kernels one after the other, or in several processes, of which a kernel may take one down."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Iterator, Optional, Sequence

from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from tests.fuzz.program import Program, generate
from tests.fuzz.runs import DEVICE_LOST, Ways, outcome

__all__ = ["HUNG", "LOST", "outcomes", "program_for"]

LOST = "the process was lost"
_MOST = 300.0  # seconds of one kernel in a process of its own
HUNG = f"no end after {_MOST:.0f} s"
# Processes share the cores already: a library's threads in each of them only take turns.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


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
    at_work: set[_Worker] = set()
    for _ in range(jobs):
        _Worker(names, ways).enter(left, at_work)
    yield from _until_idle(left, at_work, names, ways)


def _until_idle(
    left: Iterator[int], at_work: set[_Worker], names: Sequence[str], ways: Ways
) -> Iterator[tuple[int, str]]:
    while at_work:
        ready = wait([worker.pipe for worker in at_work], timeout=5.0)
        for worker in [w for w in at_work if w.pipe not in ready and w.late()]:
            at_work.discard(worker)
            worker.process.kill()
            worker.process.join()
            yield worker.seed, HUNG
            _Worker(names, ways).enter(left, at_work)
        for worker in [worker for worker in at_work if worker.pipe in ready]:
            at_work.discard(worker)
            try:
                yield worker.seed, worker.pipe.recv()
            except (EOFError, OSError):  # it died of the kernel
                yield worker.seed, LOST
                worker = _Worker(names, ways)
            worker.enter(left, at_work)


class _Worker:
    """A process that runs one kernel after the other."""

    def __init__(self, names: Sequence[str], ways: Ways):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.seed = -1
        self.began = time.monotonic()
        self.process = context.Process(target=_work, args=(theirs, names, ways), daemon=True)
        with _one_thread():
            self.process.start()
        theirs.close()

    def enter(self, left: Iterator[int], at_work: set[_Worker]) -> None:
        """Begin the next kernel, among those at work; where there is none, leave."""
        seed = next(left, None)
        if seed is None:
            self.pipe.close()
            self.process.join()
            return
        self.seed, self.began = seed, time.monotonic()
        at_work.add(self)
        try:
            self.pipe.send(seed)
        except OSError:  # it is gone already, which the one who waits for it will see
            pass

    def late(self) -> bool:
        """Whether its kernel has hung, and with it the process."""
        return time.monotonic() - self.began > _MOST


@contextmanager
def _one_thread() -> Iterator[None]:
    """For processes that start in here: libraries that read this when they are loaded."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update({name: value or "1" for name, value in before.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


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
