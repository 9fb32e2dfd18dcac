"""Kernels one after the other, or in several processes, of which a kernel may take one down."""

from __future__ import annotations

from typing import Iterator, Optional, Sequence

from gluon_core.plugin.targets import Target
from gluon_core.processes import Ended
from gluon_core.registry.load import registry
from tests.fuzz.campaign import MOST, answers
from tests.fuzz.program import Program, generate
from tests.fuzz.runs import DEVICE_LOST, Ways, outcome

__all__ = ["HUNG", "LOST", "outcomes", "program_for"]

LOST = "the process was lost"
HUNG = f"no end after {MOST:.0f} s"


def program_for(seed: int, targets: Sequence[Target]) -> Program:
    """Return the kernel of a seed, for the common capabilities of all targets."""
    partitions = all(target.limits.partitions for target in targets)
    tma = all(target.has("nvidia.tma") for target in targets) and partitions
    return generate(seed, partitions, tma=tma)


def outcomes(
    seeds: Sequence[int], targets: Sequence[Target], ways: Ways, jobs: int, seconds: Optional[float]
) -> Iterator[tuple[int, str]]:
    """Yield the outcome of the kernel of each seed, as they end; see `campaign.answers`."""
    names = [str(target) for target in targets]
    calls = ((seed, names, ways) for seed in seeds)
    work, spent = f"{__name__}:outcome_of", lambda answer: DEVICE_LOST in answer
    for (seed, *_), answer in answers(work, calls, jobs, seconds, spent):
        yield seed, (HUNG if answer.hung else LOST) if isinstance(answer, Ended) else answer


def outcome_of(seed: int, names: Sequence[str], ways: Ways) -> str:
    """Return the outcome of the kernel of a seed."""
    targets = [registry().target(name) for name in names]
    return outcome(program_for(seed, targets), targets, ways)
