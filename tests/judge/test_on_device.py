"""`gluon judge --on-gpu` on the GPU of this machine."""

from __future__ import annotations

import pytest

from gluon_core.launch.place import device_target
from gluon_judge import Judge
from tests.judge.candidates import CORPUS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not str(device_target()).startswith("nvidia:sm_90"), reason="needs a Hopper GPU"
    ),
    pytest.mark.timeout(300),
]

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


@pytest.fixture(scope="module")
def judge():
    with Judge("hopper") as one:
        yield one


@pytest.fixture
def judged(judge, tmp_path):
    problem = (GEMM / "problem.toml").read_text()
    problem += "\n[[timed]]\nM = 4096\nN = 4096\nK = 4096\n"
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


def test_work_on_another_stream_is_seen(judged):
    stream = "    with torch.cuda.stream(torch.cuda.Stream()):\n    " + JOINS
    report = judged(RING.replace(JOINS, stream))
    assert "gpu.late" in report.codes, report


def test_a_kernel_that_hangs_is_killed(judged):
    report = judged(SPINS, patience=5.0)
    assert any(one.code == "call.hang" and "GPU" in one.text for one in report.findings), report
