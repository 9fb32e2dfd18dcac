"""The machine, its memory and its buffers, as the sanitizer sees them while a kernel runs."""

from __future__ import annotations

from typing import Any, Optional, Protocol

import numpy as np

from gluon_core.plugin.reference import Remedies
from gluon_sim.settings import Settings
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import MemDescType

__all__ = ["Allocation", "Buffer", "Guide", "Machine", "Memory", "View"]


class Buffer(Protocol):
    """The bytes of one allocation of shared or tensor memory, one row per program of the batch."""

    @property
    def name(self) -> str: ...

    @property
    def data(self) -> np.ndarray: ...

    @property
    def size(self) -> int:
        """Bytes of a row."""
        ...

    @property
    def pitch(self) -> int:
        """Bytes of a lane, in tensor memory; else 0."""
        ...

    @property
    def alloc(self) -> Optional[Op]: ...

    @property
    def earlier(self) -> Optional[Buffer]:
        """Return the buffer of the same op, a round of a loop before."""
        ...


class View(Protocol):
    """A buffer, or a part of one, under a shape and an element type."""

    @property
    def buffer(self) -> Buffer: ...

    @property
    def type(self) -> MemDescType: ...

    @property
    def dtype(self) -> np.dtype: ...

    @property
    def base(self) -> np.ndarray:
        """Byte offset per program, or one for all."""
        ...

    @property
    def table(self) -> np.ndarray:
        """Byte offset of each element, relative to `base`."""
        ...

    def elements(self) -> np.ndarray:
        """Return the element indices of the table, flat."""
        ...

    def span(self) -> Optional[slice]:
        """Return the bytes of all elements, if they have no gaps and are the same in each program."""
        ...


class Allocation(Protocol):
    """The storage of an argument."""

    lasting: bool

    @property
    def name(self) -> str: ...

    @property
    def data(self) -> np.ndarray: ...

    @property
    def base(self) -> int: ...

    @property
    def owner(self) -> Optional[int]:
        """Return the rank whose memory it is, where other ranks reach it, too."""
        ...


class Guide(Protocol):
    """A schedule that is asked before each step, and informed of actions that others may see."""

    def seen(self) -> None:
        """Record a task's ordinary access to memory."""
        ...

    def cells(self, task: Any, where: str, kind: str, elements: np.ndarray) -> None:
        """Record an atomic's access to memory."""
        ...


class Memory(Protocol):
    """Global memory.

    Attributes:
        version: counts changes.
    """

    version: int

    @property
    def settings(self) -> Settings: ...

    @property
    def warned(self) -> set[tuple[Any, ...]]:
        """Warnings of this launch."""
        ...

    @property
    def guided(self) -> Optional[Guide]: ...


class Compiled(Protocol):
    """A program compiled to steps."""

    @property
    def program(self) -> Program: ...


class Models(Protocol):
    """The reference models of a target."""

    @property
    def remedies(self) -> Remedies: ...


class Flights(Protocol):
    """All work in flight of a launch."""

    def land_all(self) -> None:
        """Let everything happen that does not come after work that is happening now."""
        ...


class Machine(Protocol):
    """One launch."""

    @property
    def program(self) -> Compiled: ...

    @property
    def models(self) -> Models: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def flights(self) -> Flights: ...

    @property
    def target(self) -> Any: ...

    @property
    def num_ctas(self) -> int: ...

    @property
    def in_step(self) -> int:
        """Return how many threads act as one."""
        ...
