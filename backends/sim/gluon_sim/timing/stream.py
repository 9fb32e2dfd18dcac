"""The events of the tasks of a block, in program order: issues, instructions, waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Union

__all__ = [
    "Arrive", "Block", "Commit", "Compute", "Event", "Expect", "Fork", "Init", "Join", "Mark", "Need", "Place", "Start", "Stream", "Sync",
    "WaitBarrier", "WaitGroups", "Where",
]  # fmt: skip

Place = tuple[int, int]  # a barrier: its buffer, and the byte in it


@dataclass(frozen=True)
class Where:
    """A line of the kernel, and the op that is shown for it."""

    name: str
    line: int
    file: str


class Compute:
    """Instructions that keep the pipes of the schedulers busy.

    Attributes:
        issue: cycles of a scheduler to issue them.
        pipes: pipe -> cycles of a scheduler's pipe; "shared": cycles of the unit's shared memory.
        chain: cycles that dependent instructions take at least.
    """

    __slots__ = ("chain", "issue", "pipes", "where")

    def __init__(self, where: Where):
        self.where = where
        self.issue = 0.0
        self.pipes: dict[str, float] = {}
        self.chain = 0.0

    def add(self, other: "Compute") -> None:
        self.issue += other.issue
        self.chain += other.chain
        for pipe, cycles in other.pipes.items():
            self.pipes[pipe] = self.pipes.get(pipe, 0.0) + cycles

    def busy(self) -> float:
        """Return the cycles that they take at least."""
        return max(self.issue, self.chain, *self.pipes.values()) if self.pipes else max(
            self.issue, self.chain
        )  # fmt: skip


@dataclass
class Start:
    """Asynchronous work: a product, a copy, a load whose value is used later, a store.

    Args:
        unit: "matrix", "copy" (an engine's), "load" and "store" (of threads).
        queue: whose groups it belongs to; "" where it is waited for by value.
        busy, latency: cycles, of the matrix unit; 0 for copies.
        issue: cycles of the issuing warps.
        bytes: moved from or to global memory.
        writes: it moves them to global memory.
        requests: instructions of warps, or boxes.
        signals: (barrier, "arrive" or "bytes", count) at its end.
        key: of the memory that it touches, equal for equal boxes; None without global memory.
        alone: the matrix unit does nothing else meanwhile.
    """

    where: Where
    unit: str
    queue: str = ""
    busy: float = 0.0
    latency: float = 0.0
    issue: float = 0.0
    bytes: int = 0
    writes: bool = False
    requests: int = 1
    signals: list[tuple[Place, str, int]] = field(default_factory=list)
    key: Any = None
    serial: bool = False
    alone: bool = False


@dataclass
class Need:
    """Wait for the value of a `Start`."""

    start: Start
    where: Where


@dataclass
class Commit:
    queue: str


@dataclass
class WaitGroups:
    where: Where
    queue: str
    pending: int
    reads: bool = False


@dataclass
class Init:
    place: Place
    count: int


@dataclass
class Arrive:
    where: Where
    place: Place
    count: int


@dataclass
class Expect:
    place: Place
    bytes: int


@dataclass
class WaitBarrier:
    where: Where
    place: Place
    parity: int


@dataclass
class Sync:
    """A barrier among the warps of a task, or of a cluster's blocks."""

    where: Where
    kind: str = "barrier"


@dataclass
class Mark:
    """The begin or the end of a `gl.scope`."""

    name: str
    begins: bool
    line: int
    file: str


@dataclass
class Fork:
    """The start of the partitions of `warp_specialize`."""

    children: list["Stream"] = field(default_factory=list)


@dataclass
class Join:
    """The end of the partitions."""

    fork: Fork


Event = Union[
    Compute,
    Start,
    Need,
    Commit,
    WaitGroups,
    Init,
    Arrive,
    Expect,
    WaitBarrier,
    Sync,
    Mark,
    Fork,
    Join,
]


@dataclass
class Stream:
    """The events of one task.

    Args:
        name: of the task.
        warps: how many execute it.
        first_warp: index of the first one in the block.
    """

    name: str
    warps: int
    first_warp: int
    events: list[Event] = field(default_factory=list)


@dataclass
class Block:
    """The streams of one program.

    Args:
        program: its id.
        main: the stream of the kernel itself, which forks the others.
        cut: True where the recording ended before the program did.
        code: instructions of its tasks, each counted once.
    """

    program: tuple[int, int, int]
    main: Optional[Stream] = None
    streams: list[Stream] = field(default_factory=list)
    cut: bool = False
    code: float = 0.0
