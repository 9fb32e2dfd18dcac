"""Loops that continue the count of another one: a range in two parts, which another task walks whole.

`range(a, b, s)` and then `range(a + cdiv(max(b - a, 0), s) * s, c, s)` have, together, the rounds of `range(a, c, s)`
where `b <= c` and `s > 0`. The walk takes them for that loop, which stops for a while behind any of its rounds:
so `b` may be anything up to `c`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

from gluon_prove.smt import Arithmetic
from gluon_prove.values import Term, term

__all__ = ["Counted", "Part", "parts_of"]


class Counted(NamedTuple):
    """A loop whose bounds are terms.

    Args:
        context: the loops and choices around it.
    """

    task: int
    context: tuple[Any, ...]
    low: Any
    high: Any
    step: Any

    @property
    def rounds(self) -> Term:
        return term("trips", self.low, self.high, self.step)


class Part(NamedTuple):
    """A part of a range: the rounds of all of it, and whether it is the first part."""

    whole: Term
    low: Any
    first: bool


def parts_of(loops: Sequence[Counted], arithmetic: Arithmetic) -> dict[tuple[int, Term], Part]:
    """Return, by task and rounds, the loops that are parts of one that another task walks whole.

    Args:
        loops: in the order of the code.
    """
    parts: dict[tuple[int, Term], Part] = {}
    for place, rest in enumerate(loops):
        whole = [
            one
            for one in loops
            if one.task != rest.task and (one.high, one.step) == (rest.high, rest.step)
        ]
        for first in loops[:place]:
            mine = first.task == rest.task and first.context == rest.context
            if not mine or first.step != rest.step:
                continue
            alike = [one for one in whole if one.low == first.low]
            keys = [(one.task, one.rounds) for one in loops]
            once = all(keys.count((one.task, one.rounds)) == 1 for one in (first, rest))
            if alike and once and _continues(rest, first, arithmetic):
                of = alike[0].rounds, first.low
                parts[first.task, first.rounds] = Part(*of, True)
                parts[rest.task, rest.rounds] = Part(*of, False)
    return parts


def _continues(rest: Counted, first: Counted, arithmetic: Arithmetic) -> bool:
    """Return whether a loop begins where another one ends, which ends no later than it does."""
    if not (_above(first.step, arithmetic) and _at_most(first.high, rest.high, arithmetic)):
        return False
    names = {
        value: term("part", place)
        for place, value in enumerate((first.low, first.high, first.step))
        if isinstance(value, Term)
    }
    step = names.get(first.step, first.step)
    rounds = term("maxsi", _named(first.rounds, names), 0)
    end = term("add", names.get(first.low, first.low), term("mul", rounds, step))
    positive = [(step, 1, None)] if isinstance(step, Term) else []
    differs = term("icmpNE", _named(rest.low, names), end)
    return not arithmetic.feasible(positive, [(differs, 1)])


def _named(value: Any, names: dict[Term, Term]) -> Any:
    """Return a term with unknowns for some of its parts."""
    if not isinstance(value, Term):
        return value
    if value in names:
        return names[value]
    return Term(value.name, tuple(_named(arg, names) for arg in value.args))


def _at_most(one: Any, other: Any, arithmetic: Arithmetic) -> bool:
    """Return whether a number is never above another one."""
    if one == other:
        return True
    if isinstance(one, Term) and one.name == "select":
        return all(_at_most(way, other, arithmetic) for way in one.args[1:])
    if isinstance(one, Term) and one.name == "minsi":
        if any(_at_most(arg, other, arithmetic) for arg in one.args):
            return True
    if isinstance(other, Term) and other.name == "add" and one in other.args:
        more = [arg for arg in other.args if arg is not one and arg != one]
        return all(_above(arg, arithmetic, -1) for arg in more or (one,))
    return not arithmetic.feasible([], [(term("icmpSGT", one, other), 1)])


def _above(value: Any, arithmetic: Arithmetic, least: int = 0) -> bool:
    """Return whether a number is always above 0, or -1."""
    if isinstance(value, int):
        return value > least
    if value.name == "programs" or least < 0 and value.name in ("program", "arg"):
        return True  # no argument is negative: assumed, and said
    if value.name == "select":
        return all(_above(way, arithmetic, least) for way in value.args[1:])
    if value.name in ("minsi", "maxsi"):
        all_or_any = all if value.name == "minsi" else any
        if all_or_any(_above(arg, arithmetic, least) for arg in value.args):
            return True
    if value.name == "mul" and all(_above(arg, arithmetic, least) for arg in value.args):
        return True
    if value.name == "sdiv" and least < 0 and _above(value.args[1], arithmetic):
        if _above(value.args[0], arithmetic, least):
            return True
    if value.name == "add" and all(_above(arg, arithmetic, -1) for arg in value.args):
        if least < 0 or any(_above(arg, arithmetic, least) for arg in value.args):
            return True
    return not arithmetic.feasible([(value, -1 << 31, least)], [])
