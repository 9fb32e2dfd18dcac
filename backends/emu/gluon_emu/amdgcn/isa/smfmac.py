"""SMFMAC: products with a matrix of which two in four elements along K are given (gfx942).

ISA: CDNA3 7.4. A lane's elements of A are pairs; each element has two bits that say which of the pair's
four places along K it is for. B is laid out as for a dense product of the same K. The shapes that came with
CDNA4 are not modelled: how their lanes divide K is not said.
"""

from __future__ import annotations

import re
from typing import Any, Optional

import numpy as np

from gluon_emu.amdgcn.decode.operands import register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.convert import is_fnuz
from gluon_emu.amdgcn.isa.matrix import (
    BITS,
    accumulator_reader,
    dense,
    elements,
    product,
    refuse,
    result_writer,
)
from gluon_emu.amdgcn.isa.mfma import tables
from gluon_emu.amdgcn.isa.table import Op, Step, pattern

_NAME = re.compile(
    r"v_smfmac_(f32|i32)_(16x16x32|32x32x16|16x16x64|32x32x32)_(f16|bf16|i8|fp8|bf8)(?:_(fp8|bf8))?$"
)
_SHAPES = {16: ("16x16x32", "32x32x16"), 8: ("16x16x64", "32x32x32")}


@pattern
def _smfmac(name: str) -> Optional[Op]:
    match = _NAME.match(name)
    if not match or match[2] not in _SHAPES[BITS[match[3]]]:
        return None

    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = D + A B, where A has two of four elements along K."""
        return _bound(ins, ctx, match)

    return Op(bind, "mfma", 1, doc=bind.__doc__ or "")


def _bound(ins: Instruction, ctx: Context, match: Any) -> Step:
    result, kind, other = match[1], match[3], match[4] or match[3]
    m, n, k = (int(size) for size in match[2].split("x"))
    refuse(ins, "blgp")
    destination, a, b_operand, index = (register(o) for o in ins.operands[:4])
    held = b_operand.count * 32 // BITS[other]
    maps = tables(result, m, n, k, held, kind)
    kept = held // 2
    # CBSZ = 0: ABID says which bits of the register are for this instruction.
    chosen = 0 if int(ins.modifiers.get("cbsz", "0"), 0) else int(ins.modifiers.get("abid", "0"), 0)
    shifts = np.arange(kept) * 2 + chosen * 2 * kept % 32
    pair = np.arange(kept) // 2 * 4
    a_row, b_row, index_row = ctx.row(a), ctx.row(b_operand), ctx.row(index)
    read = accumulator_reader(destination, ctx, destination.count, result)
    write = result_writer(destination, ctx, result)
    fnuz = is_fnuz(ctx)
    place = maps.d

    def step(b: Any) -> None:
        values = elements(b, a_row, a.count, kind, fnuz)
        where = pair + (b.v[index_row][..., None] >> shifts.astype(np.uint32) & 3).astype(np.int64)
        whole = np.zeros((*values.shape[:2], held))
        for half in (0, 1):
            part = np.zeros_like(whole)
            np.put_along_axis(part, where[..., half::2], values[..., half::2], -1)
            whole += part
        left = dense(whole, maps.a)
        right = dense(elements(b, b_row, b_operand.count, other, fnuz), maps.b)
        products = product(left, right, kind)
        flat = products.reshape(len(products), -1)
        write(b, flat[:, place].transpose(1, 0, 2) + read(b))

    return step
