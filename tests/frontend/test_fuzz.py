"""Whatever the operands of an op: an error of ours or a module, and the process lives."""

from __future__ import annotations

import collections

import pytest

from gluon_core.testing import TRITON_VERSION
from tests.compat import sides
from tests.compat.families import made

COUNT = 100


@pytest.mark.filterwarnings("ignore")  # as Python warns of literals with an index
@pytest.mark.parametrize(
    "seed",
    [TRITON_VERSION[1], *(pytest.param(100 + n, marks=pytest.mark.campaign) for n in range(20))],
    ids=lambda seed: "one of each release" if seed < 100 else str(seed),
)
def test_random_operands(seed):
    sides.warm()
    kinds = collections.Counter()
    for number in range(COUNT):
        source = made("any operands", seed, number)
        ended = sides.alone(source)
        assert ended.kind in ("accepted", "refused alone"), f"{ended.ours.text}\n{source}"
        kinds[ended.kind] += 1
    assert kinds["accepted"] >= COUNT // 50 and kinds["refused alone"] > COUNT // 4
