"""Every Python block of the documentation runs, in the order in which it is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page):
    """The page's Python blocks as one script; a block marked `python no-run` is left out."""
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return "\n".join(found)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_the_pages_python_runs(page, tmp_path):
    script = tmp_path / "page.py"  # kernels need a file to read their source from
    script.write_text(blocks(page))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
