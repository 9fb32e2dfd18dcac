"""All states that a program can come to, for all trip counts and schedules; the first that is wrong."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Optional, Sequence

from gluon_prove.code import Effect
from gluon_prove.effects import Lowered
from gluon_prove.order import Depends
from gluon_prove.reasons import Found, Overtaken, Shared, Waited, Widened
from gluon_prove.smt import Arithmetic
from gluon_prove.state import Decide, Facts, Impossible, Past, State, Step
from gluon_prove.values import CannotSay, TimeIsOver
from gluon_prove.walk import Focus, Walker

__all__ = ["Outcome", "search"]

MOST_DECISIONS = 24  # between two events of a task
_MOST_PREFIX = 64
IN_TURN = True  # the search follows one schedule where it represents all
_SMALLER = "a launch with smaller constants: fewer stages, fewer roles"
_MOST_APART = 4  # kinds of arguments with which all schedules are walked, and not one


@dataclass(frozen=True)
class Outcome:
    """The outcome of the search.

    Args:
        states, steps: how many there are, and how many lead from one to another.
        seconds: that it took.
        mistake: the mistake, if there is one.
        trace: the steps that lead to it.
        facts: the facts there about bounds and terms that do not change.
        reason: why nothing can be said, with the place; None where something can.
        rules: the arithmetic identities in use: (op, by, change, result, bits), as `Arithmetic.comes_back` says.
        period: in rounds.
    """

    states: int
    steps: int
    seconds: float
    mistake: Optional[Found] = None
    trace: tuple[Step, ...] = ()
    facts: Any = None
    reason: Optional[CannotSay] = None
    rules: frozenset[tuple[str, int, int, int, int]] = frozenset()
    period: int = 1

    def with_(self, other: Outcome) -> Outcome:
        """Return the outcome of this search and then another one."""
        return replace(
            other, states=self.states + other.states, steps=self.steps + other.steps,
            rules=self.rules | other.rules,
        )  # fmt: skip

    def unsure(self, arithmetic: Arithmetic) -> Optional[str]:
        """Return the rule of arithmetic that was used and that the solver does not confirm; None for
        none."""
        for rule in sorted(self.rules):
            if not arithmetic.comes_back(*rule):
                return f"the solver does not confirm that `{rule[0]}` by {rule[1]} comes back"
        return None


class _Search:
    def __init__(self, walker: Walker, most: int, deadline: float, apart: Sequence[Facts] = ()):
        self.walker = walker
        self.apart = apart
        self.most = most
        self.deadline = deadline
        self.known: dict[Any, int] = {}
        self.parts: dict[Any, int] = {}
        self.came: list[tuple[int, Optional[Step]]] = []
        self.steps = 0
        self.left: deque[tuple[int, State]] = deque()
        self.here = -1
        self.facts: Any = None

    def add(self, state: State, step: Optional[Step]) -> bool:
        """Note a state; whether it is new."""
        self.steps += 1
        if any(facts.holds(state) for facts in self.apart):
            return True
        key = self._key(self.walker.frozen(state))
        if key in self.known:
            return False
        number = self.known[key] = len(self.came)
        self.came.append((self.here, step))
        self.left.append((number, state))
        return True

    def _key(self, frozen: Any) -> tuple[int, ...]:
        """Return a key of numbers: most parts of a state are those of many others."""
        (slots, seen, flights, loose), tasks, *rest = frozen
        parts = self.parts
        return tuple(
            parts.setdefault(part, len(parts))
            for part in (
                slots,
                ("seen", seen),
                ("flights", flights),
                ("loose", loose),
                *tasks,
                *rest,
            )
        )

    def every(self, make: Any) -> bool:
        """Return all outcomes of a step that depends on unknowns, and whether all of them are new."""
        new = True
        todo: list[list[int]] = [[]]
        while todo:
            decisions = todo.pop()
            if monotonic() > self.deadline:
                raise TimeIsOver
            try:
                state, step = make(decisions)
            except Decide as one:
                if len(decisions) >= MOST_DECISIONS:
                    raise CannotSay(
                        f"too much depends on unknown values: more than {MOST_DECISIONS} "
                        "conditions in a row",
                        one.loc,
                        "a launch with fewer of them, by fewer stages or rounds of unrolled loops; "
                        "a loop that waits for memory written by others is not followed",
                    ) from None
                todo += [[*decisions, 0], [*decisions, 1]]
                continue
            except Impossible:
                continue
            new &= self.add(state, step)
        return new

    def run(self) -> None:
        walker = self.walker
        self.every(lambda decisions: (walker.begin(decisions), None))
        while self.left:
            if len(self.came) > self.most:
                raise CannotSay(f"there are more than {self.most} states", remedy=_SMALLER)
            self.here, state = self.left.popleft()
            self.facts = state
            self.next(state)

    def in_turn(self, state: State) -> bool:
        """Take the step of the next task that can; return False where none can.

        A task that is a round ahead of others waits for them, if they can go on: the facts about a loop's bound hold for tasks that are near each other.
        """
        walker, work = self.walker, len(state.tasks)
        around = [(state.turn + more) % (work + 1) for more in range(work + 1)]
        ahead = [task for task in around if task < work and walker.ahead(state, task)]
        for task in [*(task for task in around if task not in ahead), *ahead]:
            if task == work:
                landing = [f for f in state.world.flights if state.world.may_land(f)]
                if landing:
                    after, step = walker.land(state, landing[0])
                    left = any(after.world.may_land(f) for f in after.world.flights)
                    after.turn = work if left else 0
                    self.add(after, step)
                    return True
            elif state.tasks[task].alive and walker.enabled(state, task):

                def go(decisions: list[int], task: int = task) -> tuple[State, Step]:
                    after, step = walker.go(state, task, decisions)
                    after.turn = task + 1
                    return after, step

                self.every(go)
                return True
        return False

    def next_alone(self, state: State, alone: int) -> None:
        """Take a step of the task that is walked alone; before it begins, one of the kernel's own."""
        walker = self.walker
        task = alone if walker.begun(state, alone) else 0
        if state.tasks[task].alive:
            self.every(lambda decisions: walker.go(state, task, decisions))
        else:
            self.ends(state, 1 << task)

    def next(self, state: State) -> None:
        walker = self.walker
        if walker.alone is not None:
            self.next_alone(state, walker.alone)
            return
        if walker.in_turn:
            if not self.in_turn(state):
                self.over(state)
            return
        for task in range(len(state.tasks)):
            if (
                state.tasks[task].alive
                and walker.enabled(state, task)
                and walker.hurries(state, task)
            ):
                if self.every(lambda decisions, task=task: walker.go(state, task, decisions)):
                    return
        for flight in state.world.flights:
            if state.world.may_land(flight) and state.world.lands_early(flight):
                if self.add(*walker.land(state, flight)):
                    return
        moved = False
        for task in range(len(state.tasks)):
            if state.tasks[task].alive and walker.enabled(state, task):
                moved = True
                self.every(lambda decisions, task=task: walker.go(state, task, decisions))
        for flight in state.world.flights:
            if state.world.may_land(flight):
                moved = True
                self.add(*walker.land(state, flight))
        if not moved:
            self.over(state)

    def over(self, state: State) -> None:
        """Nobody can do anything more: is everything done?"""
        walker = self.walker
        left = [t for t, task in enumerate(state.tasks) if task.alive]
        if left:
            places = []
            for task in left:
                line, event = walker.waits(state, task)
                barrier = f" for parity {event.amount} of barrier {event.slot}" if event else ""
                places.append(f"{walker.codes[task].name} waits at line {line}{barrier}")
            code = walker.codes[left[0]]
            loc = code.steps[state.tasks[left[0]].position].loc
            raise Found("deadlock.tasks", "; ".join(places), loc)
        self.ends(state, 1)  # the bit of the kernel's own task

    def ends(self, state: State, known: int) -> None:
        """Look for work under way at the end; `known` is the bit of the task that waits for it."""
        for flight in state.world.flights:
            if flight.reads:
                raise Found(
                    "leak.copy",
                    f"the kernel ends while the work of line {flight.line} may still read",
                    None,
                )
        for access in state.world.seen:
            if access.kind == "write" and not access.known & known:
                self.walker.lowered.left[access.line] = None

    def trace(self) -> tuple[Step, ...]:
        steps = []
        node = self.here
        while node >= 0:
            before, step = self.came[node]
            if step is not None:
                steps.append(step)
            node = before
        return tuple(reversed(steps))


def search(
    lowered: Lowered,
    strict: bool,
    most: int,
    deadline: float,
    arithmetic: Optional[Arithmetic] = None,
) -> Outcome:
    """Walk everything: one schedule for all of them, and all where that does not do.

    Args:
        strict: whether reads, too, need a fence before a write through another proxy.
        most: states.
        deadline: when to give up, as `time.monotonic` tells.
        arithmetic: finds conditions that no arguments satisfy.
    """
    whole = _Whole(lowered, strict, most, monotonic(), deadline, arithmetic)
    apart: list[Facts] = []
    while True:
        if not IN_TURN:
            return whole.decide(False, None, ())
        try:
            outcome = whole.decide(True, None, apart)
            break
        except Depends as depends:
            facts = depends.facts
            if facts is None or facts in apart or not facts.narrow or len(apart) >= _MOST_APART:
                return whole.decide(False, None, ())
            apart.append(facts)
    for facts in apart:
        if outcome.mistake is not None or outcome.reason is not None:
            break
        try:
            other = whole.decide(True, facts, ())
        except Depends:
            other = whole.decide(False, facts, ())
        outcome = outcome.with_(other)
    return outcome


@dataclass
class _Whole:
    """The data that all searches of a program share."""

    lowered: Lowered
    strict: bool
    most: int
    started: float
    deadline: float
    arithmetic: Optional[Arithmetic]
    shared: set[int] = field(default_factory=set)
    touched: dict[tuple[int, int], set[int]] = field(default_factory=dict)

    def decide(self, in_turn: bool, facts: Optional[Facts], apart: Sequence[Facts]) -> Outcome:
        """Return the outcome of a search, and of one for each task with buffers of its own.

        A race at a buffer takes two accesses to it. Where one task alone accesses it, with its
        work that no barrier hears of, the others and the barriers have no part in their order: the
        task is walked by itself, and what it does there multiplies no states of the others.

        Args:
            in_turn: one schedule alone.
            facts: the facts about the arguments.
            apart: the cases left to other searches.

        Raises:
            Depends: one schedule does not stand for all.
        """
        owners: dict[int, set[int]] = {}
        outcome = self.walk(in_turn, facts, apart, owners)
        own: dict[int, set[int]] = {}
        for buffer, tasks in owners.items():
            if len(tasks) == 1 and buffer not in self.shared:
                own.setdefault(next(iter(tasks)), set()).add(buffer)
        if outcome.mistake is not None and own:
            return self.walk(in_turn, facts, apart)  # with all that the simulator looks at
        for task, buffers in own.items():
            if outcome.reason is not None:
                break
            other = self.walk(True, facts, apart, alone=(task, frozenset(buffers)))
            if other.mistake is not None or other.reason is not None:
                return self.walk(in_turn, facts, apart)
            outcome = outcome.with_(other)
        return outcome

    def _sliced(self, task: int, watched: frozenset[int]) -> Lowered:
        """Return the program with a task's code for some buffers alone."""
        kept = {-1, *watched}
        code = self.lowered.tasks[task]
        idle = [
            place
            for place, step in enumerate(code.steps)
            if isinstance(step, Effect) and not self.touched.get((task, place), set()) & kept
        ]
        lowered = copy.copy(self.lowered)
        lowered.tasks = [*self.lowered.tasks]
        lowered.tasks[task] = code.without(idle)
        return lowered

    def walk(
        self, in_turn: bool, facts: Optional[Facts], apart: Sequence[Facts],
        owners: Optional[dict[int, set[int]]] = None,
        alone: Optional[tuple[int, frozenset[int]]] = None,
    ) -> Outcome:  # fmt: skip
        """Return the outcome of a search.

        Args:
            in_turn, facts, apart: as in `decide`.
            owners: takes the tasks that access each buffer; those with one are not watched.
            alone: a task that is walked by itself, and the buffers that are watched.

        Raises:
            Depends: one schedule does not stand for all.
        """
        least: dict[int, int] = {}
        waited: frozenset[str] = frozenset()
        writers: Optional[dict[int, frozenset[int]]] = None if in_turn else {}
        states = steps = 0
        while True:
            one: Optional[_Search] = None
            more: dict[str, Any] = {}
            try:
                focus = Focus(None if owners is None else frozenset(self.shared), owners)
                focus = focus if alone is None else Focus(alone[1], None, alone[0])
                walker = Walker(
                    self.lowered if alone is None else self._sliced(*alone), self.strict, least,
                    waited, writers, self.arithmetic, in_turn, facts, focus,
                )  # fmt: skip
                one = _Search(walker, self.most, self.deadline, apart)
                one.run()
            except Past as past:
                if past.least > _MOST_PREFIX * max(walker.steps.get(past.root, 1), 1):
                    reason = CannotSay(
                        "a loop's first iterations differ from each other for too long"
                    )
                    more = {"reason": reason}
                else:
                    least[past.root] = max(past.least, least.get(past.root, 0) + 1)
            except Waited as queue:
                waited |= {queue.queue}
            except Shared as one_of:
                self.shared.add(one_of.buffer)
            except Widened:
                pass
            except Overtaken:
                writers = None
            except TimeIsOver:
                done = len(one.came) if one else 0
                over = f"the time is over after {done} states"
                more = {"reason": CannotSay(over, remedy=f"--within SECONDS, or {_SMALLER}")}
            except CannotSay as reason:
                more = {"reason": reason}
            except Found as mistake:
                more = {
                    "mistake": mistake,
                    "trace": one.trace() if one else (),
                    "facts": walker.facts(one.facts) if one and one.facts else ([], []),
                }
            else:
                more = {"reason": None}
            if owners is not None and one is not None:
                self.touched = walker.touched
            if one is not None:
                states, steps = len(one.came), one.steps
            if more:
                rules = frozenset(walker.rules) if one else frozenset()
                seconds = monotonic() - self.started
                return Outcome(states, steps, seconds, rules=rules, period=walker.period, **more)
