"""Locks that a forked child finds free: the thread that held one is not in the child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["ForkLock"]


class ForkLock:
    """A re-entrant lock, for `with`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *details: Any) -> None:
        self._lock.release()


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew() -> None:
    for lock in _locks:
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
