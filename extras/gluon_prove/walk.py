"""One step of one task, for all trip counts at once; and the form in which equal states are equal.

`counting` handles numbers. Where every task in a loop is past its first iterations, its
counters, the bound and the values that count along move back by one period: the state looks the same from there
(`values.Number`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Any, Optional

from gluon_core.errors import GluonError
from gluon_prove.acts import Acts
from gluon_prove.code import (
    Branch,
    Code,
    Effect,
    Enter,
    Fork,
    Guess,
    Join,
    Jump,
    Leave,
    Loop,
    Move,
    Pure,
    Test,
    Used,
    View,
)
from gluon_prove.effects import Lowered
from gluon_prove.events import (
    Access,
    Barrier,
    Commit,
    Fence,
    ImpliedFence,
    Issue,
    Use,
    WaitGroups,
)
from gluon_prove.flights import Flight
from gluon_prove.loops import place_of
from gluon_prove.order import Depends, Phases
from gluon_prove.periods import periods_of
from gluon_prove.reasons import Found
from gluon_prove.smt import Arithmetic
from gluon_prove.state import LEAST, Bound, Decide, Facts, Past, State, Step, Task, Token
from gluon_prove.steps import Awaited, Fetched, Steps
from gluon_prove.symbols import truth
from gluon_prove.values import FREE, CannotSay, NeedsPrefix, Number, TimeIsOver
from gluon_prove.world import World
from gluon_sim.memory.shared import SharedView

__all__ = ["Focus", "Walker"]

_RUN = 20_000  # instructions of a task between two of its events


@dataclass(frozen=True)
class Focus:
    """The part of a program that a search watches.

    Args:
        watched, owners: as `World` has them.
        alone: the task that is walked alone, past all barriers; None to walk all.
        slots: the barriers whose phases are checked to be in order; None for all.
        acts: knows which tasks may still act on a buffer.
        far: as `World` has it.
        own_rounds: as `Equal` has it.
        own: the barriers that events happen at; None for all.
    """

    watched: Optional[frozenset[int]] = None
    owners: Optional[dict[int, set[int]]] = None
    alone: Optional[int] = None
    slots: Optional[frozenset[int]] = None
    acts: Optional[Acts] = None
    far: Optional[tuple[dict[int, int], dict[int, int]]] = None
    own_rounds: int = 0
    own: Optional[frozenset[int]] = None


_ALL = Focus()


class Walker(Steps):
    """Walks the tasks of one program.

    Args:
        lowered: their code.
        strict: whether reads, too, need a fence before a write through another proxy.
        least: by root, the value from which on a counter may stand for many; by `FREE`, that from which on remainders of counters may.
        waited: queues that are waited for by groups.
        writers: by barrier, who is known to arrive there; None where all schedules are to be tried.
        arithmetic: finds conditions that no arguments satisfy.
        in_turn: tasks take their steps in turn, and the search checks that this represents all schedules.
        facts: the facts about the arguments.
        focus: the buffers that are watched, and by whom.

    Attributes:
        touched: by task and place in its code, the buffers that an effect there accesses, ("starts", queue)
            and ("waits", queue) for its work, ("fills", buffer) for work that signals barriers, "barrier", "fence",
            ("at", buffer) and ("wait", buffer) of barriers, and "else"; empty where owners are known.
    """

    def __init__(
        self, lowered: Lowered, strict: bool, least: dict[int, int], waited: frozenset[str],
        writers: Optional[dict[int, frozenset[int]]], arithmetic: Optional[Arithmetic] = None,
        in_turn: bool = False, facts: Optional[Facts] = None,
        focus: Focus = _ALL,
    ):  # fmt: skip
        self.lowered = lowered
        self.strict = strict
        self.least = least
        self.waited = waited
        self.writers = writers
        self.arithmetic = arithmetic
        self.in_turn = in_turn
        self.argument_facts = facts
        self.focus, self.alone, self.own_rounds = focus, focus.alone, focus.own_rounds
        self.touched: dict[tuple[int, int], set[Any]] = {}
        self._noted_events: set[tuple[int, int, int]] = set()
        self.codes = lowered.tasks
        self.periods = periods_of(self.codes)
        self._parts: dict[Any, SharedView] = {}
        self.takers: list[frozenset[int]] = [
            frozenset(
                i
                for i, code in enumerate(self.codes)
                if self.alone in (None, i)
                and any(isinstance(s, Enter) and s.loop.root == root for s in code.steps)
            )
            for root in range(len(lowered.roots))
        ]
        self.steps: dict[int, int] = {}
        for code in self.codes:
            for s in code.steps:
                if isinstance(s, Enter) and s.loop.root is not None:
                    by = s.loop.step.value
                    if not isinstance(by, int) or by <= 0:
                        raise CannotSay("the step of this loop is not a positive constant", s.loc)
                    self.steps[s.loop.root] = lcm(self.steps.get(s.loop.root, 1), by)
        self.askers: dict[int, set[int]] = {}
        self.meeting: dict[tuple[int, int], list[bool]] = {}
        self.acts = focus.acts
        for i, code in enumerate(self.codes):
            for s in code.steps:
                if isinstance(s, Branch) and s.choice is not None and self.alone in (None, i):
                    self.askers.setdefault(s.choice, set()).add(i)
        self.skipped = [_skipped(code) for code in self.codes]
        self.rules: set[tuple[str, int, int, int, int]] = set()
        self._decisions: list[int] = []
        self._taken: list[int] = []
        self._products: dict[Any, bool] = {}
        self._idle: Optional[set[int]] = set() if in_turn and facts is not None else None
        self._busy: set[int] = set()

    # ---- starting, and going on ---------------------------------------------------------------------

    def first(self) -> State:
        roots = len(self.lowered.roots)
        world = World(
            self.lowered.places,
            len(self.codes),
            self.strict,
            self.waited,
            [],
            [],
            [],
            {},
            [()] * len(self.codes) if self.writers is not None else None,
            {} if self.writers is None else self.writers,
            Phases((), self.focus.slots) if self.in_turn else None,
            self._idle,
            self._busy,
            self.focus.watched,
            self.focus.owners,
            self.focus.far,
        )
        tasks = [Task() for _ in self.codes]
        tasks[0].alive = True
        known = (
            ((LEAST, None),) * roots if self.argument_facts is None else self.argument_facts.fixed
        )
        chosen = {} if self.argument_facts is None else dict(self.argument_facts.chosen)
        state = State(
            world, tasks, [[] for _ in range(roots)], {}, [Bound(*bound) for bound in known],
            chosen, {}, {}, {},
        )  # fmt: skip
        return state

    def begin(self, decisions: list[int]) -> State:
        """Run the kernel up to its first event that others may see."""
        state = self.first()
        self._decisions, self._taken = list(decisions), []
        self._run(state, 0)
        return state

    def go(self, state: State, task: int, decisions: list[int]) -> tuple[State, Step]:
        """Take the current step of a task, and advance to its next one."""
        state = state.copy()
        self._decisions, self._taken = list(decisions), []
        code, me = self.codes[task], state.tasks[task]
        step = code.steps[me.position]
        action = "the next round" if _begins_round(step) else "the partitions are over"
        action = step.op.name if isinstance(step, Effect) else action
        move = Step(code.name, step.loc.line, action)
        try:
            self._visible(state, task)
            self._run(state, task)
        except Decide as decide:
            decide.loc = decide.loc or step.loc
            raise
        except Depends as depends:
            depends.facts = Facts.of(state)
            raise
        return state, Step(move.task, move.line, move.action, tuple(self._taken))

    def land(self, state: State, flight: Flight) -> tuple[State, Step]:
        state = state.copy()
        try:
            state.world.complete(flight)
        except Depends as depends:
            depends.facts = Facts.of(state)
            raise
        whose = self.codes[flight.task].name
        return state, Step(f"work of {whose}", flight.line, f"{flight.queue} is over")

    def begun(self, state: State, task: Optional[int]) -> bool:
        """Return True if a task has begun, or ended."""
        return task is not None and (state.tasks[task].alive or self._ended(state, task))

    def enabled(self, state: State, task: int) -> bool:
        me = state.tasks[task]
        step = self.codes[task].steps[me.position]
        if self.alone is not None:
            return True
        if isinstance(step, Join):
            return not any(state.tasks[t].alive for t in step.tasks)
        if isinstance(step, Effect):
            events, _ = step.run(me.ready or ())
            for event in events:
                if isinstance(event, Barrier):
                    if event.action != "wait":
                        return True
                    slots = state.world.slots
                    if event.slot >= len(slots) or not slots[event.slot].wanted:
                        return True  # reported when it is done
                    return state.world.passes(event)
        return True

    def hurries(self, state: State, task: int) -> bool:
        """Return whether an enabled step of a task need not be tried after those of others."""
        me = state.tasks[task]
        step = self.codes[task].steps[me.position]
        if _begins_round(step):
            return self.writers is not None
        if not isinstance(step, Effect):
            return False
        events, _ = step.run(me.ready or ())
        world = state.world
        barriers = [e for e in events if isinstance(e, Barrier)]
        if not barriers or any(isinstance(e, WaitGroups) for e in events):
            return False
        if len({e.slot for e in barriers}) > 1 or not all(world.hurries(e, task) for e in barriers):
            return False
        if barriers[0].action == "wait":
            return True
        # it must not end the phase
        slot = world.slots[barriers[0].slot] if barriers[0].slot < len(world.slots) else None
        if slot is None:
            return False
        pending = slot.pending - sum(e.amount for e in barriers if e.action == "arrive")
        size = slot.bytes + sum(e.amount for e in barriers if e.action == "expect")
        return slot.wanted > 0 and pending >= 0 and (pending > 0 or size > 0)

    def waits(self, state: State, task: int) -> tuple[int, Optional[Barrier]]:
        """Return the line of a task, and the barrier that it waits for."""
        me = state.tasks[task]
        step = self.codes[task].steps[me.position]
        if isinstance(step, Effect):
            events, _ = step.run(me.ready or ())
            for event in events:
                if isinstance(event, Barrier):
                    return step.loc.line, event
        return step.loc.line, None

    # ---- running ------------------------------------------------------------------------------------

    def _visible(self, state: State, task: int) -> None:
        me = state.tasks[task]
        step = self.codes[task].steps[me.position]
        if isinstance(step, Effect):
            self._effect(state, task, step)
        elif isinstance(step, Join):
            state.world.join(step.tasks)
            me.position += 1
        else:
            self._one(state, task, step)

    def _run(self, state: State, task: int) -> None:
        code, me = self.codes[task], state.tasks[task]
        rounds: set[int] = set()
        for _ in range(_RUN):
            if self.alone not in (None, task) and self.begun(state, self.alone):
                return
            if me.position >= len(code.steps):
                me.alive = False
                me.env = {}
                return
            step = code.steps[me.position]
            try:
                kind = type(step)
                if (kind is Effect or kind is Join) and self._stops(state, task, step):
                    return
                if _begins_round(step):
                    if me.position in rounds:
                        return  # a round without an event; the next may be the same again
                    rounds.add(me.position)
                self._one(state, task, step)
            except TimeIsOver:
                raise
            except (CannotSay, Found, Decide) as reason:
                if reason.loc is None:
                    reason.loc = step.loc
                raise
            except NeedsPrefix as needs:
                if needs.root <= FREE:
                    raise Past(FREE, self.least.get(FREE, 0) + 1) from None
                raise Past(needs.root, self._counter(state, task, needs.root) + 1) from None
            except GluonError as error:
                raise Found(
                    getattr(error, "report", None) or "error", error.message, step.loc
                ) from None
        raise CannotSay("a loop without barriers in it runs long", code.steps[me.position].loc)

    def _stops(self, state: State, task: int, step: Any) -> bool:
        """Return whether others may see the next step, or block it."""
        me = state.tasks[task]
        if self.alone is not None:
            return False
        if isinstance(step, Join):
            return any(state.tasks[t].alive for t in step.tasks)
        if me.ready is None:
            me.ready = self._operands(state, task, step)
        events, _ = step.run(me.ready)
        seen = False
        for event in events:
            if isinstance(event, Barrier):
                seen = True
            elif isinstance(event, WaitGroups):
                if event.queue not in self.waited:
                    continue
                if any(f.signals for f in state.world.due(event, task)):
                    seen = True
        if not seen:
            return False
        alone = sum(t.alive for t in state.tasks) == 1
        if alone and not any(f.signals for f in state.world.flights):
            return not self.enabled(state, task)
        return True

    def _one(self, state: State, task: int, step: Any) -> None:
        me = state.tasks[task]
        env, kind = me.env, type(step)
        if kind is Effect:
            self._effect(state, task, step)
        elif kind is Pure:
            env[step.out] = self._pure(state, task, step)
            me.position += 1
        elif kind is Guess:
            env[step.out] = self._guess(state, task, step)
            me.position += 1
        elif kind is Move:
            values = [self._value(env, a) for a in step.args]
            env.update(zip(step.outs, values))
            me.position += 1
        elif kind is Jump:
            me.position = step.target
            live = self.codes[task].live[me.position]
            if len(env) > 2 * len(live) + 32:
                me.env = {v: x for v, x in env.items() if v in live}
        elif kind is Branch:
            if step.means is not None and step.means[0].root is not None:
                taken = self._below(state, task, step.means[0].root, step.means[1], 0)
            else:
                taken = self._truth(state, task, self._value(env, step.condition), step)
            for loop in () if taken else self.skipped[task].get(me.position, ()):
                self._over(state, task, loop)
            me.position = me.position + 1 if taken else step.target
        elif kind is Enter:
            self._enter(state, task, step)
            me.position += 1
        elif kind is Test:
            me.position = me.position + 1 if self._test(state, task, step.loop) else step.target
        elif kind is Leave:
            self._leave(state, task, step.loop)
            me.position += 1
        elif kind is View:
            env[step.out] = self._view(env, step)
            me.position += 1
        elif kind is Used:
            for var in step.args:
                self._landed(state, task, env.get(var), step.loc)
            me.position += 1
        elif kind is Fetched:
            self._fetched(state, task, step)
            me.position += 1
        elif kind is Awaited:
            self._awaited(state, task, step)
            me.position += 1
        elif kind is Fork:
            state.world.fork(step.tasks)
            me.position += 1
            for other, pairs in zip(step.tasks, step.passed):
                there = state.tasks[other]
                there.alive = True
                there.env = {var: self._value(env, spec) for var, spec in pairs}
                if self.alone in (None, other):
                    self._run(state, other)
        elif kind is Join:
            self._visible(state, task)
        else:
            raise AssertionError(step)

    def _view(self, env: dict[int, Any], step: View) -> SharedView:
        args = [self._value(env, a) for a in step.args]
        for arg in args[1:]:
            if not isinstance(arg, int):
                state_of = "counts up without end" if isinstance(arg, Number) else "is unknown"
                raise CannotSay(f"the part of the buffer {state_of}", step.loc)
        key = (id(step), *map(_identity, args))
        view = self._parts.get(key)
        if view is None:
            view = self._parts[key] = self.lowered.same(step.make(*args))
        return view

    # ---- ops that take effect -------------------------------------------------------------------------

    def _operands(self, state: State, task: int, step: Effect) -> tuple[Any, ...]:
        env = state.tasks[task].env
        operands = []
        for i in step.relevant:
            value = self._value(env, step.args[i])
            if i in step.choices or truth(value):
                value = self._truth(state, task, value, None)
            elif not isinstance(value, (int, SharedView)):
                raise CannotSay(
                    f"the effect of `{step.op.name}` depends on an unknown number", step.loc
                )
            operands.append(value)
        return tuple(operands)

    def _effect(self, state: State, task: int, step: Effect) -> None:
        me, world = state.tasks[task], state.world
        events, results = step.run(
            me.ready if me.ready is not None else self._operands(state, task, step)
        )
        name = self.codes[task].name
        if self.focus.owners is not None:
            self._touches(task, me.position, step, (events, results))
        if self.in_turn and self.alone is None:
            self._in_order(state, task, events)
        if step.buffer is not None:
            world.allocate(step.buffer)
        filled: Optional[Token] = None
        for event in events:
            if isinstance(event, Barrier):
                if self.alone is not None:
                    continue
                if event.action == "wait":
                    slots = world.slots
                    known = event.slot < len(slots) and slots[event.slot].wanted
                    if known and not world.passes(event):
                        raise AssertionError("a step that is not enabled")
                world.barrier(event, task, step.loc, task)
            elif isinstance(event, Use):
                self._landed(state, task, self._value(me.env, step.args[event.operand]), step.loc)
            else:
                if isinstance(event, Issue) and event.fills:
                    filled = Token(event.queue, world.serials.get((task, event.queue), 0))
                world.local(event, task, step.loc, name)
        for out, result in zip(step.outs, results):
            if out is None:
                continue
            if isinstance(result, SharedView):
                me.env[out] = self.lowered.same(result)
            elif result == "filled":
                me.env[out] = filled
            elif isinstance(result, int):
                me.env[out] = self._value(me.env, step.args[result])
            else:
                me.env[out] = None
        me.ready = None
        me.position += 1

    def _touches(self, task: int, place: int, step: Effect, ran: tuple[Any, ...]) -> None:
        """Note what an effect acts on."""
        events, results = ran
        places = self.lowered.places
        key = (task, place, id(events))
        if key in self._noted_events:
            return
        self._noted_events.add(key)
        touched = self.touched.setdefault((task, place), set())
        if step.buffer is not None or any(isinstance(r, SharedView) for r in results):
            touched.add("else")
        for event in events:
            if isinstance(event, Barrier):
                barrier = places.slots[event.slot][0]
                touched |= {"barrier", ("at", barrier)}
                touched |= {("wait", barrier)} if event.action == "wait" else set()
                continue
            accesses = event.accesses if isinstance(event, Issue) else (event,)
            touched.update(
                places.all[one.place].buffer for one in accesses if isinstance(one, Access)
            )
            if isinstance(event, (Commit, WaitGroups)):
                touched.add(("waits", event.queue))
            elif isinstance(event, Issue):
                touched.add(("starts", event.queue))
                touched |= {"barrier"} if event.signals else set()
                touched.update(("at", places.slots[signal.slot][0]) for signal in event.signals)
                fills = (
                    one.place for one in event.accesses if event.signals and one.kind == "write"
                )
                touched.update(("fills", places.all[place].buffer) for place in fills)
            elif isinstance(event, ImpliedFence):
                touched.update(places.all[place].buffer for place in event.places)
            elif isinstance(event, Fence):
                touched.add("fence")
            elif not isinstance(event, (Access, Use)):
                touched.add("else")

    @staticmethod
    def _in_order(state: State, task: int, events: tuple[Any, ...]) -> None:
        """Refuse the effects of an op at barriers that `order` does not cover."""
        alone = sum(t.alive for t in state.tasks) == 1
        arrives = {e.slot for e in events if isinstance(e, Barrier) and e.action == "arrive"}
        for event in events:
            if not isinstance(event, Barrier) or event.action in ("wait", "arrive", "bytes"):
                continue
            if event.action == "expect" and event.slot in arrives:
                continue  # the phase cannot end before this op
            signals = (s for f in state.world.flights for s in f.signals)
            if event.action == "expect" and state.world.phases is not None:
                state.world.phases.settled(event.slot, task)
            if not alone or any(s.slot == event.slot for s in signals):
                raise Depends

    def _landed(self, state: State, task: int, token: Any, loc: Any) -> None:
        if isinstance(token, Token):
            for f in state.world.flights:
                if (f.task, f.queue, f.serial) == (task, token.queue, token.serial):
                    raise Found(
                        "race.registers",
                        f"a read of registers that the copy at line {f.line} may not have filled yet",
                        loc,
                    )


def _begins_round(step: Any) -> bool:
    """Return True for the test of a loop that may have any number of rounds."""
    if isinstance(step, Branch):
        return step.rounds
    return isinstance(step, Test) and step.loop.root is not None


def _identity(value: Any) -> Any:
    return value if isinstance(value, int) else ("view", id(value))


def _skipped(code: Code) -> dict[int, list[Loop]]:
    """Return for each branch the loops with an unknown bound that it skips where they have no round."""
    skipped: dict[int, list[Loop]] = {}
    for index, step in enumerate(code.steps):
        if isinstance(step, Branch):
            around = ("if", place_of(step.condition), True)
            inside = (s.loop for s in code.steps[index : step.target] if isinstance(s, Enter))
            skipped[index] = [
                loop
                for loop in inside
                if loop.guarded
                and loop.root is not None
                and loop.context == (*step.context, around)
            ]
    return {index: loops for index, loops in skipped.items() if loops}
