"""Tests come in one order in each process: `pytest -n` refuses to divide them otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.timeout(400)
@pytest.mark.parametrize("which", ["campaign", "not campaign"])
def test_the_order_of_tests_is_that_of_no_hash(which):
    def listed(seed: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "tests", "--collect-only", "-q", "-m", which]
        done = subprocess.run(
            [*command, "--share", "1/1", "-p", "no:cacheprovider"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return [line for line in done.stdout.splitlines() if "::" in line]

    first, second = listed("1"), listed("2")
    assert len(first) > 1000 and first == second
