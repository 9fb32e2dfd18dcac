"""Choose a layout for each unknown: the least total price, exactly, by eliminating unknowns one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import DistributedLayout
from gluon_write.buffers import shared_price
from gluon_write.candidates import candidates
from gluon_write.graph import AnyLayout, Graph, Relation, Unknown
from gluon_write.prices import conversion_price, price

__all__ = ["Solution", "plan_of", "solve"]

_MOST_CELLS = 1 << 22  # of one table; larger problems are descended into instead
_SECONDS = 2.0


@dataclass
class Solution:
    """Hold the chosen layouts.

    Attributes:
        chosen: number of an unknown -> its layout.
        price: of them all. exact: whether no other choice among the candidates is cheaper.
        bound: no choice is cheaper than this.
        lists: the candidates.
    """

    chosen: dict[int, Any]
    price: float
    exact: bool
    bound: float
    lists: dict[int, list[AnyLayout]]
    problem: "_Problem"

    def next_best(self, number: int) -> Optional[tuple[AnyLayout, float]]:
        """Return the best other layout of an unknown, and the total price with it."""
        index = self.lists[number].index(self.chosen[number])
        totals = self.problem.totals(number)
        if totals is None or len(totals) < 2:
            return None
        totals = totals.copy()
        totals[index] = np.inf
        other = int(np.argmin(totals))
        return (
            (self.lists[number][other], float(totals[other]))
            if np.isfinite(totals[other])
            else None
        )


def plan_of(
    relation: Relation, source: Any, result: Any
) -> tuple[float, Optional[tuple[DistributedLayout, DistributedLayout]]]:
    """Return the price of a relation between two layouts, and the conversion (from, to) that it takes.

    The price is infinite where no conversion can be written there.
    """
    warps = relation.source.warps
    try:
        if relation.kind == "view":
            cost = shared_price(source, result, relation.detail, warps) * relation.weight
            return cost, None
        if relation.wrap is None or relation.wrap[0] == "after":
            inferred = relation.forward(source)
            if inferred == result:
                return 0.0, None
            if inferred is None or relation.wrap is None:
                return np.inf, None
            pair, shape = (inferred, result), relation.result_shape
        else:
            wanted = relation.backward(result)
            if wanted == source or relation.forward(source) == result:
                return 0.0, None
            if wanted is None:
                return np.inf, None
            pair, shape = (source, wanted), relation.source_shape
        cost = conversion_price(*pair, shape, relation.bits, warps) * relation.weight
        return cost, pair
    except GluonError:
        return np.inf, None


class _Problem:
    def __init__(self, graph: Graph, lists: dict[int, list[AnyLayout]]):
        self.graph, self.lists = graph, lists
        self.factors: list[tuple[tuple[int, ...], np.ndarray]] = []
        for one in graph.unknowns:
            cells = [self._own(layout, one) for layout in lists[one.number]]
            self.factors.append(((one.number,), np.array(cells)))
        for relation in graph.relations:
            self._relate(relation)

    def _own(self, layout: Any, one: Unknown) -> float:
        if one.first is not None:
            return 0.0  # a buffer: its accesses are relations
        try:
            return price(layout, one, one.warps)
        except GluonError:
            return float("inf")

    def _relate(self, relation: Relation) -> None:
        first, second = relation.source.number, relation.result.number
        table = np.array(
            [[plan_of(relation, s, r)[0] for r in self.lists[second]] for s in self.lists[first]]
        )
        if first == second:
            self.factors.append(((first,), np.diagonal(table).copy()))
        else:
            self.factors.append(((first, second), table))

    def eliminate(self, keep: Optional[int] = None) -> Any:
        """Return (order of (unknown, its neighbours, best index by theirs), the total or by `keep`);
        None where a table would be too large."""
        factors = list(self.factors)
        left = {one.number for one in self.graph.unknowns} - {keep}
        steps = []
        while left:
            number = min(left, key=lambda n: (self._width(n, factors), n))
            left.discard(number)
            mine = [f for f in factors if number in f[0]]
            factors = [f for f in factors if number not in f[0]]
            around = sorted({n for names, _ in mine for n in names} - {number})
            names = (*around, number)
            cells = 1
            for n in names:
                cells *= len(self.lists[n])
            if cells > _MOST_CELLS:
                return None
            table = sum(self._spread(f, names) for f in mine)
            steps.append((number, around, np.argmin(table, axis=-1)))
            factors.append((tuple(around), np.min(table, axis=-1)))
        rest = [f[1] for f in factors]
        return steps, sum(rest)

    def _width(self, number: int, factors: Any) -> int:
        around = {n for names, _ in factors if number in names for n in names}
        cells = 1
        for n in around:
            cells *= len(self.lists[n])
        return cells

    def _spread(
        self, factor: tuple[tuple[int, ...], np.ndarray], names: tuple[int, ...]
    ) -> np.ndarray:
        have, table = factor
        order = sorted(range(len(have)), key=lambda i: names.index(have[i]))
        table = table.transpose(order)
        have = tuple(have[i] for i in order)
        shape = [len(self.lists[n]) if n in have else 1 for n in names]
        spread: np.ndarray = table.reshape(shape)
        return spread

    def totals(self, number: int) -> Optional[np.ndarray]:
        """Return the least total for each layout of one unknown."""
        done = self.eliminate(keep=number)
        if done is None:
            return None
        return np.asarray(done[1], dtype=float).reshape(-1)

    def total(self, chosen: dict[int, int]) -> float:
        return float(sum(table[tuple(chosen[n] for n in names)] for names, table in self.factors))

    def bound(self) -> float:
        return float(sum(table.min() for _, table in self.factors))


def solve(graph: Graph) -> Solution:
    """Choose the layouts; the answer depends on the graph alone."""
    lists = candidates(graph)
    problem = _Problem(graph, lists)
    done = problem.eliminate()
    if done is None:
        picked = _descend(problem, lists)
        exact = False
    else:
        picked = {}
        for number, around, best in reversed(done[0]):
            picked[number] = int(best[tuple(picked[n] for n in around)])
        exact = True
    total = problem.total(picked)
    chosen = {n: lists[n][i] for n, i in picked.items()}
    return Solution(chosen, total, exact, total if exact else problem.bound(), lists, problem)


def _descend(problem: _Problem, lists: dict[int, list[AnyLayout]]) -> dict[int, int]:
    """Return a choice that no change of one unknown makes cheaper."""
    picked = {n: 0 for n in lists}
    until = time.monotonic() + _SECONDS
    changed = True
    while changed and time.monotonic() < until:
        changed = False
        for number in lists:
            totals = [problem.total({**picked, number: i}) for i in range(len(lists[number]))]
            best = int(np.argmin(totals))
            if totals[best] < totals[picked[number]]:
                picked[number], changed = best, True
    return picked
