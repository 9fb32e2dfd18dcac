"""Estimate a time from samples, and decide when a configuration has lost."""

from __future__ import annotations

import statistics
from typing import Mapping, Sequence

__all__ = ["interval", "losers"]

# Student's t for a two-sided interval of 95 %, by degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of `samples`, and the bounds of a 95 % confidence interval around it; infinite
    ones for a single sample."""
    middle = statistics.median(samples)
    if len(samples) < 2:
        return middle, 0.0, float("inf")
    t = _T[len(samples) - 2] if len(samples) - 2 < len(_T) else 2.0
    half = t * statistics.stdev(samples) / len(samples) ** 0.5
    return middle, max(0.0, middle - half), middle + half


def losers(samples: Mapping[int, Sequence[float]], margin: float = 1.25) -> list[int]:
    """Return the contenders that need no more samples: their interval is above that of the best, or,
    with few samples, they are `margin` times slower."""
    if len(samples) < 2:
        return []
    intervals = {contender: interval(one) for contender, one in samples.items()}
    best = min(intervals, key=lambda contender: intervals[contender][0])
    middle, _, high = intervals[best]
    lost = []
    for contender, (value, low, _) in intervals.items():
        if contender == best:
            continue
        if value > margin * middle or (low > high and value > 1.01 * middle):
            lost.append(contender)
    return lost
