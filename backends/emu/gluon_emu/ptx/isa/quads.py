"""`mma.sync` of m8n8k4 with f16: four products of eight threads each, PTX ISA 9.7.14.5.1.

No unit of sm_80 or sm_90 makes them: the assembler writes shuffles and arithmetic of float32. A sum of float32 is a
chain of `fma` along K, added to the sum before; to a sum of f16 two pairs of products are added, one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.table import Step
from gluon_emu.ptx.numbers import decode, encode, rounded, sum_to_odd, uint
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Vector

__all__ = ["products_of_quads"]

_LANE = np.arange(32)[:, None]
_QUAD, _T, _HIGH = (
    _LANE % 16 // 4,
    _LANE % 4,
    _LANE // 16 * 4,
)  # product, place, and 4 in the upper half
_I = np.arange(8)[None, :]


def _factors(contiguous: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, k) of the four elements of each thread, which follow each other along K if contiguous; of the right
    operand (column, k)."""
    i = _I[:, :4]
    lines, along = (_T + _HIGH, i) if contiguous else (i + _HIGH, _T)
    return np.broadcast_arrays(lines, along)  # type: ignore[return-value]


def _sums(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, column) of the eight sums of each thread."""
    if kind == "f16":
        return np.broadcast_arrays(_T + _HIGH, _I)  # type: ignore[return-value]
    return (_T & 1) + (_I & 2) + _HIGH, (_I & 4) + (_T & 2) + (_I & 1)


def _added(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a + b rounded to float32; both are exact in float64."""
    return rounded(sum_to_odd(a, b), "f32")


def products_of_quads(call: Any) -> Step:
    """Make the step of an instruction whose shape was taken."""
    orders = [m for m in call.left if m in ("row", "col")]
    types = [m for m in call.left if m not in ("row", "col")]
    known = len(orders) == 2 and len(types) == 4 and types[1:3] == ["f16", "f16"]
    if not known or types[0] not in ("f16", "f32") or types[3] not in ("f16", types[0]):
        raise call.refuse("`mma` of m8n8k4 with these types is not known")
    call.left = []
    result, before = types[0], types[3]
    call.count(4)
    word = TYPES["b32"]
    counts = (4 if result == "f16" else 8, 2, 2, 4 if before == "f16" else 8)
    for operand, count in zip(call.operands, counts):
        if not isinstance(operand, Vector) or len(operand.items) != count:
            raise call.refuse(f"`mma` of m8n8k4 takes {count} registers here")
    d, *sources = [operand.items for operand in call.operands]
    puts = [call.put(item, word) for item in d]
    gets = [[call.get(item, word) for item in items] for items in sources]
    places_a = _factors(orders[0] == "row")
    places_b = _factors(orders[1] == "col")
    places_c, places_d = _sums(before), _sums(result)

    def read(group: Any, registers: list[Any], kind: str) -> np.ndarray:
        words = np.stack([group.full(get(group)) for get in registers], -1)
        return decode(np.ascontiguousarray(words).view(uint(16 if kind == "f16" else 32)), kind)

    def run(group: Any) -> None:
        size = group.rows.size
        x, y, z = np.zeros((size, 4, 8, 4)), np.zeros((size, 4, 8, 4)), np.zeros((size, 4, 8, 8))
        x[:, _QUAD, places_a[0], places_a[1]] = read(group, gets[0], "f16")
        y[:, _QUAD, places_b[0], places_b[1]] = read(group, gets[1], "f16")
        z[:, _QUAD, places_c[0], places_c[1]] = read(group, gets[2], before)
        terms = [x[:, :, :, None, k] * y[:, :, None, :, k] for k in range(4)]
        if result == "f16":
            halves = (_added(terms[k + 1], rounded(terms[k], "f32")) for k in (0, 2))
            total = rounded(_added(_added(z, next(halves)), next(halves)), "f16")
        else:
            total = np.zeros_like(z)
            for term in terms:
                total = _added(term, total)
            total = _added(total, z)
        values = encode(total[:, _QUAD, places_d[0], places_d[1]], result)
        values = np.ascontiguousarray(values).view(np.uint32)
        for number, put in enumerate(puts):
            put(group, np.ascontiguousarray(values[..., number]))

    return synchronous(run)
