"""A workbench in a process of its own: what hangs, faults or aborts there ends there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from typing import Any, Optional

from gluon_tune.task import Reference

__all__ = ["Failed", "Isolated", "Lost", "close_all"]


class Failed(Exception):
    """A call raised an error.

    Args:
        name: of its class.
        text: its first line.
        ours: whether it is one of `gluon_core.errors`, that is, meant for users.
    """

    def __init__(self, name: str, text: str, ours: bool):
        super().__init__(name, text, ours)
        self.name, self.text, self.ours = name, text, ours

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class Lost(Exception):
    """The process is gone, or took too long and was killed.

    Args:
        how: in words.
        hung: whether it took too long.
    """

    def __init__(self, how: str, hung: bool = False):
        super().__init__(how, hung)
        self.how, self.hung = how, hung

    def __str__(self) -> str:
        return self.how


_LIVE: set[Isolated] = set()
_lock = threading.Lock()


def close_all() -> None:
    """End the processes of all threads."""
    with _lock:
        live = list(_LIVE)
    for one in live:
        one.close()


class Isolated:
    """Calls methods of a `Workbench` elsewhere; the process is started by the first call, and anew by the
    next one when it was lost.

    Args:
        target, index: the workbench's.
    """

    def __init__(self, target: Optional[str], index: Optional[int] = None):
        self._target, self._index = target, index
        self._wanted: Optional[Reference] = None
        self._opened: Optional[Reference] = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._link: Optional[Connection] = None
        self._log: Any = None
        self.started = 0  # how many processes there have been

    def on(self, reference: Reference) -> Isolated:
        """The same, for calls about another task."""
        self._wanted = reference
        return self

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()
        # An abort of the compiler ends this process, so there is no need for another one around it.
        environment = {"GLUON_COMPILE_ISOLATION": "0", **os.environ}
        environment.pop("GLUON_TARGET", None)  # a stand-in for torch is no device
        paths = [path for path in sys.path if path]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gluon_tune.workbench", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for whoever started it
            )
        self._link = Connection(ours.detach())
        self.started += 1
        with _lock:
            _LIVE.add(self)

    def call(self, method: str, *arguments: Any, limit: float = 600.0) -> Any:
        """The answer of a method.

        Args:
            limit: seconds that it may take.

        Raises:
            Failed: the method raised an error.
            Lost: the process ended, or had to be.
        """
        if self._process is None:
            self._start()
        if self._opened != self._wanted:
            told = (self._wanted, self._target, self._index)
            self._ask("open", told, max(limit, 120.0))
            self._opened = self._wanted
        return self._ask(method, arguments, limit)

    def _ask(self, method: str, arguments: Any, limit: float) -> Any:
        link = self._link
        assert link is not None
        try:
            link.send((method, arguments))
            if not link.poll(limit):
                self.close()
                raise Lost(f"took more than {limit:g} s and was killed", hung=True)
            kind, value = link.recv()
        except (EOFError, OSError):
            raise Lost(self._epitaph()) from None
        if kind == "error":
            raise Failed(*value)
        return value

    def _epitaph(self) -> str:
        process = self._process
        code: Optional[int] = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(5)
        tail = ""
        if self._log is not None:
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 400))
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            tail = f": {lines[-1]}" if lines else ""
        self.close()
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}{tail}"
        return f"ended with code {code}{tail}"

    def close(self) -> None:
        """End the process with all that it started."""
        with _lock:
            _LIVE.discard(self)
        self._opened = None
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        link, self._link = self._link, None
        if link is not None:
            link.close()
        log, self._log = self._log, None
        if log is not None:
            log.close()
