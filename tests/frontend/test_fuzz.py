"""Whatever the operands of an op: an error of ours or a module, and the process lives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import gluon_core
from gluon_core.testing import TRITON_VERSION

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COUNT = 100


@pytest.mark.parametrize(
    "seed",
    [TRITON_VERSION[1], *(pytest.param(100 + n, marks=pytest.mark.campaign) for n in range(20))],
    ids=lambda seed: "one of each release" if seed < 100 else str(seed),
)
def test_random_operands(seed):
    assert gluon_core.__file__
    paths = [os.path.dirname(ROOT), *filter(None, sys.path)]
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.frontend.fuzz", str(seed), str(COUNT)],
        cwd=os.path.dirname(ROOT),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = found.stdout.splitlines()
    assert found.returncode == 0, (
        f"{lines[-1]} of seed {seed} ended the process: {found.stderr[-2000:]}"
    )
    foreign = [line for line in lines if line.startswith("FOREIGN")]
    assert not foreign, found.stdout[found.stdout.index("FOREIGN") :][:3000]
    end, worked, refused = lines[-1].split()
    assert end == "END" and int(worked) >= COUNT // 50 and int(refused) > COUNT // 4
