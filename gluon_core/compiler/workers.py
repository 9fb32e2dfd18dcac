"""Warm processes that compile, lent to one compilation after another.

A warm process is a copy of this process as it was, so a `Pool` lends it only to jobs that would find the
same surroundings now: another environment, working directory, knob or backend forks another. It ends
on its own: when this process does, when it has been idle for a while (the memory it shares with us is
copied page by page as we write to ours), and when the interpreter exits.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

from gluon_core.errors import OptionError
from gluon_core.processes import Link, Process, usable_cores

__all__ = ["Pool", "limit", "timeout"]

_OTHERS = 2  # idle ones kept for other surroundings, as when kernels are compiled for two vendors


def timeout() -> float:
    """`GLUON_COMPILE_TIMEOUT`: seconds that one compilation may take; 600 unless set, 0 for no limit.

    Raises:
        OptionError: it is no number of seconds.
    """
    text = os.environ.get("GLUON_COMPILE_TIMEOUT", "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise OptionError(
            "not a time", argument="GLUON_COMPILE_TIMEOUT", expected="seconds, 0 for none", got=text
        )
    return seconds or float("inf")


def limit() -> int:
    """`GLUON_COMPILE_WORKERS`: how many processes compile at once; the cores of this one unless set.

    Raises:
        OptionError: it is no positive integer.
    """
    text = os.environ.get("GLUON_COMPILE_WORKERS", "")
    if not text:
        return usable_cores()
    if not text.isdecimal() or not int(text):
        raise OptionError(
            "not a number of processes",
            argument="GLUON_COMPILE_WORKERS",
            expected="an integer from 1 on",
            got=text,
        )
    return int(text)


_WARMING = 0.15  # seconds that the first job of a process takes beyond others
_NEWEST = 0.3  # weight of the newest measurement in a mean


class _Warm:
    """A process of the pool and the surroundings it was forked in."""

    def __init__(self, process: Process, surroundings: Any):
        self.process = process
        self.surroundings = surroundings
        self.since = 0.0  # when it was lent
        self.jobs = 0


class Pool:
    """Warm processes, at most `limit()` at work at once, or `most` where that is more. Another one is
    forked where the remaining work takes longer without it: to fork a process that uses a GPU takes
    long, and stops all of its threads meanwhile.

    Args:
        work: the work of each, with its `Link`.

    Attributes:
        left: jobs that somebody will still ask for, as far as that is known.
        asked: somebody said how many processes, and gets as many.
        forking, job: seconds that a fork and a job took of late.
    """

    def __init__(self, work: Callable[[Link], None]):
        self._work = work
        self.most = 0
        self.left = 0
        self.asked = False
        self.forking = 0.02
        self.job = 0.1
        self._waited = 0.0  # seconds, by all, since the last fork
        self._renew()
        _pools.append(self)

    def _renew(self) -> None:
        self._free = threading.Condition()
        self._idle: list[_Warm] = []
        self._lent: list[_Warm] = []

    def take(self, surroundings: Any) -> Process:
        """Return a process that was forked in these surroundings, and is nobody else's until given back.

        Raises:
            OSError: the system gives no process.
        """
        with self._free:
            while True:
                for warm in [warm for warm in self._idle if warm.process.over()]:
                    self._idle.remove(warm)
                    warm.process.end()
                most = max(limit(), self.most)
                fitting = [warm for warm in self._idle if warm.surroundings == surroundings]
                if len(self._lent) >= most or not (fitting or self._pays(surroundings)):
                    begun = time.monotonic()
                    self._free.wait(1.0)
                    self._waited += time.monotonic() - begun
                    continue
                if fitting:
                    warm = fitting[-1]
                    self._idle.remove(warm)
                else:
                    if len(self._idle) + len(self._lent) >= most + _OTHERS:
                        self._idle.pop(0).process.end()
                    begun = time.monotonic()
                    warm = _Warm(Process(self._work, "the compiler"), surroundings)
                    took = time.monotonic() - begun
                    self.forking = max(took, self.forking + _NEWEST * (took - self.forking))
                    self._waited = 0.0
                warm.since = time.monotonic()
                self._lent.append(warm)
                return warm.process

    def _pays(self, surroundings: Any) -> bool:
        """Return True if one more process saves more time than its fork takes, by the known remaining
        work, or else by recent waits."""
        count = sum(warm.surroundings == surroundings for warm in self._lent)
        cost = self.forking + _WARMING
        if self.left:
            pays = self.left * self.job > cost * count * (count + 1)
        else:
            pays = self._waited > cost * count
        return self.asked or not count or pays

    def give(self, process: Process, usable: bool) -> None:
        """Give a process back; one that is not usable is ended."""
        with self._free:
            mine = [warm for warm in self._lent if warm.process is process]
            for warm in mine:  # none where this process was forked meanwhile
                self._lent.remove(warm)
                if warm.jobs:
                    self.job += _NEWEST * (time.monotonic() - warm.since - self.job)
                warm.jobs += 1
                if usable:
                    self._idle.append(warm)
            if not usable:
                process.end()
            self._free.notify()

    def close(self) -> None:
        """End those that are idle; the pool can be used on."""
        with self._free:
            while self._idle:
                self._idle.pop().process.end()

    def pids(self) -> list[int]:
        """Return the processes there are."""
        with self._free:
            return [warm.process.pid for warm in (*self._idle, *self._lent)]


_pools: list[Pool] = []


def _after_fork() -> None:
    """In a child of this process: the workers are the parent's."""
    for pool in _pools:
        pool._renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
