"""A target for tests of attention."""

from __future__ import annotations

import pytest

from gluon_kernels.attention import ops


@pytest.fixture
def hopper(monkeypatch):
    """Set a simulated Hopper as the target, and forget the plans of others."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()
    yield
    for plans in (ops._plans, ops._gradient_plans):
        plans.forget()
