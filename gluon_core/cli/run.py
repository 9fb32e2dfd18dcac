"""`gluon run`: a Python file with its kernels on a target."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Optional, Sequence

from gluon_core.cli.output import UsageError, print_json
from gluon_core.errors import did_you_mean
from gluon_core.plugins import registry

__all__ = ["run_file"]


def run_file(
    file: str, target: Optional[str], arguments: Sequence[str], json: bool = False
) -> int:
    """Run `file` as `python file ...` would, with `GLUON_TARGET` set; its exit code is ours.

    Args:
        json: print `{"exit": code}` and leave nothing else on stdout.
    """
    if not Path(file).is_file():
        close = did_you_mean(Path(file).name, (p.name for p in Path(file).parent.glob("*.py")))
        raise UsageError("no such file", argument="FILE", got=file, remedy=close)
    if target is not None:
        os.environ["GLUON_TARGET"] = str(registry().target(target))
    sys.argv = [file, *arguments]
    sys.path.insert(0, str(Path(file).resolve().parent))
    if json:
        with redirect_stdout(sys.stderr):
            code = _run(file)
        print_json({"exit": code})
        return code
    return _run(file)


def _run(file: str) -> int:
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0
