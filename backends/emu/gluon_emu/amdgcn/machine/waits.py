"""Memory operations that were issued and are not known to be done.

The hardware counts them; `s_waitcnt` and its successors wait until at most n are left of a counter.
Operations of one kind end in order, those of different kinds in any. So after waiting for n, an
operation is known to be done when more than n operations of its kind were issued since and with it:
were it not done, none of those would be. Scalar loads end in any order, so only a wait for 0 helps.
A counter that is full keeps a wave from issuing more, which does as a wait for that many does.

LLVM, "User Guide for AMDGPU Backend", Memory Model; CDNA3 4.4, RDNA3 5.7, RDNA4 5.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Union

import numpy as np

__all__ = ["Entry", "Outstanding"]

Number = Union[int, np.ndarray]
_FULL = 63  # of most counters


def limits_of(generation: int) -> dict[str, int]:
    """Return the maximum of the counters that are narrower than the others."""
    return {"lgkm": 15} if generation == 9 else {"km": 31}


@dataclass(eq=False)
class Entry:
    """One operation.

    Args:
        counter: "vm", "lgkm", "vs", "load", "ds", "km", "store", "async", "tensor", "exp".
        kind: operations of one kind and counter end in order.
        number: its place among those of its kind, from 1; of each wave where they differ, 0 for a
            wave that did not issue it.
        registers: that it will write.
        where: index of its instruction.
        unordered: whether it ends in any order.
        lds: whether it writes LDS.
    """

    counter: str
    kind: str
    number: Number
    registers: tuple[int, ...]
    where: int
    unordered: bool = False
    lds: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.counter, self.kind


class Outstanding:
    """The operations that the waves of a batch have issued, and how many are known to be done."""

    __slots__ = ("done", "entries", "issued", "limits", "pending", "unordered")

    def __init__(self, limits: dict[str, int]) -> None:
        self.limits = limits
        self.issued: dict[tuple[str, str], Number] = {}
        self.done: dict[tuple[str, str], Number] = {}
        self.unordered: dict[tuple[str, str], bool] = {}
        self.entries: list[Entry] = []
        self.pending: dict[int, Entry] = {}  # register -> the last operation that will write it

    def issue(
        self,
        counter: str,
        kind: str,
        registers: Iterable[int],
        where: int,
        unordered: bool = False,
        lds: bool = False,
    ) -> Number:
        """Note an operation; answers its number."""
        key = (counter, kind)
        number = self.issued.get(key, 0) + 1
        self.issued[key] = number
        self.unordered[key] = unordered
        entry = Entry(counter, kind, number, tuple(registers), where, unordered, lds)
        self.entries.append(entry)
        for register in entry.registers:
            self.pending[register] = entry
        most = self.limits.get(counter, _FULL)
        if not unordered and len(self.entries) > most:
            self._full(key, number, most)
        return number

    def _full(self, key: tuple[str, str], number: Number, most: int) -> None:
        """At most as many operations are outstanding as the counter can hold: older ones have ended."""
        before = self.done.get(key, 0)
        known = number - most
        if np.any(known > before):
            both = isinstance(known, np.ndarray) or isinstance(before, np.ndarray)
            self.done[key] = np.maximum(known, before) if both else known
            self._clean()

    def wait(self, counter: str, left: int) -> bool:
        """At most `left` operations of `counter` are outstanding from now on; whether that makes any
        of them known to be done."""
        touched = False
        for key, issued in self.issued.items():
            if key[0] != counter:
                continue
            if self.unordered[key] and left:
                continue
            known = issued - left
            before = self.done.get(key, 0)
            if isinstance(known, np.ndarray) or isinstance(before, np.ndarray):
                self.done[key] = np.maximum(known, before)
                touched = True
            elif known > before:
                self.done[key] = known
                touched = True
        return touched and self._clean()

    def _clean(self) -> bool:
        kept: list[Entry] = []
        gone: list[Entry] = []
        for entry in self.entries:
            (gone if self.finished(entry) else kept).append(entry)
        if gone:
            self.entries = kept
            pending = self.pending
            for entry in gone:
                for register in entry.registers:
                    if pending.get(register) is entry:
                        del pending[register]
        return bool(gone)

    def finished(self, entry: Entry) -> bool:
        """Return whether an operation is known to be done in all waves."""
        result = entry.number <= self.done.get(entry.key, 0)
        return result if isinstance(result, bool) else bool(np.all(result))

    def open_in(self, entry: Entry, waves: int) -> np.ndarray:
        """Return the waves in which `entry` is not known to be done."""
        return np.broadcast_to(np.asarray(entry.number > self.done.get(entry.key, 0)), (waves,))

    def issued_of(self, counter: str, kind: str) -> Number:
        return self.issued.get((counter, kind), 0)

    def done_of(self, counter: str, kind: str) -> Number:
        return self.done.get((counter, kind), 0)

    def of_wave(self, row: int) -> "Outstanding":
        """Return the counts of one wave, without the operations."""
        other = Outstanding(self.limits)
        for name in ("issued", "done"):
            for key, value in getattr(self, name).items():
                number = int(value[row]) if isinstance(value, np.ndarray) else value
                getattr(other, name)[key] = number
        return other

    # -- parting and meeting -----------------------------------------------------------------------

    def split(self, taken: np.ndarray) -> "Outstanding":
        """Remove the waves in `taken`; return their outstanding operations."""
        other = Outstanding(self.limits)
        keep = ~taken
        other.unordered = dict(self.unordered)
        for name in ("issued", "done"):
            mine, theirs = getattr(self, name), getattr(other, name)
            for key, value in mine.items():
                theirs[key] = _pick(value, taken)
                mine[key] = _pick(value, keep)
        for entry in self.entries:
            copy = Entry(entry.counter, entry.kind, _pick(entry.number, taken), entry.registers,
                         entry.where, entry.unordered, entry.lds)  # fmt: skip
            other.entries.append(copy)
            for register in entry.registers:
                if self.pending.get(register) is entry:
                    other.pending[register] = copy
            entry.number = _pick(entry.number, keep)
        self._drop_foreign()
        other._drop_foreign()
        return other

    def _drop_foreign(self) -> None:
        if any(isinstance(e.number, np.ndarray) for e in self.entries):
            self._clean()

    def join(self, other: "Outstanding", mine: int, theirs: int) -> None:
        """Merge the outstanding operations of another batch."""
        self.unordered.update(other.unordered)
        same = self.issued == other.issued if _plain(self, other) else False
        if same and self.done == other.done and _alike(self.entries, other.entries):
            return
        for name in ("issued", "done"):
            first, second = getattr(self, name), getattr(other, name)
            for key in {**first, **second}:
                first[key] = _both(first.get(key, 0), second.get(key, 0), mine, theirs)
        by_place: dict[tuple[object, ...], list[Entry]] = {}
        for entry in self.entries:
            entry.number = _spread(entry.number, 0, mine, theirs)
        for entry in self.entries:
            by_place.setdefault((entry.key, entry.where, entry.registers), []).append(entry)
        for entry in other.entries:
            twins = by_place.get((entry.key, entry.where, entry.registers))
            if twins:
                twin = twins.pop(0)
                number = np.asarray(twin.number)
                number[mine:] = entry.number
                twin.number = number
                continue
            entry.number = _spread(0, entry.number, mine, theirs)
            self.entries.append(entry)
            for register in entry.registers:
                self.pending.setdefault(register, entry)


def _pick(value: Number, waves: np.ndarray) -> Number:
    if not isinstance(value, np.ndarray):
        return value
    picked = value[waves]
    return int(picked[0]) if picked.size and (picked == picked[0]).all() else picked


def _both(first: Number, second: Number, mine: int, theirs: int) -> Number:
    if not isinstance(first, np.ndarray) and not isinstance(second, np.ndarray) and first == second:
        return first
    return _spread(first, second, mine, theirs)


def _spread(first: Number, second: Number, mine: int, theirs: int) -> np.ndarray:
    return np.concatenate((np.broadcast_to(first, (mine,)), np.broadcast_to(second, (theirs,))))


def _plain(*sets: Outstanding) -> bool:
    return not any(
        isinstance(v, np.ndarray)
        for one in sets
        for d in (one.issued, one.done)
        for v in d.values()
    )


def _alike(first: list[Entry], second: list[Entry]) -> bool:
    if len(first) != len(second):
        return False
    return all(
        a.key == b.key
        and a.where == b.where
        and not isinstance(a.number, np.ndarray)
        and not isinstance(b.number, np.ndarray)
        and a.number == b.number
        for a, b in zip(first, second)
    )
