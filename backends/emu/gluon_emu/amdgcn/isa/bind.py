"""Readers and writers of operands: made once per instruction, called once per execution.

A vector operand is an array [waves, lanes], a scalar one [waves, 1] where vectors are computed with
and [waves] in scalar instructions; constants are NumPy scalars. Sub-dword selection, DPP and the
modifiers of operands are part of the reader, so that semantics see plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.operands import EXEC, M0, NULL, SCC, VCC, Const, Operand, Reg, register
from gluon_emu.amdgcn.decode.program import Instruction, Program
from gluon_emu.amdgcn.isa import dpp, sdwa
from gluon_emu.amdgcn.isa.floats import to_bf16

__all__ = [
    "Context",
    "Reader",
    "mask_reader",
    "mask_writer",
    "scalar_reader",
    "scalar_writer",
    "selection_bit",
    "vector_reader",
    "vector_writer",
]

Reader = Callable[[Any], Any]

TYPES = {
    "u32": np.uint32,
    "b32": np.uint32,
    "i32": np.int32,
    "f32": np.float32,
    "u64": np.uint64,
    "b64": np.uint64,
    "i64": np.int64,
    "f64": np.float64,
    "u16": np.uint16,
    "b16": np.uint16,
    "i16": np.int16,
    "f16": np.float16,
    "bf16": np.float32,
}
FLOATS = frozenset(("f32", "f64", "f16", "bf16"))
_WIDE = frozenset(("u64", "b64", "i64", "f64"))
_HALF = frozenset(("u16", "b16", "i16", "f16", "bf16"))


@dataclass
class Context:
    """The facts about a program that binding needs.

    Args:
        lanes: of a wave, 32 or 64.
        vgprs: how many vector registers there are; accumulation registers follow them.
        generation: 9, 11 or 12.
        architecture: such as "gfx942".
    """

    program: Program
    lanes: int
    vgprs: int
    generation: int
    architecture: str

    def row(self, register: Reg, index: int = 0) -> int:
        """Return the row of a vector register in the arrays of a batch."""
        return register.first + index + (self.vgprs if register.kind == "a" else 0)

    @property
    def preserves_high_half(self) -> bool:
        """Return whether 16-bit results leave the upper half of their register as it was."""
        return self.generation >= 10


def constant(operand: Const, kind: str) -> Any:
    """Return an immediate as a NumPy scalar of the type `kind`."""
    dtype = np.dtype(TYPES[kind])
    bits = operand.bits(kind)
    if kind == "bf16":
        raw = np.array([(bits & 0xFFFF) << 16], np.uint32).view(np.float32)[0]
    elif isinstance(operand.value, int) and kind in _HALF:
        raw = np.array([bits & 0xFFFF], np.uint16).view(dtype)[0]
    else:
        unsigned = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize]
        raw = np.array([bits & (1 << 8 * dtype.itemsize) - 1], unsigned).view(dtype)[0]
    if operand.abs:
        raw = np.abs(raw)
    if operand.neg:
        raw = -raw
    return raw


def vector_reader(
    ins: Instruction, operand: Operand, kind: str, ctx: Context, position: int = -1
) -> Reader:
    """Return a reader of a source of a vector instruction.

    Args:
        kind: the type of the elements, a key of `TYPES`.
        position: of the operand among the sources, from 0: DPP changes source 0, SDWA and `op_sel`
            have a field for each.
    """
    if isinstance(operand, Const):
        value = constant(operand, kind)
        return lambda b: value
    if not isinstance(operand, Reg):
        raise BackendError(f"cannot read {operand}")
    read = _typed(ins, operand, kind, ctx, position)
    if operand.abs and operand.neg:
        return lambda b: -np.abs(read(b))
    if operand.abs:
        return lambda b: np.abs(read(b))
    if operand.neg:
        return lambda b: -read(b)
    return read


def _typed(ins: Instruction, reg: Reg, kind: str, ctx: Context, position: int) -> Reader:
    dtype = TYPES[kind]
    if kind in _WIDE:
        return _wide(reg, dtype, ctx)
    raw = raw_reader(reg, ctx)
    changed = False
    if position == 0 and ins.suffix in ("dpp", "dpp8", "e64_dpp", "e64_dpp8"):
        move, inner = dpp.mover(ins, ctx.lanes), raw
        raw, changed = (lambda b: move(b, inner(b))), True
    if ins.suffix == "sdwa" and position in (0, 1):
        select = sdwa.selector(ins.modifiers.get(f"src{position}_sel", "DWORD"), reg.sext)
        if select is not None:
            whole = raw
            raw, changed = (lambda b: select(whole(b))), True
    if kind in _HALF:
        high = reg.half == "h" or (
            ins.suffix != "sdwa"
            and position >= 0
            and selection_bit(ins.modifiers.get("op_sel"), position)
        )
        full = raw
        if kind == "bf16":
            if high:
                return lambda b: (full(b) & np.uint32(0xFFFF0000)).view(np.float32)
            return lambda b: (full(b) << np.uint32(16)).view(np.float32)
        if high:
            return lambda b: (full(b) >> np.uint32(16)).astype(np.uint16).view(dtype)
        return lambda b: full(b).astype(np.uint16).view(dtype)
    if kind in ("u32", "b32"):
        return raw
    if not changed and reg.kind != "s":
        row = ctx.row(reg)
        return lambda b: b.v[row].view(dtype)
    plain = raw
    return lambda b: plain(b).view(dtype)


def raw_reader(reg: Reg, ctx: Context, index: int = 0) -> Reader:
    """Return one 32-bit register, as [waves, lanes] or [waves, 1]."""
    if reg.kind == "s":
        number = reg.first + index
        if number == SCC:
            return lambda b: b.scc.astype(np.uint32)[:, None]
        return lambda b: b.s[number][:, None]
    row = ctx.row(reg, index)
    return lambda b: b.v[row]


def _wide(reg: Reg, dtype: Any, ctx: Context) -> Reader:
    low = raw_reader(reg, ctx)
    if reg.count == 1:  # a 32-bit scalar where 64 bits are wanted
        return lambda b: low(b).astype(np.uint64).view(dtype)
    high = raw_reader(reg, ctx, 1)

    def read(b: Any) -> Any:
        value = high(b).astype(np.uint64)
        value <<= np.uint64(32)
        value |= low(b)
        return value.view(dtype)

    return read


def selection_bit(text: Optional[str], position: int, default: bool = False) -> bool:
    """Return an element of a modifier such as `op_sel:[0,1]`."""
    if not text:
        return default
    bits = [piece.strip() for piece in text.strip("[]").split(",")]
    return bits[position] == "1" if position < len(bits) else default


def vector_writer(
    ins: Instruction, operand: Operand, kind: str, ctx: Context
) -> Callable[..., Any]:
    """`write(batch, value)` of a destination in vector registers, where EXEC allows."""
    if not isinstance(operand, Reg):
        raise BackendError(f"cannot write {operand}")
    row = ctx.row(operand)
    wide = kind in _WIDE
    allowed = dpp.allowed(ins, ctx.lanes)
    if kind in _HALF or ins.suffix == "sdwa":
        return _partial_writer(ins, operand, kind, ctx, row, allowed)

    def put(b: Any, index: int, value: Any) -> None:
        if allowed is not None:
            mask = allowed(b)
            np.copyto(b.v[index], value, where=mask if b.full else mask & b.exec)
        elif b.full:
            b.v[index] = value
        else:
            np.copyto(b.v[index], value, where=b.exec)

    if wide:

        def write(b: Any, value: Any) -> None:
            bits = np.asarray(value).view(np.uint64)
            put(b, row, bits.astype(np.uint32))
            put(b, row + 1, (bits >> np.uint64(32)).astype(np.uint32))

        return write
    if kind == "u32" or kind == "b32":
        if allowed is None:

            def plain(b: Any, value: Any) -> None:
                if b.full:
                    b.v[row] = value
                else:
                    np.copyto(b.v[row], value, where=b.exec)

            return plain
        return lambda b, value: put(b, row, value)
    return lambda b, value: put(b, row, np.asarray(value).view(np.uint32))


def _partial_writer(
    ins: Instruction, reg: Reg, kind: str, ctx: Context, row: int, allowed: Any
) -> Callable[..., Any]:
    """Writers of results that are less than a register, or go to a part of one."""
    sources = len(ins.operands) - 1
    high = reg.half == "h" or (
        ins.suffix != "sdwa" and selection_bit(ins.modifiers.get("op_sel"), max(sources, 0))
    )
    keep = high or reg.half == "l" or (ctx.preserves_high_half and ins.suffix != "sdwa")
    merge = sdwa.merger(ins) if ins.suffix == "sdwa" else None

    def write(b: Any, value: Any) -> None:
        bits = to_bits(value, kind)
        if merge is not None:
            bits = merge(bits, b.v[row])
        elif high:
            bits = (b.v[row] & np.uint32(0xFFFF)) | (bits << np.uint32(16))
        elif keep:
            bits = (b.v[row] & np.uint32(0xFFFF0000)) | bits
        mask = b.exec if allowed is None else allowed(b) & b.exec
        np.copyto(b.v[row], bits, where=mask)

    return write


def to_bits(value: Any, kind: str) -> Any:
    """Return a result of the type `kind` as uint32, narrow ones in the lower half."""
    value = np.asarray(value)
    if kind == "bf16":
        return to_bf16(value).astype(np.uint32)
    if kind in _HALF:
        return value.view(np.uint16).astype(np.uint32)
    return value.view(np.uint32)


# -- scalars ---------------------------------------------------------------------------------------


def scalar_reader(operand: Operand, kind: str, ctx: Context) -> Reader:
    """Return a source of a scalar instruction, as [waves]."""
    dtype = TYPES[kind]
    if isinstance(operand, Const):
        value = constant(operand, kind)
        return lambda b: value
    if not isinstance(operand, Reg) or operand.kind != "s":
        raise BackendError(f"not a scalar operand: {operand}")
    number = operand.first
    if number == SCC:
        return lambda b: b.scc.astype(dtype)
    if kind in _WIDE:
        if operand.count == 1:
            return lambda b: b.s[number].astype(np.uint64).view(dtype)

        def read(b: Any) -> Any:
            value = b.s[number + 1].astype(np.uint64) << np.uint64(32)
            value |= b.s[number]
            return value.view(dtype)

        return read
    if kind in ("f16", "u16", "i16"):
        return lambda b: b.s[number].astype(np.uint16).view(dtype)
    if kind in ("u32", "b32"):
        return lambda b: b.s[number]
    negate, absolute = operand.neg, operand.abs

    def typed(b: Any) -> Any:
        value = b.s[number].view(dtype)
        value = np.abs(value) if absolute else value
        return -value if negate else value

    return typed


def scalar_writer(operand: Operand, kind: str, ctx: Context) -> Callable[..., Any]:
    """`write(batch, value)` of a scalar destination; EXEC's mask follows each write."""
    if not isinstance(operand, Reg) or operand.kind != "s":
        raise BackendError(f"not a scalar destination: {operand}")
    number = operand.first
    if number == NULL:
        return lambda b, value: None
    touches = number in (EXEC, EXEC + 1)
    if kind in _WIDE:

        def wide(b: Any, value: Any) -> None:
            bits = np.asarray(value).view(np.uint64)
            b.s[number] = bits.astype(np.uint32)
            b.s[number + 1] = (bits >> np.uint64(32)).astype(np.uint32)
            if touches:
                b.exec_changed()

        return wide

    def write(b: Any, value: Any) -> None:
        value = np.asarray(value)
        b.s[number] = value.view(np.uint32) if value.dtype.itemsize == 4 else value.view(np.uint16)
        if touches:
            b.exec_changed()

    return write


# -- masks of lanes --------------------------------------------------------------------------------


def mask_reader(operand: Operand, ctx: Context) -> Reader:
    """Return a scalar operand with one bit per lane, as bools [waves, lanes]."""
    lanes = ctx.lanes
    if isinstance(operand, Const):
        value = operand.bits("u64")
        bits = np.array([(value >> lane) & 1 for lane in range(lanes)], bool)[None, :]
        return lambda b: bits
    operand = register(operand)
    number = operand.first
    if number == NULL:
        return lambda b: np.zeros((1, lanes), bool)
    return lambda b: b.mask(number)


def mask_writer(operand: Operand, ctx: Context) -> Callable[..., Any]:
    """`write(batch, bools)`: bits of lanes that EXEC switches off are cleared."""
    operand = register(operand)
    number = operand.first
    if number == NULL:
        return lambda b, value: None

    def write(b: Any, value: Any) -> None:
        b.set_mask(number, value if b.full else value & b.exec)

    return write


VCC_REGISTER = Reg("s", VCC, 2)
M0_REGISTER = Reg("s", M0, 1)
