"""Vector memory: loads, stores and copies into LDS past the registers.

ISA: CDNA3 9-10 and 12.13-12.14, RDNA3 9, 11 and 16.14-16.16, RDNA4 the same.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import M0, Reg, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.addresses import (
    buffer_address,
    counters,
    flat_address,
    interleaved,
    locate,
)
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.scopes import reaches_device
from gluon_emu.amdgcn.isa.table import OPS, Op, Step, custom, pattern

FAR = 1 << 30  # compilers switch a lane off by an address of LDS that is past any end

_U32 = np.uint32

# suffix -> (bytes, signed, which half of the register: "", "lo" or "hi")
_WIDTHS: dict[str, tuple[int, bool, str]] = {
    "dword": (4, False, ""), "dwordx2": (8, False, ""), "dwordx3": (12, False, ""),
    "dwordx4": (16, False, ""), "b32": (4, False, ""), "b64": (8, False, ""),
    "b96": (12, False, ""), "b128": (16, False, ""),
    "ubyte": (1, False, ""), "sbyte": (1, True, ""), "ushort": (2, False, ""),
    "sshort": (2, True, ""), "u8": (1, False, ""), "i8": (1, True, ""), "u16": (2, False, ""),
    "i16": (2, True, ""), "byte": (1, False, ""), "short": (2, False, ""), "b8": (1, False, ""),
    "b16": (2, False, ""),
    "ubyte_d16": (1, False, "lo"), "ubyte_d16_hi": (1, False, "hi"), "sbyte_d16": (1, True, "lo"),
    "sbyte_d16_hi": (1, True, "hi"), "short_d16": (2, False, "lo"),
    "short_d16_hi": (2, False, "hi"), "byte_d16_hi": (1, False, "hi"),
    "d16_u8": (1, False, "lo"), "d16_hi_u8": (1, False, "hi"), "d16_i8": (1, True, "lo"),
    "d16_hi_i8": (1, True, "hi"), "d16_b16": (2, False, "lo"), "d16_hi_b16": (2, False, "hi"),
    "d16_hi_b8": (1, False, "hi"),
}  # fmt: skip

_LOAD = re.compile(r"(global|flat|scratch|buffer|cluster)_load_(.+)$")
_STORE = re.compile(r"(global|flat|scratch|buffer)_store_(.+)$")


def extend(value: Any, size: int, signed: bool) -> Any:
    """Return a value of 1 or 2 bytes as a word."""
    if not signed or size >= 4:
        return value
    shift = _U32(32 - 8 * size)
    return ((value << shift).view(np.int32) >> shift.astype(np.int32)).view(_U32)


def half_signed(value: Any, size: int, signed: bool) -> Any:
    """Return a byte or two as 16 bits."""
    return extend(value, size, signed) & _U32(0xFFFF)


def placed(value: Any, old: Any, size: int, signed: bool, half: str) -> Any:
    """Return the content of a load's first register, of which a half may stay as it was."""
    if not half:
        return extend(value, size, signed)
    value = half_signed(value, size, signed)
    if half == "hi":
        return (old & _U32(0xFFFF)) | (value << _U32(16))
    return (old & _U32(0xFFFF0000)) | value


def _addresses(space: str, ins: Instruction, ctx: Context, operands: Any, size: int) -> Any:
    if space == "buffer":
        return buffer_address(ins, ctx, operands, size)
    base = operands[1] if len(operands) > 1 else None
    return flat_address(ins, ctx, operands[0], base, size)


@pattern
def _load(name: str) -> Optional[Op]:
    match = _LOAD.match(name)
    if not match or match[2] not in _WIDTHS:
        return None
    space, (size, signed, half) = match[1], _WIDTHS[match[2]]
    if space == "cluster":
        space = "global"
    if space == "scratch":
        return Op(lambda i, c: _scratch_load(i, c, size, signed, half), "vmem", 1, doc="A load.")

    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = memory at the address; done when the counter says so."""
        if "lds" in ins.modifiers:
            return _to_lds(ins, ctx, space, size)
        return _bound_load(ins, ctx, space, size, signed, half)

    return Op(bind, "vmem", 1, doc=bind.__doc__ or "")


def _bound_load(
    ins: Instruction, ctx: Context, space: str, size: int, signed: bool, half: str
) -> Step:
    destination = ins.operands[0]
    destination = register(destination)
    find = _addresses(space, ins, ctx, ins.operands[1:], size)
    words = max(1, size // 4)
    rows = [ctx.row(destination, i) for i in range(words)]
    keys = counters(ctx, False, space == "flat")
    wide = reaches_device(ins, ctx)
    half = half or {"l": "lo", "h": "hi"}.get(destination.half, "")

    def step(b: Any) -> None:
        address, mask = find(b)
        address = locate(b, ins, address, mask, size, False)
        b.machine.copied.check(b, ins, address, size, mask)
        values = b.machine.memory.load(address, size)
        values[0] = placed(values[0], b.v[rows[0]], size, signed, half)
        put(b, rows, values, mask)
        number, *_ = [b.outstanding.issue(*key, rows, ins.index) for key in keys]
        if b.machine.order is not None:
            b.machine.order.load(b, ins, address, size, mask, number, wide)
        b.machine.moved(ins.index, size * int(mask.sum()))

    return step


def put(b: Any, rows: Any, values: Any, mask: Any) -> None:
    """Write loaded words to registers: lanes of a load that are out of range get 0."""
    if mask is b.exec and b.full:
        for row, value in zip(rows, values):
            b.v[row] = value
        return
    for row, value in zip(rows, values):
        if mask is not b.exec:
            value = np.where(mask, value, _U32(0))
        np.copyto(b.v[row], value, where=b.exec)


@pattern
def _store(name: str) -> Optional[Op]:
    match = _STORE.match(name)
    if not match or match[2] not in _WIDTHS:
        return None
    space, (size, _, half) = match[1], _WIDTHS[match[2]]
    if space == "scratch":
        return Op(lambda i, c: _scratch_store(i, c, size, half), "vmem", 0, doc="A store.")

    def bind(ins: Instruction, ctx: Context) -> Step:
        """Memory at the address = S."""
        if space == "buffer":
            data, rest = ins.operands[0], ins.operands[1:]
        else:
            data, rest = ins.operands[1], (ins.operands[0], *ins.operands[2:])
        data = register(data)
        find = _addresses(space, ins, ctx, rest, size)
        rows = [ctx.row(data, i) for i in range(max(1, size // 4))]
        keys = counters(ctx, True, space == "flat")
        high = half == "hi" or data.half == "h"
        wide = reaches_device(ins, ctx, True)

        def step(b: Any) -> None:
            address, mask = find(b)
            address = locate(b, ins, address, mask, size, True)
            b.machine.copied.check(b, ins, address, size, mask, "writes")
            values = [b.v[row] for row in rows]
            if high:
                values[0] = values[0] >> _U32(16)
            b.machine.memory.store(address, size, values, None if mask.all() else mask)
            number, *_ = [b.outstanding.issue(*key, (), ins.index) for key in keys]
            if b.machine.order is not None:
                b.machine.order.store(b, ins, address, size, mask, keys[0], number, wide)
            b.machine.moved(ins.index, size * int(mask.sum()))

        return step

    return Op(bind, "vmem", 0, doc=bind.__doc__ or "")


# -- scratch: memory that each lane has to itself --------------------------------------------------


def _scratch_offset(ins: Instruction, ctx: Context, address: Any, base: Any) -> Any:
    constant = np.int64(int(ins.modifiers.get("offset", "0"), 0))
    reads = []
    for operand in (address, base):
        if isinstance(operand, Reg) and not (operand.kind == "s" and operand.first == 125):
            reads.append(_bind.vector_reader(ins, operand, "i32", ctx))

    def find(b: Any) -> Any:
        place: Any = constant
        for read in reads:
            place = place + read(b).astype(np.int64)
        return np.broadcast_to(place, b.exec.shape)

    return find


def _scratch_load(ins: Instruction, ctx: Context, size: int, signed: bool, half: str) -> Step:
    destination = ins.operands[0]
    destination = register(destination)
    find = _scratch_offset(ins, ctx, *ins.operands[1:3])
    rows = [ctx.row(destination, i) for i in range(max(1, size // 4))]
    keys = counters(ctx, False)

    def step(b: Any) -> None:
        values = b.machine.scratch.load(b, ins, find(b), size)
        values[0] = placed(values[0], b.v[rows[0]], size, signed, half)
        put(b, rows, values, b.exec)
        for counter, kind in keys:
            b.outstanding.issue(counter, kind, rows, ins.index)

    return step


def _scratch_store(ins: Instruction, ctx: Context, size: int, half: str) -> Step:
    address, data, base = ins.operands[:3]
    data = register(data)
    find = _scratch_offset(ins, ctx, address, base)
    rows = [ctx.row(data, i) for i in range(max(1, size // 4))]
    keys = counters(ctx, True)

    def step(b: Any) -> None:
        values = [b.v[row] for row in rows]
        if half == "hi":
            values[0] = values[0] >> _U32(16)
        b.machine.scratch.store(b, ins, find(b), size, values)
        for counter, kind in keys:
            b.outstanding.issue(counter, kind, (), ins.index)

    return step


def spilled(b: Any, ins: Instruction, ctx: Context) -> frozenset[int]:
    """Return the vector registers that an instruction puts into scratch: a compiler does so with pairs
    of which nothing has written a half."""
    data: Any = None
    if ins.name.startswith("scratch_store"):
        data = register(ins.operands[1])
    elif ins.name.startswith("buffer_store") and ctx.generation == 9:
        if interleaved(b, register(ins.operands[2])).all():
            data = register(ins.operands[0])
    return frozenset(() if data is None else (ctx.row(data, i) for i in range(data.count)))


# -- past the registers into LDS -------------------------------------------------------------------


def _to_lds(ins: Instruction, ctx: Context, space: str, size: int) -> Step:
    """LDS at M0 + offset + the lane's place = memory: lanes of a wave one after the other.

    ISA: CDNA3 9.1.9 and 10.4, CDNA4 the same with 12 and 16 bytes.
    """
    find = _addresses(space, ins, ctx, ins.operands, size)
    keys = counters(ctx, False)
    offset = int(ins.modifiers.get("offset", "0"), 0)
    wide = reaches_device(ins, ctx)
    step_of_lane = (np.arange(ctx.lanes) * size)[None, :]

    def step(b: Any) -> None:
        machine = b.machine
        address, mask = find(b)
        address = locate(b, ins, address, mask, size, False)
        machine.copied.check(b, ins, address, size, mask)
        values = [np.where(mask, v, _U32(0)) for v in machine.memory.load(address, size)]
        base = b.s[M0].astype(np.int64) + offset
        # Waves that are not to write have M0 past the end of LDS: their loads are dropped.
        there = b.exec & (base < machine.lds.size)[:, None]
        place = machine.lds.checked(b, ins, base[:, None] + step_of_lane, size, there)
        number: Any = 0
        for counter, kind in keys:
            number = b.outstanding.issue(counter, kind, (), ins.index, lds=True)
        if machine.order is not None:
            machine.order.load(b, ins, address, size, mask, number, wide)
        machine.lds.note_write(b, ins, place, size, there, number, 1)
        machine.lds.store(place, size, values, there)
        machine.moved(ins.index, size * int(mask.sum()))

    return step


for _suffix in ("dword", "dwordx3", "dwordx4", "ubyte", "sbyte", "ushort", "sshort"):
    for _space in ("global", "buffer"):
        _size = max(4, _WIDTHS[_suffix][0])
        OPS[f"{_space}_load_lds_{_suffix}"] = Op(
            functools.partial(_to_lds, space=_space, size=_size),
            "vmem",
            0,
            doc=_to_lds.__doc__ or "",
        )


def _async(ins: Instruction, ctx: Context, size: int, load: bool) -> Step:
    """LDS at an address of each lane = memory, or the other way, counted by itself.

    ISA: gfx1250, asynchronous copies between memory and LDS (LLVM's user guide, ASYNCcnt).
    """
    if load:
        where, address, base = ins.operands[:3]
    else:
        address, where, base = ins.operands[:3]
    lds_address = _bind.vector_reader(ins, where, "u32", ctx)
    wide = reaches_device(ins, ctx)
    find = flat_address(ins, ctx, address, base, size)
    offset = _U32(int(ins.modifiers.get("offset", "0"), 0) & 0xFFFFFFFF)

    def step(b: Any) -> None:
        machine = b.machine
        place, mask = find(b)
        # Lanes that are to do nothing have an address far past the end of LDS.
        target = np.broadcast_to(lds_address(b) + offset, mask.shape)
        mask = mask & (target < _U32(FAR))
        place = locate(b, ins, place, mask, size, not load)
        local = machine.lds.checked(b, ins, target, size, mask)
        number = b.outstanding.issue("async", "async", (), ins.index, lds=load)
        order, key = machine.order, ("async", "async")
        if order is not None and load:
            order.load(b, ins, place, size, mask, number, wide)
        elif order is not None:
            order.store(b, ins, place, size, mask, key, number, False)
        if load:
            machine.copied.check(b, ins, place, size, mask)
            machine.lds.note_write(b, ins, local, size, mask, number, 2)
            machine.lds.store(local, size, machine.memory.load(place, size), mask)
        else:
            machine.lds.note_read(b, ins, local, size, mask, number, 2)
            machine.memory.store(place, size, machine.lds.load(local, size), mask)
            machine.copied.add(b, ins, place, size, mask, key, number)
        machine.moved(ins.index, size * int(mask.sum()))

    return step


for _bits in (8, 32, 64, 128):
    for _load_it in (True, False):
        _name = "load_async_to_lds" if _load_it else "store_async_from_lds"
        # `cluster_`: workgroups of a cluster ask for the same, and each gets it
        for _space in ("global", "cluster") if _load_it else ("global",):
            OPS[f"{_space}_{_name}_b{_bits}"] = Op(
                functools.partial(_async, size=_bits // 8, load=_load_it),
                "vmem",
                0,
                doc=_async.__doc__ or "",
            )

# -- caches ----------------------------------------------------------------------------------------


@custom(
    "buffer_inv", "buffer_invl2", "buffer_wbl2", "buffer_wbinvl1", "buffer_wbinvl1_vol", "buffer_gl0_inv",
    "buffer_gl1_inv", "global_inv", "global_wb", "global_wbinv", "global_prefetch_b8",
    "flat_prefetch_b8", family="other", results=0,
)  # fmt: skip
def caches(ins: Instruction, ctx: Context) -> Step:
    """Return the step of a cache op: there are no caches here, and `machine.order` reports stale reads."""
    keys: tuple[tuple[str, str], ...] = ()
    if ins.name.startswith(("buffer_wb", "global_wb")):
        keys = (("store", "store") if ctx.generation >= 12 else ("vm", "mem"),)
    elif ins.name == "global_inv":
        keys = (("load", "mem"),)

    back = ins.name in ("buffer_wbl2", "global_wb", "global_wbinv")
    near = ins.name == "buffer_gl0_inv"
    invalidates = near or "inv" in ins.name
    wide = reaches_device(ins, ctx)
    waits = ctx.architecture == "gfx1250"

    def step(b: Any) -> None:
        number: Any = 0
        for counter, kind in keys:
            number = b.outstanding.issue(counter, kind, (), ins.index)
        order = b.machine.order
        if order is None:
            return
        if back and wide:
            order.write_back(b, number)
        if invalidates and (wide or near):
            order.invalidate(b, not near, ins.name != "buffer_gl1_inv", number if waits else 0)

    return step
