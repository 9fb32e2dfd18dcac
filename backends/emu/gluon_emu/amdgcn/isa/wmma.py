"""WMMA: matrix multiplication of RDNA3 (version 1), RDNA4 (2) and gfx1250 (3), waves of 32.

ISA: RDNA3 7.9, RDNA4 7.12; gfx1250 as LLVM and Triton lay out its operands. Sums are taken in float64
and rounded once.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Optional

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import Const, Reg, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import bf16_to_f32, to_bf16
from gluon_emu.amdgcn.isa.matrix import (
    BITS,
    accumulator_reader,
    dense,
    elements,
    product,
    result_writer,
)
from gluon_emu.amdgcn.isa.table import Op, Step, pattern

_NAME = re.compile(
    r"v_wmma_(scale_|scale16_)?(f32|f16|bf16|i32|bf16f32)_(\d+)x(\d+)x(\d+)_"
    r"(f32|f16|bf16|iu8|iu4|fp8|bf8|f8f6f4|f4)(?:_(fp8|bf8))?(?:_w32)?$"
)
_FORMATS = {
    "MATRIX_FMT_FP8": "fp8", "MATRIX_FMT_BF8": "bf8", "MATRIX_FMT_FP6": "fp6",
    "MATRIX_FMT_BF6": "bf6", "MATRIX_FMT_FP4": "fp4",
}  # fmt: skip


def version_of(ctx: Context) -> int:
    if ctx.generation == 11:
        return 1
    return 3 if ctx.architecture.startswith("gfx125") else 2


@pattern
def _wmma(name: str) -> Optional[Op]:
    match = _NAME.match(name)
    if not match:
        return None
    return Op(lambda ins, ctx: _bound(ins, ctx, match), "wmma", 1, doc="D = A B + C, by the wave.")


def _kinds(ins: Instruction, kind: str, other: Optional[str]) -> tuple[str, str]:
    if kind == "f8f6f4":
        return (
            _FORMATS[ins.modifiers.get("matrix_a_fmt", "MATRIX_FMT_FP8")],
            _FORMATS[ins.modifiers.get("matrix_b_fmt", "MATRIX_FMT_FP8")],
        )
    if kind == "f4":
        return "fp4", "fp4"
    if kind in ("iu8", "iu4"):
        width = kind[2:]
        signs = [_bind.selection_bit(ins.modifiers.get("neg_lo"), i) for i in range(2)]
        first, second = (("i" if s else "u") + width for s in signs)
        return first, second
    return kind, other or kind


def _bound(ins: Instruction, ctx: Context, match: Any) -> Step:
    scaled, result = match[1], match[2]
    m, n, k = int(match[3]), int(match[4]), int(match[5])
    result = "bf16" if result == "bf16f32" else result
    first_kind, second_kind = _kinds(ins, match[6], match[7])
    destination, a, b_operand, c = ins.operands[:4]
    destination, a, b_operand = register(destination), register(a), register(b_operand)
    version = version_of(ctx)
    if ctx.lanes != 32:
        raise BackendError("WMMA is modelled for waves of 32")
    a_table = operand_table(version, m, k, a.count * 32 // BITS[first_kind], first_kind)
    b_table = operand_table(version, n, k, b_operand.count * 32 // BITS[second_kind], second_kind)
    place = result_table(version, m, n, destination.count, result)
    read_c = accumulator_reader(c, ctx, destination.count, result)
    negate = np.float64(
        -1 if _bind.selection_bit(ins.modifiers.get("neg_lo"), 2) and result[0] != "i" else 1
    )
    write = result_writer(destination, ctx, result)
    a_row, b_row, a_count, b_count = ctx.row(a), ctx.row(b_operand), a.count, b_operand.count
    scales = _scales(ins, ctx, m, n, k, 16 if scaled == "scale16_" else 32) if scaled else None
    narrow = version == 1 and result in ("f16", "bf16")
    high = _bind.selection_bit(ins.modifiers.get("op_sel"), 2)

    def step(b: Any) -> None:
        left = dense(elements(b, a_row, a_count, first_kind, False), a_table)
        right = dense(elements(b, b_row, b_count, second_kind, False), b_table)
        if scales is not None:
            left_scale, right_scale = scales(b)
            left, right = left * left_scale, right * right_scale
        products = product(left, right, first_kind)
        flat = products.reshape(len(products), -1)
        produced = flat[:, place].transpose(1, 0, 2)
        if narrow:
            _write_halves(b, destination, ctx, produced, c, result, high)
            return
        write(b, produced + negate * read_c(b))

    return step


def _write_halves(
    b: Any, destination: Reg, ctx: Context, product: Any, c: Any, kind: str, high: bool
) -> None:
    """Version 1 keeps 16-bit results in one half of each register."""
    shift = np.uint32(16 if high else 0)
    rows = ctx.row(destination)
    count = destination.count
    if isinstance(c, Const):
        old: Any = np.float64(c.value)
    else:
        bits = (b.v[ctx.row(c) : ctx.row(c) + count] >> shift).astype(np.uint16)
        old = bits.view(np.float16) if kind == "f16" else bf16_to_f32(bits)
    total = product + old
    if kind == "f16":
        value = total.astype(np.float16).view(np.uint16).astype(np.uint32)
    else:
        value = to_bf16(total.astype(np.float32)).astype(np.uint32)
    keep = np.uint32(0xFFFF if high else 0xFFFF0000)
    b.v[rows : rows + count] = (b.v[rows : rows + count] & keep) | (value << shift)


@functools.lru_cache(maxsize=None)
def operand_table(version: int, rows: int, k: int, held: int, kind: str) -> np.ndarray:
    """Places of [row, k] among 32 lanes * held elements."""
    row, depth = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
    if version == 1:  # both halves of the wave hold the same
        return row * held + depth
    if rows == 32:  # the fp4 form: a lane has a row and all of K
        return row * held + depth if held == k else _wide(row, depth, held)
    width = _run(version, held, kind, k)
    lane = row % 16 + 16 * (depth // width % 2)
    element = depth % width + width * (depth // (2 * width))
    return lane * held + element


def _wide(row: np.ndarray, depth: np.ndarray, held: int) -> np.ndarray:
    """Return two tiles of 16 rows, one after the other in the registers of a lane."""
    half = held // 2
    lane = row % 16 + 16 * (depth // 32 % 2)
    element = depth % 32 + 32 * (depth // 64) + half * (row // 16)
    return np.asarray(lane * held + element)


def _run(version: int, held: int, kind: str, k: int) -> int:
    """Elements along K that a lane has next to each other before the other half has its own."""
    if version == 2:
        return held
    bits = BITS[kind]
    if bits == 32:
        return 2
    if bits == 16:
        return 8
    if bits == 8:
        return 16 if k == 128 else 8
    return 32


@functools.lru_cache(maxsize=None)
def result_table(version: int, m: int, n: int, registers: int, kind: str) -> np.ndarray:
    """Return the places in [M, N] of the elements in each register (or half of one) and lane."""
    lane = np.arange(32)[None, :]
    if version == 1:
        number = np.arange(m * n // 32)[:, None]
        return (2 * number + lane // 16) * n + lane % 16
    number = np.arange(m * n // 32)[:, None]
    row = number % 8 + 8 * (lane // 16) + 16 * (number // 8)
    return np.broadcast_to(row * n + lane % 16, (number.size, 32))


def _scales(ins: Instruction, ctx: Context, m: int, n: int, k: int, block: int) -> Any:
    """`f(batch)`: factors of A [waves, M, K] and of B [waves, N, K].

    A lane has the scales of its row, a byte for each block of K in one register (two for blocks of
    16); `matrix_a_scale:MATRIX_SCALE_ROW1` takes them from the upper 16 lanes.
    """
    readers = []
    for place, rows, letter in ((0, m, "a"), (1, n, "b")):
        operand = ins.operands[4 + place]
        upper = ins.modifiers.get(f"matrix_{letter}_scale", "").endswith("ROW1")
        row, depth = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
        lane = row if rows == 32 else row + 16 * upper
        number = depth // block
        readers.append((_scale_words(ins, operand, ctx, k // block // 4), lane, number))

    def read(b: Any) -> tuple[Any, Any]:
        factors = []
        for words, lane, number in readers:
            parts = np.stack([np.broadcast_to(w(b), (b.waves.size, 32)) for w in words])
            chosen = parts.transpose(1, 2, 0)[:, lane, number // 4]
            exponent = (chosen >> (8 * (number % 4)).astype(np.uint32)) & np.uint32(0xFF)
            exponent = exponent.astype(np.int32)
            factors.append(np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127)))
        return factors[0], factors[1]

    return read


def _scale_words(ins: Instruction, operand: Any, ctx: Context, count: int) -> list[Any]:
    if isinstance(operand, Const):
        value = np.uint32(operand.bits("u32"))
        return [lambda b: value] * count
    operand = register(operand)
    return [
        _bind.vector_reader(ins, Reg(operand.kind, operand.first + i), "u32", ctx)
        for i in range(count)
    ]
