"""Loads whose values their thread does not use: a race with such a load changes nothing that anybody sees.

A layout may give one element to several threads. All of them load it and compute, and one of them stores. In a kernel
that works in place (`gl.store(p, f(gl.load(p)))`) the others load while that one stores: their values go nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.machine.group import LANES

__all__ = ["Unused"]

_EFFECTS = ("st", "red", "atom")
_OF_WARP = (
    "activemask",
    "match",
    "mma",
    "redux",
    "shfl",
    "vote",
)  # they read registers of other lanes
# Instructions with no effect but their registers, which depend on registers of the same thread alone.
_PURE = frozenset(
    "abs add addc and bfe bfi bfind bmsk brev clz cnot copysign cos cvt cvta div dp2a dp4a ex2 fma fns ld lg2 lop3 mad "
    "mad24 madc max min mov mul mul24 neg not or popc prmt rcp rem rsqrt sad selp set setp shf shl shr sin slct sqrt "
    "sub subc szext tanh testp xor".split()
)  # fmt: skip


@dataclass
class _Doubt:
    """A race that matters if one of some threads executes an instruction that needs the loaded value."""

    threads: set[int]
    needs: frozenset[int]
    error: EmulatorError


class Unused:
    """The loads of a machine that raced, and the stores that threads have executed.

    Args:
        steps: of the code.
        rows: warps.
    """

    def __init__(self, steps: Sequence[Any], rows: int):
        self.steps, self.rows = steps, rows
        self.stored: dict[int, np.ndarray] = {}  # by instruction: (warps, lanes) that executed it
        self.doubts: list[_Doubt] = []
        self._doubted: set[tuple[int, int]] = set()  # loads and threads
        self._needs: dict[int, Optional[frozenset[int]]] = {}  # by load
        self._spread: set[int] = set()  # loads whose values reach other lanes

    def executed(self, group: Any, lanes: np.ndarray) -> None:
        """Note that threads execute a store, and report the race of a load that it needs."""
        done = self.stored.get(group.pc)
        if done is None:
            done = self.stored[group.pc] = np.zeros((self.rows, LANES), bool)
        done[group.rows] |= lanes
        for one in self.doubts:
            if group.pc in one.needs and one.threads.intersection(self._threads(group, lanes)):
                raise one.error

    @staticmethod
    def _threads(group: Any, lanes: np.ndarray) -> list[int]:
        row, lane = np.nonzero(lanes)
        threads: list[int] = (group.rows[row] * LANES + lane).tolist()
        return threads

    def may_be(self, place: int, thread: int) -> bool:
        """Return whether nothing has needed the value that a thread loaded by an instruction, and only stores can."""
        needs = self.needs(place)
        lanes = self._with(place, thread) % LANES
        return needs is not None and not any(
            self.stored[one][thread // LANES, lanes].any() for one in needs if one in self.stored
        )

    def _with(self, place: int, thread: int) -> np.ndarray:
        """Return the threads that get the value which a thread loaded."""
        if place not in self._spread:
            return np.array([thread])
        return thread // LANES * LANES + np.arange(LANES)

    def doubt(self, place: int, threads: Sequence[int], error: EmulatorError) -> None:
        """Keep the report of a race until one of the threads needs the value that it loaded."""
        needs = self.needs(place)
        new = {one for one in threads if (place, one) not in self._doubted}
        if new and needs:
            self._doubted.update((place, one) for one in new)
            new.update(*(self._with(place, one).tolist() for one in new))
            self.doubts.append(_Doubt(new, needs, error))

    def needs(self, place: int) -> Optional[frozenset[int]]:
        """Return the stores that need the value of a load; None where something else may."""
        if place not in self._needs:
            self._needs[place] = self._followed(place)
        return self._needs[place]

    def _followed(self, place: int) -> Optional[frozenset[int]]:
        load = self.steps[place]
        statement = load.source.statement
        if statement.name != "ld" or "acquire" in statement.modifiers:
            return None
        values, needs = set(load.writes), set()
        grown = True
        while grown:
            grown = False
            for bound in self.steps:
                if not bound.reads & values or bound.function != load.function:
                    continue
                statement = bound.source.statement
                if statement.name in _EFFECTS and "async" not in statement.modifiers:
                    if statement.guard is not None and statement.guard.name in values:
                        return None
                    needs.add(bound.index)
                elif statement.name in _OF_WARP:
                    self._spread.add(place)
                elif statement.name not in _PURE or not bound.writes:
                    return None
                if not bound.writes <= values:
                    values |= bound.writes
                    grown = True
        return frozenset(needs)
