"""The tutorials as notebooks: made of the files, and run headless, cell by cell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_build"))

import notebooks  # noqa: E402

pytestmark = pytest.mark.once


@pytest.mark.parametrize("step", notebooks.steps(), ids=lambda step: step.stem)
def test_a_notebook_has_the_text_of_its_file(step):
    kept = step.with_suffix(".ipynb").read_text()
    assert kept == notebooks.notebook(step), "python docs/_build/notebooks.py"
    code = "".join(
        "".join(cell["source"]) for cell in json.loads(kept)["cells"] if cell["cell_type"] == "code"
    )
    for name in ("@gluon.jit\ndef ", "import gluon_core as gluon"):
        assert code.count(name) == step.read_text().count(name)


# A process for each: a campaign, which `tox -e docs` runs too.
@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", notebooks.steps(), ids=lambda step: step.stem)
def test_it_runs(step, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    path = [str(ROOT), *map(str, ROOT.glob("backends/*")), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    book = nbformat.read(step.with_suffix(".ipynb"), as_version=4)
    nbformat.validate(book)
    working_folder = {"metadata": {"path": str(step.parent)}}
    # The kernel of this very Python, whatever others are installed.
    client = nbclient.NotebookClient(
        book, timeout=240, resources=working_folder, kernel_name="python3"
    )
    client.execute()
    outputs = [one for cell in book.cells if cell.cell_type == "code" for one in cell.outputs]
    printed = "".join(one.get("text", "") for one in outputs if one.output_type == "stream")
    assert "True" in printed or "right to" in printed or "loads of" in printed
    drawn = [one for one in outputs if "<svg" in one.get("data", {}).get("text/html", "")]
    wanted = sum(cell.source.endswith(".show()") for cell in book.cells)
    assert len(drawn) == wanted
