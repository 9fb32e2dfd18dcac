"""A program at one moment of an abstract run: its tasks, the facts about its loops, its world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from gluon_prove.values import Term
from gluon_prove.world import World

__all__ = [
    "LEAST",
    "Bound",
    "Decide",
    "Facts",
    "Impossible",
    "Past",
    "State",
    "Step",
    "Task",
    "Token",
]

LEAST = -(1 << 31)


class Token(NamedTuple):
    """Registers that a piece of a task's work fills."""

    queue: str
    serial: int


class Decide(Exception):
    """A step depends on an unknown value.

    Args:
        loc: where, once the walk has said it.
    """

    loc: Any = None


class Impossible(Exception):
    """No arguments lead here."""


class Past(Exception):
    """A root's first iterations end too early.

    Args:
        least: the value from which on its counter may stand for many.
    """

    def __init__(self, root: int, least: int):
        super().__init__(root, least)
        self.root = root
        self.least = least


@dataclass
class Task:
    """The position of a task: an instruction, the values of variables, and of the operands that the
    events of the op there depend on."""

    position: int = 0
    env: dict[int, Any] = field(default_factory=dict)
    ready: Optional[tuple[Any, ...]] = None
    alive: bool = False

    def copy(self) -> "Task":
        return Task(self.position, dict(self.env), self.ready, self.alive)


@dataclass
class Bound:
    """The facts about one loop's bound in one of its executions."""

    low: int
    high: Optional[int]


@dataclass
class State:
    """A program at one moment.

    Attributes:
        bounds: by root, of each execution of its loops that is not over for all, the oldest first.
        done: executions of a root's loops that a task left, counted from the oldest.
        fixed: by root, the facts about a bound that does not change.
        chosen: decisions about terms that do not change.
        choices: decisions that several tasks ask for in turn, and the progress of each.
        own: by task and root, the facts about the bound of a task that went so far ahead of the others
            that it is no longer held against them; None outside of its loop.
        turn: whose it is, where one schedule represents all: a task's, or behind them that of work.
    """

    world: World
    tasks: list[Task]
    bounds: list[list[Bound]]
    done: dict[tuple[int, int], int]
    fixed: list[Bound]
    chosen: dict[Term, int]
    choices: dict[int, list[int]]
    asked: dict[tuple[int, int], int]
    own: dict[tuple[int, int], Optional[Bound]]
    turn: int = 0

    def copy(self) -> "State":
        return State(
            self.world.copy(), [t.copy() for t in self.tasks],
            [[Bound(b.low, b.high) for b in bounds] for bounds in self.bounds], dict(self.done),
            [Bound(b.low, b.high) for b in self.fixed], dict(self.chosen),
            {k: list(v) for k, v in self.choices.items()}, dict(self.asked),
            {k: None if b is None else Bound(b.low, b.high) for k, b in self.own.items()},
            self.turn,
        )  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """The facts about the arguments.

    Args:
        fixed: by root, the interval of a bound that does not change.
        chosen: decisions about terms that do not change.
    """

    fixed: tuple[tuple[int, Optional[int]], ...]
    chosen: frozenset[tuple[Term, int]]

    @classmethod
    def of(cls, state: State) -> Facts:
        return cls(
            tuple((b.low, b.high) for b in state.fixed), frozenset(state.chosen.items())
        )  # fmt: skip

    @property
    def narrow(self) -> bool:
        """Return whether there is any fact."""
        return bool(self.chosen) or any(b != (LEAST, None) for b in self.fixed)

    def holds(self, state: State) -> bool:
        """Return whether only such arguments lead to a state."""
        return self.chosen <= state.chosen.items() and all(
            known.low >= low and (high is None or known.high is not None and known.high <= high)
            for known, (low, high) in zip(state.fixed, self.fixed)
        )


@dataclass(frozen=True)
class Step:
    """The transition from one state to the next."""

    task: str
    line: int
    action: str
    decisions: tuple[int, ...] = ()
