"""Capture the output of native code: MLIR and LLVM report on the process's descriptors and nowhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any, Optional

from gluon_core.processes import ForkLock

__all__ = ["captured", "refused"]

_one = ForkLock()  # two threads at once would put each other's file back


def refused(op: Any) -> Optional[str]:
    """Return MLIR's complaint about an op or a module, None where it is well-formed.

    The first question captures nothing, and the second follows only after a complaint: capturing costs
    more than the question.
    """
    with _one:
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            kept = os.dup(2)
        except OSError:
            kept = -1  # a process without that descriptor
        try:
            if kept >= 0:
                os.dup2(nothing, 2)
            correct = op.verify()
        finally:
            if kept >= 0:
                os.dup2(kept, 2)
                os.close(kept)
            os.close(nothing)
    if correct:
        return None
    with captured() as output:
        op.verify()
    return output.text()


class captured:
    """File descriptors 1 and 2, and Python's streams over them, into a file for a while."""

    def __enter__(self) -> captured:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in text()
        _one.__enter__()
        self._stack = contextlib.ExitStack()
        self._saved: list[tuple[int, int]] = []
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        for number in (1, 2):
            try:
                self._saved.append((number, os.dup(number)))
                os.dup2(self._file.fileno(), number)
            except OSError:
                continue  # a process without that descriptor
        text = os.fdopen(os.dup(self._file.fileno()), "w", buffering=1)
        self._stack.callback(text.close)
        self._stack.enter_context(contextlib.redirect_stdout(text))
        self._stack.enter_context(contextlib.redirect_stderr(text))
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.close()
        for number, copy in self._saved:
            os.dup2(copy, number)
            os.close(copy)
        _one.__exit__()

    def text(self) -> str:
        self._file.seek(0)
        text_read = self._file.read().decode(errors="replace")
        self._file.close()
        return text_read
