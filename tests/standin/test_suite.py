"""Whole suites of a library that mixes Gluon, plain Triton and torch, run without a GPU."""

import os
import re
from pathlib import Path

import pytest

from tests import warm

pytestmark = pytest.mark.sampled(3)

pytest.importorskip("torch")

FOREIGN = Path(__file__).parent / "foreign"
EVERY = ("graphs", "rows", "torch", "triton")


def run(suites, *options, **environment):
    return warm.run(
        [
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={FOREIGN}"),
            *("-o", "filterwarnings="),  # warnings are that library's own matter
            *options,
            *(FOREIGN / f"{suite}_suite.py" for suite in suites),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        cwd=FOREIGN,
        timeout=110,
        torch=True,
    )


@pytest.mark.parametrize(
    "target, suites, executed",
    [
        pytest.param(
            "sim:hopper",
            ("triton",),
            "Triton's interpreter: descriptor_kernel",
            marks=pytest.mark.campaign,
        ),
        pytest.param("sim:hopper", EVERY[:3], "interpreter: double_kernel", marks=pytest.mark.once),
        pytest.param("emu:gfx942", EVERY, "compiled by Triton: desc", marks=pytest.mark.once),
        pytest.param("sim:gfx950", EVERY, "Triton's interpreter", marks=pytest.mark.campaign),
    ],
)
def test_the_suites_of_a_library_pass(target, suites, executed):
    done = run(suites, "--gluon-standin", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d passed", done.stdout) and "skipped" not in done.stdout
    assert executed in done.stdout
    assert 'answers for torch\'s "cuda"' in done.stdout


@pytest.mark.once
def test_a_file_that_asks_for_the_device_is_answered_where_the_variable_names_a_simulator():
    done = run(("rows",), "-k", "scaled", GLUON_TARGET="sim:hopper")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and 'answers for torch\'s "cuda"' in done.stdout
