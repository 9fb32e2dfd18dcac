"""Loads into scalar registers.

ISA: CDNA3 8 and 12.6, RDNA3 8 and 16.6, RDNA4 8 and 16.6.
"""

from __future__ import annotations

import re
from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import Const, Reg, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Op, Step, pattern
from gluon_emu.errors import AccessError

_NAME = re.compile(r"s_(buffer_)?load_(?:dword(?:x(\d+))?|b(\d+)|([ui])(8|16))$")
SCALAR = 1 << 16  # added to the number of a scalar register among those that can be pending


def counter(ctx: Context) -> str:
    return "km" if ctx.generation >= 12 else "lgkm"


@pattern
def _load(name: str) -> Optional[Op]:
    match = _NAME.match(name)
    if not match:
        return None
    buffer = bool(match[1])
    size = 4 * int(match[2] or 1)
    if match[3]:
        size = int(match[3]) // 8
    signed = match[4] == "i"
    if match[5]:
        size = int(match[5]) // 8

    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = words from S0 + offsets; in any order with other such loads."""
        return _bound(ins, ctx, size, signed, buffer)

    return Op(bind, "smem", 1, doc=bind.__doc__ or "")


def _bound(ins: Instruction, ctx: Context, size: int, signed: bool, buffer: bool) -> Step:
    destination, base, offset = ins.operands[0], ins.operands[1], ins.operands[2]
    destination, base = register(destination), register(base)
    first = destination.first
    words = max(1, size // 4)
    constant = int(ins.modifiers.get("offset", "0"), 0)
    address = _bind.scalar_reader(Reg("s", base.first, 2), "u64", ctx)
    extra = None
    if isinstance(offset, Const):
        constant += int(offset.value)
    else:
        extra = _bind.scalar_reader(offset, "u32", ctx)
    scale = np.uint64(size if "scale_offset" in ins.modifiers else 1)
    name = counter(ctx)
    registers = tuple(SCALAR + first + i for i in range(words))

    def step(b: Any) -> None:
        machine = b.machine
        place = np.full(b.scc.shape, constant, np.int64).view(np.uint64)
        if extra is not None:
            place = place + extra(b).astype(np.uint64) * scale
        inside = np.ones(b.scc.shape, bool)
        if buffer:
            inside = place + np.uint64(size) <= b.s[base.first + 2]
            byte = (address(b) & np.uint64((1 << 48) - 1)) + place
        else:
            byte = address(b) + place
        byte = byte & ~np.uint64(3) if size >= 4 else byte
        memory = machine.memory
        byte = memory.safe(byte, inside)
        wrong = memory.bad(byte, size, inside, False)
        if wrong is not None:
            wave = int(np.nonzero(wrong)[0][0])
            where = memory.nearest(int(byte[wave]), size)
            raise machine.report(
                AccessError,
                f"a load of {size} bytes from {int(byte[wave]):#x}: {where}",
                ins,
                b,
                wave,
            )
        values = memory.load(byte, size)
        if signed:
            shift = np.uint32(32 - 8 * size)
            values[0] = ((values[0] << shift).view(np.int32) >> shift.astype(np.int32)).view(
                np.uint32
            )
        for i, value in enumerate(values):
            b.s[first + i] = np.where(inside, value, np.uint32(0))
        b.outstanding.issue(name, "scalar", registers, ins.index, unordered=True)
        machine.moved(ins.index, size * b.scc.size)

    return step
