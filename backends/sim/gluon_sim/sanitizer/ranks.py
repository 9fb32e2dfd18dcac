"""Programs on several ranks: whose they are, and atomics whose scope does not reach the other rank."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Optional, Sequence

import numpy as np

from gluon_sim.errors import LeakError, ScopeError
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.epochs import Epochs
from gluon_sim.sanitizer.observed import Allocation
from gluon_sim.sanitizer.program_order import Began, Joined, Met, ProgramOrder, reaches_ranks
from gluon_sim.sanitizer.races import GlobalShadow
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.source import span_of

__all__ = ["AcrossRanks", "OnRank", "RankOrder"]

_SEVERAL = -1


class OnRank(tuple[int, int, int]):
    """A program (x, y, z) of a rank."""

    rank: int

    def __new__(cls, program: tuple[int, int, int], rank: int) -> OnRank:
        instance = super().__new__(cls, program)
        instance.rank = rank
        return instance

    def __repr__(self) -> str:
        return f"{tuple(self)} of rank {self.rank}"

    __str__ = __repr__

    def __eq__(self, other: Any) -> bool:
        return tuple(self) == other and getattr(other, "rank", self.rank) == self.rank

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self))


class RankOrder(ProgramOrder):
    """The order of the programs of all launches of all ranks. Programs have numbers in the order in
    which their launches began."""

    def __init__(self, threads: bool):
        super().__init__((0, 1, 1), threads)
        self._firsts: list[int] = []
        self._launches: list[tuple[int, int, tuple[int, int, int]]] = []  # rank, lane and grid

    def begin(self, rank: int, lane: int, grid: tuple[int, int, int]) -> int:
        """Order a launch in a lane of a rank after those before it in that and in the rank's own lane,
        which has the rank's number; the number of its first program."""
        first, count = self.total, grid[0] * grid[1] * grid[2]
        self.total += count
        self._firsts.append(first)
        self._launches.append((rank, lane, grid))
        self._log.append(Began(lane, first, count, rank))
        self._dense = None  # it has no columns for the new ones
        return first

    def join(self, rank: int, lane: int) -> None:
        """Let a rank go on when a concurrent lane is over."""
        self._log.append(Joined(rank, lane))

    def meet(self, lanes: Sequence[int]) -> None:
        """Record that the hosts of all ranks met, each after its launches in these lanes."""
        self._log.append(Met(tuple(lanes)))

    def _launch(self, number: int) -> int:
        return bisect_right(self._firsts, number) - 1

    def rank_of(self, number: int) -> int:
        return self._launches[self._launch(number)][0]

    def lane_of(self, number: int) -> int:
        return self._launches[self._launch(number)][1]

    def program(self, number: int) -> OnRank:
        launch = self._launch(number)
        rank, _, grid = self._launches[launch]
        x, rest = (
            (number - self._firsts[launch]) % grid[0],
            (number - self._firsts[launch]) // grid[0],
        )
        return OnRank((x, rest % grid[1], rest // grid[1]), rank)


class AcrossRanks:
    """The state of race detection over all ranks."""

    def __init__(self, threads: bool, strict: bool):
        self.order = RankOrder(threads)
        self.epochs = Epochs()
        self.epochs.strict = strict
        self.shadows: dict[int, GlobalShadow] = {}  # by allocation
        self._atomics: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._ops: dict[
            tuple[int, bool], Op
        ] = {}  # the last of a rank, by whether it reaches others
        self._last: dict[tuple[int, int], tuple[Op, int]] = {}  # of a word: the op, the rank

    def scope(self, task: Task, allocation: Allocation, index: np.ndarray, size: int) -> None:
        """Record an atomic access to elements of `size` bytes, which all ranks can reach.

        Raises:
            ScopeError: another rank makes atomics there, and one of the two does not reach it.
        """
        entry = self._atomics.get(id(allocation))
        if entry is None:
            cells = np.zeros((2, max(1, allocation.data.nbytes // 4)), np.int16)
            entry = self._atomics[id(allocation)] = (cells[0], cells[1])
        by, narrow = entry
        words = np.minimum(index.reshape(-1) * size >> 2, by.size - 1)
        rank, wide = task.batch.rank, reaches_ranks(task.op)
        assert rank is not None
        mine = rank + 1
        there = narrow[words] if wide else by[words]
        other = there[(there != 0) & (there != mine)]
        if other.size:
            self._report(task, rank, wide, int(other[0]) - 1, allocation)
        old = by[words]
        by[words] = np.where((old == 0) | (old == mine), mine, _SEVERAL)
        if not wide:
            narrow[words] = mine
        home = task.home()
        self._ops[rank, wide] = home
        if words.size == 1:
            self._last[id(allocation), int(words[0])] = home, rank

    def _report(
        self, task: Task, rank: int, wide: bool, other: int, allocation: Allocation
    ) -> None:
        then: Optional[Op] = None
        if other >= 0:
            then = self._ops.get((other, not wide)) or self._ops.get((other, wide))
        theirs = f"rank {other}" if other >= 0 else "another rank"
        now = task.home()
        place = f" (line {then.loc.line})" if then is not None else ""
        narrow, line = (then, theirs) if wide else (now, f"rank {rank}")
        named = f"line {narrow.loc.line}" if narrow is not None else "the atomic"
        raise ScopeError(
            f"`{task.op.called}` at line {now.loc.line} on rank {rank} and atomics of {theirs}{place} "
            f"meet in `{allocation.name}`, and the scope of those of {line} ends at its device",
            report="race.scope",
            program=task.program_id(0),
            remedy=f'Give the atomic of {named} scope="sys".',
            span=span_of(now.loc),
        )

    def rest(self, pad: Allocation) -> None:
        """At the end a pad of signals must be as it was at the beginning.

        Raises:
            LeakError: somebody signalled, and nobody waited for it.
        """
        words = pad.data.view(np.int32)
        left = np.flatnonzero(words)
        if not left.size:
            return
        slot = int(left[0])
        op, rank = self._last.get((id(pad), slot), (None, None))
        last = "" if op is None else f"; the last there was line {op.loc.line} on rank {rank}"
        more = f" ({left.size} slots are not 0)" if left.size > 1 else ""
        raise LeakError(
            f"slot {slot} of the signals of rank {pad.owner} is {int(words[slot])} at the end, and not "
            f"0{more}{last}",
            report="leak.signal",
            remedy="Let one wait follow each signal.",
            span=None if op is None else span_of(op.loc),
        )
