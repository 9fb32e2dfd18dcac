"""Words of global memory that order threads, and fences: PTX ISA 8.7 to 8.9."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from gluon_emu.ptx.machine.clocks import CAUSAL, PROXIED, Clock
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.machine.knowledge import Knowledge
from gluon_emu.ptx.machine.observe import BLOCK, CLUSTER, DEVICE, Order

__all__ = ["Words"]

_MOST_WORDS = 4096
_LANE = np.arange(LANES, dtype=np.uint32)


@dataclass
class _Word:
    """Releases to a word of global memory.

    Args:
        releases: (clock, row, scope) of each that the next acquire may see.
        version: how often they changed.
        known: row -> the version that all its lanes have acquired.
    """

    releases: list[tuple[Clock, int, int]] = field(default_factory=list)
    version: int = 0
    known: dict[int, int] = field(default_factory=dict)


class Words(Knowledge):
    """The releases that words of global memory hold.

    Args:
        wide: whether anything but barriers may order threads.
    """

    def __init__(self, machine: Any, wide: bool):
        super().__init__(machine)
        self.wide = wide
        self.words: dict[int, _Word] = {}
        self.ready = np.zeros(machine.block_of.size, bool)  # warps that executed `wgmma.fence`
        self.inits: dict[int, Clock] = {}  # row -> its last `fence.mbarrier_init`
        self.overflow: list[tuple[Clock, int, int]] = []
        self.fenced: dict[int, tuple[Clock, int, np.ndarray]] = {}  # row -> its last fence
        self.seen: dict[
            int, list[tuple[Clock, int, int]]
        ] = {}  # row -> releases that it read relaxed
        self.narrow: Optional[str] = None  # the scope that kept an acquire from a release

    def _reads_words(
        self, group: Any, address: np.ndarray, lanes: np.ndarray, order: Order
    ) -> None:
        if not self.words:
            return
        places = address[lanes]
        rows = np.nonzero(lanes)[0]
        asked = dict.fromkeys(zip(rows.tolist(), places.tolist()))
        for i, place in asked:
            word = self.words.get(place)
            if word is None or word.known.get(int(group.rows[i])) == word.version:
                continue
            here = np.zeros_like(lanes)
            here[i] = lanes[i] & (address[i] == place)
            self._read(group, i, here, word, order)
        if order.acquires and self.overflow:
            for i in np.flatnonzero(lanes.any(1)):
                here = np.zeros_like(lanes)
                here[i] = lanes[i]
                for message, other, _ in self.overflow:
                    self._acquire(group, here, self._sent(message, other, int(group.rows[i])))

    def _writes_words(
        self, group: Any, address: np.ndarray, lanes: np.ndarray, order: Order, keeps: bool
    ) -> None:
        fenced = any(int(row) in self.fenced for row in group.rows[lanes.any(1)])
        if not order.releases and not fenced and not self.words:
            return
        for place in np.unique(address[lanes]):
            here = lanes & (address == place)
            word = self.words.get(int(place))
            if word is None:
                if not order.releases and not fenced:
                    continue
                if len(self.words) >= _MOST_WORDS:
                    self._overflows(group, here)
                    continue
                word = self.words[int(place)] = _Word()
            warps = np.flatnonzero(here.any(1))
            if not keeps or warps.size == 1:
                self._write(group, here, word, order.scope, order.releases, keeps)
                continue
            for i in warps:  # one after the other, each with what the ones before released
                mine = np.zeros_like(here)
                mine[i] = here[i]
                self._read(group, int(i), mine, word, order)
                self._write(group, mine, word, order.scope, order.releases, keeps)

    def _overflows(self, group: Any, here: np.ndarray) -> None:
        rows, message = self._message(group, here)
        self.overflow += [(message.of([i]), int(row), DEVICE) for i, row in enumerate(rows)]
        latest = {other: (clock, other, scope) for clock, other, scope in self.overflow}
        self.overflow = list(latest.values())

    def _write(
        self, group: Any, here: np.ndarray, word: _Word, scope: int, releases: bool, keeps: bool
    ) -> None:
        """Note a release; an atomic operation goes on with those before it, a store does not."""
        before = len(word.releases)
        if not keeps:
            word.releases.clear()
        if releases:
            rows, message = self._message(group, here)
            word.releases += [(message.of([i]), int(row), scope) for i, row in enumerate(rows)]
        else:
            for row in group.rows[here.any(1)]:
                known = self.fenced.get(int(row))
                if known is not None and known[2][here[np.flatnonzero(group.rows == row)[0]]].all():
                    word.releases.append((known[0], int(row), min(scope, known[1])))
        del word.releases[:-64]
        if releases or before or word.releases:
            word.version += 1

    def _read(self, group: Any, i: int, here: np.ndarray, word: _Word, order: Order) -> None:
        """Let threads of a warp know the releases to a word, or remember them until a fence."""
        row = int(group.rows[i])
        if not order.acquires:
            self.seen[row] = [*self.seen.get(row, []), *word.releases][-64:]
            return
        if (here[i] | self.machine.exited[row]).all():
            word.known[row] = word.version
        for message, other, width in word.releases:
            if self._reaches(row, other, min(order.scope, width)):
                self._acquire(group, here, self._sent(message, other, row))

    def _reaches(self, row: int, other: int, scope: int) -> bool:
        block_of = self.machine.block_of
        here, there = int(block_of[row]), int(block_of[other])
        size = self.machine.cluster_size
        if here == there or scope >= DEVICE or scope >= CLUSTER and here // size == there // size:
            return True
        self.narrow = (
            f"A release or acquire at scope .{'cta' if scope == BLOCK else 'cluster'} does not reach the "
            "other block: both need .gpu."
        )
        return False

    def fence(self, group: Any, order: Optional[Order], proxy: str = "") -> None:
        lanes = group.lanes()
        if proxy == "async":
            self._proxy(group, lanes)
        if proxy == "wgmma":
            self.ready[group.rows] = True
        if proxy == "mbarrier_init":
            rows, message = self._message(group, lanes)
            self.inits.update((int(row), message.of([i])) for i, row in enumerate(rows))
        if order is None:
            return
        for row in group.rows[lanes.any(1)]:
            relaxed = self.seen.pop(int(row), None)
            if relaxed is None:
                continue
            mine = np.zeros_like(lanes)
            i = int(np.flatnonzero(group.rows == row)[0])
            mine[i] = lanes[i]
            for message, other, width in relaxed:
                if self._reaches(int(row), other, min(order.scope, width)):
                    self._acquire(group, mine, self._sent(message, other, int(row)))
        if self.wide:
            rows, message = self._message(group, lanes)
            for i, row in enumerate(rows):
                mask = lanes[np.flatnonzero(group.rows == row)[0]]
                self.fenced[int(row)] = (message.of([i]), order.scope, mask)

    def _proxy(self, group: Any, lanes: np.ndarray) -> None:
        """Let all that threads know and did be visible to the async proxy."""
        rows = group.rows[lanes.any(1)]
        mine = self.clock.of(rows)
        mask = lanes[lanes.any(1)]
        cell = CAUSAL, np.arange(rows.size), self.own[rows]
        bits = (mask.astype(np.uint32) << _LANE).sum(1, dtype=np.uint32)
        old = np.where(mine.some[cell] > mine.whole[cell], mine.lanes[cell], 0)
        mine.some[cell], mine.lanes[cell] = self.now[rows], bits | old
        for part in (mine.whole, mine.some, mine.lanes):
            part[PROXIED] = part[CAUSAL]
            part[CAUSAL] = 0
        self.now[rows] += 1
        self.clock.put(rows, self.clock.of(rows).joined(mine))
        for i, row in enumerate(rows):
            clocks = self.apart.get(int(row))
            if clocks is not None:
                for part in (clocks.whole, clocks.some, clocks.lanes):
                    part[PROXIED] = np.maximum(part[PROXIED], part[CAUSAL])
                self.apart[int(row)] = clocks.joined(mine.of([i]))
