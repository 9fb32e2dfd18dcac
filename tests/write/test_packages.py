"""Files of packages: they are run with their relative imports, and written with absolute ones."""

import sys

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_cli.scripts import absolute_imports, package_of

pytestmark = pytest.mark.once
HELPERS = """import gluon_core as gluon
from gluon_core import language as gl

FACTOR = gl.constexpr(3.0)


@gluon.jit
def triple(x):
    return x * FACTOR
"""
KERNEL = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

from . import helpers
from .helpers import triple


@gluon.jit(layouts="auto")
def scale(x, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    gl.store(x + i, triple(gl.load(x + i)) + helpers.FACTOR)


if __name__ == "__main__":
    x = np.arange(128, dtype=np.float32)
    scale[(1,)](x, 128)
    assert (x == 3 * np.arange(128) + 3).all()
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("scaling_kernels")]:
        monkeypatch.delitem(sys.modules, name)
    folder = tmp_path / "scaling_kernels" / "rows"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "scales.py").write_text(KERNEL)
    return folder / "scales.py"


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_a_file_of_a_package_is_run_and_written(file, tmp_path, monkeypatch):
    assert package_of(file) == "scaling_kernels.rows"
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    ran = call("run", file, "--target", "sim:sm_90")
    assert ran.exit_code == 0, ran.output
    wrote = call("write", file, "--target", "sm_90", "--to", tmp_path / "out")
    assert wrote.exit_code == 0 and "proved: scale on sim:sm_90" in wrote.stdout, wrote.output
    text = (tmp_path / "out" / "scales_sm_90.py").read_text()
    assert "\nfrom scaling_kernels.rows import helpers\n" in text
    assert "\nfrom scaling_kernels.rows.helpers import triple\n" in text
    shown = call("layout", f"{file}:12", "--target", "sm_90")
    assert shown.exit_code == 0 and "i of scale: BlockedLayout" in shown.stdout, shown.output


def test_imports_of_a_package_become_absolute():
    text = (
        "from .. import a\nfrom ..b import c\nfrom .d.e import (\n    f,\n)\nfrom ...g import h\n"
    )
    assert absolute_imports(text, "one.two") == (
        "from one import a\nfrom one.b import c\nfrom one.two.d.e import (\n    f,\n)\nfrom ...g import h\n"
    )


def test_a_file_that_launches_kernels_of_another_one(file, tmp_path, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import numpy as np\nfrom scaling_kernels.rows.scales import scale\n"
        "scale[(1,)](np.zeros(128, np.float32), 128)\n"
    )
    wrote = call("write", driver, "--target", "sm_90")
    assert wrote.exit_code == 2 and f"alone; got scale of {file}. Launch" in wrote.stderr


def test_a_notebook_is_no_file_to_write(tmp_path):
    notebook = tmp_path / "rows.ipynb"
    notebook.write_text('{"cells": [], "metadata": {}, "nbformat": 4}')
    for command in ("run", "write"):
        refused = call(command, notebook, "--target", "sim:sm_90")
        assert refused.exit_code == 2 and "nbconvert --to script rows.ipynb" in refused.stderr
        assert refused.stderr.count("a notebook") == 1
