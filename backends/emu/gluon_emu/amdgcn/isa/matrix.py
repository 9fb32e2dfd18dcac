"""The parts that matrix instructions of both kinds share: fragments to matrices and back.

A fragment is the registers of all lanes of a wave. Index tables say for each element of a matrix
which lane holds it, and where among the elements of that lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import Const, Operand, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import narrow_dtype, to_bf16

__all__ = ["BITS", "Matrices", "accumulator_reader", "elements", "product", "result_writer"]

_U32 = np.uint32

BITS = {
    "f64": 64, "f32": 32, "xf32": 32, "i32": 32, "f16": 16, "bf16": 16, "i8": 8, "u8": 8, "fp8": 8,
    "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4, "i4": 4, "u4": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Matrices:
    """Index tables of an instruction.

    Args:
        a: int [blocks, M, K], places of elements of A among lanes * elements of a lane.
        b: int [blocks, N, K].
        d: int [registers or elements, lanes], places in [blocks, M, N].
    """

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray


def elements(b: Any, first: int, registers: int, kind: str, fnuz: bool) -> np.ndarray:
    """Return the numbers in registers as float64 [waves, lanes, elements of a lane]."""
    words = np.ascontiguousarray(b.v[first : first + registers].transpose(1, 2, 0))
    waves, lanes, _ = words.shape
    if kind == "f64":
        return words.view(np.float64)
    if kind in ("f32", "i32"):
        return np.asarray(words.view(np.float32 if kind == "f32" else np.int32), np.float64)
    if kind == "xf32":  # ten bits of mantissa count
        rounded = (words + _U32(0xFFF) + ((words >> _U32(13)) & _U32(1))) & _U32(0xFFFFE000)
        return np.asarray(rounded.view(np.float32), np.float64)
    if kind == "f16":
        return np.asarray(words.view(np.float16), np.float64)
    if kind == "bf16":
        halves = words.view(np.uint16).astype(_U32) << _U32(16)
        return np.asarray(halves.view(np.float32), np.float64)
    if kind in ("i8", "u8"):
        return np.asarray(words.view(np.int8 if kind == "i8" else np.uint8), np.float64)
    if kind in ("fp8", "bf8"):
        return np.asarray(words.view(np.uint8).view(narrow_dtype(kind, fnuz)), np.float64)
    if kind in ("fp4", "i4", "u4"):
        octets = words.view(np.uint8)
        nibbles = np.stack((octets & 15, octets >> 4), -1).reshape(waves, lanes, -1)
        if kind == "fp4":
            return np.asarray(nibbles.view(narrow_dtype("fp4", False)), np.float64)
        signed = np.where((kind == "i4") & (nibbles >= 8), nibbles.astype(np.int16) - 16, nibbles)
        return np.asarray(signed, np.float64)
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    six = bits.reshape(waves, lanes, -1, 6)
    value = np.packbits(six, axis=-1, bitorder="little")[..., 0]
    return np.asarray(value.view(narrow_dtype(kind, False)), np.float64)


def dense(fragments: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Elements [waves, lanes, n] as matrices [waves, *table.shape]."""
    return fragments.reshape(fragments.shape[0], -1)[:, table]


def product(left: np.ndarray, right: np.ndarray, kind: str) -> np.ndarray:
    """Return `left @ right.T` of matrices of elements of a kind, in float64.

    A BLAS adds in an order of its own, that may follow from the row. For narrow kinds sums are exact; the others
    are added along K.
    """
    if kind not in ("f32", "f64"):
        return np.asarray(np.matmul(left, right.swapaxes(-1, -2)))
    total = np.zeros((*left.shape[:-1], right.shape[-2]))
    for k in range(left.shape[-1]):
        total += left[..., :, None, k] * right[..., None, :, k]
    return total


def accumulator_reader(
    operand: Operand, ctx: Context, registers: int, kind: str
) -> Callable[..., Any]:
    """`f(batch)`: C as float64 [registers or elements, waves, lanes], or a constant."""
    if isinstance(operand, Const):
        value = np.float64(operand.value)
        return lambda b: value
    operand = register(operand)
    first = ctx.row(operand)
    sign = -1.0 if operand.neg else 1.0
    if kind == "f64":

        def wide(b: Any) -> Any:
            words = np.ascontiguousarray(b.v[first : first + registers].transpose(1, 2, 0))
            return sign * words.view(np.float64).transpose(2, 0, 1)

        return wide
    if kind in ("f16", "bf16"):

        def halves(b: Any) -> Any:
            fragment = elements(b, first, registers, kind, False)
            return sign * fragment.transpose(2, 0, 1)

        return halves
    dtype = np.float32 if kind == "f32" else np.int32
    return lambda b: sign * b.v[first : first + registers].view(dtype).astype(np.float64)


def result_writer(operand: Operand, ctx: Context, kind: str) -> Callable[..., Any]:
    """`f(batch, value)`: D from float64 [registers or elements, waves, lanes]; EXEC plays no part."""
    operand = register(operand)
    first, count = ctx.row(operand), operand.count

    def write(b: Any, value: np.ndarray) -> None:
        if kind == "f32":
            b.v[first : first + count] = value.astype(np.float32).view(_U32)
        elif kind == "i32":
            # the sums wrap
            b.v[first : first + count] = np.mod(value, 2.0**32).astype(np.uint64).astype(_U32)
        elif kind == "f64":
            words = np.ascontiguousarray(value.transpose(1, 2, 0)).view(_U32)
            b.v[first : first + count] = words.transpose(2, 0, 1)
        else:
            if kind == "f16":
                bits = value.astype(np.float16).view(np.uint16)
            else:
                bits = to_bf16(value.astype(np.float32))
            low, high = bits[0::2].astype(_U32), bits[1::2].astype(_U32)
            b.v[first : first + count] = low | (high << _U32(16))

    return write


def refuse(ins: Instruction, *names: str) -> None:
    """Refuse modifiers that are not modelled.

    Raises:
        BackendError: the instruction has a modifier that is not modelled.
    """
    for name in names:
        text: Optional[str] = ins.modifiers.get(name)
        if text not in (None, "0"):
            raise BackendError(f"the modifier {name} is not modelled")
