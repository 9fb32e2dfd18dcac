"""`gluon run`: a Python file with its kernels on a target."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, ContextManager, Optional, Sequence

from gluon_core.backend import Watch
from gluon_core.cli.output import UsageError, print_json
from gluon_core.errors import did_you_mean
from gluon_core.plugins import registry

__all__ = ["run_file"]


def run_file(
    file: str,
    target: Optional[str],
    arguments: Sequence[str],
    json: bool = False,
    wish: Optional[Watch] = None,
) -> int:
    """Run `file` as `python file ...` would, with `GLUON_TARGET` set; its exit code is ours.

    Args:
        json: print `{"exit": code}` and leave nothing else on stdout.
        wish: what to find out on the way.

    Raises:
        UsageError: no such file, or `wish` cannot be granted on the target.
    """
    if not Path(file).is_file():
        close = did_you_mean(Path(file).name, (p.name for p in Path(file).parent.glob("*.py")))
        raise UsageError("no such file", argument="FILE", got=file, remedy=close)
    if target is not None:
        os.environ["GLUON_TARGET"] = str(registry().target(target))
    watching = _watching(target, wish)
    sys.argv = [file, *arguments]
    sys.path.insert(0, str(Path(file).resolve().parent))
    if json:
        with redirect_stdout(sys.stderr):
            code = _run(file, watching)
        print_json({"exit": code})
        return code
    return _run(file, watching)


def _run(file: str, watching: ContextManager[Any]) -> int:
    try:
        with watching:
            runpy.run_path(file, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _watching(target: Optional[str], wish: Optional[Watch]) -> ContextManager[Any]:
    if not wish:
        return nullcontext()
    simulator = registry().simulator()
    chosen = registry().target(target)
    if simulator is None or not chosen.simulated:
        raise UsageError(
            "only simulated kernels can be profiled, traced and debugged",
            argument="--target",
            got=str(chosen),
            remedy=f"Try --target {simulator.name}:{chosen.architecture.name}." if simulator else None,
        )
    return simulator.watch(wish)
