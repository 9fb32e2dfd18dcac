"""Scalar registers of gfx12.0 that vector instructions have read: the next write of them is late.

The hardware keeps the scalar registers that vector instructions read, by pairs. Where an instruction
writes such a register, one behind it may still get the old value, until `s_wait_alu` has waited for the
writer: `depctr_sa_sdst(0)` for scalar instructions, `depctr_va_sdst(0)` and for VCC `depctr_va_vcc(0)`
for vector ones. It passes by itself with scalar instructions that have to do with other registers, with one of
memory, and behind vector ones with a scalar one that uses the registers of vector ones. Binding examines all paths through the program; an instruction that comes too early is reported when it is executed.

LLVM's pass that inserts these waits (VALU read SGPR hazard). It is silent about vector instructions
whose results scalar ones read: the hardware keeps these.
"""

from __future__ import annotations

import re
from typing import Any, Iterator

from gluon_emu.amdgcn.decode.operands import TTMP, VCC
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import smem, table

__all__ = ["late"]

_COUNTED = re.compile(r"(va_sdst|va_vcc|sa_sdst)\(0\)")
# where the number of `s_wait_alu` holds 0 for a wait
_BITS = {"sa_sdst": 1, "va_vcc": 2, "va_sdst": 7 << 9}
_SCALARS = (
    11  # scalar instructions behind which a vector one gets the new value; for scalar ones 10
)


def late(code: Any, before: list[list[int]]) -> dict[int, tuple[Instruction, int, str]]:
    """Instructions that may get the old value of a scalar register: (its writer, it, the wait).

    Args:
        before: for each instruction those that can come right before it.
    """
    return dict(_Ways(code, before).late())


class _Ways:
    def __init__(self, code: Any, before: list[list[int]]):
        self.instructions: list[Instruction] = code.program.instructions
        self.kind = [_kind(ins) for ins in self.instructions]
        self.waits = [_waits(ins) for ins in self.instructions]
        self.reads = [_plain(code.sources[i.index]) | _implied(i) for i in self.instructions]
        self.writes = [_plain(code.results[i.index]) for i in self.instructions]
        self.by_vectors: frozenset[int] = frozenset().union(
            *(w for w, kind in zip(self.writes, self.kind) if kind == "v")
        )
        self.before = before
        self.after: list[list[int]] = [[] for _ in self.instructions]
        for index, earlier in enumerate(before):
            for predecessor in earlier:
                self.after[predecessor].append(index)
        self.kept = self._kept()

    def late(self) -> Iterator[tuple[int, tuple[Instruction, int, str]]]:
        for ins in self.instructions:
            for register in self.writes[ins.index] if self.kind[ins.index] in "vs" else ():
                if (self.kept[ins.index] | self._own(ins.index)) >> register // 2 & 1:
                    yield from self._behind(ins, register)

    def _own(self, index: int) -> int:
        return sum({1 << r // 2 for r in self.reads[index]}) if self.kind[index] == "v" else 0

    def _kept(self) -> list[int]:
        """For each instruction the pairs, a bit each, that vector ones on a way to it read."""
        own = [self._own(index) for index in range(len(self.instructions))]
        kept = [0] * len(own)
        changed = True
        while changed:
            changed = False
            for index, earlier in enumerate(self.before):
                bits = kept[index]
                for predecessor in earlier:
                    bits |= kept[predecessor] | own[predecessor]
                if bits != kept[index]:
                    kept[index], changed = bits, True
        return kept

    def _behind(
        self, writer: Instruction, register: int
    ) -> Iterator[tuple[int, tuple[Instruction, int, str]]]:
        """Return the first users of `register` after `writer` on each path, where nothing waits between."""
        kind = self.kind[writer.index]
        wait = "sa_sdst" if kind == "s" else "va_sdst" if register < VCC else "va_vcc"
        queue = [(current, 0) for current in self.after[writer.index]]
        best: dict[int, int] = {}
        while queue:
            current, between = queue.pop()
            if between >= _SCALARS or wait in self.waits[current]:
                continue
            if self.kind[current] == "memory" or (kind == "v" and self._awaits_vectors(current)):
                continue
            if best.get(current, _SCALARS) <= between:
                continue
            best[current] = between
            used = register in self.reads[current]
            if used and self._waits_for(kind, self.kind[current], between):
                yield current, (writer, register, wait)
                continue
            if register in self.writes[current]:
                continue
            step = between + (kind == self.kind[current] == "s" and not used)
            queue += [(after, step) for after in self.after[current]]

    def _awaits_vectors(self, index: int) -> bool:
        """Return whether the hardware waits for vector instructions: a scalar one reads a result of
        theirs, or a register that is kept."""
        if self.kind[index] != "s":
            return False
        reads = self.reads[index]
        kept = any(self.kept[index] >> r // 2 & 1 for r in reads if r < VCC)
        return kept or not reads.isdisjoint(self.by_vectors)

    @staticmethod
    def _waits_for(writer: str, reader: str, between: int) -> bool:
        if writer == "v":
            return reader == "v"
        return reader == "v" or (reader == "s" and between < _SCALARS - 1)


def _kind(ins: Instruction) -> str:
    if ins.name.startswith("v_"):
        return "v"
    op = table.find(ins.name)
    family = "" if op is None else op.family
    return {"salu": "s", "vmem": "memory", "lds": "memory", "smem": "memory"}.get(family, "other")


def _plain(registers: frozenset[int]) -> frozenset[int]:
    """Scalar registers and VCC by their numbers, without the special ones that are not kept."""
    numbers = (r - smem.SCALAR for r in registers)
    return frozenset(r for r in numbers if 0 <= r < TTMP)


def _implied(ins: Instruction) -> frozenset[int]:
    """VCC, where assembly does not write that an instruction reads it."""
    for half in (ins, ins.second):
        name = "" if half is None else half.name
        if name.startswith(("v_div_fmas", "v_dual_cndmask")):
            return frozenset((VCC,))
    return frozenset()


def _waits(ins: Instruction) -> frozenset[str]:
    if ins.name != "s_wait_alu":
        return frozenset()
    if "depctr" in ins.text:
        return frozenset(_COUNTED.findall(ins.text))
    value = int(ins.text.split()[1], 0)
    return frozenset(name for name, bits in _BITS.items() if not value & bits)
