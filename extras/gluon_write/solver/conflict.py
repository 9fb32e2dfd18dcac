"""Explain a kernel without solution: the ops that conflict, and the smallest set of layouts to write by hand.

An op relates the layouts of its operand and its result. A core is a set of ops that together have no
solution, none of which can be left out; a correction is a smallest set without which there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gluon_write.solver.solve import Problem, Solution
from gluon_write.solver.unknowns import Relation

__all__ = ["Conflict", "conflict_of"]

_MOST_CELLS = 100_000_000  # of all tables that are solved: an error may take ten seconds
_MOST_MORE = 2  # layouts than cores


@dataclass(frozen=True)
class Conflict:
    """Hold why there is no solution.

    Attributes:
        core: ops that have none together; more than they where the search was cut off.
        written: ops with the layouts of operand and result that make the others fit; () where no
            small set does.
    """

    core: tuple[Relation, ...]
    written: tuple[tuple[Relation, Any, Any], ...]


def conflict_of(solution: Solution) -> Conflict:
    """Return the conflict of a problem without solution; the answer depends on the problem alone."""
    problem = solution.problem
    search = _Search(problem, _MOST_CELLS)
    cores: list[list[int]] = []  # without a common op: each needs one to be written
    without: frozenset[int] = frozenset()
    while not search.possible(without) and search.left > 0:
        core = search.core(without)
        if not core:
            break  # an op takes none of its layouts, with any relations
        cores.append(core)
        without |= frozenset(core)
    relations, lists = problem.graph.relations, solution.lists
    first = tuple(relations[i] for i in cores[0]) if cores else ()
    pool = [number for one in cores for number in one]
    for size in range(len(cores), len(cores) + _MOST_MORE):
        for chosen in combinations(pool, size):
            if search.left <= 0:
                return Conflict(first, ())
            if not search.possible(frozenset(chosen)):
                continue
            best = problem.tables(frozenset(chosen)).best()
            layouts = {n: lists[n][i] for n, i in best.picked.items()}
            parts = [relations[i] for i in chosen]
            written = ((r, layouts[r.source.number], layouts[r.result.number]) for r in parts)
            return Conflict(first, tuple(written))
    return Conflict(first, ())


class _Search:
    """Ask which relations have a choice together.

    Attributes:
        left: cells of tables that may be solved yet.
    """

    def __init__(self, problem: Problem, left: int):
        self.problem, self.left = problem, left

    def possible(self, without: frozenset[int]) -> bool:
        """Return False if there is surely no choice without some relations."""
        tables = self.problem.tables(without, limits=True)
        self.left -= sum(table.size for _, table in tables.factors)
        return tables.best().bound < float("inf")

    def core(self, without: frozenset[int]) -> list[int]:
        """Return relations that have no solution together, fewest by deletion; `without` some of them."""
        every = frozenset(range(len(self.problem.graph.relations)))
        kept = every - without
        for number in sorted(kept):
            if self.left <= 0:
                break
            if not self.possible(every - (kept - {number})):
                kept -= {number}
        return sorted(kept)
