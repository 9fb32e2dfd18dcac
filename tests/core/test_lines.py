"""The list of tests that a default run leaves out: it names tests, and none that runs lines of its own at a fair price."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import lines

pytestmark = pytest.mark.once
ROOT = Path(__file__).parents[2]


def test_it_names_tests():
    files = {file.relative_to(ROOT).as_posix(): file for file in (ROOT / "tests").rglob("*.py")}
    defined = re.compile(r"^ *def (test_\w+)\(", re.MULTILINE)
    own = {name: set(defined.findall(file.read_text())) for name, file in files.items()}
    inherited = set().union(*own.values())
    for name in lines.listed():
        file, *classes, function = name.partition("[")[0].split("::")
        assert function in (inherited if classes else own[file]), name


def recorded(folder, tests):
    """Write a file as a run writes it: `tests` are name -> (seconds here, seconds elsewhere, lines)."""
    np.savez_compressed(
        folder / "1.npz",
        names=np.array(list(tests)),
        seconds=np.array([[one[0] for one in tests.values()], [one[1] for one in tests.values()]]),
        places=np.array([f"gluon_core/it.py:{n}" for n in range(20)]),
        counts=np.array([len(one[2]) for one in tests.values()]),
        steps=np.concatenate([np.diff(one[2], prepend=0) for one in tests.values()]),
    )
    return lines.Tests(folder)


TESTS = {
    "test_a.py::test_whole": (2.0, 0.0, [0, 1, 2, 3, 4, 5, 6, 7]),
    "test_a.py::test_first[1]": (0.5, 0.0, [0, 1, 2, 3]),
    "test_a.py::test_first[2]": (0.4, 0.0, [0, 1, 2, 3]),
    "test_a.py::test_second": (0.5, 0.0, [4, 5, 6, 7]),
    "test_a.py::test_one_line": (3.0, 0.0, [0, 8]),
    "test_a.py::test_elsewhere": (0.1, 3.0, [0]),
    "test_a.py::test_short": (0.01, 0.0, [0]),
    "tests/prove/test_b.py::test_a_mistake_is_found": (2.0, 0.0, [0]),
}


def test_expensive_tests_are_spared_whose_lines_others_run(tmp_path):
    tests = recorded(tmp_path, TESTS)
    spared = tests.spare(least=0.1, price=1.0)
    assert spared == [
        f"test_a.py::{name}" for name in ("test_one_line", "test_whole", "test_first[1]")
    ]
    assert "test_a.py::test_one_line" not in tests.spare(least=0.1, price=5.0)
    assert lines.grouped(spared, list(TESTS)) == sorted(spared)
    whole = lines.grouped([*spared, "test_a.py::test_first[2]"], list(TESTS))
    assert "test_a.py::test_first" in whole and "test_a.py::test_first[1]" not in whole


RUN = """
import sys
from gluon_it import less

def test_less():
    assert less(1, 2) == 1

def test_both():
    assert less(1, 2) == 1 and less(2, 1) == 1
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Python 3.12")
def test_lines_of_each_test_are_recorded(tmp_path):
    (tmp_path / "gluon_it.py").write_text(
        "def less(a, b):\n    if a < b:\n        return a\n    return b\n"
    )
    (tmp_path / "test_it.py").write_text(RUN)
    (tmp_path / "conftest.py").write_text("")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.lines"]
    done = subprocess.run(
        [*command, "--lines", tmp_path / "lines", "--rootdir", tmp_path, tmp_path / "test_it.py"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tests = lines.Tests(tmp_path / "lines")
    lines_of = {
        name.rpartition("::")[2]: {tests.places[n] for n in numbers if "_it.py" in tests.places[n]}
        for name, numbers in tests.lines.items()
    }
    assert lines_of == {
        "test_less": {"gluon_it.py:2", "gluon_it.py:3"},
        "test_both": {"gluon_it.py:2", "gluon_it.py:3", "gluon_it.py:4"},
    }
