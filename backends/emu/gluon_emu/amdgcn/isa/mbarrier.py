"""Barrier objects in LDS (gfx1250): 64 bits that count arrivals and know their phase.

Bits 0-28 hold the arrivals that are still to come, 29-31 the phase, 32-60 how many each phase wants;
both fields hold the count minus one. The phase moves on when the last one arrives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Step, custom

__all__ = ["arrive"]

_COUNT = (1 << 29) - 1


def arrive(lds: Any, place: int, count: int, wave: int, known: Any) -> int:
    """`count` arrivals at the barrier at a byte address; returns its old value.

    Args:
        wave: that arrives, in its workgroup.
        known: operations on LDS that it knows to be done, by class.
    """
    lds.arrive_at(place, wave, known)
    words = lds.bytes[place : place + 8].view(np.uint64)
    old = int(words[0])
    pending, phase, wanted = old & _COUNT, old >> 29 & 7, old >> 32 & _COUNT
    pending -= count
    if pending < 0:
        phase, pending = (phase + 1) & 7, wanted
    words[0] = pending | phase << 29 | wanted << 32
    return old


@custom("ds_atomic_barrier_arrive_rtn_b64", family="lds")
def ds_atomic_barrier_arrive_rtn_b64(ins: Instruction, ctx: Context) -> Step:
    """D = the barrier as it was; S1 arrivals from each active lane."""
    destination = ins.operands[0]
    destination = register(destination)
    row = ctx.row(destination)
    address = _bind.vector_reader(ins, ins.operands[1], "u32", ctx)
    count = _bind.vector_reader(ins, ins.operands[2], "u64", ctx)
    offset = int(ins.modifiers.get("offset", "0"), 0)

    def step(b: Any) -> None:
        lds = b.machine.lds
        place = lds.checked(b, ins, address(b) + np.uint32(offset), 8, b.exec)
        counts = np.broadcast_to(count(b), b.exec.shape)
        b.outstanding.issue("ds", "lds", (row, row + 1), ins.index)
        known = lds.done(b)
        for wave, lane in zip(*np.nonzero(b.exec)):
            inside = int(b.waves[wave]) % lds.waves
            arrivals = int(counts[wave, lane])
            old = arrive(lds, int(place[wave, lane]), arrivals, inside, known[:, wave])
            b.v[row][wave, lane] = old & 0xFFFFFFFF
            b.v[row + 1][wave, lane] = old >> 32

    return step


@custom("ds_atomic_async_barrier_arrive_b64", family="lds", results=0)
def ds_atomic_async_barrier_arrive_b64(ins: Instruction, ctx: Context) -> Step:
    """Arrive from each active lane, after the asynchronous copies before it."""
    address = _bind.vector_reader(ins, ins.operands[0], "u32", ctx)
    offset = int(ins.modifiers.get("offset", "0"), 0)

    def step(b: Any) -> None:
        lds = b.machine.lds
        place = lds.checked(b, ins, address(b) + np.uint32(offset), 8, b.exec)
        number = b.outstanding.issue("async", "async", (), ins.index)
        known = lds.done(b).copy()
        known[2] = np.maximum(known[2], number)  # it comes behind the copies
        for wave, lane in zip(*np.nonzero(b.exec)):
            inside = int(b.waves[wave]) % lds.waves
            arrive(lds, int(place[wave, lane]), 1, inside, known[:, wave])

    return step
