"""The order of stores and loads of different workgroups.

Each wave has a clock: how many of the stores of each wave of the grid it knows of. There are three,
each ahead of the one before: stores that all workgroups can see, those that are done but may be in a
cache that is not shared, and those that were started. A store with the scope of the device, or an atomic, carries the clocks of its wave; a wave that reads it receives them, and knows them when it has invalidated its caches. Waves of a workgroup pass them on at barriers. An ordinary load of a location that another workgroup stored wants that store to be known: the hardware may return the old value.

LLVM, "User Guide for AMDGPU Backend", Memory Model: release and acquire at agent scope. A wave that releases waits for its own stores alone: those
of others that have met it at a barrier count where these have waited for them before. LLVM takes the waves of one CU to reach memory in order and
waits there in WGP mode only; but the queues to the channels of the L2 cache are not ordered among each other.
"""

from __future__ import annotations

from typing import Any, Hashable

import numpy as np

from gluon_emu.amdgcn.isa.scopes import (
    INVALIDATE,
    WRITE_BACK,
    exchanges,
    load_key,
    store_keys,
    written_back,
)
from gluon_emu.errors import OrderError
from gluon_emu.memory import GlobalMemory

__all__ = ["Order", "order_of"]

SEEN, DONE, STARTED = range(3)
_CLOCKS_BYTES = 256 << 20
_COPIES = 13  # clocks of a wave that are kept: known, received, half, published (three each), kept


def order_of(code: Any, memory: GlobalMemory, groups: int, waves: int, resident: int) -> Any:
    """Return an `Order` where workgroups can learn from each other, else None."""
    if groups < 2 or not exchanges(code.program, code.context):
        return None
    size = groups * waves * 2 * len(store_keys(code.context))
    if size * resident * _COPIES * 4 > _CLOCKS_BYTES:
        return None
    return Order(code, memory, size, waves)


class Order:
    """Clocks of the waves of a launch, and the last store to each location.

    Args:
        size: of a clock: two numbers for each wave of the grid and kind of store, the second for
            stores that nothing needs to write back.
        waves: of a workgroup.
    """

    def __init__(self, code: Any, memory: GlobalMemory, size: int, waves: int):
        context, program = code.context, code.program
        self.keys, self.load_key = store_keys(context), load_key(context)
        self.memory, self.size, self.waves = memory, size, waves
        self.lazy = written_back(context)
        self.architecture = context.architecture
        self.granule = 4
        for ins in program.instructions:
            if "_store_" in ins.name and ins.name.rpartition("_")[2] in ("b8", "byte", "b16", "short", "hi"):  # fmt: skip
                self.granule = 1
        first = [a.start & ~15 for a in memory.allocations]
        counts = [(a.end - low + 15) // self.granule for a, low in zip(memory.allocations, first)]
        bases = np.concatenate(([0], np.cumsum(counts[:-1]))).astype(np.int64)
        self.shift = bases * self.granule - np.array(first, np.int64)  # address -> byte of all
        total = int(sum(counts)) + 16
        self.writer = np.zeros(total, np.int32)  # place in a clock, from 1; 0 for nobody
        self.number = np.zeros(total, np.int32)
        self.where = np.zeros(total, np.int32)
        self.flag = np.zeros(total, np.int32)  # index into `rows`: the clocks it carries
        self.rows: list[np.ndarray] = [np.zeros((3, size), np.int32)]
        self.row_where = [0]
        self.most_rows = max(64, _CLOCKS_BYTES // 2 // (12 * size))

    def enter(self, first: int, groups: int) -> None:
        """Make the workgroups from number `first` on resident."""
        count = groups * self.waves
        self.first_group, self.first = first, first * self.waves
        self.known = np.zeros((3, count, self.size), np.int32)
        self.received, self.half, self.sent = (np.zeros_like(self.known) for _ in range(3))
        self.kept = np.zeros((count, self.size), np.int32)
        self.heard_number, self.half_number, self.kept_number = (
            np.zeros(count, np.int64) for _ in range(3)
        )
        self.released_row = np.zeros(count, np.int32)
        self.acquired_row = np.zeros(count, np.int32)
        self.met: dict[Hashable, np.ndarray] = {}

    # -- clocks ------------------------------------------------------------------------------------

    def _place(self, waves: np.ndarray, key: int = 0, through: bool = False) -> np.ndarray:
        return ((self.first + waves) * len(self.keys) + key) * 2 + through

    def _done(self, b: Any, key: tuple[str, str]) -> np.ndarray:
        return np.broadcast_to(np.asarray(b.outstanding.done_of(*key)), (b.waves.size,))

    def _update(self, b: Any) -> None:
        """Advance the waves' knowledge of their own stores to their counters."""
        waves = b.waves
        for place, key in enumerate(self.keys):
            done = self._done(b, key)
            for through in (False, True):
                entry = self._place(waves, place, through)
                self.known[DONE, waves, entry] = done
                if through or not self.lazy:
                    self.known[SEEN, waves, entry] = done
        if self.kept_number[waves].any():
            done = self._done(b, self.keys[0])
            ready = waves[(self.kept_number[waves] > 0) & (done >= self.kept_number[waves])]
            self.known[SEEN, ready] = np.maximum(self.known[SEEN, ready], self.kept[ready])
            self.kept_number[ready] = 0
        if self.half_number[waves].any():
            done = self._done(b, self.load_key)
            ready = waves[(self.half_number[waves] > 0) & (done >= self.half_number[waves])]
            self._learn(ready, self.half)
            self.half_number[ready] = 0

    def _learn(self, waves: np.ndarray, clocks: np.ndarray) -> None:
        self.known[:, waves] = np.maximum(self.known[:, waves], clocks[:, waves])

    def write_back(self, b: Any, number: Any) -> None:
        """Write caches back by operation `number`: earlier stores are visible when
        that has ended."""
        self._update(b)
        waves = b.waves
        clocks = self.known[DONE, waves]
        own = self._place(waves)
        clocks[np.arange(waves.size), own] = np.broadcast_to(np.asarray(number), own.shape) - 1
        self.kept[waves] = np.maximum(self.kept[waves], clocks)
        self.kept_number[waves] = number

    def invalidate(self, b: Any, begins: bool, ends: bool, number: Any = 0) -> None:
        """Invalidate caches: later loads see the stores received before.

        Args:
            begins: whether the far cache is, `ends` whether the near one is.
            number: of the operation that must have ended before loads can rely on it; 0 for none.
        """
        self._update(b)
        waves = b.waves
        if begins:
            came = waves[self._done(b, self.load_key) >= self.heard_number[waves]]
            self.half[:, came] = np.maximum(self.half[:, came], self.received[:, came])
        if ends and isinstance(number, int) and not number:
            self._learn(waves, self.half)
        elif ends:
            self.half_number[waves] = number

    # -- barriers ----------------------------------------------------------------------------------

    def arrive(self, b: Any, meetings: list[Hashable], cluster: bool = False) -> None:
        """Publish the clocks of each wave of `b` to the waves of its meeting."""
        self._update(b)
        clocks = self.known[:, b.waves]
        if cluster:
            clocks[SEEN] = clocks[DONE]
        self._tell(meetings, clocks)

    def arrive_one(self, meeting: Hashable, wave: int) -> None:
        """Record the arrival of a resident wave at a barrier object."""
        clocks = self.known[:, [wave]]
        self._in_order(clocks, np.array([wave]))
        self._tell([meeting], clocks)

    def _in_order(self, clocks: np.ndarray, waves: np.ndarray) -> None:
        """Order started stores before those that another wave starts behind the barrier object."""
        rows = np.arange(waves.size)
        for place in range(len(self.keys)):
            for through in (False, True):
                entry = self._place(waves, place, through)
                clocks[DONE, rows, entry] = clocks[STARTED, rows, entry]
                if through or not self.lazy:
                    clocks[SEEN, rows, entry] = clocks[STARTED, rows, entry]

    def _tell(self, meetings: list[Hashable], published: np.ndarray) -> None:
        by_meeting: dict[Hashable, list[int]] = {}
        for row, meeting in enumerate(meetings):
            by_meeting.setdefault(meeting, []).append(row)
        for meeting, rows in by_meeting.items():
            clocks = published[:, rows].max(1)
            before = self.met.get(meeting)
            self.met[meeting] = clocks if before is None else np.maximum(before, clocks)

    def leave(self, waves: np.ndarray, meetings: list[Hashable]) -> None:
        """Join to waves that leave a meeting the clocks of all that came there."""
        for wave, meeting in zip(waves, meetings):
            clocks = self.met.get(meeting)
            if clocks is not None:
                self.known[:, wave] = np.maximum(self.known[:, wave], clocks)

    # -- access ------------------------------------------------------------------------------------

    def _granules(
        self, address: np.ndarray, size: int, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the places that are accessed, and for each the row of its wave in the batch."""
        row = np.nonzero(mask)[0]
        chosen = address[mask]
        allocation = np.searchsorted(self.memory.starts, chosen, "right") - 1
        first = (chosen.astype(np.int64) + self.shift[allocation]) // self.granule
        count = max(1, size // self.granule)
        if count == 1:
            return first, row
        return (first[:, None] + np.arange(count)).ravel(), np.repeat(row, count)

    def store(
        self,
        b: Any,
        ins: Any,
        address: np.ndarray,
        size: int,
        mask: np.ndarray,
        key: tuple[str, str],
        number: Any,
        wide: bool,
    ) -> None:
        """Remember a store; one that goes as far as the device can be a flag."""
        index, row = self._granules(address, size, mask)
        waves = b.waves
        place = self._place(waves, self.keys.index(key), wide)
        numbers = np.broadcast_to(np.asarray(number), (waves.size,))
        self.writer[index] = (place + 1)[row]
        self.number[index] = numbers[row]
        self.where[index] = ins.index
        if wide:
            self._update(b)
            self.flag[index] = self._release_flags(waves, ins.index)[row]
        else:
            self.flag[index] = 0
        self.known[STARTED, waves, place] = numbers

    def _release_flags(self, waves: np.ndarray, where: int) -> np.ndarray:
        """Rows with the clocks of the waves."""
        changed = (self.known[:, waves] != self.sent[:, waves]).any((0, 2))
        for wave in waves[changed]:
            self.sent[:, wave] = self.known[:, wave]
            self.released_row[wave] = self._row(self.known[:, wave].copy(), where)
        published: np.ndarray = self.released_row[waves]
        return published

    def _row(self, clocks: np.ndarray, where: int) -> int:
        if len(self.rows) >= self.most_rows:
            self._forget()
        self.rows.append(clocks)
        self.row_where.append(where)
        return len(self.rows) - 1

    def _forget(self) -> None:
        """Keep the rows that are in use; where these are many, one that knows all that they do."""
        places = np.flatnonzero(self.flag)
        used, back = np.unique(
            np.concatenate((self.flag[places], self.released_row, self.acquired_row)),
            return_inverse=True,
        )
        if used.size > self.most_rows // 2:
            merged = np.maximum.reduce([self.rows[i] for i in used])
            rows, where = [self.rows[0], merged], [0, self.row_where[used[-1]]]
            back = np.minimum(used[back], 1)
        else:
            rows = [self.rows[0], *(self.rows[i] for i in used if i)]
            where = [0, *(self.row_where[i] for i in used if i)]
            if used[0]:
                back = back + 1
        waves = self.released_row.size
        self.flag[places] = back[: places.size]
        self.released_row = back[places.size : places.size + waves].astype(np.int32)
        self.acquired_row = back[places.size + waves :].astype(np.int32)
        self.rows, self.row_where = rows, where

    def _hear(self, b: Any, row: int, carried: np.ndarray, number: Any) -> np.ndarray:
        """Receive the clocks that some rows carry; return their maximum."""
        clocks: np.ndarray = np.maximum.reduce([self.rows[i] for i in carried])
        wave = b.waves[row]
        self.received[:, wave] = np.maximum(self.received[:, wave], clocks)
        self.heard_number[wave] = np.broadcast_to(np.asarray(number), (b.waves.size,))[row]
        self.acquired_row[wave] = carried[-1]
        return clocks

    def change(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray, number: Any,
        hears: bool, wrote: np.ndarray,
    ) -> None:  # fmt: skip
        """Atomics, each wave after the one before: receive the clocks there, and add to them.

        Args:
            hears: whether the old value comes back.
            wrote: of the lanes in `mask`, those that changed something.
        """
        self._update(b)
        index, row = self._granules(address, self.granule, mask)
        touched, _ = self._granules(address, size, mask)
        self.writer[touched[np.repeat(wrote, touched.size // max(index.size, 1))]] = 0
        for one in np.unique(row):
            cells, did = index[row == one], wrote[row == one]
            carried = np.unique(self.flag[cells])
            carried = carried[carried > 0]
            wave = b.waves[one]
            clocks = self.known[:, wave]
            if carried.size:
                old: np.ndarray = np.maximum.reduce([self.rows[i] for i in carried])
                if hears:
                    self._hear(b, one, carried, number)
                clocks = np.maximum(clocks, old)
                if carried.size == 1 and (clocks == old).all():
                    self.flag[cells[did]] = carried[0]
                    continue
            if did.any() and clocks.any():
                self.flag[cells[did]] = self._row(clocks.copy(), ins.index)

    def load(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray, number: Any,
        wide: bool,
    ) -> None:  # fmt: skip
        """Check a load; one that goes as far as the device receives the clocks there.

        Raises:
            OrderError: the store of another workgroup may not be visible yet.
        """
        index, row = self._granules(address, size, mask)
        if wide:
            carried = self.flag[index]
            if carried.any():
                for one in np.unique(row[carried > 0]):
                    carriers = np.unique(carried[row == one])
                    self._hear(b, one, carriers[carriers > 0], number)
            return
        writer = self.writer[index]
        if not writer.any():
            return
        group = (writer - 1) // (2 * len(self.keys) * self.waves)
        other = np.flatnonzero((writer > 0) & (group != (self.first_group + b.groups)[row]))
        if not other.size:
            return
        self._update(b)
        known = self.known[SEEN, b.waves[row[other]], writer[other] - 1]
        late = self.number[index[other]] > known
        if late.any():
            first = int(other[np.flatnonzero(late)[0]])
            self._report(b, ins, int(row[first]), int(index[first]))

    # -- reports -----------------------------------------------------------------------------------

    def _report(self, b: Any, ins: Any, row: int, granule: int) -> None:
        machine, wave = b.machine, int(b.waves[row])
        place, number = int(self.writer[granule]) - 1, int(self.number[granule])
        earlier = machine.program.instructions[self.where[granule]]
        writer = place // (2 * len(self.keys))
        # A wave of the workgroup may have looked at the flag for all of them.
        mates = slice(wave // self.waves * self.waves, (wave // self.waves + 1) * self.waves)
        clock = np.maximum(self.received[:, mates, place], self.known[:, mates, place]).max(1)
        flag = machine.program.instructions[self.row_where[self.acquired_row[mates].max()]]
        shown = f"`{flag.text}`" + (f" ({flag.location})" if flag.location else "")
        if clock[SEEN] >= number:
            why = (
                f"missing {INVALIDATE[self.architecture]} between the load of the flag and this one"
            )
        elif clock[DONE] >= number:
            why = f"missing {WRITE_BACK[self.architecture]} and a wait for it before the flag is stored by {shown}"
        elif clock[STARTED] >= number:
            counter = self.keys[place // 2 % len(self.keys)][0]
            why = f"missing {machine.wait_name(counter, '0')} before the flag is stored by {shown}"
        else:
            why = "no flag that it stored behind that was read before"
        x, y, _ = machine.grid
        group = writer // self.waves
        source = f" ({earlier.location})" if earlier.location else ""
        raise machine.report(
            OrderError,
            f"loads what wave {writer % self.waves} of workgroup "
            f"{(group % x, group // x % y, group // (x * y))} stored by `{earlier.text}`{source}, "
            f"which may not be there yet: {why}",
            ins,
            b,
            row,
        )
