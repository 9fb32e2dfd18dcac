"""A sample of the corpus; `python -m tests.judge` judges all of it and prints the confusion matrix."""

from __future__ import annotations

import pytest

from gluon_judge import Judge
from tests.judge.candidates import candidates, caught

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def judge():
    with Judge("hopper") as one:
        yield one


@pytest.mark.sampled(210)
@pytest.mark.parametrize("candidate", candidates(), ids=lambda one: one.name)
def test_the_verdict_is_the_label(candidate, judge):
    report = candidate.judged(judge)
    assert caught(candidate, report), report
