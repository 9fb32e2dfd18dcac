"""What native code says on the process's output: MLIR and LLVM report there and nowhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any

from gluon_core._triton.locks import ForkLock

__all__ = ["captured"]

_one = ForkLock()  # two threads at once would put each other's file back


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
        said = self._file.read().decode(errors="replace")
        self._file.close()
        return said
