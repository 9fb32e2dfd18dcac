"""Numbers of a task, for all trip counts at once: arithmetic, conditions, and bounds of loops.

A loop whose bound nobody knows has a counter and an interval that the bound is known to be in. Both
are numbers, so a guard such as `i + 2 < count` narrows the interval, and tasks with the same bound
agree.
"""

from __future__ import annotations

from typing import Any, Optional, Union

from gluon_sim.prove.code import Branch, Enter, Loop, Pure, Spec
from gluon_sim.prove.equal import Equal
from gluon_sim.prove.smt import Arithmetic
from gluon_sim.prove.state import LEAST, Bound, Decide, Impossible, Past, State
from gluon_sim.prove.symbols import linear
from gluon_sim.prove.values import FREE, CannotSay, Number, Term, apply, common, number, term

__all__ = ["Counting"]

_RULES = frozenset("sdiv udiv srem urem and shl lshr ashr".split())


class Counting(Equal):
    """The part of a walker that knows what numbers are, and decides where they leave that open.

    Attributes:
        arithmetic: tells what no arguments lead to.
        rules: of arithmetic that were relied on.
    """

    arithmetic: Optional[Arithmetic]
    rules: set[tuple[str, int, int, int, int]]
    _decisions: list[int]
    _made: list[int]

    @staticmethod
    def _value(env: dict[int, Any], spec: Spec) -> Any:
        return spec.value if spec.var is None else env.get(spec.var)

    def _many(self, state: State, task: int, root: int) -> bool:
        if root <= FREE:
            return True
        me = state.tasks[task]
        loop = self._active(task, me.at, root)
        if loop is None or loop.counter not in me.env:
            return True
        return self._counter(state, task, root) >= self._first(root)

    def _pure(self, state: State, task: int, step: Pure) -> Any:
        args = [self._value(state.tasks[task].env, a) for a in step.args]
        if all(isinstance(a, (int, Number)) for a in args):
            found = apply(step.name, args, step.bits, lambda root: self._many(state, task, root))
            if (
                isinstance(args[0], Number)
                and isinstance(args[1:] and args[1], int)
                and step.name in _RULES
            ):
                self._noted(state, task, step, args[0], args[1], found)
            return found
        if step.name == "select" and isinstance(args[0], (int, Term)):
            return args[1] if self._truth(state, task, args[0], None) else args[2]
        if step.name.startswith("icmp"):
            told = self._compared(state, task, step.name, args[0], args[1])
            if told is not None:
                return told
        if step.name in ("and", "or") and step.bits == 1 and any(isinstance(a, int) for a in args):
            known, other = (args[0], args[1]) if isinstance(args[0], int) else (args[1], args[0])
            if bool(known) == (step.name == "or"):
                return int(bool(known))
            return other
        return term("unknown", step.out) if step.known is None else step.known

    def _noted(self, state: State, task: int, step: Pure, x: Number, by: int, found: Any) -> None:
        """A rule of arithmetic was relied on: the solver is to confirm it."""
        left = dict(found.changes) if isinstance(found, Number) else {}
        if not any(self._many(state, task, root) for root, _ in x.changes):
            return
        for root, change in x.changes:
            self.rules.add((step.name, by, change, left.get(root, 0), step.bits))

    def _truth(self, state: State, task: int, value: Any, branch: Optional[Branch]) -> int:
        if isinstance(value, Number):
            raise CannotSay("a condition counts up without end")
        if isinstance(value, int):
            return int(bool(value & 1))
        if not isinstance(value, Term):
            return self._decide()
        if value.name.startswith("icmp"):
            found = self._compared(state, task, value.name, *value.args)
            if found is not None:
                return found
        if value.fixed:
            known = state.chosen.get(value)
            if known is None:
                known = state.chosen[value] = self._decide()
                self._possible(state)
            return known
        if branch is not None and branch.choice is not None:
            queue = state.choices.setdefault(branch.choice, [])
            at = state.asked.get((task, branch.choice), 0)
            if at >= len(queue):
                queue.append(self._decide())
            state.asked[task, branch.choice] = at + 1
            return queue[at]
        return self._decide()

    def _decide(self) -> int:
        if len(self._made) >= len(self._decisions):
            raise Decide
        self._made.append(self._decisions[len(self._made)])
        return self._made[-1]

    def _compared(self, state: State, task: int, name: str, a: Any, b: Any) -> Optional[int]:
        """A comparison with a loop's bound; None where it is none."""
        relation, unsigned = name[-2:], name[4] == "U"
        if unsigned:
            return None
        if isinstance(a, Term) and isinstance(b, (int, Number)):
            a, b = b, a
            relation = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(relation, relation)
        if not isinstance(a, (int, Number)) or not isinstance(b, Term):
            return None
        core, offset = linear(b)
        root = self._root(task, state.tasks[task].at, core)
        if root is None:
            return None

        def below(more: int) -> int:
            return self._below(state, task, root, a, more - offset)

        if relation == "LT":
            return below(0)
        if relation == "LE":
            return below(-1)
        if relation == "GT":
            return 1 - below(-1)
        if relation == "GE":
            return 1 - below(0)
        equal = int(not below(0) and below(-1))
        return equal if relation == "EQ" else 1 - equal

    def _root(self, task: int, at: int, core: Term) -> Optional[int]:
        for loop in self.codes[task].active[at]:
            if loop.core == core:
                return loop.root
        found = [r for r, known in enumerate(self.lowered.roots) if known == core]
        return found[0] if len(found) == 1 else None

    def _below(
        self, state: State, task: int, root: int, x: Union[int, Number], more: int
    ) -> int:  # fmt: skip
        """Is `x + more` below the bound of a root?"""
        value = (x.value if isinstance(x, Number) else x) + more
        changes = dict(x.changes) if isinstance(x, Number) else {}
        fixed = self.lowered.roots[root].fixed
        me = state.tasks[task]
        inside = self._active(task, me.at, root) is not None
        least = self._first(root)
        if not inside:
            if changes:
                raise CannotSay("a counter is compared with a bound outside of its loop")
            if fixed:
                found = self._narrow(state.fixed[root], value, root)
                self._possible(state)
                return found
        elif not changes and value >= least:
            raise Past(root, value + 1)
        elif changes and changes != {root: self.change(root)}:
            raise CannotSay("a counter is compared with the bound of another loop")
        known = self._bound(state, task, root)
        if fixed:
            ours = state.fixed[root]
            known.low = max(known.low, ours.low)
            if ours.high is not None:
                known.high = ours.high if known.high is None else min(known.high, ours.high)
        found = self._narrow(known, value, None)
        if fixed:
            ours = state.fixed[root]
            before = ours.low, ours.high
            ours.low = max(ours.low, min(known.low, least))
            if known.high is not None and known.high < least:
                ours.high = known.high
            if (ours.low, ours.high) != before:
                self._possible(state)
        return found

    def facts(
        self, state: State
    ) -> tuple[list[tuple[Term, int, Optional[int]]], list[tuple[Term, int]]]:
        """What is known of terms that do not change: intervals, and what holds or does not."""
        bounds = [
            (core, known.low, known.high)
            for core, known in zip(self.lowered.roots, state.fixed)
            if core.fixed and (known.low > LEAST or known.high is not None)
        ]
        return bounds, sorted(state.chosen.items(), key=str)

    def _possible(self, state: State) -> None:
        """Give up what no arguments lead to."""
        if self.arithmetic is not None and not self.arithmetic.feasible(*self.facts(state)):
            raise Impossible

    def _narrow(self, known: Bound, value: int, root: Optional[int]) -> int:
        if value < known.low:
            return 1
        if known.high is not None and value >= known.high:
            return 0
        if root is not None and value >= self._first(root):
            raise Past(root, value + 1)
        if self._decide():
            known.low = value + 1
            return 1
        known.high = value
        return 0

    def _enter(self, state: State, task: int, step: Enter) -> None:
        env, loop = state.tasks[task].env, step.loop
        low = self._value(env, step.low)
        if not isinstance(low, int):
            raise CannotSay("where this loop begins cannot be told", step.loc)
        if loop.root is None:
            env[loop.counter] = low
            return
        change = self.change(loop.root)
        env[loop.counter] = Number(low, ((loop.root, change),))
        by = loop.step.value
        for var, each in loop.linear.items():
            value = env.get(var)
            if isinstance(value, (int, Number)):
                changes = dict(value.changes) if isinstance(value, Number) else {}
                changes[loop.root] = each * change // by
                plain = value.value if isinstance(value, Number) else value
                env[var] = number(plain, changes)

    def _test(self, state: State, task: int, loop: Loop) -> int:
        env = state.tasks[task].env
        counter = env[loop.counter]
        if loop.root is None:
            bound = self._value(env, loop.bound)
            if not isinstance(bound, (int, Number)):
                raise CannotSay(
                    "how often this loop runs depends on what is not followed", loop.loc
                )
            return int(apply("icmpSLT", [counter, bound], 64, lambda r: self._many(state, task, r)))  # type: ignore[arg-type]
        return self._below(state, task, loop.root, counter, -loop.offset)

    def _leave(self, state: State, task: int, loop: Loop) -> None:
        if loop.root is None:
            return
        env = state.tasks[task].env
        env.update(common({v: x for v, x in env.items() if isinstance(x, Number)}, loop.root))
        if (task, loop.root) in state.own:
            state.own[task, loop.root] = None
        else:
            state.done[task, loop.root] = state.done.get((task, loop.root), 0) + 1
