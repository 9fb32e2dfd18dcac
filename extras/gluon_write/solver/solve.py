"""Choose a layout for each unknown: the least total price, exactly where tables stay small."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Callable, Collection, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import BlockedLayout, DistributedLayout
from gluon_write.solver.candidates import MOST, candidates
from gluon_write.solver.eliminate import Tables
from gluon_write.solver.prices import conversion_price, conversion_table, maps_alike, price
from gluon_write.solver.unknowns import AnyLayout, Graph, Relation, Unknown
from gluon_write.tracing.budget import PRICED, exhausted, spend
from gluon_write.tracing.buffers import shared_price

__all__ = ["Problem", "Solution", "plan_of", "solve"]

_HOPE = 0.05  # of the price of a conversion that may not be needed


@dataclass
class Solution:
    """Hold the chosen layouts.

    Attributes:
        chosen: number of an unknown -> its layout.
        price: of them all. exact: whether no other choice among the candidates is cheaper.
        bound: no choice is cheaper than this.
        lists: the candidates.
        others: number of an unknown -> what `next_best` found.
    """

    chosen: dict[int, Any]
    price: float
    exact: bool
    bound: float
    lists: dict[int, list[AnyLayout]]
    problem: "Problem"
    others: dict[int, Optional[tuple[AnyLayout, float]]] = field(default_factory=dict)

    def words(self) -> str:
        """Describe how far the choice may be from the best one, in a sentence."""
        if self.exact:
            return "the layouts cost least among all that were considered"
        part = 100 * (1 - self.bound / self.price)
        return (
            "the problem is too large to solve exactly: these are the best layouts that the search reached, "
            f"and others cost at most {part:.0f}% less"
        )

    def cut_short(self) -> Solution:
        """Return the same choice, where forms that convert less were not compared: they cost no less than all ops."""
        ops = (float(table.min()) for _, table in self.problem.factors[: self.problem.own])
        return replace(self, exact=False, bound=min(self.bound, sum(ops)))

    def next_best(self, one: Unknown) -> Optional[tuple[AnyLayout, float]]:
        """Return the best layout of an unknown that puts elements elsewhere, and the total price with it."""
        if one.number not in self.others:
            self.others[one.number] = self._next_best(one)
        return self.others[one.number]

    def _next_best(self, one: Unknown) -> Optional[tuple[AnyLayout, float]]:
        number = one.number
        chosen = self.chosen[number]
        totals = self.problem.tables().totals(number)
        if totals is None or len(totals) < 2:
            return None
        totals = totals.copy()
        alike = [
            layout == chosen or maps_alike(layout, chosen, one.shape)
            for layout in self.lists[number]
        ]
        totals[alike] = np.inf
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
        if relation.kind == "convert":
            shape = relation.source_shape
            return _conversion(relation, source, result, shape) * relation.weight, None
        if relation.wrap is None or relation.wrap[0] == "after":
            inferred = relation.forward(source)
            if inferred == result:
                return 0.0, None
            if inferred is None or relation.wrap is None:
                return np.inf, None
            pair, shape = (inferred, result), relation.result_shape
        else:
            wanted = relation.backward(result)
            if relation.forward(source) == result or wanted == source and relation.kind != "infer":
                return 0.0, None
            if wanted is None or relation.kind == "infer" and relation.forward(wanted) != result:
                return np.inf, None
            pair, shape = (source, wanted), relation.source_shape
        return _conversion(relation, *pair, shape) * relation.weight, pair
    except GluonError:
        return np.inf, None


def _conversion(relation: Relation, source: Any, result: Any, shape: tuple[int, ...]) -> float:
    around = relation.bits, relation.source.warps, relation.waits, relation.room
    return conversion_price(source, result, shape, *around)


@dataclass(frozen=True)
class _Alike:
    """Hold a relation; two of them are equal where their prices are."""

    form: tuple[Any, ...]
    relation: Relation = field(compare=False)


@dataclass(frozen=True)
class _Same:
    """Hold an unknown and, in `form`, whether the kernel has products; two are equal where layouts cost them the same."""

    form: tuple[tuple[Any, ...], bool]
    unknown: Unknown = field(compare=False)


@lru_cache(maxsize=1 << 10)
def _own(same: _Same, layouts: tuple[Any, ...]) -> np.ndarray:
    """Return the prices of layouts for the ops of an unknown; a kernel has many unknowns with the same ops."""
    table = np.array([_price(layout, same.unknown, same.form[1]) for layout in layouts])
    table.flags.writeable = False
    return table


def _price(layout: Any, one: Unknown, multiplies: bool) -> float:
    if one.first is not None:
        return 0.0  # a buffer: its accesses are relations
    if one.scans and not isinstance(layout, BlockedLayout):
        return float("inf")
    try:
        return price(layout, one, one.warps, multiplies)
    except GluonError:
        return float("inf")


@lru_cache(maxsize=1 << 10)
def _table(alike: _Alike, sources: tuple[Any, ...], results: tuple[Any, ...]) -> np.ndarray:
    """Return the prices of all pairs; a kernel has many relations with the same ones."""
    table = np.asarray(_prices(alike.relation, sources, results))
    table.flags.writeable = False
    return table


def _prices(relation: Relation, sources: Sequence[Any], results: Sequence[Any]) -> Any:
    """Return the price of `plan_of` each pair."""
    warps, weight = relation.source.warps, relation.weight
    if relation.kind == "view":
        view = relation.detail
        return [[_shared_price(s, r, view, warps) * weight for r in results] for s in sources]
    around = relation.bits, warps, relation.waits, relation.room
    if relation.kind == "convert":
        return conversion_table(sources, results, relation.source_shape, *around) * weight
    ahead, failed = _inferred(relation.forward, sources)
    if relation.wrap is None or relation.wrap[0] == "after":
        table = conversion_table(ahead, results, relation.result_shape, *around) * weight
        if relation.wrap is None:
            table[table > 0] = np.inf
        return table
    behind, refused = _inferred(relation.backward, results)
    if relation.kind == "infer":
        again, _ = _inferred(relation.forward, behind)
        behind = [b if a == r else None for a, b, r in zip(again, behind, results)]
    table = conversion_table(sources, behind, relation.source_shape, *around) * weight
    for i, inferred in enumerate(ahead):
        table[i, [j for j, result in enumerate(results) if inferred == result]] = 0.0
    table[failed] = np.inf
    table[:, refused] = np.inf
    return table


def _shared_price(layout: Any, buffer: Any, view: Any, warps: int) -> float:
    try:
        return shared_price(layout, buffer, view, warps)
    except GluonError:
        return float("inf")


def _inferred(rule: Callable[[Any], Any], layouts: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return what a rule gives for each layout, None for none, and the indices of those that it refuses."""
    inferred: list[Any] = []
    refused = []
    for i, layout in enumerate(layouts):
        try:
            inferred.append(None if layout is None else rule(layout))
        except GluonError:
            inferred.append(None)
            refused.append(i)
    return inferred, refused


class Problem:
    """Hold the prices: of each layout of an unknown, and of each pair of a relation."""

    def __init__(self, graph: Graph, lists: dict[int, list[AnyLayout]], hopeful: bool = False):
        self.graph, self.lists, self.hopeful = graph, lists, hopeful
        self.multiplies = graph.multiplies()
        self.factors: list[tuple[tuple[int, ...], np.ndarray]] = []
        for one in graph.unknowns:
            alike = one.form(), self.multiplies
            self.factors.append(((one.number,), _own(_Same(alike, one), tuple(lists[one.number]))))
        self.own = len(self.factors)  # the relations' follow, in their order
        for relation in graph.relations:
            self._relate(relation)

    def _relate(self, relation: Relation) -> None:
        first, second = relation.source.number, relation.result.number
        lists = tuple(self.lists[first]), tuple(self.lists[second])
        table = _table(_Alike(relation.form(), relation), *lists)
        if self.hopeful and sum(size > 1 for size in relation.source_shape) < 2:
            table = table * _HOPE
        if first == second:
            self.factors.append(((first,), np.diagonal(table).copy()))
        else:
            self.factors.append(((first, second), table))

    def tables(self, without: Collection[int] = (), limits: bool = False) -> Tables:
        """Return the tables of all choices.

        Args:
            without: numbers of relations that do not count. limits: only say which are possible.
        """
        factors = [f for i, f in enumerate(self.factors) if i - self.own not in without]
        if limits:
            factors = [(names, np.where(np.isfinite(t), 0.0, np.inf)) for names, t in factors]
        return Tables({n: len(layouts) for n, layouts in self.lists.items()}, factors)


def solve(graph: Graph, hopeful: bool = False) -> Solution:
    """Choose the layouts; the answer depends on the graph alone.

    Args:
        hopeful: conversions of vectors cost little: they may be computed again where they are used.
    """
    if exhausted():
        quick = _solved(graph, _lists(graph, few=True), hopeful)
        if np.isfinite(quick.price):
            return quick
    solution = _solved(graph, _lists(graph), hopeful)
    cut_off = any(len(layouts) >= MOST for layouts in solution.lists.values())
    if np.isfinite(solution.price) and (not cut_off or exhausted()):
        return solution
    # Lists that are cut off may lack the layouts that fit best; those that begin at few tensors are whole.
    few = _solved(graph, _lists(graph, few=True), hopeful)
    if not few.price < solution.price:
        return solution
    lists = {n: [few.chosen[n], *layouts] for n, layouts in solution.lists.items()}
    both = _solved(graph, {n: list(dict.fromkeys(some)) for n, some in lists.items()}, hopeful)
    return both if both.price <= few.price else few


def _lists(graph: Graph, few: bool = False) -> dict[int, list[AnyLayout]]:
    """Return `candidates` of a graph, which is solved with and without hope."""
    if few not in graph.candidates:
        lists = graph.candidates[few] = candidates(graph, few)
        spend(PRICED * sum(map(len, lists.values())))
    return graph.candidates[few]


def _solved(graph: Graph, lists: dict[int, list[AnyLayout]], hopeful: bool) -> Solution:
    problem = Problem(graph, lists, hopeful)
    best = problem.tables().best()
    chosen = {n: lists[n][i] for n, i in best.picked.items()}
    return Solution(chosen, best.total, best.exact, best.bound, lists, problem)
