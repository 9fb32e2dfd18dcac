"""Products of matrices in the registers of a warp: PTX ISA 9.7.14.4, `mma.sync`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Callable, Optional

import numpy as np

from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.products import (
    ELEMENTS,
    bit_products,
    fused_double,
    integer_products,
    products,
    unpack,
)
from gluon_emu.ptx.isa.quads import products_of_quads
from gluon_emu.ptx.isa.sparse import chooser, gathered
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.numbers import decode, encode, rounded, sum_to_odd, uint
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Vector

__all__ = ["accumulator_places", "left_places", "multiplier", "sums_of"]

_LANE = np.arange(32)
_ROW, _COLUMN = _LANE // 4, _LANE % 4
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


@lru_cache(maxsize=None)
def left_places(rows: int, depth: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, k) of the elements of the left operand, arrays (32, registers, each)."""
    tall = rows // 8
    registers = np.arange(rows * depth // 32 // each)
    row = _ROW[:, None] + 8 * (registers % tall)
    k = (registers // tall * 4 * each) + _COLUMN[:, None] * each
    every = np.arange(each)
    return np.broadcast_arrays(row[..., None], k[..., None] + every)  # type: ignore[return-value]


@lru_cache(maxsize=None)
def right_places(depth: int, each: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (k, column) of the elements of the right operand, of 8 columns."""
    registers = np.arange(depth * 8 // 32 // each)
    k = registers * 4 * each + _COLUMN[:, None] * each
    return np.broadcast_arrays(k[..., None] + np.arange(each), _ROW[:, None, None])  # type: ignore[return-value]


@lru_cache(maxsize=None)
def accumulator_places(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, column) of the sums, arrays (32, elements of a thread)."""
    tall = rows // 8
    number = np.arange(rows * columns // 32)
    row = _ROW[:, None] + 8 * (number // 2 % tall)
    column = number // (2 * tall) * 8 + _COLUMN[:, None] * 2 + number % 2
    return row, column


def _vector(call: Any, operand: Any, count: int) -> list[Any]:
    items = list(operand.items) if isinstance(operand, Vector) else [operand]
    if len(items) != count:
        raise call.refuse(f"{len(items)} registers, and this shape has {count}")
    return items


@instruction("mma")
def mma(call: Any) -> Step:
    call.flag("sync"), call.flag("aligned")
    shape = next((m for m in call.left if _SHAPE.fullmatch(m)), None)
    sparse = call.one_of("sp", "sp::ordered_metadata")
    if shape is None or any(m.startswith(("kind", "block_scale")) for m in call.left):
        raise call.refuse("this `mma` is not known")
    call.left.remove(shape)
    m, n, k = map(int, _SHAPE.fullmatch(shape).groups())  # type: ignore[union-attr]
    if (m, n, k) == (8, 8, 4) and "f64" not in call.left:
        return products_of_quads(call)
    if (call.one_of("row"), call.one_of("col")) != ("row", "col"):
        raise call.refuse("`mma` is of .row.col here")
    saturate, bitwise = call.flag("satfinite"), call.one_of("xor", "and")
    call.flag("popc"), call.one_of("rn", "rz", "rm", "rp")
    types = list(call.left)
    call.left = []
    if len(types) != 4 or types[1] not in ELEMENTS or types[2] not in ELEMENTS or n != 8:
        raise call.refuse("`mma` of these types is not known")
    result, left, right, before = types
    bits = ELEMENTS[left]
    each = max(1, 32 // bits)
    word = TYPES["b64" if left == "f64" else "b32"]
    call.count(6 if sparse else 4)
    d, a, b, c, *choice = call.operands
    narrow = {"f16": 2}
    out, into = (narrow.get(t, 1) for t in (result, before))
    type_of = {"f64": "b64"}
    sums = m * n // 32
    held = k // 2 if sparse else k  # elements of a row that the registers hold
    puts = [call.put(x, TYPES[type_of.get(result, "b32")]) for x in _vector(call, d, sums // out)]
    gets_a = [call.get(x, word) for x in _vector(call, a, m * held // 32 // each)]
    gets_b = [call.get(x, word) for x in _vector(call, b, n * k // 32 // each)]
    gets_c = [
        call.get(x, TYPES[type_of.get(before, "b32")]) for x in _vector(call, c, sums // into)
    ]
    rows_a, depth_a = left_places(m, held, each)
    depth_b, columns_b = right_places(k, each)
    rows, columns = accumulator_places(m, n)
    multiply = multiplier(
        call.program.module.arch, (left, right), result, held, bitwise, saturate, True
    )
    choose = chooser(call, left, k, *choice) if sparse else None

    def read(group: Any, gets: list[Any]) -> np.ndarray:
        return np.stack([group.full(get(group)) for get in gets], -1)

    def run(group: Any) -> None:
        size = group.rows.size
        x, y = np.zeros((size, m, held)), np.zeros((size, k, n))
        x[:, rows_a, depth_a] = unpack(read(group, gets_a), left, each)
        y[:, depth_b, columns_b] = unpack(read(group, gets_b), right, each)
        z = np.zeros((size, m, n))
        z[:, rows, columns] = sums_of(read(group, gets_c), before)
        total = multiply(x, y if choose is None else gathered(y, choose(group)), z)
        values = np.ascontiguousarray(total[:, rows, columns])
        if out == 2:
            values = values.view(np.uint32)
        for number, put in enumerate(puts):
            put(group, np.ascontiguousarray(values[..., number]))

    return synchronous(run)


def multiplier(
    generation: int,
    kinds: tuple[str, str],
    result: str,
    depth: int,
    bitwise: Optional[str],
    saturate: bool,
    halves: bool = False,
    steps: int = 0,
) -> Callable[..., np.ndarray]:
    """Return a function of the operands and the sums so far, as float64, to the sums as patterns.

    Args:
        bitwise: `xor` or `and`, of products of bits.
        halves: 8-bit floats are multiplied as `mma.sync` does it.
        steps: along K that are added at once; 0 for those of `mma.sync`.
    """
    if bitwise:
        return lambda x, y, z: bit_products(x, y, z, bitwise)
    if result == "f64":
        return lambda x, y, z: fused_double(x, y, z).view(np.uint64)
    if result == "s32":
        return lambda x, y, z: integer_products(x, y, z, saturate)
    if halves and kinds[0] in ("e4m3", "e5m2") and generation >= 90:
        return _by_halves(*kinds, result, depth, generation)
    return lambda x, y, z: products(x, y, z, kinds, result, generation, steps=steps)


def _by_halves(
    left: str, right: str, result: str, depth: int, generation: int
) -> Callable[..., np.ndarray]:
    """Return the product of 8-bit floats: sm_90 has no unit for `mma.sync` of these, and the assembler makes
    products of f16, of the lower and then of the upper halves of the registers, and adds the sums so far last."""
    k = np.arange(depth)
    parts = (k[k % 4 < 2], k[k % 4 >= 2])

    def run(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        total = np.zeros_like(z)
        for part in parts:
            half = x[:, :, part], y[..., part, :], total
            words = products(*half, (left, right), result, generation, steps=part.size)
            total = decode(words, result)
        return encode(rounded(sum_to_odd(total, z), result), result)

    return run


def sums_of(words: np.ndarray, kind: str) -> np.ndarray:
    """Return the sums of registers as float64, along the last axis."""
    if kind == "s32":
        return np.asarray(words.view(np.int32).astype(np.float64))
    if kind == "f16":
        return decode(np.ascontiguousarray(words).view(uint(16)), "f16")
    return decode(np.ascontiguousarray(words), kind)
