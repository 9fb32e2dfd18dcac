"""Kernels one after the other, or in several processes, of which a kernel may take one down."""

from __future__ import annotations

import os
import time
from typing import Iterator, Optional, Sequence

from gluon_core.plugin.targets import Target
from gluon_core.processes import Ended, each
from gluon_core.registry.load import registry
from tests.fuzz.program import Program, generate
from tests.fuzz.runs import DEVICE_LOST, Ways, outcome

__all__ = ["HUNG", "LOST", "outcomes", "program_for"]

LOST = "the process was lost"
_MOST = 300.0  # seconds of one kernel in a process of its own
HUNG = f"no end after {_MOST:.0f} s"
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
    calls = ((seed, names, ways) for seed in left)
    # Processes share the cores already: a library's threads in each of them only take turns.
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
    for (seed, *_), answer in each(
        f"{__name__}:outcome_of",
        calls,
        jobs,
        limit=_MOST,
        environment=environment,
        spent=lambda answer: DEVICE_LOST in answer,
    ):
        yield seed, (HUNG if answer.hung else LOST) if isinstance(answer, Ended) else answer


def outcome_of(seed: int, names: Sequence[str], ways: Ways) -> str:
    """Return what became of the kernel of a seed."""
    targets = [registry().target(name) for name in names]
    return outcome(program_for(seed, targets), targets, ways)
