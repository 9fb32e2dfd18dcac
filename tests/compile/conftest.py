"""Fixtures of the tests of processes that compile."""

import os

import pytest

from gluon_core.compiler import stages


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """An empty cache, and no process that an earlier test left."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    stages._pool.close()
    yield
    stages._pool.close()


@pytest.fixture
def kept_reproducers():
    """Removes the files that errors name."""
    collected = []
    yield collected
    for error in collected:
        if error.reproducer:
            os.remove(error.reproducer)
