"""Run a workbench in a process of its own, which contains hangs, faults and aborts."""

from __future__ import annotations

import os
import pickle
import threading
import time
from typing import Any, Optional

from gluon_core.processes import Ended, Process
from gluon_tune.task import Reference

__all__ = ["Ended", "Failed", "Isolated", "close_all"]


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
        self._process: Optional[Process] = None
        self.started = 0  # how many processes there have been

    def on(self, reference: Reference) -> Isolated:
        """Return the same, for calls about another task."""
        self._wanted = reference
        return self

    def call(self, method: str, *arguments: Any, limit: float = 600.0) -> Any:
        """Return the answer of a method.

        Args:
            limit: seconds that it may take.

        Raises:
            Failed: the method raised an error.
            Ended: the process ended, or had to be.
        """
        process = self._process or self._start()
        if self._opened != self._wanted:
            opening = (self._wanted, self._target, self._index)
            self._ask(process, "open", opening, max(limit, 120.0))
            self._opened = self._wanted
        return self._ask(process, method, arguments, limit)

    def _ask(self, process: Process, method: str, arguments: Any, limit: float) -> Any:
        try:
            process.send(pickle.dumps((method, arguments)), time.monotonic() + limit)
            kind, value = process.receive(time.monotonic() + limit)
        except Ended as ended:
            how = f"took more than {limit:g} s and was killed" if ended.hung else ended.how
            last = [] if ended.hung else process.output()[-400:].strip().splitlines()[-1:]
            self.close()
            raise Ended(": ".join([how, *last]), ended.hung) from None
        if kind == "error":
            raise Failed(*value)
        return value

    def _start(self) -> Process:
        # An abort of the compiler ends this process, so there is no need for another one around it.
        environment = {"GLUON_COMPILE_ISOLATION": "0", **os.environ}
        environment.pop("GLUON_TARGET", None)  # a stand-in for torch is no device
        self._process = Process("gluon_tune.workbench:serve", "the process", environment)
        self.started += 1
        with _lock:
            _LIVE.add(self)
        return self._process

    def close(self) -> None:
        """End the process with all that it started."""
        with _lock:
            _LIVE.discard(self)
        self._opened = None
        process, self._process = self._process, None
        if process is not None:
            process.end()
