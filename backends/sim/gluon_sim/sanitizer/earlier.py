"""The accesses to an element before the last one: reads and atomics by many, of which a write must know all.

Per element the shadow holds one access of each kind. Where another comes that is not ordered after
it, the one before is kept here: as a node (program, epoch, the node before it). Elements that were
accessed alike share their nodes, so a tile costs as much as one element.
"""

from __future__ import annotations

from typing import Iterable, Iterator, Optional, Union

import numpy as np

__all__ = ["Earlier"]

Numbers = Union[int, np.ndarray]
Link = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # see `Earlier.chains`

LIMIT = 4 << 20  # nodes of a launch, 12 bytes each; beyond, only the last access is known


class Earlier:
    """The nodes of one allocation; 0 is none."""

    def __init__(self) -> None:
        self.parent = np.zeros(64, np.int32)
        self.program = np.zeros(64, np.int32)
        self.epoch = np.zeros(64, np.int32)
        self.count = 1
        self.sets: dict[str, np.ndarray] = {}

    def refine(self, ratio: int) -> None:
        self.sets = {k: np.repeat(s, ratio) for k, s in self.sets.items()}

    def _of(self, kind: str, size: int) -> np.ndarray:
        members = self.sets.get(kind)
        if members is None:
            members = self.sets[kind] = np.zeros(size, np.int32)
        return members

    def _make(self, parent: np.ndarray, program: Numbers, epoch: Numbers) -> Optional[np.ndarray]:
        """Add new nodes, one for each parent."""
        first, self_end = self.count, self.count + len(parent)
        if self_end > LIMIT:
            return None
        while self_end > len(self.parent):
            for name in ("parent", "program", "epoch"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self.parent[first:self_end] = parent
        self.program[first:self_end] = program
        self.epoch[first:self_end] = epoch
        self.count = self_end
        return np.arange(first, self_end, dtype=np.int32)

    def push(
        self, kind: str, size: int, places: np.ndarray, programs: np.ndarray, epoch: np.ndarray
    ) -> None:
        """Keep accesses by `programs` (one per place) at `epoch` as earlier ones of `places`."""
        sets = self._of(kind, size)
        old = sets[places]
        whole = np.stack([old.astype(np.int64), programs.astype(np.int64), epoch.astype(np.int64)])
        if (whole == whole[:, :1]).all():
            number = self._make(old[:1], programs[:1], epoch[:1])
            if number is not None:
                sets[places] = number[0]
            return
        distinct, inverse = np.unique(whole, axis=1, return_inverse=True)
        number = self._make(*distinct)
        if number is not None:
            sets[places] = number[inverse.reshape(-1)]

    def push_all(
        self, kind: str, size: int, places: np.ndarray, programs: np.ndarray, epoch: int
    ) -> None:
        """Keep one access by each of several programs, to all of `places`."""
        sets = self._of(kind, size)
        distinct, inverse = np.unique(sets[places], return_inverse=True)
        for program in programs.tolist():
            numbers = self._make(distinct, program, epoch)
            if numbers is None:
                return
            distinct = numbers
        sets[places] = distinct[inverse.reshape(places.shape)]

    def push_rounds(
        self, kind: str, size: int, places: np.ndarray, programs: np.ndarray, epochs: np.ndarray
    ) -> None:
        """Keep accesses of one op by several programs to a place, all but the last of each place."""
        order = np.argsort(places, kind="stable")
        places, programs, epochs = places[order], programs[order], epochs[order]
        same = places[1:] == places[:-1]
        places, programs, epochs = places[:-1][same], programs[:-1][same], epochs[:-1][same]
        while len(places):
            first = np.ones(len(places), bool)
            np.not_equal(places[1:], places[:-1], out=first[1:])
            self.push(kind, size, places[first], programs[first], epochs[first])
            places, programs, epochs = places[~first], programs[~first], epochs[~first]

    def forget(self, kinds: Iterable[str], index: np.ndarray) -> None:
        """After a write that comes after them all."""
        for kind in kinds:
            sets = self.sets.get(kind)
            if sets is not None:
                sets[index] = 0

    def chains(self, kind: str, index: np.ndarray, programs: np.ndarray) -> Iterator[Link]:
        """(place, program now, program before, epoch before), arrays of the epochs that each accessor must know.

        One place represents all with the same accesses.
        """
        sets = self.sets.get(kind)
        if sets is None:
            return
        numbers = sets.take(index, mode="clip")
        live = numbers != 0
        if not live.any():
            return
        now = np.broadcast_to(programs, numbers.shape)[live].astype(np.int64)
        places = np.broadcast_to(index, numbers.shape)[live]
        both = np.stack([numbers[live].astype(np.int64), now])
        _, first = np.unique(both, axis=1, return_index=True)
        nodes, now, places = both[0][first], now[first], places[first]
        while len(nodes):
            yield places, now, self.program[nodes].astype(np.int64), self.epoch[nodes]
            nodes = self.parent[nodes].astype(np.int64)
            more = nodes != 0
            nodes, now, places = nodes[more], now[more], places[more]
