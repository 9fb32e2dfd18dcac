"""Tasks that alternate, and their waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Generator, Optional, TypeVar

from gluon_sim.memory.shared import SharedBuffer
from gluon_sim.sanitizer.agents import Task
from gluon_sim.tracing.ir import Location
from gluon_sim.tracing.source import in_library

__all__ = ["Turn", "Turns", "Wait"]

T = TypeVar("T")


@dataclass
class Wait:
    """A task yields this to go on when `ready()`; the error for a wait that never ends calls `describe()`.

    A wait that `expires` also ends when nothing else can happen any more. `buffer` holds the
    barrier that is waited for. With `step` nothing is waited for, and the task may go on at once.
    """

    ready: Callable[[], bool]
    describe: Callable[[], str]
    loc: Optional[Location] = None
    expires: bool = False
    step: bool = False
    buffer: Optional[SharedBuffer] = None
    scene: Optional[Callable[[], dict[str, Any]]] = None


Turns = Generator[Wait, None, T]  # runs until it waits; has a result at its end


@dataclass(eq=False)
class Turn:
    name: str
    run: Turns[Any]
    task: Optional[Task] = None
    waits: Optional[Wait] = None

    def loc(self) -> Optional[Location]:
        """Return the place of its wait; in a library function, where the kernel calls that."""
        loc = self.waits.loc if self.waits is not None else None
        if self.task is None or loc is None or not in_library(loc.file):
            return loc
        return self.task.home().loc

    def where(self) -> str:
        """In words, for those who interrupt it."""
        if self.waits is not None:
            line = getattr(self.waits.loc, "line", 0)
            return f"{self.name} waits for {self.waits.describe()} (line {line})"
        line = getattr(getattr(self.task.op, "loc", None), "line", 0) if self.task else 0
        return f"{self.name} is at line {line}" if line else f"{self.name} has not begun"
