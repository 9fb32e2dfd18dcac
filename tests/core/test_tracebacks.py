"""A traceback shows the caller's frames; the kernel's line is in the message."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
import types
from pathlib import Path

import pytest
import triton

import gluon_core as gluon
import gluon_sim
from gluon_core.errors import GluonError
from tests import warm

pytestmark = pytest.mark.once

PROGRAM = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])

@gluon.constexpr_function
def worked_out(n):
    return 1 // n

@gluon.jit
def store(x, L: gl.constexpr):
    gl.store(x + gl.arange(0, 1024, layout=L), 1.0)

@gluon.jit
def wrong(x, L: gl.constexpr):
    gl.store(x + gl.arange(0, 100, layout=L), 1.0)

@gluon.jit
def divided(x, n: gl.constexpr):
    gl.store(x, worked_out(n))

def launch(kernel, size, **more):
    kernel[(1,)](np.zeros(size, np.float32), **more, target="sim:hopper")

def test_wrong():
    launch(wrong, 100, L=LAYOUT)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.delenv("GLUON_TRACEBACK", raising=False)
    path = tmp_path / "test_program.py"
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def frames(error):
    """Names of the functions that a traceback goes through, past this file."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)][1:]


CASES = {
    "traced": lambda p: p.launch(p.wrong, 100, L=p.LAYOUT),
    "simulated": lambda p: p.launch(p.store, 100, L=p.LAYOUT),
}


@pytest.mark.parametrize("name", CASES)
def test_a_launch_shows_the_callers_frames(name, program):
    with pytest.raises(GluonError) as caught:
        CASES[name](program)
    assert frames(caught.value) == ["<lambda>", "launch", "entry"]
    shown = "".join(traceback.format_exception(caught.value))
    for library in (gluon, gluon_sim, triton):
        assert str(Path(library.__file__).parent) + os.sep not in shown
    assert "direct cause" not in shown and "During handling" not in shown
    assert "gl.store(" in shown and "^^^" in shown


def test_a_launch_that_is_compiled_shows_them_too(program):
    program.launch(program.store, 1024, L=program.LAYOUT)
    with pytest.raises(GluonError) as caught:
        program.launch(program.store, 100, L=program.LAYOUT)
    assert frames(caught.value) in (["launch", "entry"], ["launch", "run"])  # in Python, in C


def test_compile_shows_one_door(program):
    with pytest.raises(GluonError) as caught:
        gluon.compile(
            program.wrong, "sm_90", signature={"x": "*fp32"}, constexprs={"L": program.LAYOUT}
        )
    assert frames(caught.value) == ["call"]


def test_the_users_own_code_within_stays(program):
    with pytest.raises(GluonError) as caught:
        program.launch(program.divided, 8, n=0)
    cause = caught.value.__cause__ or caught.value.__context__
    assert isinstance(cause, ZeroDivisionError)
    assert [f.name for f in traceback.extract_tb(cause.__traceback__)] == ["worked_out"]


def test_everything_on_demand(program, monkeypatch):
    monkeypatch.setenv("GLUON_TRACEBACK", "full")
    with pytest.raises(GluonError) as caught:
        program.launch(program.wrong, 100, L=program.LAYOUT)
    assert "miss" in frames(caught.value) and len(frames(caught.value)) > 6


def test_pytest_shows_the_test_and_the_message(program):
    done = warm.run(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", program.__file__],
        cwd=program.__file__.rpartition("/")[0],
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "launch(wrong, 100, L=LAYOUT)" in done.stdout and "ShapeError" in done.stdout
    assert "_g_entry" not in done.stdout and "gluon_core/launch/" not in done.stdout
    assert len(done.stdout.split("\n")) < 60


def test_run_shows_the_files_own_frames(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("def half(n):\n    return 1 / n\n\nhalf(0)\n")
    done = warm.run(["-m", "gluon_cli", "run", path])
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert done.stderr.count("  File ") == 2 and "runpy" not in done.stderr


class Session:
    """An interactive session, as far as errors ask for one."""

    def __init__(self, cells):
        self.compile = self
        self.cells = cells

    def format_code_name(self, file):
        return ("Cell", f"In[{self.cells[file]}]") if file in self.cells else None


def test_in_a_notebook_an_error_names_the_cell(tmp_path, monkeypatch):
    file = tmp_path / "cell.py"
    file.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("a_cell", file)
    cell = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cell)
    fake = types.ModuleType("IPython")
    session = Session({str(file): 3})
    fake.get_ipython = lambda: session
    monkeypatch.setitem(sys.modules, "IPython", fake)
    with pytest.raises(GluonError) as caught:
        cell.launch(cell.wrong, 128, L=cell.LAYOUT)
    shown = "\n".join(caught.value._render_traceback_())
    line = PROGRAM.splitlines().index("    gl.store(x + gl.arange(0, 100, layout=L), 1.0)") + 1
    assert f"at Cell In[3], line {line}" in shown
    assert "Cell In[3], line" in shown and "----> kernel[(1,)](np.zeros(size" in shown
    assert str(file) not in shown and "<gluon" not in shown and "dispatch" not in shown
    fake.get_ipython = lambda: None  # a script that imported IPython
    assert f"at {file}:{line}:" in str(caught.value)
