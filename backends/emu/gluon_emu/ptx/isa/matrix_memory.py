"""Matrices of 8x8 elements between shared memory and the registers of a warp: PTX ISA 9.7.14.5."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.matrix_bytes import is_of_bytes, load, row_places, store
from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.group import LANES
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Vector

__all__: list[str] = []

_LANE = np.arange(LANES)
_ROW, _COLUMN = _LANE // 4, _LANE % 4
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


def _form(call: Any) -> tuple[int, bool, str]:
    call.flag("sync"), call.flag("aligned")
    if not call.flag("m8n8"):
        raise call.refuse(f"`{call.name}` of this shape is not known")
    count = _COUNTS.get(call.one_of(*_COUNTS) or "")
    if count is None:
        raise call.refuse(f"`{call.name}` is of .x1, .x2 or .x4")
    transposed = call.flag("trans")
    space = space_of(call)
    if call.type().name != "b16":
        raise call.refuse(f"`{call.name}` of this type is not known")
    return count, transposed, space


def _rows(group: Any, space: str, address: np.ndarray, count: int, write: bool) -> np.ndarray:
    """Return the place of each row in all of the shared memory, (warps, matrices, 8), in elements."""
    places = row_places(group, space, address, 8 * count, write)
    return places.reshape(-1, count, 8) >> 1


def _words(rows: np.ndarray, number: int, transposed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the two elements that each thread has of a matrix."""
    if transposed:
        low = rows[:, number][:, 2 * _COLUMN] + _ROW
        return low, rows[:, number][:, 2 * _COLUMN + 1] + _ROW
    low = rows[:, number][:, _ROW] + 2 * _COLUMN
    return low, low + 1


@instruction("ldmatrix")
def ldmatrix(call: Any) -> Step:
    if is_of_bytes(call):
        return load(call)
    count, transposed, space = _form(call)
    call.count(2)
    d = call.operands[0]
    items = d.items if isinstance(d, Vector) else [d]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers for {count} matrices")
    puts = [call.put(item, TYPES["b32"]) for item in items]
    where = addresses(call, call.operands[1])

    def run(group: Any) -> None:
        rows = _rows(group, space, where(group), count, False)
        view = group.machine.memory.view("shared", 2)
        for number, put in enumerate(puts):
            low, high = _words(rows, number, transposed)
            put(group, view[low].astype(np.uint32) | view[high].astype(np.uint32) << np.uint32(16))

    return synchronous(run)


@instruction("stmatrix")
def stmatrix(call: Any) -> Step:
    if is_of_bytes(call):
        return store(call)
    count, transposed, space = _form(call)
    call.count(2)
    source = call.operands[1]
    items = source.items if isinstance(source, Vector) else [source]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers for {count} matrices")
    gets = [call.get(item, TYPES["b32"]) for item in items]
    where = addresses(call, call.operands[0])

    def run(group: Any) -> None:
        rows = _rows(group, space, where(group), count, True)
        view = group.machine.memory.view("shared", 2)
        group.machine.changes += 1
        for number, get in enumerate(gets):
            low, high = _words(rows, number, transposed)
            value = group.full(get(group))
            view[low] = value.astype(np.uint16)
            view[high] = (value >> np.uint32(16)).astype(np.uint16)

    return synchronous(run)


@instruction("movmatrix")
def movmatrix(call: Any) -> Step:
    """Transpose a matrix in the registers of a warp."""
    call.flag("sync"), call.flag("aligned")
    if not (call.flag("m8n8") and call.flag("trans")) or call.type().name != "b16":
        raise call.refuse("this `movmatrix` is not known")
    call.count(2)
    put, get = call.put(call.operands[0], TYPES["b32"]), call.get(call.operands[1], TYPES["b32"])

    def run(group: Any) -> None:
        value = np.ascontiguousarray(group.full(get(group))).view(np.uint16)  # (warps, 64)
        matrix = value.reshape(-1, 8, 8)
        transposed = np.ascontiguousarray(matrix.swapaxes(1, 2)).reshape(-1, 64).view(np.uint32)
        put(group, transposed)

    return synchronous(run)
