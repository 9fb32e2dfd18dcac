"""Kernels of these tests run on the simulator, for a Hopper (with partitions) by default."""

import pytest


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
