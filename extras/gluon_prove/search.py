"""All states that a program can come to, for all trip counts and schedules; the first that is wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Optional, Sequence

from gluon_prove.effects import Lowered
from gluon_prove.order import Depends
from gluon_prove.smt import Arithmetic
from gluon_prove.state import Decide, Facts, Impossible, Past, State, Step
from gluon_prove.values import CannotSay, TimeIsOver
from gluon_prove.walk import Walker
from gluon_prove.world import Found, Overtaken, Waited, Widened

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

    def next(self, state: State) -> None:
        walker = self.walker
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
        for flight in state.world.flights:
            if flight.reads:
                raise Found(
                    "leak.copy",
                    f"the kernel ends while the work of line {flight.line} may still read",
                    None,
                )
        known = 1  # the bit of the kernel's own task
        for access in state.world.seen:
            if access.kind == "write" and not access.known & known:
                walker.lowered.left[access.line] = None

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
            return whole.walk(False, None, ())
        try:
            outcome = whole.walk(True, None, apart)
            break
        except Depends as depends:
            facts = depends.facts
            if facts is None or facts in apart or not facts.narrow or len(apart) >= _MOST_APART:
                return whole.walk(False, None, ())
            apart.append(facts)
    for facts in apart:
        if outcome.mistake is not None or outcome.reason is not None:
            break
        try:
            other = whole.walk(True, facts, ())
        except Depends:
            other = whole.walk(False, facts, ())
        outcome = replace(
            other, states=outcome.states + other.states, steps=outcome.steps + other.steps,
            rules=outcome.rules | other.rules,
        )  # fmt: skip
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

    def walk(self, in_turn: bool, facts: Optional[Facts], apart: Sequence[Facts]) -> Outcome:
        """Return the outcome of a search.

        Args:
            in_turn: one schedule alone.
            given: the facts about the arguments.
            apart: the cases left to other searches.

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
                walker = Walker(
                    self.lowered, self.strict, least, waited, writers, self.arithmetic, in_turn, facts
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
            if one is not None:
                states, steps = len(one.came), one.steps
            if more:
                rules = frozenset(walker.rules) if one else frozenset()
                seconds = monotonic() - self.started
                return Outcome(states, steps, seconds, rules=rules, period=walker.period, **more)
