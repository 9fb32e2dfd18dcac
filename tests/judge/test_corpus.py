"""A sample of the corpus; `python -m tests.judge` judges all of it and prints the confusion matrix."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from tests.judge.candidates import candidates, caught

pytestmark = pytest.mark.once


@pytest.fixture
def judge(gluon_judge):
    """The judge of the session, whose processes other tests started."""
    return SimpleNamespace(judge=partial(gluon_judge, target="hopper"))


@pytest.mark.sampled(210)
@pytest.mark.parametrize("candidate", candidates(), ids=lambda one: one.name)
def test_the_verdict_is_the_label(candidate, judge):
    report = candidate.judged(judge)
    assert caught(candidate, report), report
