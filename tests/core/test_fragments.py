"""The check of the changelog's fragments names each that towncrier would skip or misplace."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]


def check(*arguments):
    command = [sys.executable, ROOT / ".ci" / "fragments.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout


def test_the_fragments_of_this_checkout():
    assert check() == (0, "")


@pytest.mark.parametrize(
    "name, text, problem",
    [
        ("+slug.added.md", "A sentence.", ""),
        ("123.fixed.md", "A sentence,\nwrapped.", ""),
        ("slug.added.md", "A sentence.", "expected +SLUG.TYPE.md"),
        ("+slug.new.md", "A sentence.", "one of added, changed, fixed, removed"),
        ("+slug.added.rst", "A sentence.", "expected +SLUG.TYPE.md"),
        ("+slug.added.md", " \n", "is empty"),
        ("+slug.added.md", "- A bullet.", "without a bullet"),
        ("+slug.added.md", "One.\n\nTwo.", "one paragraph"),
    ],
)
def test_a_fragment(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    code, output = check(tmp_path)
    if problem:
        assert code == 1 and name in output and problem in output
    else:
        assert (code, output) == (0, "")
