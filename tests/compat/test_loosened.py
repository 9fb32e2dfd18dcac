"""Checks that refuse less than they did let no abort through, and their errors have a line."""

from __future__ import annotations

import pytest

from tests.compat import loosened, sides

pytestmark = pytest.mark.once

COUNT = 4


@pytest.fixture(scope="module", autouse=True)
def loaded():
    sides.warm()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(COUNT, 200, 28))],
    ids=lambda first: f"from {first}",
)
@pytest.mark.parametrize("name", loosened.names())
def test_no_abort_and_a_line_for_each_error(name, first):
    """Traced, and compiled where that went well, each in a process of its own."""
    ends = set()
    for number in range(first, first + (COUNT if first == 0 else 28)):
        how, text = loosened.ended(name, number)
        assert how in ("refused", "late", "compiled"), f"{how}: {text}"
        ends.add(how)
    assert ends
