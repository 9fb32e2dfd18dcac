"""States that are equal but for where loops are: the form in which they are the same."""

from __future__ import annotations

from typing import Any, Optional

from gluon_prove.acts import Acts
from gluon_prove.code import Code, Enter, Leave, Loop
from gluon_prove.effects import Lowered
from gluon_prove.state import LEAST, Bound, State, Token
from gluon_prove.values import CannotSay, Number, reduced

__all__ = ["Equal"]


class Equal:
    """The part of a walker that knows when states are equal.

    Attributes:
        lowered, codes: the program's code.
        least: by root, the value from which on a counter may stand for many.
        own_rounds: the first rounds of a loop with a bound that changes that no later ones represent.
        periods: by root, in how many rounds of its loops slots and phases come back; 1 where it is missing.
        steps: by root, a multiple of all steps of its loops.
        takers: by root, the tasks that have loops of it.
        askers: by choice, the tasks that ask for it.
        acts: knows which tasks may still act on a buffer; None where that is not asked.
        meeting: by task and root, the instructions from which a task comes to its loops.
    """

    lowered: Lowered
    codes: list[Code]
    least: dict[int, int]
    own_rounds: int
    periods: dict[int, int]
    steps: dict[int, int]
    takers: list[frozenset[int]]
    askers: dict[int, set[int]]
    acts: Optional[Acts]
    meeting: dict[tuple[int, int], list[bool]]

    # ---- where loops are ----------------------------------------------------------------------

    def _active(self, task: int, index: int, root: int) -> Optional[Loop]:
        for loop in self.codes[task].active[index] if index < len(self.codes[task].active) else ():
            if loop.root == root:
                return loop
        return None

    def _counter(self, state: State, task: int, root: int) -> int:
        me = state.tasks[task]
        loop = self._active(task, me.position, root)
        if loop is None:
            raise CannotSay("a comparison with a counter whose loop is over")
        count = me.env[loop.counter]
        return count.value if isinstance(count, Number) else int(count)

    def _first(self, root: int) -> int:
        """From which value on the counters of a root may stand for many."""
        rounds = 2 if self.lowered.roots[root].fixed else self.own_rounds
        return max(self.least.get(root, 0), rounds * self.steps.get(root, 1))

    def _bound(self, state: State, task: int, root: int) -> Bound:
        if (task, root) in state.own:
            mine = state.own[task, root]
            if mine is None:
                mine = state.own[task, root] = self._new(root)
            return mine
        bounds = state.bounds[root]
        rounds = state.done.get((task, root), 0)
        while len(bounds) <= rounds:
            bounds.append(self._new(root))
        return bounds[rounds]

    def _new(self, root: int) -> Bound:
        """Return the facts about a bound whose loop no task has begun yet."""
        return Bound(self.lowered.floors.get(root, LEAST), None)

    def change(self, root: int) -> int:
        """Return the increment of the counters of a root over one period."""
        return self.periods.get(root, 1) * self.steps[root]

    # ---- equal states -------------------------------------------------------------------------------------

    def frozen(self, state: State) -> Any:
        """Return a key that equal states share; the state itself takes that form."""
        for root in range(len(state.bounds)):
            self._trim(state, root)
        for choice, queue in state.choices.items():
            ask = [
                state.asked.get((t, choice), 0)
                for t in self.askers[choice]
                if not self._ended(state, t)
            ]
            least = min(ask, default=len(queue))
            if least:
                del queue[:least]
                for t in self.askers[choice]:
                    if (t, choice) in state.asked:
                        state.asked[t, choice] = max(0, state.asked[t, choice] - least)
        world, serials = state.world.frozen(lambda buffer: self._asking(state, buffer))
        tasks = []
        for i, me in enumerate(state.tasks):
            live = self.codes[i].live[me.position] if me.alive else frozenset()
            env = {}
            for var in sorted(live):
                value = me.env.get(var)
                if isinstance(value, Token):
                    renumbered = serials.get((i, value.queue, value.serial))
                    value = None if renumbered is None else Token(value.queue, renumbered)
                env[var] = value
            numbers = {v: x for v, x in env.items() if isinstance(x, Number)}
            if numbers:
                env.update(reduced(numbers))
            me.env = env
            tasks.append((me.position, me.alive, me.ready, tuple(env.items())))
        return (
            world, tuple(tasks),
            tuple(tuple((b.low, b.high) for b in bounds) for bounds in state.bounds),
            tuple(sorted((k, v) for k, v in state.done.items() if v)),
            tuple((b.low, b.high) for b in state.fixed),
            frozenset(state.chosen.items()),
            tuple((k, tuple(v)) for k, v in sorted(state.choices.items()) if v),
            tuple(sorted((k, v) for k, v in state.asked.items() if v)),
            tuple(sorted((k, b and (b.low, b.high)) for k, b in state.own.items())),
            state.turn,
        )  # fmt: skip

    def _asking(self, state: State, buffer: int) -> int:
        """Return the tasks that may still act on a buffer, as bits."""
        if self.acts is not None:
            return self.acts.by(state, buffer)
        return sum(1 << i for i in range(len(state.tasks)) if not self._ended(state, i))

    def _ended(self, state: State, task: int) -> bool:
        """Return whether a task has ended, not only not begun."""
        return not state.tasks[task].alive and state.tasks[task].position >= len(
            self.codes[task].steps
        )

    def _trim(self, state: State, root: int) -> None:
        """Forget executions that are over for all, and move those that are far enough back."""
        self._part(state, root)
        for (task, of), mine in state.own.items():
            if of == root and mine is not None:
                loop = self._inside(state, task, root)
                if loop is not None:
                    self._back(state, root, [task], mine)
        takers = self._takers(state, root)
        if self._says_nothing(state, root):
            state.bounds[root].clear()
            for t in self.takers[root]:
                state.done.pop((t, root), None)
            return
        least = min((state.done.get((t, root), 0) for t in takers), default=len(state.bounds[root]))
        if least:
            del state.bounds[root][:least]
            for t in takers:
                state.done[t, root] = state.done.get((t, root), 0) - least
        for t in self.takers[root]:
            if t not in takers:
                state.done.pop((t, root), None)
        for rounds, known in enumerate(state.bounds[root]):
            there = [t for t in takers if state.done.get((t, root), 0) <= rounds]
            inside = [
                t
                for t in there
                if state.done.get((t, root), 0) == rounds
                and self._inside(state, t, root) is not None
            ]
            if inside and len(inside) == len(there):
                self._back(state, root, inside, known)

    def _says_nothing(self, state: State, root: int) -> bool:
        """Return whether the facts about a root's executions are those about a bound that does not change."""
        ours = state.fixed[root]
        if not self.lowered.roots[root].fixed or not state.bounds[root]:
            return False
        exact = ours.high is not None and ours.low == ours.high
        return exact or all(
            known.low <= ours.low and known.high in (None, ours.high)
            for known in state.bounds[root]
        )

    def _takers(self, state: State, root: int) -> list[int]:
        """Tasks whose executions of a root's loops are held against each other."""
        return [
            t
            for t in self.takers[root]
            if (t, root) not in state.own and self._meets(t, state.tasks[t].position, root)
        ]

    def _meets(self, task: int, index: int, root: int) -> bool:
        """Return whether a task is in a loop of a root, or can come to one."""
        meets = self.meeting.get((task, root))
        if meets is None:
            code = self.codes[task]
            begins = [isinstance(s, Enter) and s.loop.root == root for s in code.steps]
            inside = [any(loop.root == root for loop in loops) for loops in code.active]
            leaves = [isinstance(s, Leave) and s.loop.root == root for s in code.steps]
            places = [any(one) for one in zip(begins, inside, leaves)]
            meets = self.meeting[task, root] = code.leads_to(places)
        return meets[index]

    def _inside(self, state: State, task: int, root: int) -> Optional[Loop]:
        me = state.tasks[task]
        loop = self._active(task, me.position, root) if me.alive else None
        return loop if loop is not None and loop.counter in me.env else None

    def _at(self, state: State, task: int, root: int) -> tuple[int, int]:
        """Return the position of a task in a root's loops: executions that are over, and the counter in this one."""
        inside = self._inside(state, task, root) is not None
        counter = self._counter(state, task, root) if inside else LEAST
        return state.done.get((task, root), 0), counter

    def lead(self, state: State) -> list[int]:
        """Return by task how far it leads: for how many loops of others it is ahead, less those for which it is behind."""
        lead = [0] * len(state.tasks)
        for root in range(len(state.bounds)):
            takers = self._takers(state, root)
            if len(takers) < 2:
                continue
            reached = {task: self._at(state, task, root) for task in takers}
            for task in takers:
                for other in takers:
                    ahead, behind = reached[task] > reached[other], reached[task] < reached[other]
                    lead[task] += ahead - behind
        return lead

    def _part(self, state: State, root: int) -> None:
        """Let go of tasks that ran away from the others: their bounds may be any, from now on."""
        rounds = max(self.periods.get(root, 1), len(state.world.slots)) + 2
        while True:
            takers = self._takers(state, root)
            if len(takers) < 2:
                return
            first = self._first(root)
            ahead = sorted((*self._at(state, t, root), t) for t in takers)
            last, lead = ahead[0], ahead[-1]
            far = lead[0] - last[0] > rounds
            if not far and lead[1] > LEAST:
                behind = max(last[1], first) if last[0] == lead[0] else first
                far = lead[1] - behind > rounds * self.steps[root]
            if not far:
                return
            task = lead[2]
            known = None
            if self._inside(state, task, root) is not None:
                shared = self._bound(state, task, root)
                known = Bound(shared.low, shared.high)
            state.own[task, root] = known
            state.done.pop((task, root), None)

    def _back(self, state: State, root: int, inside: list[int], known: Bound) -> None:
        change, first = self.change(root), self._first(root)
        times = (min(self._counter(state, t, root) for t in inside) - first) // change
        if times <= 0:
            return
        for t in inside:
            env = state.tasks[t].env
            for var, value in env.items():
                if isinstance(value, Number):
                    by = dict(value.changes).get(root, 0)
                    if by:
                        env[var] = Number(value.value - times * by, value.changes)
        known.low = max(known.low - times * change, LEAST)
        if known.high is not None:
            known.high -= times * change
