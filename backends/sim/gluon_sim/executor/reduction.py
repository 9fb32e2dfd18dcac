"""Which schedules differ: dynamic partial-order reduction with sleep sets.

Two schedules are the same where only steps change places that do not touch the same thing. After each
run, every two touches that could come the other way round ask for a run in which they do (Flanagan
and Godefroid, Dynamic partial-order reduction for model checking software, POPL 2005); sleep sets keep
runs out that would only repeat one (Godefroid, Partial-Order Methods for the Verification of
Concurrent Systems, LNCS 1032, 1996, chapter 5). Arrivals of one phase of a barrier may change places:
the phase completes with the last of them, whichever that is.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import numpy as np

from gluon_sim.memory.guided import Cells, Event, Guided, Redundant, Slot, Touch

__all__ = ["Tree", "Walk"]


class Node:
    """A point where somebody was picked to go on."""

    __slots__ = ("names", "chosen", "done", "wanted", "asleep", "touches")

    def __init__(self, names: list[str], asleep: dict[str, list[Touch]]):
        self.names = names  # who could go
        self.asleep = asleep  # whose next step an earlier run began with: its touches
        self.chosen = ""
        self.touches: list[Touch] = []  # of the chosen step
        self.done: dict[str, list[Touch]] = {}  # earlier choices here
        self.wanted: set[str] = set()

    @property
    def open(self) -> list[str]:
        """Return the processes to try here yet."""
        tried = {self.chosen, *self.done, *self.asleep}
        return [name for name in self.names if name in self.wanted and name not in tried]


class Tree:
    """The runs of one program, or of all together: the path of the latest one, and its open choices.

    Attributes:
        number: of the program, or None for all.
    """

    def __init__(self, number: Optional[int] = None):
        self.number = number
        self.path: list[Node] = []
        self._fresh = 0  # the first node of the path that was not looked at

    @property
    def left(self) -> int:
        """Runs that are known to be missing."""
        return sum(len(node.open) for node in self.path)

    def advance(self) -> bool:
        """Turn to the next run; false where there is none."""
        while self.path:
            node = self.path[-1]
            choices = node.open
            if choices:
                node.done[node.chosen] = node.touches
                node.chosen = choices[0]
                self._fresh = len(self.path) - 1
                return True
            self.path.pop()
        return False

    def learn(self, log: Sequence[object]) -> None:
        """Find from a run along the path the other orders."""
        history = _History(self.path, self._fresh)
        for entry in log:
            if isinstance(entry, Event):
                history.event(entry)
            else:
                history.edge(*entry)  # type: ignore[misc]
        self._fresh = len(self.path)


class Walk(Guided):
    """A run along the path of a tree, and beyond.

    Args:
        trees: of the programs by number; under None that of all together.
        focus: of the program that the path is for; others follow the usual schedule, and only the first run records them.
    """

    def __init__(self, trees: dict[Optional[int], Tree], focus: Optional[int], first: bool):
        super().__init__()
        self._trees = trees
        self._focus = focus
        self._first = first
        self._step = 0
        self._tree: Optional[Tree] = None
        self._begin = 0  # of the log
        self._offset = 0  # of the steps
        self.own: list[str] = []

    def resume(self, number: Optional[int]) -> None:
        super().resume(number)
        self.finish()
        self._tree = None
        if self._first:
            self._tree = self._trees.setdefault(number, Tree(number))
        elif number == self._focus:
            self._tree = self._trees[number]
        self._step, self._begin, self._offset = 0, len(self.log), len(self.chosen)
        if self._tree is not None:
            self.own = []

    def finish(self) -> None:
        """Record that a program ended, or all did."""
        tree = self._tree
        if tree is None:
            return
        tree.learn([_moved(entry, self._offset) for entry in self.log[self._begin :]])
        if self._first and not tree.left:
            del self._trees[tree.number]
        self._tree = None

    def decide(self, names: list[str]) -> str:
        tree = self._tree
        if tree is None:
            return names[0]
        step, path = self._step, tree.path
        if step == len(path):
            path.append(self._next(path, names))
        node = path[step]
        if not node.chosen:
            awake = [name for name in names if name not in node.asleep]
            if not awake:
                path.pop()
                raise Redundant
            node.chosen = awake[0]
        elif node.chosen not in names:
            raise RuntimeError(f"{node.chosen} cannot go on where it could before")
        self._step += 1
        self.own.append(node.chosen)
        return node.chosen

    @staticmethod
    def _next(path: list[Node], names: list[str]) -> Node:
        if not path:
            return Node(names, {})
        before = path[-1]
        known = {**before.asleep, **before.done}
        asleep = {
            name: touches
            for name, touches in known.items()
            if name != before.chosen and name in names and not _meet(touches, before.touches)
        }
        return Node(names, asleep)

    def stepped(self) -> None:
        if self._tree is not None:
            self._tree.path[self._step - 1].touches = self.touched
        super().stepped()


def _moved(entry: Any, by: int) -> Any:
    """Return an entry of a log whose steps count from a later one."""
    if isinstance(entry, Event):
        return Event(entry.task, entry.step - by, entry.touches, entry.last)
    return (*entry[:3], entry[3] - by)


def _meet(one: Sequence[Touch], other: Sequence[Touch]) -> bool:
    """May it matter which of two steps comes first?"""
    return any(
        _overlap(a, b)
        and not (isinstance(a, Slot) and isinstance(b, Slot) and _looks(a) and _looks(b))
        and not (isinstance(a, Cells) and isinstance(b, Cells) and a.kind == b.kind == "poll")
        for a in one
        for b in other
    )


def _looks(touch: Slot) -> bool:
    return touch.kind in ("pass", "blocked")


def _overlap(a: Touch, b: Touch) -> bool:
    if isinstance(a, Slot) or isinstance(b, Slot):
        return isinstance(a, Slot) and isinstance(b, Slot) and a.key == b.key
    if a.where != b.where or a.elements[-1] < b.elements[0] or b.elements[-1] < a.elements[0]:
        return False
    return bool(np.isin(a.elements, b.elements, assume_unique=True).any())


def _ordered(a: Touch, b: Touch, last: bool) -> bool:
    """Did it matter that `a` came before `b`? `last`: nobody could learn anything from it later."""
    if not _overlap(a, b):
        return False
    if isinstance(a, Slot) and isinstance(b, Slot):
        if "blocked" in (a.kind, b.kind) or (a.kind == b.kind == "pass"):
            return False
        same = a.phase == b.phase
        return not (same and all(t.kind in ("arrive", "bytes") for t in (a, b)))
    assert isinstance(a, Cells) and isinstance(b, Cells)
    if a.kind == b.kind == "poll":
        return False
    return not (last and a.kind and a.kind == b.kind)


def _reversible(a: Touch, b: Touch) -> bool:
    """Could `b` have come where `a` came? A wait passes only in some phases."""
    if isinstance(a, Slot) and isinstance(b, Slot) and b.kind == "pass":
        return a.phase & 1 != b.parity
    return True


class _History:
    """Which events of a run had to come before which, as sets of bits."""

    def __init__(self, path: list[Node], fresh: int):
        self._path = path
        self._fresh = fresh
        self._events: list[Event] = []
        self._before: list[int] = []  # of each event, itself included
        self._past: dict[str, int] = {}  # of the next action of a process
        self._parents: dict[str, tuple[str, int]] = {}  # who started it, in which step
        self._by_key: dict[object, list[int]] = {}

    def edge(self, kind: str, name: str, other: str, step: int) -> None:
        if kind == "start":
            self._past[name] = self._past.get(other, 0)
            self._parents[name] = other, step
        else:
            self._past[other] = self._past.get(other, 0) | self._past.get(name, 0)

    def event(self, event: Event) -> None:
        past = before = self._past.get(event.task, 0)
        races = []
        keys = {t.key if isinstance(t, Slot) else t.where for t in event.touches}
        earlier = sorted({i for key in keys for i in self._by_key.get(key, ())}, reverse=True)
        for i in earlier:
            if before >> i & 1:
                continue
            other = self._events[i]
            last = other.last and event.last
            pairs = [(a, b) for a in other.touches for b in event.touches if _ordered(a, b, last)]
            if not pairs:
                continue
            before |= self._before[i]
            if not past >> i & 1 and all(_reversible(a, b) for a, b in pairs):
                races.append(i)
        # The event that released a wait cannot change places with it; earlier ones may.
        waits = any(isinstance(t, Slot) and t.kind == "pass" for t in event.touches)
        for i in earlier if waits else ():
            if past >> i & 1 or i in races:
                continue
            other = self._events[i]
            last = other.last and event.last
            pairs = [(a, b) for a in other.touches for b in event.touches if _ordered(a, b, last)]
            if pairs and all(_reversible(a, b) for a, b in pairs):
                races.append(i)
        number = len(self._events)
        self._events.append(event)
        before |= 1 << number
        self._before.append(before)
        self._past[event.task] = before
        for key in keys:
            self._by_key.setdefault(key, []).append(number)
        if event.step >= self._fresh:
            for i in races:
                self._want(i, event.task, past)

    def _want(self, i: int, actor: str, past: int) -> None:
        """Plan a run in which the actions of `actor` after `past` come before the event `i`."""
        step = self._events[i].step
        node = self._path[step]
        while actor not in node.names and actor in self._parents and self._parents[actor][1] > step:
            actor = self._parents[actor][0]  # it had not begun: who begins it
        enabled = [actor] if actor in node.names else []
        if not enabled:
            later = (
                event for index, event in enumerate(self._events) if index > i and past >> index & 1
            )
            enabled = [e.task for e in later if e.step > step and e.task in node.names]
        if not {node.chosen, *node.done, *node.asleep, *node.wanted}.isdisjoint(enabled):
            return  # it is tried already
        node.wanted.update(enabled[:1] or node.names)
