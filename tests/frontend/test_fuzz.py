"""Whatever the operands of an op: an error of ours or a module, and the process lives."""

from __future__ import annotations

import collections

import pytest

from gluon_core.errors import GluonError
from gluon_core.testing import TRITON_VERSION
from tests.compat import sides
from tests.compat.families import made
from tests.frontend import oracle

COUNT, AT_ONCE = 60, 20


def traced(source):
    """Return how a trace in this process ends; errors that are none of ours are raised."""
    try:
        oracle.ours(source)
    except GluonError as error:
        assert str(error) and (error.span is None or error.span.text), repr(error)
        return "refused"
    return "accepted"


@pytest.mark.once
@pytest.mark.filterwarnings("ignore")  # as Python warns of literals with an index
@pytest.mark.parametrize(
    "seed",
    [TRITON_VERSION[1], *(pytest.param(100 + n, marks=pytest.mark.campaign) for n in range(20))],
    ids=lambda seed: "one of each release" if seed < 100 else str(seed),
)
def test_random_operands(seed):
    sides.warm()
    ends = collections.Counter()
    for first in range(0, COUNT, AT_ONCE):
        numbers = range(first, first + AT_ONCE)
        sources = [made("any operands", seed, number) for number in numbers]
        answer = sides.child(lambda sources=sources: " ".join(map(traced, sources)))
        if answer.how != "ok":
            for source in sources:  # the one that did it
                alone = sides.alone(source)
                assert alone.kind in ("accepted", "refused alone"), f"{alone.ours.text}\n{source}"
            pytest.fail(f"programs {numbers} of seed {seed} together: {answer.text}")
        ends.update(answer.text.split())
    assert ends["accepted"] >= COUNT // 50 and ends["refused"] > COUNT // 4
