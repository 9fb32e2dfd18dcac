"""All states that a program can come to, for all trip counts and schedules; the first that is wrong."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from time import thread_time
from typing import Any, Optional, Sequence

from gluon_prove.effects import Lowered
from gluon_prove.order import Depends
from gluon_prove.parts import Part, parts_of, sliced
from gluon_prove.reasons import Found, Overtaken, Waited, Widened
from gluon_prove.rotate import Rotate
from gluon_prove.smt import Arithmetic
from gluon_prove.state import Decide, Facts, Impossible, Past, State, Step
from gluon_prove.values import CannotSay, TimeIsOver
from gluon_prove.walk import Focus, Walker

__all__ = ["Outcome", "search"]

MOST_DECISIONS = 24  # between two events of a task
_MOST_PREFIX = 64
IN_TURN = True  # the search follows one schedule where it represents all
_ENOUGH = 200  # states: buffers are watched together where barriers alone have fewer, and up to these and half as many again
_FEW = 60  # states of barriers, from which on parts are watched by themselves
_APART = 5  # times as many states as parts that are watched together have
_MORE = 4  # times these before a task is walked alone
_MOST_SINCE = 256  # steps between two states that are noted
_SMALLER = "a launch with smaller constants: fewer stages, fewer roles"
_OWN_ROUNDS = 2  # of a loop with a bound that changes, where a mistake was found without
_MOST_APART = 4  # kinds of arguments with which all schedules are walked, and not one


class TooMany(CannotSay):
    """There are more states than may be."""

    def __init__(self, most: int):
        super().__init__(f"there are more than {most} states", remedy=_SMALLER)


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
    """

    states: int
    steps: int
    seconds: float
    mistake: Optional[Found] = None
    trace: tuple[Step, ...] = ()
    facts: Any = None
    reason: Optional[CannotSay] = None
    rules: frozenset[tuple[str, int, int, int, int]] = frozenset()

    @property
    def ends(self) -> bool:
        """Return whether there is nothing more to search for."""
        return self.mistake is not None or self.reason is not None

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
    def __init__(
        self, walker: Walker, most: int, deadline: float, apart: Sequence[Facts] = (),
        rotate: Optional[Rotate] = None, exact: bool = True,
    ):  # fmt: skip
        self.walker = walker
        self.rotate = rotate
        self.exact = exact
        self.fences = walker.first().world.fences
        self.apart = apart
        self.most = most
        self.deadline = deadline
        self.known: dict[Any, list[tuple[int, ...]]] = {}
        self.parts: dict[Any, int] = {}
        self.came: list[tuple[int, tuple[Step, ...]]] = []
        self.since: list[Step] = []  # steps behind the last state that was noted
        self.steps = 0
        self.left: deque[tuple[int, State]] = deque()
        self.here = -1
        self.facts: Any = None

    def add(self, state: State, step: Optional[Step]) -> bool:
        """Note a state; whether it is new."""
        if any(facts.holds(state) for facts in self.apart):
            return True
        frozen = self.walker.frozen(state)
        key, knowledge = self._key(frozen if self.rotate is None else self.rotate(frozen))
        known = self.known.setdefault(key, [])
        if any(all(a & ~b == 0 for a, b in zip(less, knowledge)) for less in known):
            return False
        known[:] = [more for more in known if any(a & ~b for a, b in zip(knowledge, more))]
        known.append(knowledge)
        self.left.append((len(self.came), state))
        self.came.append((self.here, (*self.since, *([step] if step is not None else []))))
        return True

    def _key(self, frozen: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return a key of numbers, as most parts of a state are those of many others, and who knows of what.

        The lines of accesses and of work are for reports alone, and in no key.
        A state in which more is known than in another one of that key takes the same steps, and what is a
        mistake there is one in the other, too.
        """
        (slots, seen, flights, loose), tasks, *rest = frozen
        parts = self.parts
        events, bits = loose, [one.known for one in seen]
        accesses: list[Any] = [(*one[:4], one.late) for one in seen]
        if self.exact:  # an op's own fence comes only where there was none
            accesses = [(*one[:4], one.late, one.fenced) for one in seen]
        else:
            bits += [one.fenced for one in seen if self.fences(one)]
        if self.walker.in_turn:
            events = tuple([one[:3] for one in loose])
            bits += [one.known for one in loose]
        key = tuple(
            parts.setdefault(part, len(parts))
            for part in (
                slots,
                ("seen", tuple(accesses)),
                ("flights", tuple([one._replace(line=0) for one in flights])),
                ("loose", events),
                *tasks,
                *rest,
            )
        )
        return key, tuple(bits)

    def outcomes(self, make: Any) -> list[tuple[State, Any]]:
        """Return all outcomes of a step that depends on unknowns."""
        outcomes = []
        todo: list[list[int]] = [[]]
        while todo:
            decisions = todo.pop()
            if thread_time() > self.deadline:
                raise TimeIsOver
            try:
                outcomes.append(make(decisions))
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
            except Impossible:
                continue
        self.steps += len(outcomes)
        return outcomes

    def every(self, make: Any) -> bool:
        """Note all outcomes of a step; whether all of them are new."""
        new = [self.add(state, step) for state, step in self.outcomes(make)]
        return all(new)

    def run(self) -> None:
        walker = self.walker
        self.every(lambda decisions: (walker.begin(decisions), None))
        while self.left:
            if len(self.came) > self.most:
                raise TooMany(self.most)
            self.here, state = self.left.popleft()
            self.facts = state
            self.next(state)

    def in_turn(self, state: State) -> None:
        """Take steps in turn, up to the next state that others may come to as well.

        Such are those behind a choice, and behind a round of a loop: one in each cycle of states.
        """
        while True:
            outcomes = self.turn(state)
            if not outcomes:
                if outcomes is None:
                    self.over(state)
                break
            after, step = outcomes[0]
            if len(outcomes) > 1 or len(self.since) >= _MOST_SINCE or self.again(state, after):
                for after, step in outcomes:
                    self.add(after, step)
                break
            self.since.append(step)
            self.facts = state = after
        self.since = []

    @staticmethod
    def again(before: State, after: State) -> bool:
        """Return whether a task goes back, to the next round of a loop."""
        return any(
            after.tasks[i].position < task.position
            for i, task in enumerate(before.tasks)
            if task.alive
        )

    def turn(self, state: State) -> Optional[list[tuple[State, Step]]]:
        """Return the outcomes of a step of the next task that can take one; None where none can.

        A task that is ahead of others waits for them, if they can go on: there are fewer states of tasks that are near each other, and the
        facts about a loop's bound hold for those.
        """
        walker = self.walker
        for flight in state.world.flights:
            if state.world.may_land(flight):
                self.steps += 1
                return [walker.land(state, flight)]
        lead = walker.lead(state)
        for task in sorted(range(len(lead)), key=lead.__getitem__):
            if state.tasks[task].alive and walker.enabled(state, task):
                return self.outcomes(lambda decisions, task=task: walker.go(state, task, decisions))
        return None

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
            self.in_turn(state)
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
        steps = [*reversed(self.since)]
        node = self.here
        while node >= 0:
            node, more = self.came[node]
            steps += reversed(more)
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
        deadline: when to give up, as `time.thread_time` tells: a busy machine answers as an idle one.
        arithmetic: finds conditions that no arguments satisfy.
    """
    whole = _Whole(lowered, strict, most, thread_time(), deadline, arithmetic)
    if all(bound.fixed for bound in lowered.roots):
        whole.own_rounds = _OWN_ROUNDS
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
        if outcome.ends:
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
    least: dict[int, int] = field(default_factory=dict)
    own_rounds: int = 0
    touched: dict[tuple[int, int], set[Any]] = field(default_factory=dict)

    def decide(self, in_turn: bool, facts: Optional[Facts], apart: Sequence[Facts]) -> Outcome:
        """Return the outcome of a search for barriers alone, and of others for the accesses to buffers.

        A race at a buffer takes two accesses to it, so that buffers are watched apart: their accesses
        multiply no states of each other. Where one task alone accesses a buffer, with its work that no
        barrier hears of, the others and the barriers have no part in their order: the task is walked by
        itself.

        Args:
            in_turn: one schedule alone.
            facts: the facts about the arguments.
            apart: the cases left to other searches.

        Raises:
            Depends: one schedule does not stand for all.
        """
        owners: dict[int, set[int]] = {}
        outcome = self.walk(in_turn, facts, apart, Focus(frozenset(), owners, None, frozenset()))
        own: dict[int, set[int]] = {}
        for buffer, tasks in owners.items():
            if len(tasks) == 1:
                own.setdefault(next(iter(tasks)), set()).add(buffer)
        shared = [buffer for buffer in owners if len(owners[buffer]) > 1]
        parts = parts_of(self.lowered, shared, in_turn, self.touched)
        enough = _ENOUGH + outcome.states * 3 // 2
        if in_turn and not outcome.ends and outcome.states >= _FEW:
            outcome, parts = self.alone(facts, apart, outcome, parts, _APART * enough)
        todo = [parts] if outcome.states < _ENOUGH else [[part] for part in reversed(parts)]
        while todo and not outcome.ends:
            parts = todo.pop()
            if not parts:
                continue
            watched = frozenset().union(*(part.buffers for part in parts))
            slots = frozenset().union(*(part.slots for part in parts))
            most = enough if len(parts) > 1 else self.most
            other = self.walk(in_turn, facts, apart, Focus(watched, None, None, slots), most)
            if len(parts) > 1 and isinstance(other.reason, TooMany):
                half = len(parts) // 2
                todo += [parts[half:], parts[:half]]
                outcome = replace(outcome, steps=outcome.steps + other.steps)
                continue
            outcome = outcome.with_(other)
        if not outcome.ends:
            nothing = frozenset[int]()
            mine = [Part(frozenset(buffers), nothing, nothing) for buffers in own.values()]
            outcome, mine = (
                self.alone(facts, apart, outcome, mine, _APART * enough)
                if in_turn
                else (outcome, mine)
            )
            own = {task: b for task, b in own.items() if any(part.buffers == b for part in mine)}
        for task, buffers in own.items():
            if outcome.ends:
                break
            focus = Focus(frozenset(buffers), None, None, frozenset())
            other = self.walk(in_turn, facts, apart, focus, _MORE * enough)
            if isinstance(other.reason, TooMany):
                other = self.walk(True, facts, apart, Focus(frozenset(buffers), None, task))
                if other.ends:  # or is it in order only as the barriers have it?
                    other = self.walk(in_turn, facts, apart, focus)
            outcome = outcome.with_(other)
        return outcome

    def alone(
        self, facts: Optional[Facts], apart: Sequence[Facts], outcome: Outcome, parts: Sequence[Part],
        most: int,
    ) -> tuple[Outcome, list[Part]]:  # fmt: skip
        """Return the outcome after searches of parts by themselves, and the parts that these leave open."""
        left: list[Part] = []
        ranked = self.least, self.own_rounds
        for part in parts:
            self.least = dict(ranked[0])
            focus = Focus(part.buffers, None, None, part.slots, own=part.own)
            copies, doubts = self.lowered.left, self.lowered.doubts
            noted = dict(copies), dict(doubts)
            try:
                other = self._walk(True, facts, apart, focus, most, False)
                ends = other.ends or noted != (copies, doubts)
            except Depends:
                ends = True
            if not ends:
                outcome = outcome.with_(other)
                continue
            left.append(part)
            self.lowered.left, self.lowered.doubts = noted
        self.least, self.own_rounds = ranked
        return outcome, left

    def walk(
        self, in_turn: bool, facts: Optional[Facts], apart: Sequence[Facts], focus: Focus,
        most: Optional[int] = None,
    ) -> Outcome:  # fmt: skip
        """Return the outcome of a search.

        Loops with bounds that change have no first rounds of their own, unless nothing is proved so.

        Args:
            in_turn, facts, apart: as in `decide`.
            focus: what is watched.
            most: states, if fewer than those of the whole.

        Raises:
            Depends: one schedule does not stand for all.
        """
        near = in_turn and focus.alone is None and focus.owners is None
        while True:
            last = not near and self.own_rounds > 0
            try:
                outcome = self._walk(in_turn, facts, apart, focus, most, near)
                over = isinstance(outcome.reason, TooMany) or thread_time() > self.deadline
                if last or over or not outcome.ends:
                    return outcome
            except Depends:
                if last:
                    raise
            if near:
                near = False
            else:
                self.own_rounds = _OWN_ROUNDS

    def _sliced(self, focus: Focus) -> Lowered:
        """Return the program with the code for what is watched alone."""
        if focus.owners is not None or focus.watched is None:
            return self.lowered
        return sliced(self.lowered, self.touched, focus.watched, focus.alone, focus.own)

    def _walk(
        self, in_turn: bool, facts: Optional[Facts], apart: Sequence[Facts], focus: Focus,
        most: Optional[int], near: bool,
    ) -> Outcome:  # fmt: skip
        """Return the outcome of a search as `walk` does.

        Args:
            near: the barriers of a ring alone tell of accesses to its slots, and of its phases. Where that is
                enough for an order, there is one with all barriers, too.
        """
        waited: frozenset[str] = frozenset()
        writers: Optional[dict[int, frozenset[int]]] = None if in_turn else {}
        states = steps = 0
        lowered = self._sliced(focus)
        focus = replace(focus, own_rounds=self.own_rounds)
        rotate = Rotate(lowered) if focus.alone is None else None
        rotates = in_turn and facts is None
        if rotate is not None:
            far = rotate.rings.far() if near else None
            focus = replace(focus, acts=rotate.acts, far=far)
        while True:
            one: Optional[_Search] = None
            more: dict[str, Any] = {}
            least = self.least
            try:
                walker = Walker(
                    lowered, self.strict, least, waited, writers, self.arithmetic, in_turn, facts,
                    focus,
                )  # fmt: skip
                one = _Search(
                    walker, most or self.most, self.deadline, apart, rotate if rotates else None,
                    rotate is None or rotate.rings.implied,
                )  # fmt: skip
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
            if focus.owners is not None and one is not None:
                self.touched = walker.touched
            if one is not None:
                states, steps = len(one.came), one.steps
            if more:
                rules = frozenset(walker.rules) if one else frozenset()
                seconds = thread_time() - self.started
                return Outcome(states, steps, seconds, rules=rules, **more)
