"""Proofs are of launches on the simulator, for a Hopper by default."""

from pathlib import Path

import pytest

from tests.backends.sim.conftest import _simulated, no_implied_fences  # noqa: F401

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """A verdict does not depend on the Triton that read the kernel."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.once)
