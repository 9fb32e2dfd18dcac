"""`gluon judge --on-gpu`: results and rates of a candidate on the GPU of this machine."""

from __future__ import annotations

import math
import os
import random
import statistics
from typing import Any, Mapping, Optional, Sequence

from gluon_judge import host, source
from gluon_judge.confine import Confinement
from gluon_judge.messages import Case, Difference, Sample, Spec
from gluon_judge.problem import Problem

__all__ = ["CONFIDENCE", "confidence", "rates", "spec_for"]

ROUNDS = 15
KEPT = 3  # rounds whose results are compared
IN_A_ROW = 0.25  # seconds of calls in a row that a clock outside measures
MOST_IN_A_ROW = 400
SLOWER, HOST = (
    3.0,
    5e-4,
)  # a clock outside may show so many times the events, and seconds of the host more
CONFIDENCE = 0.95
_DEVICES = ("/dev", "/proc", "/sys", "/etc", "/usr", "/run", "/opt")
LATE = 0.5  # of the time of a call: the device may not work longer after it


def spec_for(path: str, function: str, problem: Problem, secrets: tuple[str, ...]) -> Spec:
    """Return the specification of a process that runs a file on the GPU."""
    folder = host.folder()
    limits = Confinement(
        (*host.libraries(), *_DEVICES), (folder, "/dev"), memory=None, file_size=1 << 33
    )
    texts = source.members(path, secrets)
    names = tuple(os.path.basename(one) for one in secrets if one)
    return Spec(
        texts,
        os.path.basename(path),
        function,
        folder,
        limits,
        names,
        len(problem.inputs),
        device="cuda",
    )


def confidence(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of samples, and the bounds of its distribution-free confidence interval."""
    ordered, count = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        rank += 1
    low = max(0, rank - 1)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]


def rates(samples: Mapping[str, Sequence[Sample]], case: Case) -> dict[str, Any]:
    """Return the rates of one case: times, and how many times as fast as the reference the candidate is.

    Args:
        samples: of "candidate" and "reference", round by round.
    """
    mine = [one.seconds for one in samples["candidate"]]
    theirs = [one.seconds for one in samples["reference"]]
    ratios = [other / one for one, other in zip(mine, theirs) if one > 0]
    middle, low, high = confidence(ratios) if ratios else (0.0, 0.0, 0.0)
    return {
        "case": str(case),
        "rounds": len(mine),
        "candidate_seconds": statistics.median(mine),
        "reference_seconds": statistics.median(theirs),
        "speedup": round(middle, 4),
        "speedup_interval": [round(low, 4), round(high, 4)],
        "confidence": CONFIDENCE,
    }


def orders(seed: int) -> list[list[str]]:
    """Return the order of candidate and reference in each round."""
    generator = random.Random(seed)
    return [generator.sample(["candidate", "reference"], 2) for _ in range(ROUNDS)]


def late(samples: Sequence[Sample]) -> Optional[str]:
    """Return what the device did after the clock had stopped; None where it was idle."""
    if any(one.changed for one in samples):
        return "the result changed after the second event"
    busy = [one for one in samples if one.late > max(5e-5, LATE * one.seconds)]
    if len(busy) > len(samples) // 2:
        longest = max(one.late for one in busy)
        return f"the device worked on for up to {longest:.3g} s after the second event"
    return None


def kept_rounds() -> set[int]:
    """Return the rounds whose results are compared: the first, and others that a candidate cannot know."""
    return {0, *random.SystemRandom().sample(range(1, ROUNDS), KEPT - 1)}


def worst(differences: Sequence[Difference]) -> Optional[Difference]:
    """Return the first difference that is more than a warning; None for none."""
    harmless = ("precision.growth", "special.denormal", "special.hidden")
    return next((one for one in differences if one.code not in harmless), None)
