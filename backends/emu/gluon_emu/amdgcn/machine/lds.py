"""LDS of the resident workgroups, and the last accesses to it.

For each granule (as wide as the kernel's narrowest access) the last write and each wave's last read
are kept, as the number that the operation had among those of its counter. A barrier publishes the operations that a wave knows to be done when it arrives; an access conflicts with another wave's unless that was
published at a barrier that the accessing wave has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.machine.barriers import group_of
from gluon_emu.errors import AccessError, MissingWaitError, RaceError, UninitialisedError

__all__ = ["CLASSES", "Lds"]

# Instructions that move data into LDS or out of it: ordinary instructions, loads past the registers, copies.
CLASSES = ("ds", "direct", "async", "tensor")
Copies = Callable[[], np.ndarray]

_ROUNDING = 2.0**-14  # share of a float by which copies may differ, as `gluon certify` takes it


class Lds:
    """LDS of `groups` workgroups of `waves` waves.

    Args:
        size: bytes of one workgroup.
        granule: bytes that are tracked as one.
    """

    def __init__(self, groups: int, waves: int, size: int, granule: int, machine: Any):
        self.groups, self.waves, self.size = groups, waves, size
        self.words = (size + 3) // 4
        self.machine = machine
        self.data = np.full(max(groups * self.words, 1), 0x7FA5A5A5, np.uint32)
        self.bytes = self.data.view(np.uint8)
        self.granule = granule
        self.granules = self.words * 4 // granule
        count = groups * self.granules
        self.tracked = machine.settings.races or machine.settings.waits
        if self.tracked:
            self.writer = np.full(count, -1, np.int16)
            self.write_class = np.zeros(count, np.int8)
            self.write_number = np.zeros(count, np.int32)
            self.write_where = np.zeros(count, np.int32)
            self.atomic = np.zeros(count, bool)
            # By class of operation, each wave's last read.
            self.read_number = {0: np.zeros((waves, count), np.int32)}
        # The operations that each wave knew to be done at its last two barriers, by class and parity.
        self.released = np.zeros((len(CLASSES), groups * waves, 2), np.int64)
        # Barrier objects: byte address -> the operations that each arriving wave knew to be done, by class;
        # and each wave's knowledge of the waves of its workgroup from reading them.
        self.objects: dict[int, np.ndarray] = {}
        self.acquired = np.zeros((len(CLASSES), groups * waves, waves), np.int64)

    def release(self, b: Any, parity: np.ndarray) -> None:
        """Record arrivals of the waves of `b` at a barrier whose number has `parity`."""
        for place, key in enumerate(self.machine.lds_keys):
            self.released[place, b.waves, parity] = b.outstanding.done_of(*key)

    def arrive_at(self, place: int, wave: int, known: np.ndarray) -> None:
        """Record the arrival of a wave, or a copy of it, at a barrier object, with the operations it knows to be done."""
        seen = self.objects.setdefault(place, np.zeros((len(CLASSES), self.waves), np.int64))
        seen[:, wave] = np.maximum(seen[:, wave], known)
        if self.machine.order is not None:
            group = place // (self.words * 4) if place >= 0 else group_of(place)
            self.machine.order.arrive_one(place, group * self.waves + wave)

    def _look_at(self, b: Any, index: np.ndarray, row: np.ndarray) -> None:
        """Join to waves that read barrier objects the clocks of the waves that arrived there."""
        for place in self.objects:
            self.learn(place, b.waves[np.unique(row[index == place // self.granule])])

    def learn(self, place: int, waves: np.ndarray) -> None:
        """Join to waves the clocks of those that arrived at a barrier object or a named barrier."""
        if self.machine.order is not None:
            self.machine.order.leave(waves, [place] * len(waves))
        for one in waves:
            self.acquired[:, one] = np.maximum(self.acquired[:, one], self.objects[place])

    # -- access ------------------------------------------------------------------------------------

    def checked(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray
    ) -> np.ndarray:
        """Byte addresses in the LDS of all workgroups.

        Raises:
            AccessError: outside of the workgroup's LDS.
        """
        wrong = mask & (address.astype(np.uint64) + np.uint64(size) > np.uint64(self.words * 4))
        if wrong.any():
            wave, lane = (int(i[0]) for i in np.nonzero(wrong))
            raise self.machine.report(
                AccessError,
                f"an access outside of LDS: {size} bytes at {int(address[wave, lane])} of "
                f"{self.words * 4}",
                ins,
                b,
                wave,
                lane,
            )
        places = np.where(mask, address, np.uint32(0)).astype(np.int64)
        places += (b.groups * (self.words * 4))[:, None]
        return places

    def load(self, address: np.ndarray, size: int) -> list[np.ndarray]:
        """Words from byte addresses that `checked` gave."""
        if size >= 4 and not (address & 3).any():
            index = address >> 2
            return [self.data[index + i] if i else self.data[index] for i in range(size // 4)]
        words = []
        for start in range(0, size, 4):
            word = self.bytes[address + start].astype(np.uint32)
            for byte in range(1, min(4, size - start)):
                word |= self.bytes[address + start + byte].astype(np.uint32) << np.uint32(8 * byte)
            words.append(word)
        return words

    def store(self, address: np.ndarray, size: int, values: list[Any], mask: np.ndarray) -> None:
        chosen = address[mask]
        values = [np.broadcast_to(v, mask.shape)[mask] for v in values]
        if size >= 4 and not (chosen & 3).any():
            index = chosen >> 2
            for i, value in enumerate(values):
                self.data[index + i] = value
            return
        for start, value in zip(range(0, size, 4), values):
            for byte in range(min(4, size - start)):
                self.bytes[chosen + start + byte] = (value >> np.uint32(8 * byte)).astype(np.uint8)

    # -- accesses ----------------------------------------------------------------------------------

    def note_read(
        self,
        b: Any,
        ins: Any,
        address: np.ndarray,
        size: int,
        mask: np.ndarray,
        number: Any,
        kind: int = 0,
    ) -> None:
        """Check a read and remember it.

        Raises:
            RaceError: another wave writes the bytes concurrently.
            MissingWaitError: a copy of the same wave may not have written them yet.
        """
        if not self.tracked:
            return
        index, row = self._granules(address, size, mask)
        if self.objects:
            self._look_at(b, index, row)
        self._against_writes(b, ins, index, row, "reads")
        inside = (b.waves % self.waves)[row]
        numbers = np.broadcast_to(np.asarray(number), (b.waves.size,))[row]
        if kind not in self.read_number:
            self.read_number[kind] = np.zeros_like(self.read_number[0])
        self.read_number[kind][inside, index] = numbers

    def note_write(
        self,
        b: Any,
        ins: Any,
        address: np.ndarray,
        size: int,
        mask: np.ndarray,
        number: Any,
        kind: int = 0,
        copies: Optional[Copies] = None,
    ) -> None:
        """Check a write and remember it.

        Args:
            copies: returns for each granule whether the same bytes are there already, by the same
                instruction; a write of them is no race.

        Raises:
            RaceError: another wave accesses the bytes concurrently.
            MissingWaitError: a read or copy of the same wave may still need them.
        """
        if not self.tracked:
            return
        index, row = self._granules(address, size, mask)
        self._against_writes(b, ins, index, row, "writes", kind, copies)
        self._against_reads(b, ins, index, row, kind)
        self._write(b, ins, index, row, number, kind, False)

    def write(
        self,
        b: Any,
        ins: Any,
        address: np.ndarray,
        size: int,
        mask: np.ndarray,
        number: Any,
        values: list[np.ndarray],
    ) -> None:
        """Check a store of words, make it, and remember it.

        Waves that hold copies of a tile store the same words by one instruction, in any order. Compilers that fuse an addition
        with one of two equal products round in different lanes differently, so copies of floats may differ a little.

        Raises:
            RaceError, MissingWaitError: as for `note_write`.
        """
        bits = np.uint32((1 << 8 * min(size, 4)) - 1)

        def copies() -> np.ndarray:
            held = self.load(np.where(mask, address, 0), size)
            equal = np.logical_and.reduce(
                [(h == (v & bits)) | _rounded(h, v) for h, v in zip(held, values)]
            )[mask]
            index, _ = self._granules(address, size, mask)
            same = np.repeat(equal, index.size // max(1, equal.size))
            return np.asarray(same & (self.write_where[index] == ins.index))

        self.note_write(b, ins, address, size, mask, number, copies=copies)
        self.store(address, size, values, mask)
        if not self.tracked or not self.machine.settings.races:
            return
        index, row = self._granules(address, size, mask)
        bad = self.writer[index] != (b.waves % self.waves)[row]
        if bad.any():
            bad &= ~copies()
        if bad.any():
            self._race(b, ins, index, row, bad, "writes what wave {other} writes")

    def note_atomic(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray, number: Any
    ) -> None:
        """Check an atomic operation and remember it; atomics of several waves are no race.

        Raises:
            RaceError: another wave reads or writes the bytes concurrently, not by an atomic.
        """
        if not self.tracked:
            return
        index, row = self._granules(address, size, mask)
        plain = ~self.atomic[index]
        self._against_writes(b, ins, index[plain], row[plain], "changes")
        self._against_reads(b, ins, index, row, 0)
        self._write(b, ins, index, row, number, 0, True)

    def _write(
        self,
        b: Any,
        ins: Any,
        index: np.ndarray,
        row: np.ndarray,
        number: Any,
        kind: int,
        atomic: bool,
    ) -> None:
        self.writer[index] = (b.waves % self.waves)[row]
        self.write_class[index] = kind
        self.write_number[index] = np.broadcast_to(np.asarray(number), (b.waves.size,))[row]
        self.write_where[index] = ins.index
        self.atomic[index] = atomic

    def _granules(
        self, address: np.ndarray, size: int, mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Granules that are touched, and for each the row of its wave in the batch."""
        row, _ = np.nonzero(mask)
        first = address[mask] // self.granule
        count = max(1, size // self.granule)
        if count == 1:
            return first, row
        index = (first[:, None] + np.arange(count)).ravel()
        return index, np.repeat(row, count)

    def _against_writes(
        self,
        b: Any,
        ins: Any,
        index: np.ndarray,
        row: np.ndarray,
        verb: str,
        kind: int = 0,
        copies: Optional[Copies] = None,
    ) -> None:
        writer = self.writer[index]
        own = (b.waves % self.waves)[row]
        number = self.write_number[index]
        classes = self.write_class[index]
        other = (writer >= 0) & (writer != own)
        if other.any():
            machine = self.machine
            parity = machine.barriers.passed[b.waves][row] & 1
            wave = (b.groups * self.waves)[row] + np.maximum(writer, 0)
            bad = other & (number > self.released[classes, wave, parity])
            if self.objects:
                known = self.acquired[classes, b.waves[row], np.maximum(writer, 0)]
                bad &= number > known
            if copies is not None and bad.any():
                bad &= ~copies()
            if bad.any() and machine.settings.races:
                self._race(b, ins, index, row, bad, f"{verb} what wave {{other}} writes")
        mine = (writer == own) & (classes > 0)
        if mine.any() and self.machine.settings.waits:
            done = self.done(b)
            bad = mine & (number > done[classes, row])
            if self.objects:
                bad &= number > self.acquired[classes, b.waves[row], own]
            if kind and (classes[mine] == kind).all():
                return  # copies of one kind arrive in order
            if bad.any():
                first = int(np.nonzero(bad)[0][0])
                writer_ins = self.machine.program.instructions[self.write_where[index[first]]]
                counter = self.machine.lds_keys[classes[first]][0]
                raise self.machine.report(
                    MissingWaitError,
                    f"{verb} LDS that `{writer_ins.text}` may not have written yet: missing "
                    f"{self.machine.wait_name(counter)} before it",
                    ins,
                    b,
                    int(row[first]),
                )

    def done(self, b: Any) -> np.ndarray:
        """Return the operations that the waves of a batch know to be done, [classes, waves]."""
        return np.stack(
            [
                np.broadcast_to(np.asarray(b.outstanding.done_of(*key)), (b.waves.size,))
                for key in self.machine.lds_keys
            ]
        )

    def _against_reads(
        self, b: Any, ins: Any, index: np.ndarray, row: np.ndarray, kind: int
    ) -> None:
        own = (b.waves % self.waves)[row]
        parity = self.machine.barriers.passed[b.waves][row] & 1
        base = (b.groups * self.waves)[row]
        for of in self.read_number:
            for wave in range(self.waves):
                reads = self.read_number[of][wave][index]
                if not reads.any():
                    continue
                bad = (own != wave) & (reads > self.released[of, base + wave, parity])
                if self.objects:
                    bad &= reads > self.acquired[of, b.waves[row], wave]
                if bad.any() and self.machine.settings.races:
                    self._race(b, ins, index, row, bad, f"writes what wave {wave} reads", wave)
                if kind != of and self.machine.settings.waits:
                    self._own_reads(
                        b, ins, row, (own == wave) & (reads > self.done(b)[of][row]), of
                    )

    def _own_reads(self, b: Any, ins: Any, row: np.ndarray, bad: np.ndarray, of: int) -> None:
        """Report a write over LDS that an operation of another class before it, of the same wave, may not have read."""
        if not bad.any():
            return
        early = "a copy" if of == 0 else "an instruction"
        late = "an instruction" if of == 0 else "a copy"
        raise self.machine.report(
            MissingWaitError,
            f"{early} writes LDS that {late} before it may not have read yet: "
            f"missing {self.machine.wait_name(self.machine.lds_keys[of][0])} before it",
            ins,
            b,
            int(row[int(np.nonzero(bad)[0][0])]),
        )

    def _race(
        self,
        b: Any,
        ins: Any,
        index: np.ndarray,
        row: np.ndarray,
        bad: np.ndarray,
        words: str,
        wave: Optional[int] = None,
    ) -> None:
        first = int(np.nonzero(bad)[0][0])
        granule = int(index[first])
        other = int(self.writer[granule]) if wave is None else wave
        offset = granule % self.granules * self.granule
        text = words.format(other=other)
        earlier = ""
        if wave is None:
            writer = self.machine.program.instructions[self.write_where[granule]]
            earlier = f" by `{writer.text}`" + (f" ({writer.location})" if writer.location else "")
        raise self.machine.report(
            RaceError,
            f"{text}{earlier}, LDS byte {offset}, with no barrier between that orders them, or "
            "no wait before the barrier",
            ins,
            b,
            int(row[first]),
        )

    def never_written(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray
    ) -> None:
        """Check that a read of LDS finds written bytes.

        Raises:
            UninitialisedError: a read of LDS that nobody wrote.
        """
        if not self.tracked:
            return
        index, row = self._granules(address, size, mask)
        bad = self.writer[index] < 0
        if bad.any():
            first = int(np.nonzero(bad)[0][0])
            raise self.machine.report(
                UninitialisedError,
                f"reads LDS byte {int(index[first]) % self.granules * self.granule}, "
                "which nobody has written",
                ins,
                b,
                int(row[first]),
            )


def _rounded(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return of which words rounding explains the difference, if they are numbers in float32."""
    with np.errstate(all="ignore"):
        a, b = one.view(np.float32), other.view(np.float32)
        normal = (np.abs(a) >= np.finfo(np.float32).tiny) & np.isfinite(a)
        return np.asarray(normal & (np.abs(a - b) <= np.abs(a) * np.float32(_ROUNDING)))
