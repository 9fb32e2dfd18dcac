"""Minimize a sum of tables over the choices of all variables, by eliminating the variables one by one.

Exact where no table gets large, nor all together (bucket elimination; Dechter, 1999). Else the best choice among
the promising values of each variable is taken, and split tables bound the least sum from below
(mini-buckets; Dechter and Rish, 2003).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Mapping, Optional, Sequence

import numpy as np

__all__ = ["Best", "Factor", "Tables"]

Factor = tuple[tuple[int, ...], np.ndarray]
_MOST_CELLS = 1 << 22  # of one table
_MOST_WORK = 1 << 24  # cells of all tables: a quarter of a second
_SPLIT_CELLS = 1 << 16
_PROMISING = (6, 10, 16)  # values of each variable
_ROUNDS = 4  # of changes of one variable
_ALIKE = 1e-9


@dataclass(frozen=True)
class Best:
    """Hold a choice.

    Attributes:
        picked: variable -> the index of its value. total: the sum of the tables; infinite without a choice.
        bound: no choice has a smaller sum.
    """

    picked: dict[int, int]
    total: float
    bound: float

    @property
    def exact(self) -> bool:
        """Return True if no other choice is better."""
        return not self.bound < self.total * (1 - _ALIKE)


class Tables:
    """Hold variables with their numbers of values, and tables over some of them each."""

    def __init__(self, sizes: Mapping[int, int], factors: Sequence[Factor]):
        self.sizes, self.factors = sizes, list(factors)

    def best(self) -> Best:
        """Return the best choice that is found; the answer depends on the tables alone."""
        picked = self.exact()
        if picked is not None:
            total = self.total(picked)
            return Best(picked, total, total)
        bound = self.bound()
        if not np.isfinite(bound):
            return Best(dict.fromkeys(self.sizes, 0), np.inf, np.inf)
        best: Optional[dict[int, int]] = None
        for count in _PROMISING:
            best = self._among(count)
            if best is not None and np.isfinite(self.total(best)):
                break
        best = self._improved(best or dict.fromkeys(self.sizes, 0))
        return Best(best, self.total(best), bound)

    def total(self, picked: Mapping[int, int]) -> float:
        """Return the sum of the tables for a choice."""
        return float(sum(table[tuple(picked[n] for n in names)] for names, table in self.factors))

    def exact(self) -> Optional[dict[int, int]]:
        """Return the best choice, None where a table gets too large."""
        done = self.eliminated()
        if done is None:
            return None
        picked: dict[int, int] = {}
        for number, around, best in reversed(done[0]):
            picked[number] = int(best[tuple(picked[n] for n in around)])
        return picked

    def totals(self, keep: int) -> Optional[np.ndarray]:
        """Return the least sum for each value of one variable, None where a table gets too large."""
        done = self.eliminated(keep)
        return None if done is None else np.asarray(done[1], dtype=float).reshape(-1)

    def bound(self) -> float:
        """Return a sum that no choice is below."""
        done = self.eliminated(cells=_SPLIT_CELLS, split=True)
        assert done is not None
        return float(done[1])

    def eliminated(
        self, keep: Optional[int] = None, cells: int = _MOST_CELLS, split: bool = False
    ) -> Optional[tuple[list[tuple[int, list[int], np.ndarray]], np.ndarray]]:
        """Return (variable, those around it, its best index by theirs) in order, and the least sum.

        Args:
            keep: a variable that stays: the sum is by its values. cells: of the largest table.
            split: split larger tables, which makes the sum a bound; None without.
        """
        holding: dict[int, list[Factor]] = {number: [] for number in self.sizes}
        rest = [factor for factor in self.factors if not factor[0]]
        for factor in self.factors:
            for name in factor[0]:
                holding[name].append(factor)
        left = {number: self._cells(holding[number]) for number in self.sizes if number != keep}
        order = [(cells_of, number) for number, cells_of in left.items()]
        heapify(order)  # with entries whose cells are no longer those of `left`
        steps, work = [], 0
        while left:
            cells_of, number = heappop(order)
            if left.get(number) != cells_of:
                continue
            del left[number]
            mine = holding.pop(number)
            around = {name for names, _ in mine for name in names} - {number}
            for name in around:
                holding[name] = [f for f in holding[name] if number not in f[0]]
            for group in self._groups(mine, cells) if split else [mine]:
                others = sorted({n for names, _ in group for n in names} - {number})
                names = (*others, number)
                work += self._product(names)
                if not split and (self._product(names) > cells or work > _MOST_WORK):
                    return None
                table = sum(self._spread(f, names) for f in group)
                steps.append((number, others, np.argmin(table, axis=-1)))
                new = (tuple(others), np.min(table, axis=-1))
                for name in others:
                    holding[name].append(new)
                if not others:
                    rest.append(new)
            for name in around:
                if name in left:
                    left[name] = self._cells(holding[name])
                    heappush(order, (left[name], name))
        rest += holding.get(keep, []) if keep is not None else []
        return steps, np.asarray(sum(f[1] for f in rest))

    def _groups(self, factors: list[Factor], cells: int) -> list[list[Factor]]:
        """Split factors into groups whose tables are small."""
        groups: list[list[Factor]] = []
        for factor in factors:
            for group in groups:
                if self._product({n for f in (*group, factor) for n in f[0]}) <= cells:
                    group.append(factor)
                    break
            else:
                groups.append([factor])
        return groups

    def _among(self, count: int) -> Optional[dict[int, int]]:
        """Return the best choice among a few values of each variable, the most promising ones."""
        hopes = {n: np.zeros(size) for n, size in self.sizes.items()}
        for names, table in self.factors:
            for axis, name in enumerate(names):
                others = tuple(i for i in range(len(names)) if i != axis)
                hopes[name] = hopes[name] + table.min(axis=others)
        kept = {n: np.sort(np.argsort(hope, kind="stable")[:count]) for n, hope in hopes.items()}
        factors = [
            (names, table[np.ix_(*(kept[n] for n in names))]) for names, table in self.factors
        ]
        picked = Tables({n: len(k) for n, k in kept.items()}, factors).exact()
        return None if picked is None else {n: int(kept[n][i]) for n, i in picked.items()}

    def _improved(self, picked: dict[int, int]) -> dict[int, int]:
        """Return a choice that no change of one variable makes better."""
        for _ in range(_ROUNDS):
            before = dict(picked)
            for number, size in self.sizes.items():
                mine = [f for f in self.factors if number in f[0]]
                totals = np.zeros(size)
                for names, table in mine:
                    place = tuple(slice(None) if n == number else picked[n] for n in names)
                    totals = totals + table[place]
                index = int(np.argmin(totals))
                if totals[index] < totals[picked[number]]:
                    picked[number] = index
            if picked == before:
                break
        return picked

    def _product(self, names: Sequence[int] | set[int]) -> int:
        cells = 1
        for n in names:
            cells *= self.sizes[n]
        return cells

    def _cells(self, factors: list[Factor]) -> int:
        """Return the cells of the table that the factors of one variable make together."""
        return self._product({n for names, _ in factors for n in names})

    def _spread(self, factor: Factor, names: tuple[int, ...]) -> np.ndarray:
        have, table = factor
        order = sorted(range(len(have)), key=lambda i: names.index(have[i]))
        table = table.transpose(order)
        shape = [self.sizes[n] if n in have else 1 for n in names]
        spread: np.ndarray = table.reshape(shape)
        return spread
