"""`gluon judge --on-gpu` on the GPU of this machine."""

from __future__ import annotations

import os

import pytest

from gluon_core.launch.device import device_target
from gluon_judge import Judge
from tests.judge.candidates import CORPUS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not str(device_target()).endswith(":sm_90"), reason="needs a Hopper GPU"),
    pytest.mark.timeout(300),
]
# Large enough to be timed; the emulator, whose clock is the host's, needs seconds for the smaller one.
EMULATED = str(device_target()).startswith("emu:")
SIZE = 1024 if EMULATED else 4096

GEMM = CORPUS / "gemm"
RING = (GEMM / "honest_ring.py").read_text()
JOINS = "    matmul[(M // BLOCK, N // BLOCK)]"
SPINS = """
import torch

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def spin(flag):
    while gl.load(flag, volatile=True) == 0:
        pass


def run(a, b):
    spin[(1,)](torch.zeros(1, dtype=torch.int32, device=a.device), num_warps=1)
    return a @ b
"""
ON_GPU = "torch.cuda.get_device_properties(0).multi_processor_count > 0 and a.shape[0] > 1000"
CLOCK = f"""
    if {ON_GPU}:
        torch.cuda.Event.elapsed_time = lambda *events: 1e-2
    c = torch.empty"""
LATER = f"""
    if {ON_GPU}:
        CALLS.append(a)
        if len(CALLS) > 4:
            return KEPT[0].clone()
    c = torch.empty"""
LIBRARY = f"""
    if {ON_GPU}:
        return a @ b
    c = torch.empty"""
SHORT = 1.0  # seconds for the simulator: these tests look at the GPU
alone = pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1,
    reason="compares clocks, which other workers on the GPU disturb: run this file without -n",
)


@pytest.fixture(scope="module")
def judge():
    with Judge("hopper") as one:
        yield one


@pytest.fixture
def judged(judge, tmp_path):
    problem = (GEMM / "problem.toml").read_text()
    problem += f"\n[[timed]]\nM = {SIZE}\nN = {SIZE}\nK = {SIZE}\n"
    (tmp_path / "problem.toml").write_text(problem)

    def judged(text, **options):
        (tmp_path / "candidate.py").write_text(text)
        files = tmp_path / "candidate.py", GEMM / "reference.py", tmp_path / "problem.toml"
        return judge.judge(*files, on_gpu=True, **options)

    return judged


def test_a_right_kernel_is_accepted_with_its_rates(judged):
    report = judged(RING)
    assert report.verdict == "accepted", report
    (rates,) = report.measured["rates"]
    low, high = rates["speedup_interval"]
    assert 0 < low <= high and rates["candidate_seconds"] > rates["roofline_seconds"], report
    assert rates["outside_seconds"] > 0.8 * rates["candidate_seconds"], report


@alone
def test_work_on_another_stream_is_seen(judged):
    if EMULATED:
        pytest.skip("all work of an emulated device has ended when the call returns")
    # Several launches: a host with other work may come too late to see one that is left.
    streams = "    for _ in range(4):\n        with torch.cuda.stream(torch.cuda.Stream()):\n"
    stream = streams + "        " + JOINS
    report = judged(RING.replace(JOINS, stream), within=SHORT)
    assert "gpu.late" in report.codes, report


def test_a_kernel_that_hangs_is_killed(judged):
    report = judged(SPINS, patience=5.0, within=SHORT)
    assert any(one.code == "call.hang" and "GPU" in one.text for one in report.findings), report


@alone
def test_events_that_lie_are_seen(judged):
    # Two launches: a clock outside allows half a millisecond of the host, which is longer than one.
    twice = RING.replace(JOINS, "    for _ in range(2):\n    " + JOINS)
    report = judged(twice.replace("\n    c = torch.empty", CLOCK), within=SHORT)
    assert {"gpu.clock", "patched.module"} <= set(report.codes), report


def test_results_of_earlier_calls_are_seen(judged):
    text = RING.replace("\n    c = torch.empty", LATER).replace(
        "    return c", "    KEPT.append(c)\n    return c"
    )
    report = judged("CALLS, KEPT = [], []\n" + text, within=SHORT)
    assert "cache.pointer" in report.codes, report


def test_a_library_on_the_gpu_alone_is_seen(judged):
    report = judged(RING.replace("\n    c = torch.empty", LIBRARY), within=SHORT)
    assert "library.called" in report.codes, report
