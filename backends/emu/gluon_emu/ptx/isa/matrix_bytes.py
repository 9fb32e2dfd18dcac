"""Matrices of bytes between shared memory and the registers of a warp, of sm_100: PTX ISA 9.7.14.5.

`ldmatrix` of 16x16 bytes, transposed, and of rows of 16 elements of 4 or 6 bits, each of which becomes the low bits of a byte; `stmatrix` of
16x8 bytes, transposed. The places of bytes are those of CUTLASS's copy atoms for sm_100; they have not been compared with silicon.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.table import Step
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Vector

__all__ = ["FORMATS", "is_of_bytes", "load", "row_places", "store"]

ROW = 16  # bytes in shared memory
FORMATS = {"b4x16_p64": 4, "b6x16_p32": 6}  # bits of an element, the rest of the row is empty
_LANE, _BYTE = np.arange(LANES)[:, None], np.arange(4)[None, :]
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


def is_of_bytes(call: Any) -> bool:
    """Return whether an `ldmatrix` or `stmatrix` is one of this file."""
    return not {"b8", "b8x16"}.isdisjoint(call.left)


def row_places(group: Any, space: str, address: np.ndarray, count: int, write: bool) -> np.ndarray:
    """Return the byte of each row in all of the shared memory, (warps, rows).

    Args:
        count: threads that give the address of a row, the first of each warp.
    """
    before = group.mask
    if count < LANES:
        group.mask = group.lanes() & (np.arange(LANES) < count)
    places = group.machine.memory.places(group, space, address, ROW, write)
    if group.machine.observer is not None:
        group.machine.observer.access("store" if write else "load", group, places, ROW)
    group.mask = before
    if len(places) != 1 or places[0][0] != "shared":
        raise ValueError("a row that is not in shared memory")
    return np.asarray(group.full(places[0][1])[:, :count])


def _registers(call: Any, operand: Any, count: int) -> list[Any]:
    items = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers, and this shape has {count}")
    return items


def _unpacked(rows: np.ndarray, bits: Optional[int]) -> np.ndarray:
    """Return the bytes of rows: elements of fewer bits each in a byte of its own."""
    if bits is None:
        return rows
    first = np.arange(ROW) * bits
    wide = np.concatenate((rows, np.zeros_like(rows[..., :1])), -1).astype(np.uint16)
    pair = wide[..., first // 8] | wide[..., first // 8 + 1] << 8
    return np.asarray((pair >> (first % 8).astype(np.uint16) & ((1 << bits) - 1)).astype(np.uint8))


def _words(bytes_: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(bytes_.astype(np.uint8)).view(np.uint32)[..., 0]


def load(call: Any) -> Step:
    """`ldmatrix` of m16n16 (transposed) and of m8n16."""
    call.flag("sync"), call.flag("aligned")
    shape = call.one_of("m16n16", "m8n16")
    count = _COUNTS.get(call.one_of(*_COUNTS) or "", 0)
    transposed, space = call.flag("trans"), space_of(call)
    packed = call.one_of(*FORMATS)
    plain = call.flag("b8x16") if packed else call.flag("b8")
    square = shape == "m16n16"
    wrong = not shape or not plain or transposed != square or not square and packed is None
    if wrong or call.left or not 1 <= count <= (2 if square else 4):
        raise call.refuse("this `ldmatrix` of bytes is not known")
    call.count(2)
    each = 2 if square else 1
    items = _registers(call, call.operands[0], count * each)
    puts = [call.put(item, TYPES["b32"]) for item in items]
    where, bits = addresses(call, call.operands[1]), FORMATS.get(packed or "")
    height = 16 if square else 8

    def run(group: Any) -> None:
        starts = row_places(group, space, where(group), count * height, False)
        view = group.machine.memory.view("shared", 1)
        rows = _unpacked(view[starts[..., None] + np.arange(ROW)], bits)
        for number, put in enumerate(puts):
            first = number // each * height
            if square:  # a thread has four rows of a column
                value = rows[:, first + 4 * (_LANE % 4) + _BYTE, _LANE // 4 + 8 * (number % 2)]
            else:
                value = rows[:, first + _LANE // 4, 4 * (_LANE % 4) + _BYTE]
            put(group, _words(value))

    return synchronous(run)


def store(call: Any) -> Step:
    """`stmatrix` of m16n8: two neighbours of a row of the product, and of the row eight below."""
    call.flag("sync"), call.flag("aligned")
    shape = call.flag("m16n8")
    count = _COUNTS.get(call.one_of(*_COUNTS) or "", 0)
    transposed, space = call.flag("trans"), space_of(call)
    plain = call.flag("b8")
    if not (shape and transposed and plain and count) or call.left:
        raise call.refuse("this `stmatrix` of bytes is not known")
    call.count(2)
    items = _registers(call, call.operands[1], count)
    gets = [call.get(item, TYPES["b32"]) for item in items]
    where = addresses(call, call.operands[0])

    def run(group: Any) -> None:
        starts = row_places(group, space, where(group), 8 * count, True)
        view = group.machine.memory.view("shared", 1)
        group.machine.changes += 1
        for number, get in enumerate(gets):
            value = np.ascontiguousarray(group.full(get(group))).view(np.uint8)
            row, column = 8 * number + 2 * (_LANE % 4) + _BYTE % 2, _LANE // 4 + 8 * (_BYTE // 2)
            view[starts[:, row] + column] = value.reshape(-1, LANES, 4)

    return synchronous(run)
