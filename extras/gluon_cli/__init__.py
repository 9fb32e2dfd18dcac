"""The command `gluon`. Importing this package imports neither typer nor Triton."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process, and end the process."""
    import atexit
    import os
    import sys
    import threading

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115

    from gluon_cli.app import app

    try:
        app()
    except SystemExit as end:
        if "triton" not in sys.modules or not isinstance(end.code, int):
            raise
        # The interpreter's teardown is left out: there Triton 3.9's bindings print the objects that they think
        # has leaked. The exit handlers of a kernel's file still run.
        for thread in threading.enumerate():
            if thread is not threading.main_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)
