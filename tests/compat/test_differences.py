"""Random layouts and operands, through Triton's own Gluon and through ours."""

from __future__ import annotations

import pytest

from tests.compat import page, sides
from tests.compat.differences import DIFFERENCES, known
from tests.compat.families import FAMILIES, made

pytestmark = pytest.mark.once

COUNT = 4


@pytest.fixture(scope="module", autouse=True)
def loaded():
    sides.warm()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(100, 150))],
    ids=lambda seed: "one" if seed == 0 else str(seed),
)
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_refused_that_theirs_compiles(family, seed):
    kinds = set()
    for number in range(COUNT if seed == 0 else 40):
        source = made(family, seed, number)
        verdict = sides.verdict(source)
        kinds.add(verdict.kind)
        if verdict.kind in ("foreign", "abort"):
            pytest.fail(f"ours ends in {verdict.ours.text}\n{source}")
        if verdict.kind == "refused" and not known(verdict, source):
            pytest.fail(f"ours alone refuses: {verdict.ours.text}\n{source}")
        if verdict.kind == "differs" and not known(verdict, source):
            pytest.fail(f"ours makes another module:\n{source}")
    assert "same" in kinds or seed == 0


@pytest.mark.campaign
def test_the_page_is_not_stale():
    assert page.part() == page.written(), "run: python -m tests.compat.page"


@pytest.mark.sampled(16)
@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.title[:40])
def test_the_row_is_not_stale(difference):
    row = page.row(difference)
    has = f"| {difference.title} |" in page.written()
    assert bool(row) == has and row in page.written(), "run: python -m tests.compat.page"
