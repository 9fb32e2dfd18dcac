"""The agents inside a program, and their vector clocks.

An agent is a partition, or one piece of asynchronous work from its issue to the wait for it. Its
clock counts up where others may learn of its actions: at an issue, an arrival, a fence. An agent's knowledge is the clock up to which it has seen each other agent; an access is ordered before it
if its clock is not later than that.

Knowledge has two planes. The first orders ordinarily. The second is the one that the asynchronous proxy may rely on: it follows the first only at a fence between the proxies.

The sanitizer sees the tasks of a running machine, its memory and its asynchronous work through the
protocols of this module and of `observed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Protocol, Sequence

import numpy as np

from gluon_sim.sanitizer.observed import Buffer, Machine, Memory, View
from gluon_sim.sanitizer.rows import Rows
from gluon_sim.tracing.ir import Op

__all__ = [
    "ALONE",
    "GENERIC",
    "Agent",
    "Agents",
    "Batch",
    "Clock",
    "Epoch",
    "Flight",
    "Queue",
    "Task",
]

# The slot of a program without other agents; agents come after it.
ALONE = 0
GENERIC = "generic"
# For an access: the op, its kind, its time, the epochs of the launch, the task, which threads.
EpochKey = tuple[int, str, int, Optional[int], str, bool]
_WIDTH = 8


class Clock:
    """Clocks seen, shape (2 planes, 1 or programs of the batch, agents)."""

    __slots__ = ("seen",)

    def __init__(self, seen: Optional[np.ndarray] = None):
        self.seen = np.zeros((2, 1, _WIDTH), np.int64) if seen is None else seen

    def copy(self) -> "Clock":
        return Clock(self.seen.copy())

    def widen(self, width: int) -> np.ndarray:
        have = self.seen.shape[2]
        if have < width:
            more = (1 << (width - 1).bit_length()) - have  # powers of two, so that widths match
            self.seen = np.pad(self.seen, ((0, 0), (0, 0), (0, more)))
        return self.seen

    def join(self, other: "Clock", rows: Optional[np.ndarray], total: int) -> None:
        """Join the clock of `other`; only in the batch rows `rows` (None for all of `total`)."""
        mine = self.widen(other.seen.shape[2])
        theirs = other.widen(mine.shape[2])
        if rows is None:
            self.seen = np.maximum(mine, theirs)
            return
        if mine.shape[1] == 1:
            mine = self.seen = np.repeat(mine, total, axis=1)
        new = theirs if theirs.shape[1] == 1 else theirs[:, rows]
        mine[:, rows] = np.maximum(mine[:, rows], new)

    def knows(self, slot: int, clock: int, rows: Optional[np.ndarray] = None) -> np.ndarray:
        """Per row: is everything up to `clock` of agent `slot` ordered before?"""
        seen = self.widen(slot + 1)[0, :, slot]
        return (seen if rows is None or len(seen) == 1 else seen[rows]) >= clock


class Agent:
    """One agent of all programs of a batch.

    Attributes:
        slot: its place in the clocks.
        clock: its own count.
        known: its vector clock.
        proxy: through which its accesses go.
        flight: the asynchronous work that it is, or None.
    """

    __slots__ = ("slot", "clock", "known", "proxy", "name", "flight", "epochs")

    def __init__(
        self,
        slot: int,
        clock: int,
        known: Clock,
        name: str,
        proxy: str = GENERIC,
        flight: Optional[Flight] = None,
    ):
        self.slot = slot
        self.clock = clock
        self.known = known
        self.name = name
        self.proxy = proxy
        self.flight = flight
        self.epochs: dict[EpochKey, int] = {}
        self._mark()

    def _mark(self) -> None:
        self.known.widen(self.slot + 1)[0, :, self.slot] = self.clock

    def tick(self) -> None:
        """Advance the clock past the value that others have learned so far."""
        self.clock += 1
        self.epochs = {}
        self._mark()

    def fence(self) -> None:
        """Everything known becomes visible to the asynchronous proxy."""
        seen = self.known.seen
        np.maximum(seen[1], seen[0], out=seen[1])
        self.tick()


class Agents:
    """The agents of one batch."""

    def __init__(self, rows: int):
        self.rows = rows
        self.clocks: list[int] = []  # the last clock given out, by slot

    def first(self, name: str) -> Agent:
        return self._make(self._slot(), Clock(), name)

    def _slot(self) -> int:
        self.clocks.append(0)
        return len(self.clocks) - 1

    def _make(self, slot: int, known: Clock, name: str, **more: Any) -> Agent:
        self.clocks[slot] += 1
        return Agent(slot, self.clocks[slot], known, name, **more)

    def fork(self, parent: Agent, name: str, slot: Optional[int] = None, **more: Any) -> Agent:
        """Return an agent that starts with the knowledge of `parent`; `slot` is one to use again."""
        child = self._make(
            self._slot() if slot is None else slot, parent.known.copy(), name, **more
        )
        parent.tick()
        return child


@dataclass(eq=False)
class Epoch:
    """An access by `agent` (None where a program has just one) at its `clock`, at `time`."""

    op: Op
    kind: str
    agent: Optional[Agent]
    clock: int
    task: str
    time: int = 0
    closed: Optional[Mapping[str, np.ndarray]] = None  # groups closed then, by queue


class Flight(Protocol):
    """A piece of asynchronous work; see `gluon_sim.memory.flight`.

    Attributes:
        leads: for each block, the one that does its part, where one does it for several.
        moved: whether it touched global memory.
        filled: whether it wrote shared memory.
    """

    leads: Optional[np.ndarray]
    moved: bool
    filled: bool

    @property
    def task(self) -> Task: ...

    @property
    def op(self) -> Op: ...

    @property
    def rows(self) -> Rows:
        """Return the programs that issued it."""
        ...

    @property
    def queue(self) -> str: ...

    @property
    def agent(self) -> Agent: ...

    @property
    def issuer(self) -> Agent: ...

    @property
    def issued(self) -> int:
        """Return the clock of the issuer then."""
        ...

    @property
    def closed(self) -> Mapping[str, np.ndarray]:
        """By queue of its task, the groups closed when it was issued."""
        ...

    @property
    def landed(self) -> bool:
        """True once it has happened."""
        ...

    @property
    def reads(self) -> bool:
        """True if it only reads the sources of work that writes later."""
        ...

    @property
    def remote(self) -> bool:
        """True if it reaches memory of other blocks."""
        ...

    @property
    def only_signals(self) -> bool:
        """True if it does nothing but signal a barrier."""
        ...

    @property
    def source(self) -> Optional[Flight]:
        """Return the part that reads the sources of work that writes."""
        ...

    @property
    def blocks(self) -> Optional[np.ndarray]:
        """Return the knowledge of the blocks of a cluster when it was issued."""
        ...

    @property
    def buffers(self) -> Sequence[Buffer]:
        """Those that it may use."""
        ...

    @property
    def barrier(self) -> Optional[View]: ...

    def known_by(self, agent: Agent) -> bool:
        """Return whether an agent knows that it is over."""
        ...

    def precedes(self, other: Flight) -> bool:
        """Return whether the issuer of the other one knew of this."""
        ...

    def remedy(self, task: Task, before: Optional[Epoch] = None) -> str:
        """Return the missing wait before the current access of `task`, or one in an epoch."""
        ...

    def uncounted(self) -> str:
        """Return the mistake where the phase that it belongs to was over before its bytes came."""
        ...


class Queue(Protocol):
    """Asynchronous work of one kind that one task issued."""

    @property
    def name(self) -> str: ...

    @property
    def closed(self) -> np.ndarray:
        """Groups closed so far, per program of the batch or one number for all."""
        ...

    @property
    def flights(self) -> Sequence[Flight]: ...


class Batch(Protocol):
    """Programs that run together."""

    @property
    def numbers(self) -> np.ndarray: ...

    @property
    def count(self) -> int: ...

    @property
    def rank(self) -> Optional[int]:
        """Return the rank that they run on, where there are several."""
        ...

    @property
    def queues(self) -> Sequence[Queue]: ...

    def program(self, row: int) -> tuple[int, int, int]:
        """Return the id (x, y, z) of a program."""
        ...


class Task(Protocol):
    """A thread of control over a batch.

    Attributes:
        since: when its threads last waited for each other.
        together: when its blocks may have done so.
        joined: when its threads did, for the order of programs: the time, and its agent's clock.
    """

    since: int
    together: int
    joined: tuple[int, int]

    @property
    def name(self) -> str: ...

    @property
    def op(self) -> Op:
        """Return the op that runs."""
        ...

    @property
    def calls(self) -> Sequence[Op]:
        """Return the calls that led to its function."""
        ...

    @property
    def agent(self) -> Optional[Agent]:
        """None as long as nobody else acts in the program."""
        ...

    @property
    def rows(self) -> Rows: ...

    @property
    def num_warps(self) -> int: ...

    @property
    def batch(self) -> Batch: ...

    @property
    def machine(self) -> Machine: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def queues(self) -> Mapping[str, Queue]: ...

    def home(self, op: Optional[Op] = None) -> Op:
        """Return an op, or where the kernel calls the library function that it is part of."""
        ...

    def program_id(self, position: int) -> tuple[int, int, int]:
        """Return the program id (x, y, z) behind a position of the leading axis."""
        ...
