"""Products of matrices through fragments of a layout that nobody may know: PTX ISA 9.7.14.3, `wmma`.

The elements of a matrix lie in its fragment one after the other, rows first (those of less than a byte along K), over the threads of the warp; a fragment that
has more room holds the matrix several times, as on hardware.
"""

from __future__ import annotations

import re
from typing import Any, Callable

import numpy as np

from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.memory import addresses, space_of
from gluon_emu.ptx.isa.mma import multiplier, sums_of
from gluon_emu.ptx.isa.products import ELEMENTS, unpack
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.numbers import uint
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Vector

__all__: list[str] = []

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_BITS = {**ELEMENTS, "f32": 32, "s32": 32}
_LANES = 32


def _shape(call: Any) -> tuple[int, int, int]:
    shape = next((m for m in call.left if _SHAPE.fullmatch(m)), None)
    if shape is None:
        raise call.refuse("`wmma` takes a shape")
    call.left.remove(shape)
    m, n, k = map(int, _SHAPE.fullmatch(shape).groups())  # type: ignore[union-attr]
    return m, n, k


def _items(operand: Any) -> list[Any]:
    return list(operand.items) if isinstance(operand, Vector) else [operand]


def _word(kind: str) -> Any:
    return TYPES["b64" if kind == "f64" else "b32"]


def _places(count: int, total: int) -> np.ndarray:
    """Return which element of `total` each of a thread's `count` is, an array (32, count)."""
    return np.arange(_LANES * count).reshape(_LANES, count) % total


@instruction("wmma.load", "wmma.store")
def move(call: Any) -> Step:
    stores = call.flag("store")
    call.flag("load"), call.flag("sync"), call.flag("aligned")
    role = call.one_of("a", "b", "c", "d")
    order = call.one_of("row", "col")
    m, n, k = _shape(call)
    space = space_of(call)
    if role is None or order is None or len(call.left) != 1 or call.left[0] not in _BITS:
        raise call.refuse("`wmma` of this type is not known")
    kind = call.left.pop()
    call.count(2, 3)
    rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    address, fragment = call.operands[:2] if stores else call.operands[1::-1]
    items, word, bits = _items(fragment), _word(kind), _BITS[kind]
    each = max(1, word.bits // bits)
    if len(items) * each * _LANES % (rows * columns):
        raise call.refuse(f"{len(items)} registers for a matrix of {rows} by {columns} here")
    where = addresses(call, address)
    step = call.get(call.operands[2], TYPES["u32"]) if len(call.operands) == 3 else None
    places = _places(len(items) * each, rows * columns)
    row, column = places // columns, places % columns
    if role == "b" and bits < 8:
        row, column = places % rows, places // rows
    outer, inner = (row, column) if order == "row" else (column, row)
    default = columns if order == "row" else rows
    # Elements of less than a byte are moved by the word.
    size = max(bits, 8) // 8 if bits >= 8 else 4
    pieces = range(0, places.shape[1], 1 if bits >= 8 else each)

    def offsets(group: Any, number: int) -> np.ndarray:
        stride = default if step is None else step(group).astype(np.int64)
        return np.asarray((outer[:, number] * stride + inner[:, number]) * bits // 8)

    raw = uint(size * 8)
    if stores:
        gets = [call.get(item, word) for item in items]

        def store(group: Any) -> None:
            start = where(group)
            words = np.stack([group.full(get(group)) for get in gets], -1)
            values = np.ascontiguousarray(words).view(raw)
            for number, piece in enumerate(pieces):
                new = [np.ascontiguousarray(values[..., number])]
                address = group.full(start + offsets(group, piece))
                group.machine.memory.store(group, space, address, size, new)

        return synchronous(store)
    puts = [call.put(item, word) for item in items]

    def load(group: Any) -> None:
        start, memory = where(group), group.machine.memory
        values = [
            group.full(memory.load(group, space, group.full(start + offsets(group, p)), size)[0])
            for p in pieces
        ]
        words = np.ascontiguousarray(np.stack(values, -1)).view(uint(word.bits))
        for number, put in enumerate(puts):
            put(group, np.ascontiguousarray(words[..., number]))

    return synchronous(load)


@instruction("wmma.mma")
def product(call: Any) -> Step:
    call.flag("mma"), call.flag("sync"), call.flag("aligned")
    bitwise = call.one_of("xor", "and")
    call.flag("popc"), call.one_of("row", "col"), call.one_of("row", "col")
    m, n, k = _shape(call)
    saturate = call.flag("satfinite")
    call.one_of("rn", "rz", "rm", "rp")
    types = list(call.left)
    call.left = []
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or not all(t in _BITS for t in types):
        raise call.refuse("`wmma` of these types is not known")
    result, left, right, before = types
    call.count(4)
    d, a, b, c = map(_items, call.operands)
    puts = [call.put(item, _word(result)) for item in d]
    read_a = _matrix(call, a, left, (m, k))
    narrow = _BITS[right] < 8
    read_b = _matrix(call, b, right, (n, k) if narrow else (k, n))
    read_c = _matrix(call, c, before, (m, n))
    steps = 4 if left == "tf32" else 0
    multiply = multiplier(
        call.program.module.arch, (left, right), result, k, bitwise, saturate, steps=steps
    )
    places = _places(m * n // _LANES, m * n)
    bits = _BITS[result]

    def run(group: Any) -> None:
        y = read_b(group)
        y = np.swapaxes(y, 1, 2) if narrow else y
        total = multiply(read_a(group), y, read_c(group)).reshape(-1, m * n)
        values = np.ascontiguousarray(total[:, places])
        if bits == 16:
            values = values.view(np.uint32)
        for number, put in enumerate(puts):
            put(group, np.ascontiguousarray(values[..., number]))

    return synchronous(run)


def _matrix(
    call: Any, items: list[Any], kind: str, shape: tuple[int, int]
) -> Callable[[Any], np.ndarray]:
    """Return a function that reads a fragment as matrices of float64, one for each warp."""
    word, total = _word(kind), shape[0] * shape[1]
    gets = [call.get(item, word) for item in items]
    each = max(1, word.bits // _BITS[kind])
    if len(items) * each * _LANES % total:
        raise call.refuse(f"{len(items)} registers for a matrix of {shape[0]} by {shape[1]} here")

    def read(group: Any) -> np.ndarray:
        words = np.stack([group.full(get(group)) for get in gets], -1)
        values = sums_of(words, kind) if kind in ("f32", "s32") else unpack(words, kind, each)
        return values.reshape(group.rows.size, -1)[:, :total].reshape(-1, *shape)

    return read
