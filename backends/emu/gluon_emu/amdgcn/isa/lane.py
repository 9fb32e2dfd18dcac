"""Values that move between lanes inside the vector unit.

ISA: CDNA3 12.8 (readlane), CDNA4 12.8 (permlane swaps), RDNA3 and RDNA4 16.10 (permlane16).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import Const, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Step, custom

_U32 = np.uint32


@custom("v_readfirstlane_b32", family="valu")
def v_readfirstlane_b32(ins: Instruction, ctx: Context) -> Step:
    """D = S0 of the first active lane, of lane 0 where none is."""
    read = _bind.vector_reader(ins, ins.operands[1], "u32", ctx)
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)

    def step(b: Any) -> None:
        value = read(b)
        if np.ndim(value) < 2 or value.shape[1] == 1:
            write(b, np.broadcast_to(np.ravel(value), b.scc.shape))
        elif b.full:
            write(b, value[:, 0].copy())
        else:
            write(b, value[np.arange(value.shape[0]), b.exec.argmax(1)])

    return step


@custom("v_readlane_b32", family="valu")
def v_readlane_b32(ins: Instruction, ctx: Context) -> Step:
    """D = S0 of lane S1; EXEC plays no part."""
    source, which = ins.operands[1], ins.operands[2]
    source = register(source)
    row = ctx.row(source)
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)
    if isinstance(which, Const):
        lane = int(which.value) % ctx.lanes
        return lambda b: write(b, b.v[row][:, lane].copy())
    lane_of = _bind.scalar_reader(which, "u32", ctx)

    def step(b: Any) -> None:
        lanes = (lane_of(b) % _U32(ctx.lanes)).astype(np.int64)
        write(b, b.v[row][np.arange(lanes.size), lanes])

    return step


@custom("v_writelane_b32", family="valu")
def v_writelane_b32(ins: Instruction, ctx: Context) -> Step:
    """D of lane S1 = S0, a scalar; EXEC plays no part."""
    destination = ins.operands[0]
    destination = register(destination)
    row = ctx.row(destination)
    value = _bind.scalar_reader(ins.operands[1], "u32", ctx)
    lane_of = _bind.scalar_reader(ins.operands[2], "u32", ctx)

    def step(b: Any) -> None:
        lanes = np.broadcast_to(lane_of(b) % _U32(ctx.lanes), b.scc.shape).astype(np.int64)
        b.v[row][np.arange(lanes.size), lanes] = value(b)

    return step


def _permlane(across: bool, variable: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Read, in each lane, a lane of its row, or of the other row of its pair, by four bits."""
        source, destination = ins.operands[1], ins.operands[0]
        source, destination = register(source), register(destination)
        from_row, to_row = ctx.row(source), ctx.row(destination)
        lane = np.arange(ctx.lanes)
        base = lane // 16 * 16
        base = base ^ 16 if across else base
        fetch_inactive = _bind.selection_bit(ins.modifiers.get("op_sel"), 0) or variable
        keep_on = _bind.selection_bit(
            ins.modifiers.get("op_sel"), 1
        )  # bound_ctrl: 0 from inactive lanes
        if variable:
            which = _bind.vector_reader(ins, ins.operands[2], "u32", ctx)
        else:
            low, high = (_bind.vector_reader(ins, o, "u32", ctx) for o in ins.operands[2:4])

        def step(b: Any) -> None:
            if variable:
                choice = which(b) & _U32(15)
            else:
                table = low(b).astype(np.uint64) | (high(b).astype(np.uint64) << np.uint64(32))
                choice = (table >> (lane % 16 * 4).astype(np.uint64)) & np.uint64(15)
            index = np.broadcast_to(base + choice.astype(np.int64), b.exec.shape)
            moved = np.take_along_axis(b.v[from_row], index, 1)
            mask = b.exec
            if not fetch_inactive and not b.full:
                there = np.take_along_axis(b.exec, index, 1)
                if keep_on:
                    moved = np.where(there, moved, _U32(0))
                else:
                    mask = mask & there
            np.copyto(b.v[to_row], moved, where=mask)

        return step

    return bind


custom("v_permlane16_b32", family="valu")(_permlane(False, False))
custom("v_permlanex16_b32", family="valu")(_permlane(True, False))
custom("v_permlane16_var_b32", family="valu")(_permlane(False, True))
custom("v_permlanex16_var_b32", family="valu")(_permlane(True, True))


@custom("v_permlane64_b32", family="valu")
def v_permlane64_b32(ins: Instruction, ctx: Context) -> Step:
    """Swap the two halves of a wave of 64; do nothing in one of 32."""
    source, destination = ins.operands[1], ins.operands[0]
    source, destination = register(source), register(destination)
    from_row, to_row = ctx.row(source), ctx.row(destination)
    index = np.arange(ctx.lanes) ^ (32 if ctx.lanes == 64 else 0)
    return lambda b: np.copyto(b.v[to_row], b.v[from_row][:, index], where=b.exec)


def _swap(size: int) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Return the odd groups of lanes of D and the even ones of S0 change places."""
        first, second = ins.operands[:2]
        first, second = register(first), register(second)
        x, y = ctx.row(first), ctx.row(second)
        lane = np.arange(ctx.lanes)
        odd = (lane // size) % 2 == 1
        index = lane ^ size

        def step(b: Any) -> None:
            one, two = b.v[x].copy(), b.v[y].copy()
            np.copyto(b.v[x], two[:, index], where=b.exec & odd)
            np.copyto(b.v[y], one[:, index], where=b.exec & ~odd)

        return step

    return bind


custom("v_permlane32_swap_b32", family="valu", results=2)(_swap(32))
custom("v_permlane16_swap_b32", family="valu", results=2)(_swap(16))


@custom("v_swap_b32", family="valu", results=2)
def v_swap_b32(ins: Instruction, ctx: Context) -> Step:
    """D and S0 change places."""
    first, second = ins.operands[:2]
    first, second = register(first), register(second)
    x, y = ctx.row(first), ctx.row(second)

    def step(b: Any) -> None:
        one, two = b.v[x].copy(), b.v[y].copy()
        np.copyto(b.v[x], two, where=b.exec)
        np.copyto(b.v[y], one, where=b.exec)

    return step
