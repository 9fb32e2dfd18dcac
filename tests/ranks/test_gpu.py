"""The examples on real devices: one process for each of two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_results_are_those_of_torch():
    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "29533", "benchmarks/ranks.py", "check"]
    path = [str(ROOT), *map(str, sorted(ROOT.glob("backends/*"))), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
