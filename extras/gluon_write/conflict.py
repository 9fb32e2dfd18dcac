"""Explain a kernel without solution: the ops that conflict, and the smallest set of layouts to write by hand.

An op relates the layouts of its operand and its result. A core is a set of ops that together have no
solution, none of which can be left out; a correction is a smallest set without which there is one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gluon_write.graph import Relation
from gluon_write.solve import Problem, Solution

__all__ = ["Conflict", "conflict_of"]

_SECONDS = 10.0  # an error may take its time
_MOST_WRITTEN = 3


@dataclass(frozen=True)
class Conflict:
    """Hold why there is no solution.

    Attributes:
        core: ops that have none together; all ops where time was up.
        written: ops with the layouts of operand and result that make the others fit; () where no
            small set does.
    """

    core: tuple[Relation, ...]
    written: tuple[tuple[Relation, Any, Any], ...]


def conflict_of(solution: Solution) -> Conflict:
    """Return the conflict of a problem without solution; the answer depends on the problem alone."""
    problem = solution.problem
    until = time.monotonic() + _SECONDS
    core = _core(problem, until)
    for size in range(1, _MOST_WRITTEN + 1):
        for chosen in combinations(core, size):
            if time.monotonic() > until:
                break
            best = problem.tables(frozenset(chosen)).best()
            if best.total < float("inf"):
                lists = solution.lists
                layouts = {n: lists[n][i] for n, i in best.picked.items()}
                parts = [problem.graph.relations[i] for i in chosen]
                return Conflict(
                    tuple(problem.graph.relations[i] for i in core),
                    tuple((r, layouts[r.source.number], layouts[r.result.number]) for r in parts),
                )
    return Conflict(tuple(problem.graph.relations[i] for i in core), ())


def _core(problem: Problem, until: float) -> list[int]:
    """Return relations that have no solution together, fewest by deletion."""
    count = len(problem.graph.relations)
    kept = list(range(count))
    for number in range(count):
        if time.monotonic() > until:
            break
        without = frozenset(range(count)) - (frozenset(kept) - {number})
        if problem.tables(without, limits=True).best().bound == float("inf"):
            kept.remove(number)
    return kept
