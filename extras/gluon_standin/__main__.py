"""`python -m gluon_standin [--target sim:ARCH] script.py ...` or `-m module ...`."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from types import TracebackType
from typing import Optional

from gluon_core.errors import GluonError
from gluon_standin import asked, stand_in


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gluon_standin",
        description="Run a script, or with -m a module, as if the simulated device were there.",
    )
    parser.add_argument(
        "--target",
        default=os.environ.get("GLUON_TARGET") or "sim",
        help="the simulated device, such as sim:hopper (default: GLUON_TARGET)",
    )
    parser.add_argument("-m", action="store_true", dest="module", help="run a module")
    parser.add_argument("script", help="file, or name of a module")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments")
    options = parser.parse_args(arguments)
    try:
        stand_in(options.target)
    except GluonError as error:
        print(error, file=sys.stderr)
        return 2
    if not options.module and not os.path.isfile(options.script):
        print(f"no such file: {options.script}", file=sys.stderr)
        return 2
    sys.argv = [options.script, *options.rest]
    try:
        if options.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
            runpy.run_path(options.script, run_name="__main__")
    except Exception as error:
        error.__traceback__ = _of_the_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        for line in asked.lines():
            print(line, file=sys.stderr)
    return 0


def _of_the_script(traceback: Optional[TracebackType]) -> Optional[TracebackType]:
    """Return a traceback without the runner of the script; all of it where nothing of the script is in it."""
    entry = traceback
    while entry is not None:
        scope = entry.tb_frame.f_globals
        if scope is not globals() and scope.get("__name__") != "runpy":
            return entry
        entry = entry.tb_next
    return traceback


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
