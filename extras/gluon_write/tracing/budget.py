"""Count the steps of a choice of layouts, which ends at the same place on every machine.

A choice has to take two seconds at most. A clock would make it depend on the machine and on what else runs there, so
steps are counted: operations that are traced, and layouts that are priced. A kernel always gets layouts; forms of it that
may be faster are left out when no steps are left. The choice of a form for loops of products has a
budget of its own: attention with a mask of keys took 1.3 to 1.5 of the time on an H200 where both shared one.
"""

from __future__ import annotations

import contextlib
import gc
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Iterator, Optional

__all__ = ["Budget", "budgeted", "exhausted", "refill", "spend", "without_collection"]

MOST = 50_000  # steps, of which a processor of 2022 takes 25,000 to 30,000 a second
TRACED = 3  # steps of an operation that is traced
READ = 1  # of one that is read for its relations
PRICED = 2  # of a layout that is priced


@dataclass
class Budget:
    """Hold the steps that are left. short: something was left out for want of them."""

    left: int
    short: bool = False


_CURRENT: ContextVar[Optional[Budget]] = ContextVar("budget", default=None)


@contextlib.contextmanager
def budgeted() -> Iterator[Budget]:
    """Begin to count steps, unless they are counted already."""
    current = _CURRENT.get()
    if current is not None:
        yield current
        return
    budget = Budget(MOST)
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def spend(steps: int) -> None:
    """Count steps."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.left -= steps


def refill() -> None:
    """Give the layouts of a form all steps."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.left = MOST


def exhausted() -> bool:
    """Return True if no steps are left, so that the caller leaves something out."""
    budget = _CURRENT.get()
    if budget is None or budget.left > 0:
        return False
    budget.short = True
    return True


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Leave cycles of objects to a later collection: traces live shortly, and a search of all objects for garbage takes a fifth of a choice."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
