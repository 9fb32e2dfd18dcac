"""Random calls on strange tensors, a campaign; `stress.py` runs them for as long as you like, also on a GPU."""

from __future__ import annotations

import pytest

from tests.kernels import stress

SEEDS = {"sim:sm_90": 30, "sim:gfx942": 8, "sim:sm_80": 8}


@pytest.mark.once
@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", stress.CASES)
@pytest.mark.parametrize("target", SEEDS)
def test_random_calls(target, name, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", target)
    reports = [stress.compared(name, number, "cpu") for number in range(SEEDS[target])]
    assert not any(reports), "\n".join(filter(None, reports))


@pytest.mark.once
@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", stress.CASES)
def test_a_random_call(name, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    assert stress.compared(name, 7, "cpu") is None


@pytest.mark.once
def test_wrong_results_are_reported(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    right = stress.kernels.swiglu
    monkeypatch.setattr(stress.kernels, "swiglu", lambda gate, up: right(up, gate))
    reports = [stress.compared("swiglu", number, "cpu") for number in range(4)]
    assert any(report and "off by" in report for report in reports)
