"""A run that is steered step by step, and its record.

A step is what one process does until it could let another go first: a task's next op, or one piece
of asynchronous work that lands. Steps affect each other through barriers, atomics and claims
of programs: they are noted as touches. Ordinary accesses are not, for where nothing orders two of
them race detection reports it, whichever came first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Sequence, TypeVar, Union

import numpy as np

from gluon_sim.memory.schedule import Schedule
from gluon_sim.memory.shared import SharedBuffer
from gluon_sim.memory.turns import Turn
from gluon_sim.sanitizer.agents import Flight, Task

__all__ = [
    "Cells", "Event", "Guided", "Redundant", "Replay", "Slot", "TimelineEntry", "TooLong", "Touch", "segments_of",
]  # fmt: skip

F = TypeVar("F", bound=Flight)

MOST_STEPS = 200_000  # of one run


class Redundant(Exception):
    """An earlier run did the same in another order."""


class TooLong(Exception):
    """A run takes more steps than are looked at."""


@dataclass(frozen=True)
class Slot:
    """A touch of a barrier.

    Args:
        key: (buffer, slot).
        kind: "arrive" (with the bytes it expects), "bytes" that come, "pass" of a wait, "blocked" where
            a wait did not pass, or "other".
        phase: that the barrier was in before.
        parity: that a wait asked for.
    """

    key: tuple[str, int]
    kind: str
    phase: int
    parity: int = 0


@dataclass(frozen=True)
class Cells:
    """A touch of memory by an atomic, or of an equivalent of one.

    Args:
        where: the memory.
        elements: its elements or addresses, sorted.
        kind: "poll" for a read; else the name of the update, if it gives nothing back and updates of
            that name may change places; else "".
    """

    where: str
    elements: np.ndarray
    kind: str


Touch = Union[Slot, Cells]


@dataclass
class Event:
    """The actions of one process in one step.

    Attributes:
        last: whether its task did nothing afterwards that others could see.
    """

    task: str
    step: int
    touches: list[Touch] = field(default_factory=list)
    last: bool = False


@dataclass(frozen=True)
class TimelineEntry:
    """A line of the timeline."""

    step: int
    task: str
    line: int
    action: str


class Guided(Schedule):
    """A schedule that is asked before each step.

    Attributes:
        log: events, and their order: ("start", process, by whom, step) and ("over", process,
            known by whom, step).
        chosen: whose steps the run took, in order.
        story: for people.
    """

    between_ops = True
    sampled = True

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.chosen: list[str] = []
        self.story: list[TimelineEntry] = []
        self.program: Optional[int] = None  # that runs alone now
        self._names: dict[int, str] = {}
        self._held: list[object] = []  # so that ids stay theirs
        self._tops: set[str] = set()
        self._counts: dict[tuple[str, str], int] = {}
        self._actors: list[str] = []
        self._now: dict[str, Event] = {}  # events of this step
        self._latest: dict[str, Event] = {}  # of each task
        self._current: Optional[str] = None
        self._flipped: dict[tuple[str, int], tuple[int, str]] = {}

    # ---- names ------------------------------------------------------------------------------

    def _numbered(self, owner: str, name: str) -> int:
        count = self._counts[owner, name] = self._counts.get((owner, name), 0) + 1
        return count

    def name_task(self, task: Task, parent: Optional[Task] = None) -> None:
        """Record that a task starts, on its own or by another."""
        count = self._numbered("", task.name)
        self._names[id(task)] = task.name if count == 1 else f"{task.name} ({count})"
        self._held.append(task)
        if parent is None:
            self._tops.add(self.of(task))
        else:
            self.seen()
            self._edge("start", self.of(task), self._actors[-1])

    def name_flight(self, flight: Flight) -> None:
        owner = self._names[id(flight.task)]
        operation = f"{flight.op.called}{' (reading)' if flight.reads else ''}"
        self._names[id(flight)] = f"{operation} {self._numbered(owner, operation)} of {owner}"
        self._held.append(flight)
        self.seen()
        self._edge("start", self.of(flight), self._actors[-1])

    def name_buffer(self, task: Task, buffer: SharedBuffer) -> None:
        owner = self._names[id(task)]
        self._names[id(buffer)] = f"{owner}, buffer {self._numbered(owner, 'buffer')}"
        self._held.append(buffer)

    def of(self, thing: object) -> str:
        return self._names[id(thing)]

    # ---- events -----------------------------------------------------------------------

    def learned(self, task: Task, other: object) -> None:
        """Record that a task goes on after something ended."""
        if self._actors:
            self._edge("over", self.of(other), self.of(task))

    def _edge(self, kind: str, name: str, other: str) -> None:
        self.log.append((kind, name, other, len(self.chosen) - 1))

    def landing(self, flight: Flight, after: Sequence[Flight]) -> None:
        for earlier in after:
            self._edge("over", self.of(earlier), self.of(flight))
        self._actors.append(self.of(flight))
        self._tell(flight.op.loc.line, "lands")

    def landed(self) -> None:
        self._actors.pop()

    @property
    def _silent(self) -> bool:
        return not self._actors

    def _touch(self, touch: Touch) -> None:
        actor = self._actors[-1]
        self.seen()
        event = self._now.get(actor)
        if event is None:
            event = self._now[actor] = Event(actor, len(self.chosen) - 1)
            self.log.append(event)
        event.touches.append(touch)
        event.last = actor in self._tops
        self._latest[actor] = event

    def seen(self) -> None:
        """Record a task's ordinary access to memory that others may reach."""
        if self._actors:
            event = self._latest.get(self._actors[-1])
            if event is not None:
                event.last = False

    def barrier(
        self,
        task: Task,
        kind: str,
        buffer: SharedBuffer,
        barriers: Any,
        places: Any,
        parity: int = 0,
    ) -> None:
        """Record a touch of one program that is about to happen."""
        if self._silent:
            return
        row, slot = int(places[0][0]), int(places[1][0])
        key = self.of(buffer), slot
        phase = int(barriers.phase[row, slot])
        event = self._now.get(self._actors[-1])
        if kind == "arrive" and event is not None and event.touches:
            before = event.touches[-1]
            if isinstance(before, Slot) and before == Slot(key, "expect", phase):
                event.touches.pop()  # one op, which announces bytes and arrives
        self._touch(Slot(key, kind, phase, parity))
        self._name(task, kind, buffer.name, slot, phase, parity, key)

    def _name(
        self, task: Task, kind: str, name: str, slot: int, phase: int, parity: int,
        key: tuple[str, int],
    ) -> None:  # fmt: skip
        subject = f"the barrier at byte {slot * 8} of {name}"
        if kind == "pass":
            done = self._flipped.get(key)
            by = f", which {done[1]} completed" if done is not None else ""
            text = f"passes phase {parity} of {subject}{by}"
        elif kind == "blocked":
            text = f"waits for phase {parity} of {subject}"
        elif kind in ("arrive", "bytes", "expect"):
            does = {
                "arrive": "arrives at",
                "bytes": "brings bytes to",
                "expect": "expects bytes in",
            }
            text = f"{does[kind]} phase {phase} of {subject}"
        else:
            return
        self._tell(task.op.loc.line, text)

    def phase_flipped(self, buffer: SharedBuffer, barriers: Any, places: Any) -> None:
        """After an arrival, or bytes: did a phase complete?"""
        if self._silent:
            return
        row, slot = int(places[0][0]), int(places[1][0])
        key, phase = (self.of(buffer), slot), int(barriers.phase[row, slot])
        before = self._flipped.get(key, (0, ""))[0]
        if phase != before:
            self._flipped[key] = phase, self._actors[-1]

    def cells(self, task: Task, where: str, kind: str, elements: np.ndarray) -> None:
        if self._silent:
            return
        self._touch(Cells(where, np.unique(elements), kind))
        if where != "claims":
            does = "reads" if kind == "poll" else "updates"
            self._tell(task.op.loc.line, f"`{task.op.called}` {does} {where}")

    def claims(self) -> None:
        """Record that a program takes another over, or makes room for it."""
        if self._actors:
            self._touch(Cells("claims", np.zeros(1, np.int64), ""))

    def _tell(self, line: int, text: str) -> None:
        if self._actors:
            self.story.append(TimelineEntry(len(self.chosen), self._actors[-1], line, text))

    # ---- steps ------------------------------------------------------------------------------

    def gives_way(self, several: bool) -> bool:
        return True  # before every op

    def resume(self, number: Optional[int]) -> None:
        """Record that a program starts that runs alone; or all."""
        self.program = number
        self._current = None

    def pick(
        self, tasks: Sequence[Turn], ready: Sequence[Turn], flights: Sequence[F]
    ) -> Union[Turn, F]:
        """Return the task that takes the next step."""
        turns = {self.of(t.task): t for t in ready}
        things: dict[str, Union[Turn, F]] = dict(turns)
        names = list(turns)
        now = turns[self._current].waits if self._current in turns else None
        if self._current in turns and now is not None and now.step:
            first = names.index(self._current)
        else:
            all_tasks = [self.of(t.task) for t in tasks]
            following = all_tasks.index(self._current) + 1 if self._current in all_tasks else 0
            turn = {name: i for i, name in enumerate(all_tasks[following:] + all_tasks[:following])}
            names.sort(key=turn.__getitem__)
            first = 0
        names = names[first:] + names[:first]
        wanted = [t.waits.buffer for t in tasks if t.waits is not None and t.waits.buffer]
        later = sorted(
            flights,
            key=lambda f: f.barrier is None or all(f.barrier.buffer is not b for b in wanted),
        )
        things.update((self.of(f), f) for f in later)
        names += [self.of(f) for f in later]
        name = self.decide(names)
        if len(self.chosen) >= MOST_STEPS:
            raise TooLong
        self.chosen.append(name)
        self._now = {}
        self._actors = [name]
        thing = things[name]
        if any(thing is t for t in ready):
            self._current = name
        return thing

    def stepped(self) -> None:
        """End the step."""
        self._actors = []

    def decide(self, names: list[str]) -> str:
        """Pick among the enabled, the usual one first."""
        return names[0]

    @property
    def touched(self) -> list[Touch]:
        """Return the touches of the last step."""
        return [touch for event in self._now.values() for touch in event.touches]


class Replay(Guided):
    """Takes given steps, as far as they can be taken, then usual ones.

    Args:
        segments: (process, steps) in order.
        number: of the program that they belong to, if programs run alone.
    """

    def __init__(self, segments: Sequence[tuple[str, int]], number: Optional[int] = None):
        super().__init__()
        self._segments = list(segments)
        self._at = 0
        self._taken = 0  # steps of the segment
        self._number = number
        self.own: list[str] = []  # steps of that program
        self.missed = 0  # segments that could not be taken

    def decide(self, names: list[str]) -> str:
        if self._number is not None and self.program != self._number:
            return names[0]
        name = names[0]
        while self._at < len(self._segments):
            actor, count = self._segments[self._at]
            if self._taken < count and actor in names:
                self._taken += 1
                name = actor
                break
            self.missed += self._taken < count
            self._at, self._taken = self._at + 1, 0
        self.own.append(name)
        return name


def segments_of(steps: Sequence[str]) -> list[tuple[str, int]]:
    """Join consecutive steps of one process."""
    segments: list[tuple[str, int]] = []
    for name in steps:
        if segments and segments[-1][0] == name:
            segments[-1] = name, segments[-1][1] + 1
        else:
            segments.append((name, 1))
    return segments
