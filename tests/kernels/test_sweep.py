"""The measurement of sweeps."""

import itertools
from functools import partial

import pytest

pytest.importorskip("torch")

from benchmarks import sweep

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    "scatter, ours, rounds",
    [(0.01, 2.0, sweep.ROUNDS), (0.2, 2.0, sweep.MOST_ROUNDS), (0.2, 0.5, sweep.ROUNDS)],
)
def test_scattered_times_are_measured_in_more_rounds(scatter, ours, rounds):
    """The median of a few samples that scatter says little; a rival far behind decides nothing."""
    steps = itertools.cycle((1.0, 1.0 + scatter, 1.0 - scatter, 1.0 + scatter / 2))
    counts = {"ours": 0, "rival": 0}

    def timed(name):
        counts[name] += 1
        return next(steps) if name == "rival" else ours

    times = sweep.medians({name: partial(timed, name) for name in counts})
    assert counts == {"ours": rounds, "rival": rounds}
    assert times["ours"] == ours and abs(times["rival"] - 1) <= scatter / 2
