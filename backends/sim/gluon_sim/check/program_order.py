"""What orders the programs of a grid: releases and acquires by atomics, found out when asked for.

Almost no kernel has two programs touch one element, so atomics are only logged; the log is read
when two accesses need an order.
"""

from __future__ import annotations

from typing import Optional, Sequence

import numpy as np

__all__ = ["ProgramOrder"]

# Addresses, programs, whether it acquires and releases, when.
Atomic = tuple[np.ndarray, np.ndarray, bool, bool, int]

_DENSE = 2048  # programs up to which the whole matrix of who knows what of whom is kept


class ProgramOrder:
    """The order of the programs of one launch.

    Attributes:
        time: counts the atomics that were executed.
    """

    def __init__(self, grid: tuple[int, int, int]):
        self.grid = grid
        self.total = grid[0] * grid[1] * grid[2]
        self.time = 0
        self._log: list[Atomic] = []
        self._dense: Optional[_Known] = None

    def program(self, number: int) -> tuple[int, int, int]:
        x, rest = number % self.grid[0], number // self.grid[0]
        return x, rest % self.grid[1], rest // self.grid[1]

    @property
    def orders(self) -> bool:
        """Whether any atomic orders anything at all."""
        return bool(self._log)

    def atomic(
        self, addresses: np.ndarray, programs: np.ndarray, acquire: bool, release: bool
    ) -> None:
        """An atomic access, in the order in which its elements were taken."""
        self.time += 1
        if acquire or release:
            self._log.append((addresses, programs, acquire, release, self.time))

    def ordered(self, before: np.ndarray, times: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Is what program `before` did up to `times` ordered before what `now` does now?"""
        if not self._log:
            return np.zeros(before.shape, bool)
        if self.total <= _DENSE:
            if self._dense is None:
                self._dense = _Known(self.total, np.arange(self.total))
            known = self._dense
        else:
            known = _Known(self.total, np.unique(before))
        known.read(self._log)
        return known.of(now, before) > times


class _Known:
    """Per program, the time up to which it has seen some others."""

    def __init__(self, total: int, columns: np.ndarray):
        self.columns = columns
        self.seen: dict[int, np.ndarray] = {}
        self.released: dict[int, np.ndarray] = {}
        self._place = {int(c): i for i, c in enumerate(columns)}
        self._at = 0

    def _row(self, program: int) -> np.ndarray:
        found = self.seen.get(program)
        if found is None:
            found = self.seen[program] = np.zeros(len(self.columns), np.int64)
        return found

    def read(self, log: Sequence[Atomic]) -> None:
        for addresses, programs, acquire, release, time in log[self._at :]:
            pairs = np.stack(
                [addresses.ravel(), np.broadcast_to(programs, addresses.shape).ravel()]
            )
            # One element of each program at each address tells it all.
            _, first = np.unique(pairs, axis=1, return_index=True)
            for address, program in pairs[:, np.sort(first)].T.tolist():
                row = self._row(program)
                there = self.released.get(address)
                if acquire and there is not None:
                    np.maximum(row, there, out=row)
                if release:
                    place = self._place.get(program)
                    if place is not None:
                        row[place] = time
                    if there is None:
                        self.released[address] = row.copy()
                    else:
                        np.maximum(there, row, out=there)
        self._at = len(log)

    def of(self, now: np.ndarray, before: np.ndarray) -> np.ndarray:
        out = np.zeros(now.shape, np.int64)
        for program in np.unique(now).tolist():
            chosen = now == program
            row = self._row(program)
            out[chosen] = row[[self._place[b] for b in before[chosen].tolist()]]
        return out
