"""Kernels of these tests run on the simulator, standing in for a Hopper, which has partitions, unless they say otherwise."""

import pytest


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
