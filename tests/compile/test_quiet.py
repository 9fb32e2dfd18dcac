"""Nothing of Triton's is printed on the way: no warning, also where warnings are errors, and no leaks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FILE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def add(x, y, out, N: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([N], gl.float32)
    tiles = gl.portable.descriptor(x, [N, 16], [16, 1], [64, 16])
    stages = gl.portable.pipeline([tiles], 2)
    stages.fetch(0, [[0, 0]])
    (tile,) = stages.wait(0)
    i = gl.arange(0, N, layout=layout)
    gl.store(out + i, gl.load(x + i) * 2 + gl.load(y + i))
    stages.close()

def test_it():
    x = np.ones((128, 16), np.float32)
    for target in ("sm_90", "gfx942"):
        out = np.zeros(128, np.float32)
        add[(1,)](x, x, out, 128, target=f"sim:{target}")
        assert (out == 3).all()
        kinds = dict.fromkeys(("x", "y", "out"), "*fp32:16")
        gluon.compile(add, target=target, signature=kinds, constexprs={"N": 128})

if __name__ == "__main__":
    test_it()
"""


def run(tmp_path, *command):
    file = tmp_path / "test_file.py"
    file.write_text(FILE)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    environment.pop("TRITON_DEFAULT_FP_FUSION", None)
    words = [sys.executable, "-W", "error", *command, str(file)]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment)


@pytest.mark.once
def test_a_file_under_warnings_as_errors_prints_nothing(tmp_path):
    done = run(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.once  # the file says what is of a release
def test_pytest_under_warnings_as_errors(tmp_path):
    done = run(tmp_path, "-m", "pytest", "-W", "error", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
    assert not done.stderr
