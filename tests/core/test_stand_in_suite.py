"""The whole suite of a library that mixes Gluon and plain Triton, run without a GPU."""

import os
import re
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch")

FOREIGN = Path(__file__).parent / "foreign"


def suite(*options, **environment):
    return warm.run(
        [
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={FOREIGN}"),
            *options,
            *sorted(FOREIGN.glob("*_suite.py")),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
        cwd=FOREIGN,
        timeout=110,
        torch=True,
    )


@pytest.mark.parametrize(
    "target, executed",
    [
        ("sim:hopper", "plain Triton kernels, Triton's interpreter: double_kernel"),
        pytest.param(
            "emu:gfx942",
            "plain Triton kernels, machine code for gfx942, compiled by Triton: d",
            marks=pytest.mark.once,
        ),
        pytest.param("sim:gfx950", "Triton's interpreter", marks=pytest.mark.campaign),
    ],
)
def test_the_suite_of_a_library_passes(target, executed):
    done = suite("--gluon-standin", target)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed", done.stdout) and "skipped" not in done.stdout
    assert executed in done.stdout
    assert 'answers for torch\'s "cuda"' in done.stdout


@pytest.mark.once
def test_a_file_that_asks_for_the_device_is_answered_where_the_variable_names_a_simulator():
    done = suite("-k", "scaled", GLUON_TARGET="sim:hopper")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and 'answers for torch\'s "cuda"' in done.stdout
