"""The registers of the waves that are at the same instruction: a batch.

Waves of many workgroups are in one batch as long as they take the same path; where they part, the
batch is split, and where batches meet again they are joined.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import EXEC
from gluon_emu.amdgcn.machine.waits import Outstanding

__all__ = ["Batch"]


class Batch:
    """Waves at one instruction.

    Attributes:
        v: vector registers, uint32 [registers, waves, lanes]; accumulation registers come last.
        s: scalar registers, uint32 [numbers, waves]; 106 is VCC, 108 the first trap temporary,
            124 M0, 126 EXEC.
        scc: bool [waves].
        exec: bool [waves, lanes], the lanes that are switched on.
        full: whether all of them are.
        waves: numbers of the waves among those that are resident.
        groups: of their workgroups.
        pc: the instruction to be executed next.
        flushes: whether float32 arithmetic takes denormals for 0.
        outstanding: memory operations that are not known to be done.
        barrier: the one that the waves wait at, or waited at last.
    """

    __slots__ = (
        "barrier", "clock", "exec", "flushes", "full", "groups", "hazards", "lanes", "machine", "mode",
        "outstanding", "patience", "pc", "s", "scc", "v", "waves", "written",
    )  # fmt: skip

    def __init__(
        self,
        machine: Any,
        v: np.ndarray,
        s: np.ndarray,
        scc: np.ndarray,
        waves: np.ndarray,
        groups: np.ndarray,
        pc: int,
        mode: int,
        outstanding: Optional[Outstanding] = None,
    ):
        self.machine = machine
        self.v, self.s, self.scc = v, s, scc
        self.waves, self.groups, self.pc = waves, groups, pc
        self.lanes = v.shape[2]
        self.outstanding = outstanding or Outstanding(machine.limits)
        self.written: set[int] = set()
        self.hazards: dict[int, Any] = {}
        self.clock = 0
        self.patience = 0
        self.barrier = -1
        self.set_mode(mode)
        self.exec_changed()

    def set_mode(self, mode: int) -> None:
        """MODE: bits 0-3 rounding, 4-5 denormals of float32 (0 flushes both ways).

        Raises:
            BackendError: rounding other than to nearest even, which is not modelled.
        """
        if mode & 15:
            raise BackendError(
                "the emulator rounds to nearest even",
                expected="MODE[3:0] = 0",
                got=f"MODE[3:0] = {mode & 15}",
            )
        self.mode = mode
        self.flushes = not (mode >> 4) & 3

    # -- masks -------------------------------------------------------------------------------------

    def mask(self, number: int) -> np.ndarray:
        """Return the scalar registers from `number` on, a bit per lane, as bools [waves, lanes]."""
        if number == EXEC:
            return self.exec
        words = self.lanes // 32
        bits = np.ascontiguousarray(self.s[number : number + words].T).view(np.uint8)
        return np.unpackbits(bits, axis=1, bitorder="little").view(bool)

    def set_mask(self, number: int, value: np.ndarray) -> None:
        packed = np.packbits(value, axis=1, bitorder="little").view(np.uint32)
        self.s[number : number + self.lanes // 32] = packed.T

    def exec_changed(self) -> None:
        """Bring `exec` and `full` up to the registers."""
        words = self.lanes // 32
        bits = np.ascontiguousarray(self.s[EXEC : EXEC + words].T).view(np.uint8)
        self.exec = np.unpackbits(bits, axis=1, bitorder="little").view(bool)
        self.full = bool(self.exec.all())

    def only(self, row: int) -> "Batch":
        """Return one wave for look-ups, without its registers."""
        one = Batch.__new__(Batch)
        one.machine, one.lanes = self.machine, self.lanes
        one.waves, one.groups = self.waves[row : row + 1], self.groups[row : row + 1]
        one.outstanding = self.outstanding.of_wave(row)
        return one

    # -- parting and meeting -----------------------------------------------------------------------

    def split(self, taken: np.ndarray) -> "Batch":
        """Take the waves where `taken` is true out, into a batch of their own."""
        other = Batch.__new__(Batch)
        other.machine, other.lanes = self.machine, self.lanes
        keep = ~taken
        for name in ("v", "s"):
            whole = getattr(self, name)
            setattr(other, name, np.ascontiguousarray(whole[:, taken]))
            setattr(self, name, np.ascontiguousarray(whole[:, keep]))
        for name in ("scc", "waves", "groups", "exec"):
            whole = getattr(self, name)
            setattr(other, name, whole[taken])
            setattr(self, name, whole[keep])
        other.full, self.full = bool(other.exec.all()), bool(self.exec.all())
        other.pc, other.mode, other.flushes = self.pc, self.mode, self.flushes
        other.outstanding = self.outstanding.split(taken)
        other.written = set(self.written)
        other.hazards, other.clock = dict(self.hazards), self.clock
        other.patience, other.barrier = self.patience, self.barrier
        return other

    def joins(self, other: "Batch") -> bool:
        """Return whether the waves of `other`, at the same instruction, can come in."""
        return self.pc == other.pc and self.mode == other.mode

    def join(self, other: "Batch") -> None:
        sizes = self.waves.size, other.waves.size
        self.v = np.concatenate((self.v, other.v), 1)
        self.s = np.concatenate((self.s, other.s), 1)
        for name in ("scc", "waves", "groups", "exec"):
            setattr(self, name, np.concatenate((getattr(self, name), getattr(other, name))))
        self.full = self.full and other.full
        self.outstanding.join(other.outstanding, *sizes)
        self.written |= other.written
        if self.hazards != other.hazards or self.clock != other.clock:
            self.merge_hazards(other)
        self.patience = max(self.patience, other.patience)

    def merge_hazards(self, other: "Batch") -> None:
        """Merge the recent writes of both, with their ages."""
        shift = self.clock - other.clock
        for register, (when, kind, where) in other.hazards.items():
            mine = self.hazards.get(register)
            if mine is None or mine[0] < when + shift:
                self.hazards[register] = (when + shift, kind, where)
