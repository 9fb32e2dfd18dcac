"""Results of a GPU, for the rows that cite them and for the layouts that both sides accept."""

from __future__ import annotations

import pytest

from gluon_core.launch.device import device_target
from gluon_core.testing import TRITON_VERSION
from tests.compat import evidence
from tests.compat.differences import DIFFERENCES
from tests.compat.probes import PROBES
from tests.frontend import oracle

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.once
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
ACCEPTED = [name for name, probe in PROBES.items() if not probe.title]
HERE = [
    name
    for name in ACCEPTED
    if PROBES[name].last is None or TRITON_VERSION[:2] <= PROBES[name].last
]


@pytest.mark.parametrize("name", PROBES)
def test_the_result_is_recorded(name):
    results = evidence.results(name)
    assert results, f"the program of {name!r} changed: python -m tests.compat.evidence --write"
    if name in ACCEPTED:
        assert set(results) == {"right"}


def test_each_title_is_a_row():
    rows = {difference.title for difference in DIFFERENCES}
    assert {probe.title for probe in PROBES.values()} - {""} <= rows


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs the GPU of the recorded results")
@pytest.mark.parametrize("name", PROBES)
def test_the_gpu_gives_the_recorded_result(name):
    kinds = {_kind(result) for result in evidence.results(name)}
    if kinds == {"wrong"} and str(device_target()).startswith("emu:"):
        kinds = {"wrong", "error"}  # the emulator may report the mistake behind wrong numbers
    assert _kind(evidence.ended(name, "theirs")) in kinds


def _kind(result):
    """Return the word before the colon; a compiler that fails on a kernel may end its process as well."""
    word = result.partition(":")[0]
    return "error" if word == "abort" else word


@pytest.mark.parametrize("name", HERE)
def test_the_simulator_agrees_with_the_gpu(name, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    result, want = oracle.load(PROBES[name].source, oracle.OURS).run(torch, "cpu")
    assert torch.equal(result, want)
