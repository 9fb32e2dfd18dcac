import contextlib
import io
import tempfile
from pathlib import Path

from gluon_core import certify

folder = Path(tempfile.mkdtemp())
PROGRAM = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def twice(x, n):
    i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(x + i, 2 * gl.load(x + i, mask=i < n), mask=i < n)

twice[(1,)](np.ones(100, np.float32), 100)
"""
(folder / "twice.py").write_text(PROGRAM)

# -- gluon.certify: a program's launches on the simulator, and their machine code on the emulator
with contextlib.redirect_stdout(io.StringIO()):
    certificate = certify.certify(str(folder / "twice.py"), ["sm_90"])
print(certificate.verdict)
#> certified
