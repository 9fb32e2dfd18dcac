"""Files for the page of `gluon run --html`: what it must show of each is known."""

import os
from pathlib import Path

from tests import warm

HERE = Path(__file__).parent


def written(name, folder, *options, code=0):
    """Run a file of this folder to a page; its path."""
    page = folder / f"{name}.html"
    command = ["-m", "gluon_core", "run", HERE / f"{name}.py", "--html", page]
    environment = {k: v for k, v in os.environ.items() if k != "GLUON_TARGET"}
    done = warm.run([*command, *(options or ("-t", "sim:hopper"))], env=environment)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("wrote ") == 1, done.stderr  # of several targets, too
    return page
