"""Barriers of a block by their number, and that of a cluster: PTX ISA 9.7.13."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.machine.code import SWITCH
from gluon_emu.ptx.machine.group import LANES, Group

__all__ = ["Barriers"]

_COUNT = 16


class Barriers:
    """The barriers of the resident blocks.

    Attributes:
        arrived: (number, block) -> threads that came.
        wanted: the threads that the barrier is for, 0 while nobody came, -1 for all of the block.
    """

    def __init__(self, machine: Any):
        self.machine = machine
        blocks = machine.blocks
        self.arrived = np.zeros((_COUNT, blocks), np.int64)
        self.wanted = np.zeros((_COUNT, blocks), np.int64)
        self.waiting: dict[int, list[Group]] = {}
        self.numbers: dict[int, int] = {}  # id of a parked group -> its barrier
        self.votes = np.zeros((3, _COUNT, blocks), np.int64)  # threads, those with a true predicate
        self.outcome = np.zeros((2, _COUNT, blocks), np.int64)
        clusters = -(-blocks // machine.cluster_size)
        self.cluster_arrived = np.zeros(clusters, np.int64)
        self.cluster_phase = np.zeros(clusters, np.int64)
        self.cluster_mine = np.full(machine.block_of.size, -1)
        self.cluster_waiting: list[Group] = []

    # -- of blocks --

    def alive(self) -> np.ndarray:
        """Return the threads of each block in warps that have not exited."""
        machine = self.machine
        living = ~machine.exited.all(1)
        return np.bincount(machine.block_of, living, machine.blocks).astype(np.int64) * LANES

    def arrive(
        self, group: Group, number: int, threads: Optional[int], waits: bool,
        vote: Optional[np.ndarray] = None,
    ) -> Any:  # fmt: skip
        """Record that the warps of a group arrive.

        Args:
            threads: that the barrier is for; None for all of the block.
            vote: predicates of `bar.red`.
        """
        machine = self.machine
        if not 0 <= number < _COUNT:
            raise EmulatorError(f"there is no barrier {number}, but 0 to {_COUNT - 1}")
        if threads is not None and (threads <= 0 or threads % LANES):
            raise EmulatorError(f"{threads} threads at a barrier, which is no multiple of {LANES}")
        here = machine.complete(group)
        if here is not None:
            return machine.await_warps(group, here)
        machine.changes += 1
        observer = machine.observer
        if observer is not None:
            observer.arrive(group, number)
        count = np.bincount(group.block, minlength=machine.blocks) * LANES
        mine = count > 0
        wanted = -1 if threads is None else threads
        before = self.wanted[number]
        differs = mine & (before != 0) & (before != wanted)
        if differs.any():
            other = int(before[differs][0])
            raise EmulatorError(
                f"barrier {number} is for {_threads(wanted)} here, and others came for "
                f"{_threads(other)}"
            )
        self.wanted[number][mine] = wanted
        self.arrived[number] += count
        if vote is not None:
            lanes = group.lanes()
            self.votes[0, number] += np.bincount(group.block, lanes.sum(1), machine.blocks).astype(
                int
            )
            true = (group.full(vote) & lanes).sum(1)
            self.votes[1, number] += np.bincount(group.block, true, machine.blocks).astype(int)
        complete = self._complete(number)
        if vote is None and complete[group.block].all() and not self.waiting.get(number):
            self._reset(number, complete)
            if observer is not None:
                observer.complete(number, complete)
                if waits:
                    observer.passed(group, number)
            return None
        if waits:
            self.waiting.setdefault(number, []).append(group)
            self.numbers[id(group)] = number
            machine.parked.append(group)
        else:
            machine._drop(group.pc, group)
            group.pc += 1
            machine.place(group)
        self._release(number, complete)
        return SWITCH

    def _complete(self, number: int) -> np.ndarray:
        wanted = np.where(self.wanted[number] < 0, self.alive(), self.wanted[number])
        over = (self.wanted[number] > 0) & (self.arrived[number] > wanted)
        if over.any():
            block = int(np.argmax(over))
            raise EmulatorError(
                f"{int(self.arrived[number][block])} threads came to barrier {number}, which is for "
                f"{int(wanted[block])}"
            )
        return np.asarray((self.arrived[number] > 0) & (self.arrived[number] >= wanted))

    def _reset(self, number: int, complete: np.ndarray) -> None:
        self.arrived[number][complete] = 0
        self.wanted[number][complete] = 0

    def _release(self, number: int, complete: np.ndarray) -> None:
        """Let the warps of complete blocks go on."""
        if not complete.any():
            return
        machine, observer = self.machine, self.machine.observer
        if observer is not None:
            observer.complete(number, complete)
        for place in (0, 1):
            self.outcome[place, number][complete] = self.votes[place, number][complete]
            self.votes[place, number][complete] = 0
        self._reset(number, complete)
        left = []
        for group in self.waiting.pop(number, []):
            go = complete[group.block]
            if not go.any():
                left.append(group)
                continue
            machine.parked.remove(group)
            self.numbers.pop(id(group), None)
            group.mask = group.active
            parts = [group]
            if not go.all():
                every = group.everything()
                rest = group.part(every & ~go[:, None])
                group = group.part(every & go[:, None])
                left.append(rest)
                self.numbers[id(rest)] = number
                machine.parked.append(rest)
                parts = [group]
            for part in parts:
                part.passed = True
                if observer is not None:
                    part.mask = part.active
                    observer.passed(part, number)
            machine.place(*parts)
        if left:
            self.waiting[number] = left

    def left(self, blocks: np.ndarray) -> None:
        """Threads of these blocks exited: barriers for all of a block may be complete."""
        for number in list(self.waiting):
            complete = self._complete(number)
            mine = np.zeros(self.machine.blocks, bool)
            mine[blocks] = True
            complete &= mine & (self.wanted[number] < 0)
            self._release(number, complete)
        self._cluster_check()

    def holds(self, group: Group) -> bool:
        return id(group) in self.numbers or any(g is group for g in self.cluster_waiting)

    def why(self, group: Group) -> str:
        number = self.numbers.get(id(group))
        if number is not None:
            block = int(group.block[0])
            wanted = int(self.wanted[number][block])
            return f": {int(self.arrived[number][block])} of {_threads(wanted)} came to barrier {number}"
        if any(g is group for g in self.cluster_waiting):
            return ": the cluster's barrier is not complete"
        if group.active is not None:
            return ": the other threads of the warp do not come"
        return ""

    # -- of clusters --

    def cluster_arrive(self, group: Group) -> None:
        machine = self.machine
        cluster = group.block // machine.cluster_size
        lanes = group.lanes()
        self.cluster_mine[group.rows] = self.cluster_phase[cluster]
        self.cluster_arrived += np.bincount(
            cluster, lanes.sum(1), self.cluster_arrived.size
        ).astype(np.int64)
        machine.changes += 1
        self._cluster_check()

    def _cluster_check(self) -> None:
        machine = self.machine
        living = (~machine.exited).sum(1)
        cluster = machine.block_of // machine.cluster_size
        wanted = np.bincount(cluster, living, self.cluster_arrived.size)
        complete = (self.cluster_arrived > 0) & (self.cluster_arrived >= wanted)
        if complete.any():
            if machine.observer is not None:
                machine.observer.complete("cluster", complete)
            self.cluster_phase[complete] += 1
            self.cluster_arrived[complete] = 0
            waiting, self.cluster_waiting = self.cluster_waiting, []
            if waiting:
                machine.wake(*waiting)

    def cluster_wait(self, group: Group) -> Any:
        machine = self.machine
        cluster = group.block // machine.cluster_size
        mine = self.cluster_mine[group.rows]
        if (mine < 0).any():
            raise EmulatorError("a wait at the cluster's barrier without an arrival before it")
        ready = self.cluster_phase[cluster] > mine
        if ready.all():
            return None
        every = group.everything()
        if ready.any():
            machine.place(group.part(every & ready[:, None]))
            group = group.part(every & ~ready[:, None])
        self.cluster_waiting.append(group)
        return machine.park(group)


def _threads(wanted: int) -> str:
    return "all threads of the block" if wanted < 0 else f"{wanted} threads"
