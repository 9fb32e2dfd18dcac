"""MFMA: matrix multiplication of CDNA.

ISA: CDNA3 7, CDNA4 7 (block scales), with the lane maps of "Matrix fragments". Products are exact,
sums are taken in float64 and rounded once; the hardware's own order of additions is not documented.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import Const, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.convert import is_fnuz
from gluon_emu.amdgcn.isa.matrix import (
    BITS,
    Matrices,
    accumulator_reader,
    dense,
    elements,
    product,
    refuse,
    result_writer,
)
from gluon_emu.amdgcn.isa.table import Op, Step, pattern

_NAME = re.compile(
    r"v_mfma_(?:scale_)?(f32|i32|f64)_(\d+)x(\d+)x(\d+)_?(?:(\d+)b_)?"
    r"(f64|xf32|f32|f16|bf16|i8|fp8|bf8|f8f6f4)(_1k)?(?:_(fp8|bf8))?$"
)
FORMATS = ("fp8", "bf8", "fp6", "bf6", "fp4")  # by the number in cbsz and blgp


@pattern
def _mfma(name: str) -> Optional[Op]:
    match = _NAME.match(name)
    if not match:
        return None
    return Op(lambda ins, ctx: _bound(ins, ctx, match), "mfma", 1, doc="D = A B + C, by the wave.")


def _bound(ins: Instruction, ctx: Context, match: Any) -> Step:
    result, kind, other = match[1], match[6], match[8]
    m, n, k = int(match[2]), int(match[3]), int(match[4])
    if kind == "f8f6f4":
        first_kind = FORMATS[int(ins.modifiers.get("cbsz", "0"), 0)]
        second_kind = FORMATS[int(ins.modifiers.get("blgp", "0"), 0)]
    else:
        refuse(ins, "cbsz", "abid", "blgp")
        first_kind, second_kind = kind, other or kind
    destination, a, b_operand, c = ins.operands[:4]
    destination, a, b_operand = register(destination), register(a), register(b_operand)
    maps_a = tables(result, m, n, k, a.count * 32 // BITS[first_kind], first_kind)
    maps_b = tables(result, m, n, k, b_operand.count * 32 // BITS[second_kind], second_kind)
    a_row, b_row = ctx.row(a), ctx.row(b_operand)
    a_count, b_count = a.count, b_operand.count
    read_c = accumulator_reader(c, ctx, destination.count, result)
    write = result_writer(destination, ctx, result)
    fnuz = is_fnuz(ctx)
    scales = _scales(ins, ctx, m, n, k) if len(ins.operands) >= 6 else None
    place = maps_a.d

    def step(b: Any) -> None:
        left = dense(elements(b, a_row, a_count, first_kind, fnuz), maps_a.a)
        right = dense(elements(b, b_row, b_count, second_kind, fnuz), maps_b.b)
        if scales is not None:
            left_scale, right_scale = scales(b)
            left = left * left_scale
            right = right * right_scale
        products = product(left, right, first_kind)
        flat = products.reshape(len(products), -1)
        produced = flat[:, place].transpose(1, 0, 2)
        write(b, produced + read_c(b))

    return step


@functools.lru_cache(maxsize=None)
def tables(result: str, m: int, n: int, k: int, held: int, kind: str) -> Matrices:
    """Index tables of an instruction whose lanes hold `held` elements of A (or B) each."""
    a = _operand(m, k, held, kind)
    b = _operand(n, k, held, kind)
    blocks = a.shape[0]
    lane = np.arange(64)[None, :]
    registers = np.arange(m * n * blocks // 64)[:, None]
    if result == "f64":
        if m == 4:  # four blocks, one number per lane
            row, column, block = lane // 16, lane % 4, lane % 16 // 4
        else:
            row, column, block = lane // 16 + 4 * registers, lane % 16, np.zeros_like(lane)
    elif m == 4:
        row, column, block = registers, lane % 4, lane // 4
    else:
        size = m * n // 64  # registers of a block
        inside = registers % size
        group = 64 // m
        row = 4 * group * (inside // 4) + 4 * (lane // m) + inside % 4
        column, block = lane % n, registers // size
    place = (block * m + row) * n + column
    return Matrices(a, b, np.broadcast_to(place, (registers.size, 64)))


def _operand(rows: int, k: int, held: int, kind: str) -> np.ndarray:
    """Places of [block, row, k] among lanes * held."""
    blocks = 64 * held // (rows * k)
    block, row, depth = np.meshgrid(np.arange(blocks), np.arange(rows), np.arange(k), indexing="ij")
    if kind == "f64" and rows == 4:
        lane, element = row + 4 * block + 16 * depth, np.zeros_like(row)
    elif held == 32 and BITS[kind] == 8:  # 16 elements, and 16 more half of K further
        half = k // 2
        lane = row + rows * (depth % half // 16)
        element = depth % 16 + 16 * (depth // half)
    else:
        groups = k // held
        lane = row + rows * (depth // held + groups * block)
        element = depth % held
    return lane * held + element


def _scales(ins: Instruction, ctx: Context, m: int, n: int, k: int) -> Any:
    """`f(batch)`: factors of A [waves, 1, M, K] and of B [waves, 1, N, K].

    A lane has the scale of its row for 32 elements of K, in one byte of a register.
    """
    lanes_of = []
    for place, rows in ((0, m), (1, n)):
        operand = ins.operands[4 + place]
        byte = _bind.selection_bit(ins.modifiers.get("op_sel"), place) + 2 * _bind.selection_bit(
            ins.modifiers.get("op_sel_hi"), place
        )
        row, depth = np.meshgrid(np.arange(rows), np.arange(k), indexing="ij")
        lane = row + rows * (depth // 32)
        lanes_of.append((_scale_reader(ins, operand, ctx, byte), lane))

    def read(b: Any) -> tuple[Any, Any]:
        factors = []
        for reader, lane in lanes_of:
            exponent = np.broadcast_to(reader(b), (b.waves.size, 64))[:, lane].astype(np.int32)
            factor = np.where(exponent == 255, np.nan, np.ldexp(1.0, exponent - 127))
            factors.append(factor[:, None])
        return factors[0], factors[1]

    return read


def _scale_reader(ins: Instruction, operand: Any, ctx: Context, byte: int) -> Any:
    if isinstance(operand, Const):
        value = np.uint32(operand.bits("u32") >> (8 * byte) & 0xFF)
        return lambda b: value
    read = _bind.vector_reader(ins, operand, "u32", ctx)
    return lambda b: (read(b) >> np.uint32(8 * byte)) & np.uint32(0xFF)
