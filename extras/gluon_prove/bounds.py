"""The unknowns that bound loops: which loops share one, and the facts about it at their start."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from gluon_prove.code import Branch, Loop
from gluon_prove.effects import Effects
from gluon_prove.smt import Arithmetic
from gluon_prove.symbols import linear
from gluon_prove.values import Term, term

__all__ = ["Bounds", "Range"]


class Range(NamedTuple):
    """The range of a loop: its start, its step, and its end, an unknown plus a number."""

    core: Term
    offset: int
    low: int
    step: int

    def rounds(self) -> Term:
        return term("trips", self.low, term("add", self.core, self.offset), self.step)


class Bounds(Effects):
    """The part of code generation that knows the bounds of loops.

    Args:
        target: the simulated target.
        num_warps: of the kernel.
        arithmetic: tells of bounds that are written differently whether they are equal.

    Attributes:
        all_loops, branches: of all tasks, with the task.
        alias: counters, and values derived from them, as terms.
        ranges: of loops with constant steps, the tasks that have them.
        same: the bounds of loops that another task counts differently.
    """

    def __init__(self, target: Any, num_warps: int, arithmetic: Optional[Arithmetic]):
        super().__init__(target, num_warps)
        self.arithmetic = arithmetic
        self.all_loops: list[tuple[int, Loop]] = []
        self.branches: list[tuple[int, Branch]] = []
        self.alias: dict[int, Term] = {}
        self.ranges: dict[Range, set[int]] = {}
        self.same: dict[Range, Term] = {}

    def counted_alike(self) -> dict[Range, Term]:
        """Ranges that have as many rounds as another task's, which is written differently."""
        bounds: dict[Range, Term] = {}
        ranges = [one for one in self.ranges if one.core.fixed]
        for i, one in enumerate(ranges if self.arithmetic is not None else ()):
            for other in ranges[:i]:
                if one.core == other.core or len(self.ranges[one] | self.ranges[other]) < 2:
                    continue
                assert self.arithmetic is not None
                if self.arithmetic.equal(one.rounds(), other.rounds()):
                    plain = [k.core for k in (one, other) if k[1:] == (0, 0, 1)]
                    bound = bounds.get(other, plain[0] if plain else other.rounds())
                    bounds[one] = bounds[other] = bound
        return bounds

    def roots(self) -> None:
        """Count the unknowns that bound loops. Partitions share one where it is the same for all of
        them: it does not change, or each meets it once in the same loops and choices."""
        self._unite()
        for task, loop in self.all_loops:
            loop.guarded = self._is_guarded(loop)
            if loop.guarded:
                self._mean(task, loop)
        sites: dict[Term, list[tuple[int, Loop]]] = {}
        for task, loop in self.all_loops:
            if loop.core is not None:
                sites.setdefault(loop.core, []).append((task, loop))
        for core, loops in sites.items():
            tasks = [task for task, _ in loops]
            alike = len(set(tasks)) == len(tasks) and len({loop.place for _, loop in loops}) == 1
            if core.fixed or alike:
                number = self._root(core)
                for _, loop in loops:
                    loop.root = number
            else:
                for _, loop in loops:
                    loop.root = self._root(core)
        chosen: dict[Any, list[tuple[int, Branch]]] = {}
        for task, branch in self.branches:
            if isinstance(branch.condition.value, Term):
                chosen.setdefault(branch.condition.value, []).append((task, branch))
        for number, (condition, there) in enumerate(chosen.items()):
            tasks = [task for task, _ in there]
            alike = len(set(tasks)) == len(tasks)
            alike = alike and len({branch.context for _, branch in there}) == 1
            if not condition.fixed and alike and len(tasks) > 1:
                for _, branch in there:
                    branch.choice = number

    def floors(self) -> None:
        """Find loops that have a round whenever they are begun, by the facts about the loops and the conditions around them."""
        if self.arithmetic is None:
            return
        for number, core in enumerate(self.out.roots):
            loops = [loop for _, loop in self.all_loops if loop.root == number]
            if not core.fixed and all(self._runs(core, loop.context) for loop in loops):
                self.out.floors[number] = 1

    def _runs(self, core: Term, context: tuple[Any, ...]) -> bool:
        """Return whether a bound is above 0 in a context."""
        assert self.arithmetic is not None
        held = []
        for kind, place, *rest in context:
            if kind == "if" and isinstance(place, tuple):
                place = self.alias.get(place[1])
            if kind == "if" and isinstance(place, Term):
                held.append((place, int(rest[0])))
        bounds: list[tuple[Term, int, Optional[int]]] = [(core, -1 << 31, 0)]
        for one in inductions([core, *(place for place, _ in held)]):
            counted, low = one.args[0], one.args[1:2]
            first = low[0] if low and isinstance(low[0], int) else 0
            bounds.append((one, first, None))
            over = [loop.offset for _, loop in self.all_loops if loop.core == counted]
            if over:
                held.append((term("icmpSLT", one, term("add", counted, max(over))), 1))
        return not self.arithmetic.feasible(bounds, held)

    def _is_guarded(self, loop: Loop) -> bool:
        """Return True if the innermost condition around a loop skips it, and only where it has no round."""
        kind, place, *way = loop.context[-1] if loop.context else ("", None)
        if kind != "if" or not way[0] or loop.core is None or loop.low is None:
            return False
        condition = self.alias.get(place[1]) if isinstance(place, tuple) else place
        if not isinstance(condition, Term) or self.arithmetic is None:
            return False
        rounds = (loop.core, loop.low - loop.offset + 1, None)
        return not self.arithmetic.feasible([rounds], [(condition, 0)])

    def _mean(self, task: int, loop: Loop) -> None:
        """Let the branch around a guarded loop compare the loop's core, where the condition says that."""
        assert self.arithmetic is not None and loop.core is not None and loop.low is not None
        *around, (_, place, _) = loop.context
        least = loop.low - loop.offset - 1
        for of, branch in self.branches:
            condition = branch.condition.value
            if of != task or branch.context != tuple(around) or condition != place:
                continue
            sides = [linear(a)[0] for a in getattr(condition, "args", ()) if isinstance(a, Term)]
            if (
                isinstance(condition, Term)
                and loop.core not in sides
                and not self.arithmetic.feasible([(loop.core, -1 << 31, least)], [(condition, 1)])
            ):
                if not self.arithmetic.feasible([(loop.core, least + 1, None)], [(condition, 0)]):
                    branch.means = loop, least

    def _unite(self) -> None:
        """Bounds that are equal for all arguments get one name."""
        cores: list[Term] = []
        if self.arithmetic is None:
            return
        for _, loop in self.all_loops:
            if loop.core is None or not loop.core.fixed:
                continue
            same = loop.core if loop.core in cores else None
            for other in cores if same is None else ():
                if self.arithmetic.equal(loop.core, other):
                    same = other
                    break
            if same is None:
                cores.append(loop.core)
            else:
                loop.core = same

    def _root(self, core: Term) -> int:
        self.out.roots.append(core)
        return len(self.out.roots) - 1


def inductions(terms: Sequence[Any]) -> list[Term]:
    """Return the counters that terms are made of."""
    inductions: dict[Term, None] = {}
    todo, seen = list(terms), set[Term]()
    while todo:
        one = todo.pop()
        if isinstance(one, Term) and one not in seen:
            seen.add(one)
            if one.name == "induction":
                inductions[one] = None
            todo += one.args
    return list(inductions)
