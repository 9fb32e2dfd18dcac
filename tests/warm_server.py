"""Forks a process for each request of `warm.run`, and ends with its input."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import sys
import types

# Not torch, unless asked for: whether a program has imported it decides what Gluon Core does.
PRELOADED = (
    "numpy", "ml_dtypes", "triton", "triton.compiler.code_generator", "pluggy", "pytest", "rich.console", "rich.table",
    "typer",
)  # fmt: skip


def become(asked: dict) -> None:
    """Be the process that was asked for, up to its first instruction."""
    for number, file in enumerate(asked["files"], 1):
        handle = os.open(file, os.O_WRONLY | os.O_CREAT)
        os.dup2(handle, number)
        os.close(handle)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path[1:1] = asked["path"]


def execute(words: list[str]) -> None:
    """As the interpreter does it."""
    if words[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=words[0], __builtins__=__builtins__)
    sys.modules["__main__"] = main
    with open(words[0], "rb") as file:
        code = compile(file.read(), words[0], "exec")
    exec(code, main.__dict__)


def shown(kind: type, error: BaseException, trace: object) -> None:
    """Print uncaught exceptions without the frames of this file and of runpy."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    previous(kind, error.with_traceback(trace), trace)


def serve() -> list[str]:
    """Fork for each request; returns in the child, with the words to run."""
    for name in (*PRELOADED, *sys.argv[1:]):
        with contextlib.suppress(ImportError):  # then the program says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a child would look for garbage among what it shares, and copy the pages
    gc.set_threshold(20_000, 20, 20)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            become(asked)
            # Triton 3.9 lists what is left when a process ends.
            atexit.register(gc.unfreeze)
            return asked["words"]
        print(pid, file=answers, flush=True)
        status = os.waitpid(pid, 0)[1]
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    words = serve()
    previous = sys.excepthook
    sys.excepthook = shown
    execute(words)
