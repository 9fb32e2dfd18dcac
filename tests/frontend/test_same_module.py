"""Every portable name: the module we make is the module that Triton's own Gluon makes."""

from __future__ import annotations

import pytest

from gluon_core.errors import CapabilityError, GluonError, StageError
from gluon_core.testing import TRITON_VERSION
from tests.frontend import oracle, snippets

pytestmark = pytest.mark.once

NAMES = [
    name
    for name, (_, since) in snippets.CASES.items()
    if since <= TRITON_VERSION <= snippets.UNTIL.get(name, TRITON_VERSION)
]
NEWER = [name for name, (_, since) in snippets.CASES.items() if since > TRITON_VERSION]


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", NAMES)
def test_same_module(name):
    source, _ = snippets.CASES[name]
    raw = name not in snippets.NORMAL_FORM_ONLY.get(TRITON_VERSION, ())
    theirs = refusal = None
    if name not in snippets.ABORTS:
        try:
            theirs = oracle.upstream(source)
        except Exception as error:
            refusal = error
    if theirs is not None:
        oracle.assert_same(theirs, oracle.ours(source), raw)
    elif name in snippets.WIDER:
        assert oracle.ours(source).verify()
    else:
        try:
            oracle.ours(source)
        except GluonError as error:
            assert error.span is not None and error.span.text, error
            assert not isinstance(error, StageError), error
        else:
            assert name in snippets.ABORTS, f"ours takes what upstream refuses: {refusal}"


@pytest.mark.parametrize("name", NEWER)
def test_needs_a_newer_triton(name):
    source, since = snippets.CASES[name]
    if name.rpartition("-")[0] in snippets.BROUGHT or name in snippets.BROUGHT:
        assert oracle.ours(source).verify()
        return
    with pytest.raises(CapabilityError) as caught:
        oracle.ours(source)
    assert f"needs Triton >= {since[0]}.{since[1]}" in str(caught.value)
    assert caught.value.span is not None
