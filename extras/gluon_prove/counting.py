"""Numbers of a task, for all trip counts at once: arithmetic, conditions, and bounds of loops.

A loop with an unknown bound has a counter and an interval that contains the bound. Both are numbers,
so a guard such as `i + 2 < count` narrows the interval, and tasks with the same bound agree.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional, Union

from gluon_prove.code import Branch, Enter, Flat, Guess, Loop, Pure, Spec
from gluon_prove.equal import Equal
from gluon_prove.smt import Arithmetic
from gluon_prove.state import LEAST, Bound, Decide, Impossible, Past, State
from gluon_prove.symbols import linear
from gluon_prove.values import (
    FREE,
    CannotSay,
    Number,
    Term,
    apply,
    common,
    number,
    reduced,
    term,
)

__all__ = ["Counting"]

_RULES = frozenset("sdiv udiv srem urem and shl lshr ashr".split())


class Counting(Equal):
    """The part of a walker that compares numbers, and decides where they leave the result open.

    Attributes:
        arithmetic: finds conditions that no arguments satisfy.
        rules: of arithmetic that were relied on.
    """

    arithmetic: Optional[Arithmetic]
    rules: set[tuple[str, int, int, int, int]]
    _decisions: list[int]
    _taken: list[int]
    _products: dict[Any, bool]

    @staticmethod
    def _value(env: dict[int, Any], spec: Spec) -> Any:
        return spec.value if spec.var is None else env.get(spec.var)

    def _many(self, state: State, task: int, root: int) -> bool:
        if root <= FREE:
            return True
        me = state.tasks[task]
        loop = self._active(task, me.position, root)
        if loop is None or loop.counter not in me.env:
            return True
        return self._counter(state, task, root) >= self._first(root)

    def _pure(self, state: State, task: int, step: Pure) -> Any:
        args = [self._value(state.tasks[task].env, a) for a in step.args]
        if all(isinstance(a, (int, Number)) for a in args):
            result = apply(step.name, args, step.bits, lambda root: self._many(state, task, root))
            if (
                isinstance(args[0], Number)
                and isinstance(args[1:] and args[1], int)
                and step.name in _RULES
            ):
                self._noted(state, task, step, args[0], args[1], result)
            return result
        if step.name == "select" and isinstance(args[0], (int, Term)):
            return args[1] if self._truth(state, task, args[0], None) else args[2]
        if step.name.startswith("icmp"):
            decided = self._counted(state, task, step)
            if decided is None:
                decided = self._compared(state, task, step.name, args[0], args[1])
            if decided is not None:
                return decided
        if step.name in ("and", "or") and step.bits == 1 and any(isinstance(a, int) for a in args):
            known, other = (args[0], args[1]) if isinstance(args[0], int) else (args[1], args[0])
            if bool(known) == (step.name == "or"):
                return int(bool(known))
            return other
        return term("unknown", step.out) if step.known is None else step.known

    def _guess(self, state: State, task: int, step: Guess) -> int:
        """Choose the remainder of a term."""
        for left in range(step.modulus - 1):
            is_it = term("icmpEQ", term("srem", step.known, step.modulus), left)
            if self._truth(state, task, is_it, None):
                return left
        return step.modulus - 1

    def _noted(self, state: State, task: int, step: Pure, x: Number, by: int, result: Any) -> None:
        """Record a rule of arithmetic that was used, for the solver to confirm."""
        left = dict(result.changes) if isinstance(result, Number) else {}
        if not any(self._many(state, task, root) for root, _ in x.changes):
            return
        for root, change in x.changes:
            self.rules.add((step.name, by, change, left.get(root, 0), step.bits))

    def _truth(self, state: State, task: int, value: Any, branch: Optional[Branch]) -> int:
        if branch is not None and branch.free:
            return self._decide()
        if isinstance(value, Number):
            raise CannotSay("the loop of a condition never ends")
        if isinstance(value, int):
            return int(bool(value & 1))
        if not isinstance(value, Term):
            return self._decide()
        if value.name.startswith("icmp"):
            truth = self._compared(state, task, value.name, *value.args)
            if truth is not None:
                return truth
        if value.fixed:
            known = state.chosen.get(value)
            if known is None:
                known = state.chosen[value] = self._decide()
                self._possible(state)
            return known
        if branch is not None and branch.choice is not None:
            queue = state.choices.setdefault(branch.choice, [])
            answered = state.asked.get((task, branch.choice), 0)
            if answered >= len(queue):
                queue.append(self._decide())
            state.asked[task, branch.choice] = answered + 1
            return queue[answered]
        return self._decide()

    def _decide(self) -> int:
        if len(self._taken) >= len(self._decisions):
            raise Decide
        self._taken.append(self._decisions[len(self._taken)])
        return self._taken[-1]

    def _compared(self, state: State, task: int, name: str, a: Any, b: Any) -> Optional[int]:
        """Return a comparison with a loop's bound, or with the product of two; None where it is none."""
        if isinstance(a, Term) and isinstance(b, (int, Number)):
            a, b, name = b, a, _flipped(name)
        if not isinstance(a, (int, Number)) or not isinstance(b, Term):
            return None
        core, offset = linear(b)
        root = self._root(task, state.tasks[task].position, core)
        if root is not None:
            known = root
            return _comparison(name, lambda more: self._below(state, task, known, a, more - offset))
        if not isinstance(a, int):
            return None
        flat = next((f for f in self.lowered.flats if self._is_product(core, f)), None)
        if flat is None:
            return None
        before = partial(self._before, state, task, flat, flat.lows)
        return _comparison(name, lambda more: before(a + more - offset))

    # ---- counts of the rounds of two loops ------------------------------------------------------

    def _counted(self, state: State, task: int, step: Pure) -> Optional[int]:
        """Such a count compared with how many rounds there are in all; None where it is none."""
        if step.known is None:
            return None
        a, b = step.known.args
        name = step.name
        if isinstance(a, Term) and isinstance(b, Term) and linear(b)[0].name == "flat":
            a, b, name = b, a, _flipped(name)
        if not isinstance(a, Term) or not isinstance(b, Term):
            return None
        (count, more_), (core, offset) = linear(a), linear(b)
        if count.name != "flat" or linear(b)[0].name == "flat":
            return None
        flat = self.lowered.flats[count.args[0]]
        me = state.tasks[task]
        active = self.codes[task].active[me.position]
        if not (flat.outer in active and flat.inner in active) or not self._is_product(core, flat):
            return None
        counters = me.env[flat.outer.counter], me.env[flat.inner.counter]
        return _comparison(
            name, lambda more: self._before(state, task, flat, counters, more_ + more - offset)
        )

    def _is_product(self, core: Term, flat: Flat) -> bool:
        """Return whether a term is the total number of rounds."""
        key = (core, flat.outer.counter, flat.inner.counter)
        product = self._products.get(key)
        if product is None:
            times = [
                Term("trips", (low, Term("add", (loop.core, loop.offset)), loop.step.value))
                for loop, low in zip((flat.outer, flat.inner), flat.lows)
            ]
            product = self.arithmetic is not None and core.fixed and core.name == "mul"
            if product and self.arithmetic is not None:
                equal = self.arithmetic.equal
                # A factor below 0 acts as 0: the question is whether a count from 0 on is below.
                least = [Term("maxsi", (factor, 0)) for factor in core.args]
                product = any(
                    all(equal(a, b) for a, b in zip(least, order)) for order in (times, times[::-1])
                )
            self._products[key] = product
        return product

    def _before(
        self, state: State, task: int, flat: Flat, counters: tuple[Any, Any], more: int
    ) -> int:
        """Return whether a round comes at all that is so many after the one where both counters are.

        With t and j rounds done of S, and T times S in all, t S + j + more < T S where t + k < T, for
        the k with k S <= j + more < (k + 1) S.
        """
        if more < 0:
            if counters is flat.lows:
                raise CannotSay("less than no round is compared with how many there are")
            return 1  # it was
        (outer, inner), (t, j) = (flat.outer, flat.inner), counters
        by = inner.step.value
        assert outer.root is not None and inner.root is not None
        whole = 0
        if not self._below(state, task, inner.root, j, more * by - inner.offset):
            done = ((j.value if isinstance(j, Number) else j) - flat.lows[1]) // by
            if isinstance(j, Number) and self._many(state, task, inner.root):
                if more > done + 1:
                    raise Past(inner.root, j.value + 1)
                whole = 1  # j + more <= 2 j + 1 < 2 S
            else:
                for whole in range(1, done + more + 2):
                    reach = flat.lows[1] + (done + more) // (whole + 1) * by
                    if self._below(state, task, inner.root, reach, -inner.offset):
                        break
                else:
                    return 0  # S is 0
        return self._below(state, task, outer.root, t, whole * outer.step.value - outer.offset)

    def _root(self, task: int, index: int, core: Term) -> Optional[int]:
        for loop in self.codes[task].active[index]:
            if loop.core == core:
                return loop.root
        matching = [r for r, known in enumerate(self.lowered.roots) if known == core]
        return matching[0] if len(matching) == 1 else None

    def _below(
        self, state: State, task: int, root: int, x: Union[int, Number], more: int
    ) -> int:  # fmt: skip
        """Is `x + more` below the bound of a root?"""
        value = (x.value if isinstance(x, Number) else x) + more
        changes = dict(x.changes) if isinstance(x, Number) else {}
        fixed = self.lowered.roots[root].fixed
        me = state.tasks[task]
        inside = self._active(task, me.position, root) is not None
        least = self._first(root)
        if not inside:
            if changes:
                raise CannotSay("a counter is compared with a bound outside of its loop")
            if fixed:
                narrowed = self._narrow(state.fixed[root], value, root)
                self._possible(state)
                return narrowed
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
        narrowed = self._narrow(known, value, None)
        if fixed:
            ours = state.fixed[root]
            before = ours.low, ours.high
            ours.low = max(ours.low, min(known.low, least))
            if known.high is not None and known.high < least:
                ours.high = known.high
            if (ours.low, ours.high) != before:
                self._possible(state)
        return narrowed

    def facts(
        self, state: State
    ) -> tuple[list[tuple[Term, int, Optional[int]]], list[tuple[Term, int]]]:
        """Return the facts about terms that do not change: intervals, and the truth of conditions."""
        bounds = [
            (core, known.low, known.high)
            for core, known in zip(self.lowered.roots, state.fixed)
            if core.fixed and (known.low > LEAST or known.high is not None)
        ]
        return bounds, sorted(state.chosen.items(), key=lambda choice: choice[0].text)

    def _possible(self, state: State) -> None:
        """Abandon states that no arguments lead to."""
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
            raise CannotSay("the start of this loop is unknown", step.loc)
        if loop.root is None:
            env[loop.counter] = low
            return
        change = self.change(loop.root)
        if loop.linear:
            live = self.codes[task].live[state.tasks[task].position]
            env.update(reduced({v: env[v] for v in live if isinstance(env.get(v), Number)}))
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
                    "the trip count of this loop depends on a value that is not followed", loop.loc
                )
            return int(apply("icmpSLT", [counter, bound], 64, lambda r: self._many(state, task, r)))  # type: ignore[arg-type]
        return self._below(state, task, loop.root, counter, -loop.offset)

    def _leave(self, state: State, task: int, loop: Loop) -> None:
        if loop.root is None:
            return
        env = state.tasks[task].env
        numbers = {v: x for v, x in env.items() if isinstance(x, Number)}
        env.update(self._exact(env, loop, numbers) or common(numbers, loop.root))
        self._over(state, task, loop)

    def _over(self, state: State, task: int, loop: Loop) -> None:
        """Count an execution of a loop that a task left, or skips where it would have no round."""
        root = loop.root
        assert root is not None
        if (task, root) in state.own:
            state.own[task, root] = None
        else:
            state.done[task, root] = state.done.get((task, root), 0) + 1

    def _exact(self, env: dict[int, Any], loop: Loop, numbers: dict[int, Number]) -> dict[int, Any]:
        """Return the counters of a loop that is over after so few rounds that its state represents no other, where one of them is kept so small; else nothing."""
        assert loop.root is not None
        counter, least = env[loop.counter], self.least.get(FREE, 0)
        if not least or getattr(counter, "value", counter) >= self._first(loop.root):
            return {}
        values, small = {}, False
        for var, one in numbers.items():
            changes = dict(one.changes)
            change = changes.pop(loop.root, None)
            if change is None or var == loop.counter:
                continue
            if change < 0:
                return {}
            small = small or 0 <= one.value < least
            values[var] = number(one.value, changes)
        return {loop.counter: getattr(counter, "value", counter), **values} if small else {}


def _flipped(name: str) -> str:
    """Return the comparison with its sides changed."""
    flipped = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
    return name[:-2] + flipped.get(name[-2:], name[-2:])


def _comparison(name: str, below: Callable[[int], int]) -> Optional[int]:
    """Return the result of a comparison; None if its sides are not signed.

    `below(n)` returns 1 if the left side plus `n` is below the right side.
    """
    if name[4] == "U":
        return None
    relation = name[-2:]
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
