"""Install the packages of this checkout into this environment, editable.

`pip install -e` of each folder does the same and starts three processes for each of them; here one process builds all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hatchling.build import build_editable

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    ".", "runtime", "backends/nvidia", "backends/amd", "backends/sim", "backends/emu", "extras", "kernels",
)  # fmt: skip


def install() -> int:
    """Build a wheel of each folder that leads to its sources, install all of them, and return pip's exit code."""
    with tempfile.TemporaryDirectory() as wheels:
        names = []
        for folder in FOLDERS:
            os.chdir(ROOT / folder)
            names.append(build_editable(wheels))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        command += ["--force-reinstall", *names]
        return subprocess.run(command, cwd=wheels, check=False).returncode


if __name__ == "__main__":
    sys.exit(install())
