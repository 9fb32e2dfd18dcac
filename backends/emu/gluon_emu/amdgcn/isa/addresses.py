"""Addresses of vector memory instructions: flat, global, scratch and buffer forms.

ISA: CDNA3 9 and 10, RDNA3 9 and 11, RDNA4 9 and 11.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import numpy as np

from gluon_emu.amdgcn.decode.operands import M0, Const, Operand, Reg, Word, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.errors import AccessError

__all__ = ["buffer_address", "counters", "flat_address", "interleaved", "locate"]

_U64 = np.uint64

# `f(batch) -> (addresses [waves, lanes], lanes that access)`.
Addresses = Callable[[Any], tuple[np.ndarray, np.ndarray]]


def _is_off(operand: Operand) -> bool:
    return isinstance(operand, Word) or (isinstance(operand, Reg) and operand.first == 125 and operand.kind == "s")  # fmt: skip


def flat_address(
    ins: Instruction, ctx: Context, address: Operand, base: Optional[Operand], size: int
) -> Addresses:
    """Addresses of `global_` and `flat_` instructions: 64 bits per lane, or a base and 32 bits."""
    offset = np.int64(int(ins.modifiers.get("offset", "0"), 0)).view(_U64)
    scaled = "scale_offset" in ins.modifiers
    lane = None
    if not _is_off(address):
        address = register(address)
        if base is None or _is_off(base):
            lane = _bind.vector_reader(ins, Reg(address.kind, address.first, 2), "u64", ctx)
        else:
            # gfx1250 takes the offset of a lane as signed.
            kind = "i32" if ctx.architecture == "gfx1250" else "u32"
            lane = _bind.vector_reader(ins, address, kind, ctx)
    start = None
    if base is not None and not _is_off(base):
        start = _bind.vector_reader(ins, base, "u64", ctx)

    def find(b: Any) -> tuple[np.ndarray, np.ndarray]:
        place: Any = offset
        if lane is not None:
            own = lane(b)
            if own.dtype != _U64:
                own = own.astype(np.int64).view(_U64)
            place = place + (own * _U64(size) if scaled else own)
        if start is not None:
            place = place + start(b)
        return np.broadcast_to(place, b.exec.shape), b.exec

    return find


def buffer_address(
    ins: Instruction, ctx: Context, operands: Sequence[Operand], size: int
) -> Addresses:
    """Addresses of `buffer_` instructions from (vaddr | off), a resource and a scalar offset.

    Lanes out of the resource's range take no part: their loads give 0.
    """
    vaddr, resource, soffset = operands[:3]
    resource = register(resource)
    first = resource.first
    constant = int(ins.modifiers.get("offset", "0"), 0)
    offen, idxen = "offen" in ins.modifiers, "idxen" in ins.modifiers
    index = offset = None
    if isinstance(vaddr, Reg) and not _is_off(vaddr):
        words = 0
        if idxen:
            index = _bind.vector_reader(ins, Reg(vaddr.kind, vaddr.first), "u32", ctx)
            words = 1
        if offen:
            offset = _bind.vector_reader(ins, Reg(vaddr.kind, vaddr.first + words), "u32", ctx)
    scalar = None if _is_off(soffset) else _bind.vector_reader(ins, soffset, "u32", ctx)
    if isinstance(soffset, Const) and soffset.value == 0:
        scalar = None
    newest = ctx.architecture == "gfx1250"
    interleaves = ctx.generation == 9

    def find(b: Any) -> tuple[np.ndarray, np.ndarray]:
        word = [b.s[first + i].astype(_U64)[:, None] for i in range(4)]
        if newest:  # 57 bits of base, 45 of records
            start = word[0] | (word[1] & _U64(0x1FFFFFF)) << _U64(32)
            records = word[1] >> _U64(25) | word[2] << _U64(7) | (word[3] & _U64(0x3F)) << _U64(39)
            stride = (word[3] >> _U64(12)) & _U64(0x3FFF)
        else:
            start = word[0] | (word[1] & _U64(0xFFFF)) << _U64(32)
            records, stride = word[2], (word[1] >> _U64(16)) & _U64(0x3FFF)
        inside: Any = _U64(constant)
        if offset is not None:
            inside = inside + np.asarray(offset(b)).astype(_U64)
        moved = _U64(0) if scalar is None else np.asarray(scalar(b)).astype(_U64)
        row: Any = None if index is None else np.asarray(index(b)).astype(_U64)
        if interleaves and interleaved(b, resource).any():
            if size > 4:
                raise b.machine.report(
                    AccessError,
                    f"{size} bytes of a swizzled buffer, of which 4 are together",
                    ins,
                    b,
                    0,
                )
            inside = _swizzled(word, stride, row, inside, ctx.lanes)
            ok = inside + moved + _U64(size) <= records
            place = start + inside + moved
        elif row is not None:
            ok = row < records
            place = start + row * stride + inside + moved
        else:
            ok = inside + moved + _U64(size) <= records
            place = start + inside + moved
        return np.broadcast_to(place, b.exec.shape), b.exec & ok

    return find


def interleaved(b: Any, resource: Reg) -> np.ndarray:
    """Return the waves whose buffer interleaves the words of lanes: scratch, before it had its own instructions."""
    flags: np.ndarray = b.s[resource.first + 1] >= np.uint32(1 << 31)
    return flags


def _swizzled(word: Any, stride: Any, row: Any, inside: Any, lanes: int) -> Any:
    """Return the place of `inside` of a record in a swizzled buffer, whose elements have four bytes.

    ISA: CDNA2 and CDNA3 9.1.5.2, "Swizzled Buffer Addressing"; the lane is added to the index where
    ADD_TID_ENABLE says so.
    """
    one = _U64(1)
    lane = (word[3] >> _U64(23) & one) * np.arange(lanes, dtype=_U64)[None, :]
    row = lane if row is None else row + lane
    bits = _U64(3) + (word[3] >> _U64(21) & _U64(3))  # of 8 to 64 records
    group, own = row >> bits, row & ((one << bits) - one)
    return ((group * stride + (inside & ~_U64(3))) << bits) + own * _U64(4) + (inside & _U64(3))


def locate(
    b: Any, ins: Instruction, address: np.ndarray, mask: Any, size: int, write: bool
) -> np.ndarray:
    """Addresses that may be used, in lanes that are off that of anything.

    Raises:
        AccessError: an active lane is outside of all arrays.
    """
    machine = b.machine
    memory = machine.memory
    address = memory.safe(address, mask)
    wrong = memory.bad(address, size, mask, write)
    if wrong is not None:
        wave, lane = (int(i[0]) for i in np.nonzero(wrong))
        where = memory.nearest(int(address[wave, lane]), size)
        verb = "store to" if write else "load from"
        raise machine.report(
            AccessError,
            f"a {verb} {size} bytes at {int(address[wave, lane]):#x}: {where}",
            ins,
            b,
            wave,
            lane,
        )
    return address


def counters(ctx: Context, store: bool, flat: bool = False) -> list[tuple[str, str]]:
    """(counter, kind) that an instruction of vector memory counts in."""
    if ctx.generation >= 12:
        counters = [("store", "store")] if store else [("load", "mem")]
        return counters + ([("ds", "flat")] if flat else [])
    if ctx.generation >= 10:
        counters = [("vs", "store")] if store else [("vm", "mem")]
    else:
        counters = [("vm", "mem")]
    return counters + ([("lgkm", "flat")] if flat else [])


M0_READ = Reg("s", M0)
