"""LDS: loads, stores, atomics, transposing loads, and lanes that read from lanes.

ISA: CDNA3 11 and 12.12, CDNA4 11.4 (transposing loads), RDNA3 and RDNA4 12 and 16.13.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.atomics import apply, operation
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.memory import FAR, placed
from gluon_emu.amdgcn.isa.table import Op, Step, custom, pattern

_U32, _U64 = np.uint32, np.uint64

_SIZES: dict[str, tuple[int, bool, str]] = {
    "b32": (4, False, ""), "b64": (8, False, ""), "b96": (12, False, ""), "b128": (16, False, ""),
    "u8": (1, False, ""), "i8": (1, True, ""), "u16": (2, False, ""), "i16": (2, True, ""),
    "b8": (1, False, ""), "b16": (2, False, ""),
    "u8_d16": (1, False, "lo"), "u8_d16_hi": (1, False, "hi"), "i8_d16": (1, True, "lo"),
    "i8_d16_hi": (1, True, "hi"), "u16_d16": (2, False, "lo"), "u16_d16_hi": (2, False, "hi"),
    "b8_d16_hi": (1, False, "hi"), "b16_d16_hi": (2, False, "hi"),
}  # fmt: skip
_ONE = re.compile(r"ds_(read|load|write|store)_(.+)$")
_TWO = re.compile(r"ds_(?:(read|write)2(st64)?|(load|store)_2addr(_stride64)?)_b(32|64)$")


def counter(ctx: Context) -> str:
    return "ds" if ctx.generation >= 12 else "lgkm"


def _offset(ins: Instruction, name: str = "offset") -> int:
    return int(ins.modifiers.get(name, "0"), 0)


def reached(b: Any, address: Any) -> Any:
    """Return the active lanes whose address (32 bits, in which an offset wraps) is meant: compilers
    switch lanes off by one that is far past the end of LDS, where stores are dropped and loads give 0."""
    if address.size and int(address.max()) < FAR:
        return b.exec
    return b.exec & (address < FAR)


def narrowest(name: str) -> Optional[int]:
    """Bytes that an instruction of LDS accesses at once, None for others."""
    one = _ONE.match(name)
    if one and one[2] in _SIZES:
        return _SIZES[one[2]][0]
    return None


@pattern
def _single(name: str) -> Optional[Op]:
    match = _ONE.match(name)
    if not match or match[2] not in _SIZES:
        return None
    size, signed, half = _SIZES[match[2]]
    if match[1] in ("read", "load"):
        return Op(
            lambda i, c: _load(i, c, size, signed, half), "lds", 1, doc="D = LDS[S + offset]."
        )
    return Op(lambda i, c: _store(i, c, size, half), "lds", 0, doc="LDS[S0 + offset] = S1.")


def _load(ins: Instruction, ctx: Context, size: int, signed: bool, half: str) -> Step:
    destination, source = ins.operands[:2]
    destination = register(destination)
    address = _bind.vector_reader(ins, source, "u32", ctx)
    offset = _offset(ins)
    rows = [ctx.row(destination, i) for i in range(max(1, size // 4))]
    name = counter(ctx)

    def step(b: Any) -> None:
        machine = b.machine
        target = address(b) + _U32(offset)
        mask = reached(b, target)
        place = machine.lds.checked(b, ins, target, size, mask)
        number = b.outstanding.issue(name, "lds", rows, ins.index)
        machine.lds.note_read(b, ins, place, size, mask, number)
        if machine.settings.uninitialised:
            machine.lds.never_written(b, ins, place, size, mask)
        values = machine.lds.load(place, size)
        if mask is not b.exec:
            values = [np.where(mask, value, _U32(0)) for value in values]
        values[0] = placed(values[0], b.v[rows[0]], size, signed, half)
        for row, value in zip(rows, values):
            if b.full:
                b.v[row] = value
            else:
                np.copyto(b.v[row], value, where=b.exec)
        machine.used_lds(ins.index, place, size, b)

    return step


def _store(ins: Instruction, ctx: Context, size: int, half: str) -> Step:
    target, data = ins.operands[:2]
    data = register(data)
    address = _bind.vector_reader(ins, target, "u32", ctx)
    offset = _offset(ins)
    rows = [ctx.row(data, i) for i in range(max(1, size // 4))]
    high = half == "hi" or data.half == "h"
    name = counter(ctx)

    def step(b: Any) -> None:
        machine = b.machine
        target = address(b) + _U32(offset)
        mask = reached(b, target)
        place = machine.lds.checked(b, ins, target, size, mask)
        number = b.outstanding.issue(name, "lds", (), ins.index, lds=True)
        values = [b.v[row] for row in rows]
        if high:
            values[0] = values[0] >> _U32(16)
        machine.lds.write(b, ins, place, size, mask, number, values)
        machine.used_lds(ins.index, place, size, b)

    return step


@pattern
def _double(name: str) -> Optional[Op]:
    match = _TWO.match(name)
    if not match:
        return None
    reads = (match[1] or match[3]) in ("read", "load")
    size = int(match[5]) // 8
    scale = size * (64 if match[2] or match[4] else 1)

    def bind(ins: Instruction, ctx: Context) -> Step:
        """Access two elements at S + offset0 and S + offset1, which count in elements (or 64 of them)."""
        return _pair(ins, ctx, reads, size, scale)

    return Op(bind, "lds", 1 if reads else 0, doc=bind.__doc__ or "")


def _pair(ins: Instruction, ctx: Context, reads: bool, size: int, scale: int) -> Step:
    offsets = [_offset(ins, "offset0") * scale, _offset(ins, "offset1") * scale]
    source = ins.operands[1 if reads else 0]
    address = _bind.vector_reader(ins, source, "u32", ctx)
    words = size // 4
    if reads:
        destination = ins.operands[0]
        destination = register(destination)
        groups = [
            [ctx.row(destination, part * words + i) for i in range(words)] for part in range(2)
        ]
    else:
        groups = [[ctx.row(data, i) for i in range(words)] for data in ins.operands[1:3]]  # type: ignore[arg-type]
    written = [row for group in groups for row in group] if reads else ()
    name = counter(ctx)

    def step(b: Any) -> None:
        machine = b.machine
        number = b.outstanding.issue(name, "lds", written, ins.index, lds=not reads)
        base = address(b).copy()  # a load may overwrite it
        for offset, rows in zip(offsets, groups):
            place = machine.lds.checked(b, ins, base + _U32(offset), size, b.exec)
            if reads:
                machine.lds.note_read(b, ins, place, size, b.exec, number)
                for row, value in zip(rows, machine.lds.load(place, size)):
                    np.copyto(b.v[row], value, where=b.exec)
            else:
                values = [b.v[row] for row in rows]
                machine.lds.write(b, ins, place, size, b.exec, number, values)
            machine.used_lds(ins.index, place, size, b)

    return step


# -- loads that transpose --------------------------------------------------------------------------

# name -> (bits of an element, bytes of a lane, lanes that exchange among each other); where two lanes
# load a row, they are next to each other, or on gfx1250 four apart.
_TRANSPOSING = {
    "ds_read_b64_tr_b16": (16, 8, 16),
    "ds_read_b64_tr_b8": (8, 8, 16),
    "ds_read_b64_tr_b4": (4, 8, 16),
    "ds_read_b96_tr_b6": (6, 12, 16),
    "ds_load_tr16_b128": (16, 16, 8),
    "ds_load_tr8_b64": (8, 8, 16),
    "ds_load_tr4_b64": (4, 8, 16),
    "ds_load_tr6_b96": (6, 12, 16),
}


def transposed(
    bits: int, size: int, group: int, lanes: int, apart: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """For each lane and element of a result the (lane, element) that is loaded there.

    Lanes of a group load rows of as many elements as the group has lanes, one row after the other;
    each gets a column. Lanes that load one row are `apart`.
    """
    count = size * 8 // bits
    lane, element = np.meshgrid(np.arange(lanes), np.arange(count), indexing="ij")
    inside = lane % group
    of_row = max(1, group // count)  # lanes that load one row
    loader = element % apart + of_row * (element - element % apart) + apart * (inside // count)
    return lane - inside + loader % group, inside % count


@custom(*_TRANSPOSING, family="lds")
def transposing(ins: Instruction, ctx: Context) -> Step:
    """Load a part of a row of a matrix in each lane of 16, and return a part of a column."""
    bits, size, group = _TRANSPOSING[ins.name]
    destination = ins.operands[0]
    destination = register(destination)
    address = _bind.vector_reader(ins, ins.operands[1], "u32", ctx)
    offset, name = _offset(ins), counter(ctx)
    rows = [ctx.row(destination, i) for i in range(size // 4)]
    lanes, places = transposed(
        bits, size, group, ctx.lanes, 4 if ins.name == "ds_load_tr8_b64" else 1
    )

    def step(b: Any) -> None:
        machine = b.machine
        place = machine.lds.checked(b, ins, address(b) + _U32(offset), size, b.exec)
        number = b.outstanding.issue(name, "lds", rows, ins.index)
        machine.lds.note_read(b, ins, place, size, b.exec, number)
        words = np.stack(machine.lds.load(place, size), -1)
        loose = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
        loose = loose.reshape(*words.shape[:2], -1, bits)[:, lanes, places]
        packed = np.packbits(loose.reshape(*words.shape[:2], -1), axis=-1, bitorder="little")
        shuffled = packed.view(_U32)
        for i, row in enumerate(rows):
            np.copyto(b.v[row], shuffled[..., i], where=b.exec)
        machine.used_lds(ins.index, place, size, b)

    return step


# -- atomics ---------------------------------------------------------------------------------------

_ATOMIC = re.compile(
    r"ds_(add|sub|rsub|inc|dec|min|max|min_num|max_num|and|or|xor|wrxchg|storexchg|cmpst|cmpstore|pk_add)"
    r"(_rtn)?_(u32|i32|b32|f32|u64|i64|b64|f64|f16|bf16)$"
)


def _reversed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda old, value: function(value, old)


@pattern
def _atomic(name: str) -> Optional[Op]:
    match = _ATOMIC.match(name.replace("_rtn_", "_")) if "_rtn_" in name else _ATOMIC.match(name)
    if not match:
        return None
    stem = {"wrxchg": "swap", "storexchg": "swap", "cmpst": "cmpswap", "cmpstore": "cmpswap"}.get(
        match[1], match[1]
    )
    kind = match[3]
    if stem == "rsub":
        known = operation(f"sub_{kind}")
        assert known is not None  # subtraction is there
        known = _reversed(known[0]), known[1]
    else:
        known = operation(f"{stem}_{kind}")
    if known is None:
        return None
    function, size = known
    wanted = "_rtn" in name
    swaps = stem == "cmpswap"

    def bind(ins: Instruction, ctx: Context) -> Step:
        """LDS = op(LDS, S), of all lanes in some order; D = the old value, if asked for."""
        operands = list(ins.operands)
        destination = operands.pop(0) if wanted else None
        address = _bind.vector_reader(ins, operands[0], "u32", ctx)
        words = size // 4
        datas = [[ctx.row(o, i) for i in range(words)] for o in operands[1:]]  # type: ignore[arg-type]
        if swaps and match[1] == "cmpst":  # the comparand comes first before gfx11
            datas = datas[::-1]
        into = [ctx.row(destination, i) for i in range(words)] if wanted else []  # type: ignore[arg-type]
        offset, label = _offset(ins), counter(ctx)

        def step(b: Any) -> None:
            machine = b.machine
            place = machine.lds.checked(b, ins, address(b) + _U32(offset), size, b.exec)
            number = b.outstanding.issue(label, "lds", into, ins.index, lds=True)
            machine.lds.note_atomic(b, ins, place, size, b.exec, number)
            array = machine.lds.data if words == 1 else machine.lds.bytes.view(_U64)
            parts = [_joined(b, rows) for rows in datas]
            compare = parts[1] if swaps else None
            old = apply(array, place[b.exec] // size, parts[0], compare, function)
            for i, row in enumerate(into):
                part = old.astype(_U32) if i == 0 else (old >> _U64(32)).astype(_U32)
                b.v[row][b.exec] = part
            machine.used_lds(ins.index, place, size, b)

        return step

    return Op(bind, "lds", 1 if wanted else 0, doc=bind.__doc__ or "")


def _joined(b: Any, rows: Any) -> Any:
    low = b.v[rows[0]][b.exec]
    if len(rows) == 1:
        return low
    return low.astype(_U64) | (b.v[rows[1]][b.exec].astype(_U64) << _U64(32))


# -- lanes that read from lanes --------------------------------------------------------------------


@custom("ds_bpermute_b32", family="lds")
def ds_bpermute_b32(ins: Instruction, ctx: Context) -> Step:
    """D = S1 of the lane (S0 + offset) / 4; 0 from a lane that is off."""

    def fetched(b: Any, data: Any, lane: Any) -> Any:
        value = np.take_along_axis(data, lane, 1)
        if b.full:
            return value
        return np.where(np.take_along_axis(b.exec, lane, 1), value, _U32(0))

    return _between_lanes(ins, ctx, fetched)


@custom("ds_permute_b32", family="lds")
def ds_permute_b32(ins: Instruction, ctx: Context) -> Step:
    """D of the lane (S0 + offset) / 4 = S1; 0 where no lane sends; the last of several wins."""

    def sent(b: Any, data: Any, lane: Any) -> Any:
        value = np.zeros(b.exec.shape, _U32)
        wave = np.broadcast_to(np.arange(b.exec.shape[0])[:, None], b.exec.shape)
        value[wave[b.exec], lane[b.exec]] = data[b.exec]
        return value

    return _between_lanes(ins, ctx, sent)


def _between_lanes(ins: Instruction, ctx: Context, move: Callable[[Any, Any, Any], Any]) -> Step:
    destination, index, data = ins.operands[:3]
    destination, data = register(destination), register(data)
    read = _bind.vector_reader(ins, index, "u32", ctx)
    row, from_row = ctx.row(destination), ctx.row(data)
    offset, name = _U32(_offset(ins)), counter(ctx)

    def step(b: Any) -> None:
        lane = (((read(b) + offset) >> _U32(2)) % _U32(ctx.lanes)).astype(np.int64)
        value = move(b, b.v[from_row], np.broadcast_to(lane, b.exec.shape))
        np.copyto(b.v[row], value, where=b.exec)
        b.outstanding.issue(name, "lds", (row,), ins.index)

    return step


def swizzled(offset: int, lanes: int) -> np.ndarray:
    """Return the lane that each lane reads in ds_swizzle, by its 16-bit pattern."""
    lane = np.arange(lanes)
    if offset & 0x8000:
        if offset & 0x4000 and offset & 0x2000 == 0:  # rotate within 32
            amount = offset >> 5 & 31
            move = -amount if offset & 0x400 else amount
            mask = offset & 31
            return lane // 32 * 32 + ((lane & mask) | ((lane + move) & ~mask & 31))
        picks = np.array([offset >> (2 * i) & 3 for i in range(4)])
        return np.asarray(lane // 4 * 4 + picks[lane % 4])
    inside = lane & 31
    source = ((inside & (offset & 31)) | (offset >> 5 & 31)) ^ (offset >> 10 & 31)
    return lane // 32 * 32 + source


_SWIZZLE = re.compile(r"swizzle\(([^)]*)\)")


def swizzle_pattern(text: str) -> int:
    """Return the 16 bits behind `swizzle(MODE, ...)` as assembly writes them, or a number."""
    match = _SWIZZLE.match(text)
    if not match:
        return int(text, 0)
    words = [w.strip() for w in match[1].split(",")]
    mode, values = words[0], words[1:]
    if mode == "QUAD_PERM":
        return 0x8000 | sum(int(v, 0) << (2 * i) for i, v in enumerate(values))
    if mode == "SWAP":
        return 0x1F | int(values[0], 0) << 10
    if mode == "REVERSE":
        return 0x1F | (int(values[0], 0) - 1) << 10
    if mode == "BROADCAST":
        size = int(values[0], 0)
        return (32 - size) & 0x1F | int(values[1], 0) << 5
    if mode == "BITMASK_PERM":
        bits = {"0": (0, 0, 0), "1": (0, 1, 0), "p": (1, 0, 0), "i": (1, 0, 1)}
        keep = put_one = flip = 0
        for char in values[0].strip('"'):
            k, o, x = bits[char]
            keep, put_one, flip = keep << 1 | k, put_one << 1 | o, flip << 1 | x
        return keep | put_one << 5 | flip << 10
    raise ValueError(text)


@custom("ds_swizzle_b32", family="lds")
def ds_swizzle_b32(ins: Instruction, ctx: Context) -> Step:
    """D = S0 of a lane that a pattern names; 0 from a lane that is off."""
    destination, data = ins.operands[:2]
    destination, data = register(destination), register(data)
    lane = swizzled(swizzle_pattern(ins.modifiers.get("offset", "0")), ctx.lanes)
    row, from_row = ctx.row(destination), ctx.row(data)
    name = counter(ctx)

    def step(b: Any) -> None:
        value = np.where(b.exec[:, lane], b.v[from_row][:, lane], _U32(0))
        np.copyto(b.v[row], value, where=b.exec)
        b.outstanding.issue(name, "lds", (row,), ins.index)

    return step


@custom("ds_nop", family="lds", results=0)
def ds_nop(ins: Instruction, ctx: Context) -> Step:
    """Nothing."""
    return lambda b: None
