"""Copies from LDS to global memory that waves have started and do not know to be done.

`tensor_store_from_lds` and `global_store_async_from_lds_*` have counters of their own, so that a later load or store may
reach memory before they do, of the same wave, too. LLVM, "User Guide for AMDGPU Backend": TENSORcnt, ASYNCcnt of gfx1250.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gluon_emu.errors import MissingWaitError

__all__ = ["Copied"]


@dataclass
class _Copy:
    """Args:
    key: counter and kind; `number` of the operation there.
    places: addresses of the elements, sorted; each of `size` bytes.
    where: the instruction.
    """

    key: tuple[str, str]
    number: int
    places: np.ndarray
    size: int
    where: Any


class Copied:
    """The copies of all waves of a machine."""

    def __init__(self, machine: Any):
        self._machine = machine
        self._of_wave: dict[int, list[_Copy]] = {}

    def add(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray, key: tuple[str, str], number: Any,
    ) -> None:  # fmt: skip
        """Note a copy of the waves of `b`: the addresses (waves, elements) that it writes."""
        numbers = np.broadcast_to(np.asarray(number), (b.waves.size,))
        for row, wave in enumerate(b.waves.tolist()):
            places = np.unique(address[row][mask[row]]).astype(np.int64)
            if places.size:
                one = _Copy(key, int(numbers[row]), places, size, ins)
                self._of_wave.setdefault(wave, []).append(one)

    def check(
        self, b: Any, ins: Any, address: np.ndarray, size: int, mask: np.ndarray, verb: str = "reads"
    ) -> None:  # fmt: skip
        """Report an access to memory that a copy of the same workgroup may not have written yet.

        Raises:
            MissingWaitError: there is one.
        """
        if not self._of_wave or not self._machine.settings.waits:
            return
        waves = self._machine.waves_per_group
        for row, wave in enumerate(b.waves.tolist()):
            first = wave // waves * waves
            for owner in range(first, first + waves):
                for one in self._left(b, owner):
                    starts = address[row][mask[row]].astype(np.int64)
                    before = np.searchsorted(one.places, starts + size) - 1
                    if ((before >= 0) & (one.places[before] + one.size > starts)).any():
                        self._report(b, ins, one, (row, owner), verb)

    def _left(self, b: Any, owner: int) -> list[_Copy]:
        """Return the copies of a wave that it does not know to be done."""
        copies = self._of_wave.get(owner)
        if copies is None:
            return []
        left = [one for one in copies if one.number > self._count(b, "done_of", one.key, owner)]
        self._of_wave[owner] = left
        if not left:
            del self._of_wave[owner]
        return left

    def _report(self, b: Any, ins: Any, one: _Copy, rows: tuple[int, int], verb: str) -> None:
        machine, earlier, (row, owner) = self._machine, one.where, rows
        left = self._count(b, "issued_of", one.key, owner) - one.number
        need = machine.wait_name(one.key[0], str(left))
        own = owner == int(b.waves[row])
        raise machine.report(
            MissingWaitError,
            f"missing {need} before `{ins.text}`{'' if own else f' in wave {machine.place_of(owner)[1]}'}, which {verb} "
            f"global memory that `{earlier.text}` ({earlier.location or f'line {earlier.line} of the assembly'}) may still write",
            ins,
            b,
            row,
        )  # fmt: skip

    def _count(self, b: Any, name: str, key: tuple[str, str], wave: int) -> int:
        """Return a count of a wave; 0 where it has ended."""
        for batch in (b, *self._machine.batches, *self._machine.blocked):
            rows = np.flatnonzero(batch.waves == wave)
            if rows.size:
                count = np.asarray(getattr(batch.outstanding, name)(*key))
                return int(np.broadcast_to(count, (batch.waves.size,))[rows[0]])
        return 0
