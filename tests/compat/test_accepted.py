"""Acceptance by both sides of the programs of `tests.compat.accepted`, with our warning if any."""

from __future__ import annotations

import warnings

import pytest

from gluon_core.errors import KernelWarning
from tests.compat import page, sides
from tests.compat.accepted import ACCEPTED, section
from tests.frontend import oracle

pytestmark = pytest.mark.once


@pytest.fixture(scope="module", autouse=True)
def loaded():
    sides.warm()


@pytest.mark.parametrize("entry", ACCEPTED, ids=lambda entry: entry.title[:40])
def test_both_make_the_same_module(entry):
    verdict = sides.verdict(entry.source)
    if not entry.here:
        assert verdict.kind == "both refuse", verdict
        return
    assert verdict.kind == "same", verdict
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KernelWarning)
        oracle.ours(entry.source)
    texts = [str(warning.message) for warning in caught if warning.category is KernelWarning]
    assert len(texts) == bool(entry.warns), texts
    assert entry.warns in "".join(texts)


def test_the_page_has_the_section():
    assert section() in page.PAGE.read_text(encoding="utf-8"), "run: python -m tests.compat.page"
