"""Random calls of attention; see `stress.py`. A few run by default, many with `-m campaign`."""

from __future__ import annotations

import pytest

from tests.kernels.attention import stress

TARGETS = ["sim:sm_90", "sim:sm_80", "sim:gfx942", "sim:sm_100"]


@pytest.mark.once
@pytest.mark.sampled(68)
@pytest.mark.parametrize("seed", range(1, 121))
def test_random_calls(seed, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", TARGETS[0] if seed % 2 else TARGETS[seed // 2 % 4])
    assert stress.tried(seed, "cpu", 150) is None
