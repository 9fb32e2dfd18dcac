"""Loads, stores and copies of tensor memory: PTX ISA 9.7.16.8 and 9.7.16.9."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.errors import EmulatorError
from gluon_emu.ptx.isa.memory import addresses
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.isa.tcgen05 import aligned, lanes_of, pairs_of
from gluon_emu.ptx.isa.tcgen05_operands import descriptor_places, shared_bytes
from gluon_emu.ptx.machine.tensor import CELLS, COLUMNS, ROWS
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Immediate, Register, Vector

__all__ = ["fragment"]

_EACH = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}  # registers of .x1
_REPEATS = tuple(f"x{1 << i}" for i in range(8))
_MOST = 128  # registers


@lru_cache(maxsize=None)
def fragment(shape: str, repeats: int, half: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (lane, column) from the address on of each register, arrays (32, registers).

    Args:
        shape: such as "16x64b".
        repeats: N of `.xN`.
        half: columns between the halves of "16x32bx2".
    """
    thread, register = np.arange(32)[:, None], np.arange(repeats * _EACH[shape])[None, :]
    if shape == "32x32b":
        lane, column = thread, register
    elif shape == "16x32bx2":
        lane, column = thread & 15, register + (thread >> 4) * half
    elif shape == "16x64b":
        lane, column = (thread >> 2) + 8 * (thread & 1), (thread >> 1 & 1) + 2 * register
    elif shape == "16x128b":
        lane, column = (thread >> 2) + 8 * (register & 1), (thread & 3) + 4 * (register >> 1)
    else:
        lane = (thread >> 2) + 8 * (register >> 1 & 1)
        column = 2 * (thread & 3) + (register & 1) + 8 * (register >> 2)
    lane, column = np.broadcast_arrays(lane, column)
    return lane, column


def _shape(call: Any) -> tuple[str, int, bool]:
    """Take the shape; return it, its repeats, and whether a register holds 16 bits of two columns."""
    shape, repeats = call.one_of(*_EACH), call.one_of(*_REPEATS)
    if shape is None or repeats is None or int(repeats[1:]) * _EACH[shape] > _MOST:
        raise call.refuse(f"this shape of `tcgen05.{call.statement.modifiers[0]}` is not known")
    call.flag("sync"), call.flag("aligned")
    return shape, int(repeats[1:]), bool(call.one_of("pack::16b", "unpack::16b"))


def _items(call: Any, operand: Any, count: int) -> list[Any]:
    items = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers, and this shape has {count}")
    return items


def _fragment(call: Any, shape: str, repeats: int, wide: bool, half: Any) -> tuple[Any, Any]:
    if shape == "16x32bx2":
        if not isinstance(half, Immediate):
            raise call.refuse("`.16x32bx2` takes the columns between its halves")
        half = int(half.value)
    lanes, columns = fragment(shape, repeats, half or 0)
    if not wide:
        return lanes, columns
    near = fragment(shape, repeats)[1]
    columns = columns + near  # the distance between halves is in columns already
    return np.concatenate((lanes, lanes), 1), np.concatenate((columns, columns + 1), 1)


def _joined(cells: np.ndarray) -> np.ndarray:
    low, high = np.split(cells & np.uint32(0xFFFF), 2, -1)
    return np.asarray(low | high << np.uint32(16))


@instruction("tcgen05.ld")
def ld(call: Any) -> Step:
    call.flag("ld")
    reduction = call.one_of("min", "max") if call.flag("red") else None
    absolute, nan = call.flag("abs"), call.flag("NaN")
    shape, repeats, wide = _shape(call)
    type = call.type()
    operands = list(call.operands)
    b32 = TYPES["b32"]
    items = _items(call, operands.pop(0), repeats * _EACH[shape])
    reduced = operands.pop(0) if reduction else None
    if reduction and (shape not in ("32x32b", "16x32bx2") or wide):
        raise call.refuse("this `tcgen05.ld.red` is not known")
    if not reduction and type != b32:
        raise call.unknown_type(type)
    puts = [call.put(item, b32) for item in items]
    if reduced is not None:
        puts.append(call.put(reduced, b32))
        items.append(reduced)
    where = addresses(call, operands.pop(0))
    lanes, columns = _fragment(call, shape, repeats, wide, operands.pop(0) if operands else None)
    if operands:
        raise call.refuse(f"`tcgen05.ld` with {len(call.operands)} operands is not known")
    names = tuple(item.name for item in items if isinstance(item, Register))
    finish: Callable[[np.ndarray], np.ndarray] = _joined if wide else lambda cells: cells
    if reduction:
        finish = _reducer(reduction, type.dtype, absolute, nan)
    together = tuple(puts)

    def run(group: Any) -> None:
        tensor = group.machine.tensor
        cells = tensor.places(group, where(group), lanes, columns, "load")
        if group.machine.observer is not None:
            group.machine.observer.tensor_accessed(group, cells, False)
        tensor.load(group, cells, finish, together, names)

    return aligned(run)


def _reducer(
    kind: str, dtype: Any, absolute: bool, nan: bool
) -> Callable[[np.ndarray], np.ndarray]:
    """Return what appends the least or greatest of a thread's registers."""

    def finish(cells: np.ndarray) -> np.ndarray:
        values = cells.view(dtype)
        if absolute:
            values = np.abs(values)
        if values.dtype.kind != "f":
            fn: Any = np.minimum if kind == "min" else np.maximum
        elif nan:
            fn = np.minimum if kind == "min" else np.maximum
        else:
            fn = np.fmin if kind == "min" else np.fmax
        last = np.ascontiguousarray(fn.reduce(values, axis=-1, keepdims=True)).view(np.uint32)
        return np.concatenate((cells, last), -1)

    return finish


@instruction("tcgen05.st")
def st(call: Any) -> Step:
    call.flag("st")
    shape, repeats, wide = _shape(call)
    if call.type() != TYPES["b32"]:
        raise call.refuse("`tcgen05.st` is of .b32")
    operands = list(call.operands)
    where = addresses(call, operands.pop(0))
    half: Optional[Any] = operands.pop(0) if len(operands) == 2 else None
    gets = [
        call.get(item, TYPES["b32"]) for item in _items(call, operands[0], repeats * _EACH[shape])
    ]
    lanes, columns = _fragment(call, shape, repeats, wide, half)

    def run(group: Any) -> None:
        tensor = group.machine.tensor
        cells = tensor.places(group, where(group), lanes, columns, "store")
        values = np.stack([group.full(get(group)) for get in gets], -1)
        if wide:
            values = np.concatenate((values & np.uint32(0xFFFF), values >> np.uint32(16)), -1)
        if group.machine.observer is not None:
            group.machine.observer.tensor_accessed(group, cells, True)
        tensor.store(group, cells, values)

    return aligned(run)


# Shape and multicast -> the first lane of each copy of the matrix, and the bytes of a row.
_COPIES = {
    ("128x256b", ""): ((0,), 32),
    ("4x256b", ""): ((0,), 32),
    ("128x128b", ""): ((0,), 16),
    ("64x128b", "warpx2::02_13"): ((0, 64), 16),
    ("64x128b", "warpx2::01_23"): ((0, 32), 16),
    ("32x128b", "warpx4"): ((0, 32, 64, 96), 16),
}


@lru_cache(maxsize=None)
def _targets(shape: str, multicast: str) -> np.ndarray:
    """Return the lanes of each copy of the rows, (copies, rows)."""
    rows = np.arange(int(shape.partition("x")[0]))
    if (
        multicast == "warpx2::01_23"
    ):  # rows 0 to 31 to the first two warps, the others to the last two
        rows = rows % 32 + rows // 32 * 64
    return np.stack([rows + first for first in _COPIES[shape, multicast][0]])


@instruction("tcgen05.cp")
def cp(call: Any) -> Step:
    call.flag("cp")
    paired = pairs_of(call)
    multicast = call.one_of("warpx4", "warpx2::02_13", "warpx2::01_23") or ""
    shape = call.one_of("128x256b", "128x128b", "64x128b", "32x128b", "4x256b") or ""
    if call.left or (shape, multicast) not in _COPIES:
        raise call.refuse("this form of `tcgen05.cp` is not known")
    call.count(2)
    where, describe = addresses(call, call.operands[0]), call.get(call.operands[1], TYPES["b64"])
    lanes, size = _targets(shape, multicast), _COPIES[shape, multicast][1]
    width = size // 4

    def run(group: Any) -> None:
        machine = group.machine
        tensor = machine.tensor
        starts, descriptors = group.full(where(group)), group.full(describe(group))
        for lane in lanes_of(group):
            block = int(group.block[lane[0]])
            blocks = tensor.pair(block) if paired else [block]
            start, descriptor = int(starts[lane]), int(descriptors[lane])
            far, column = start >> 16 & 127, start & 0xFFFF
            for one in blocks:
                tensor.check(one, column, width, "a copy to")
            offsets = descriptor_places(machine.memory, descriptor, lanes.shape[1], size)
            cells = ((lanes + far) * COLUMNS + column)[..., None] + np.arange(width)

            def copy(
                blocks: Any = blocks,
                offsets: Any = offsets,
                cells: Any = cells,
                column: int = column,
            ) -> None:
                for one in blocks:
                    tensor.check(one, column, width, "a copy to")
                    raw = shared_bytes(machine.memory, one, offsets)
                    words = np.ascontiguousarray(raw).view(np.uint32)
                    tensor.cells[one * CELLS + cells] = words
                machine.changes += 1

            if machine.observer is not None:
                machine.observer.tensor_work(
                    group, lane, [(one, offsets, 1) for one in blocks], [],
                    [one * CELLS + cells for one in blocks],
                )  # fmt: skip
            tensor.start(group, lane, copy)

    return run


_SHIFTED = 8  # columns of 32 bits in an element of 32 bytes


@instruction("tcgen05.shift")
def shift(call: Any) -> Step:
    """Move rows by one: each but the last gets the row behind it, as lanes do in `shfl.down`.

    The ISA says "downwards"; the other direction would fit its words, too.
    """
    call.flag("shift")
    paired = pairs_of(call)
    if not call.flag("down") or call.left:
        raise call.refuse("`tcgen05.shift` is `.down`")
    call.count(1)
    where = addresses(call, call.operands[0])

    def run(group: Any) -> None:
        machine = group.machine
        tensor = machine.tensor
        starts = group.full(where(group))
        for lane in lanes_of(group):
            start, block = int(starts[lane]), int(group.block[lane[0]])
            first, column = start >> 16 & 0xFFFF, start & 0xFFFF
            if first % 32 or first >= ROWS:
                raise EmulatorError(f"a shift of rows from lane {first} on: a multiple of 32 to 96")
            blocks = tensor.pair(block) if paired else [block]
            for one in blocks:
                tensor.check(one, column, _SHIFTED, "a shift of")
            rows = np.arange(first, ROWS)[:, None] * COLUMNS + column + np.arange(_SHIFTED)

            def move(blocks: Any = blocks, rows: Any = rows, column: int = column) -> None:
                for one in blocks:
                    tensor.check(one, column, _SHIFTED, "a shift of")
                    cells = one * CELLS + rows
                    tensor.cells[cells[:-1]] = tensor.cells[cells[1:]]
                machine.changes += 1

            if machine.observer is not None:
                machine.observer.tensor_work(
                    group, lane, [], [one * CELLS + rows[1:] for one in blocks],
                    [one * CELLS + rows[:-1] for one in blocks],
                )  # fmt: skip
            tensor.start(group, lane, move)

    return run
