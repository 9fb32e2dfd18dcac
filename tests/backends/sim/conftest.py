"""Kernels of these tests run on the simulator, for a Hopper (with partitions) by default."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """The simulator runs what was recorded, whichever Triton read the kernel."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.once)


@pytest.fixture(autouse=True)
def _simulated(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


@pytest.fixture
def no_implied_fences(monkeypatch):
    """The compiler adds no fences between the proxies."""
    from gluon_nvidia.reference import proxy

    monkeypatch.setattr(proxy, "_fence", lambda *operands: None)
