"""Two or more numbers per lane: VOP3P, and dot products.

ISA: CDNA3 6.6 and 12.11, RDNA3 16.11, RDNA4 16.11.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import Const, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import (
    flush,
    fma16,
    fma32,
    max_number,
    maximum,
    min_number,
    minimum,
    narrow_dtype,
)
from gluon_emu.amdgcn.isa.table import OPS, Op, Step

_U32, _F32 = np.uint32, np.float32


def _flag(ins: Instruction, name: str, place: int, default: bool) -> bool:
    return _bind.selection_bit(ins.modifiers.get(name), place, default)


def _halves(ins: Instruction, place: int, operand: Any, kind: str, ctx: Context) -> list[Any]:
    """Return the readers of source `place` for the low and for the high result."""
    readers = []
    for high_result in (False, True):
        name = "op_sel_hi" if high_result else "op_sel"
        pick = _flag(ins, name, place, high_result)
        negate = _flag(ins, "neg_hi" if high_result else "neg_lo", place, False)
        read = _part(ins, operand, kind, pick, ctx)
        readers.append((lambda b, r=read: -r(b)) if negate else read)
    return readers


def _part(ins: Instruction, operand: Any, kind: str, high: bool, ctx: Context) -> Any:
    if isinstance(operand, Const):
        if kind in ("f32", "u32"):
            value = _bind.constant(operand, kind)
            return lambda b: value
        bits = operand.bits("f16" if kind == "f16" and isinstance(operand.value, float) else "u32")
        if high:
            bits = bits >> 16 if operand.literal else (0 if isinstance(operand.value, float) else bits >> 16)  # fmt: skip
        value = np.array([bits & 0xFFFF], np.uint16)
        converted = _from_half(value, kind)[0]
        return lambda b: converted
    operand = register(operand)
    if kind in ("f32", "u32"):
        raw = _bind.raw_reader(operand, ctx, 1 if high and operand.count > 1 else 0)
        return raw if kind == "u32" else (lambda b: raw(b).view(_F32))
    raw = _bind.raw_reader(operand, ctx)
    if high:
        return lambda b: _from_half((raw(b) >> _U32(16)).astype(np.uint16), kind)
    return lambda b: _from_half(raw(b).astype(np.uint16), kind)


def _from_half(bits: Any, kind: str) -> Any:
    if kind == "bf16":
        return (bits.astype(_U32) << _U32(16)).view(_F32)
    return bits.view({"f16": np.float16, **_INTEGERS}[kind])


_INTEGERS: dict[str, Any] = {"i16": np.int16, "u16": np.uint16}


def _widened(read: Any) -> Any:
    return lambda b: np.asarray(read(b)).astype(np.int64)


def _packed(name: str, kind: str, count: int, function: Any) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Return the operation on the low and on the high elements of the sources."""
        sources = [_halves(ins, i, o, kind, ctx) for i, o in enumerate(ins.operands[1 : 1 + count])]
        destination = ins.operands[0]
        destination = register(destination)
        row = ctx.row(destination)
        clamp = "clamp" in ins.modifiers
        if clamp and kind in ("u16", "i16"):
            sources = [[_widened(half) for half in halves] for halves in sources]

        def compute(b: Any, high: int) -> Any:
            values = [source[high](b) for source in sources]
            if b.flushes and kind == "f32":
                result = flush(function(*[flush(v) for v in values]))
            else:
                result = function(*values)
            if clamp and kind in ("f32", "f16"):
                result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1).astype(result.dtype)
            elif clamp:  # saturates, rather than wraps
                limits = np.iinfo(_INTEGERS[kind])
                result = np.clip(result, limits.min, limits.max).astype(limits.dtype)
            return result

        if kind in ("f32", "u32"):

            def wide(b: Any) -> None:
                low, high = compute(b, 0), compute(b, 1)
                for place, value in ((row, low), (row + 1, high)):
                    np.copyto(b.v[place], np.asarray(value).view(_U32), where=b.exec)

            return wide

        def narrow(b: Any) -> None:
            low, high = (_bind.to_bits(compute(b, h), kind) for h in (0, 1))
            np.copyto(b.v[row], low | (high << _U32(16)), where=b.exec)

        return narrow

    OPS[name] = Op(bind, "valu", 1, None, bind.__doc__ or "")


_packed("v_pk_add_f32", "f32", 2, lambda a, b: a + b)
_packed("v_pk_mul_f32", "f32", 2, lambda a, b: a * b)
_packed("v_pk_fma_f32", "f32", 3, fma32)
_packed("v_pk_mov_b32", "u32", 2, lambda a, b: a)
for _kind, _fma in (("f16", fma16), ("bf16", fma32)):
    _packed(f"v_pk_add_{_kind}", _kind, 2, lambda a, b: a + b)
    _packed(f"v_pk_mul_{_kind}", _kind, 2, lambda a, b: a * b)
    _packed(f"v_pk_fma_{_kind}", _kind, 3, _fma)
    for _name in ("max", "max_num"):
        _packed(f"v_pk_{_name}_{_kind}", _kind, 2, max_number)
    for _name in ("min", "min_num"):
        _packed(f"v_pk_{_name}_{_kind}", _kind, 2, min_number)
    _packed(f"v_pk_maximum_{_kind}", _kind, 2, maximum)
    _packed(f"v_pk_minimum_{_kind}", _kind, 2, minimum)
    _packed(f"v_pk_max3_num_{_kind}", _kind, 3, lambda a, b, c: max_number(max_number(a, b), c))
    _packed(f"v_pk_min3_num_{_kind}", _kind, 3, lambda a, b, c: min_number(min_number(a, b), c))
    _packed(f"v_pk_maximum3_{_kind}", _kind, 3, lambda a, b, c: maximum(maximum(a, b), c))
    _packed(f"v_pk_minimum3_{_kind}", _kind, 3, lambda a, b, c: minimum(minimum(a, b), c))
for _kind in ("u16", "i16"):
    _packed(f"v_pk_add_{_kind}", _kind, 2, lambda a, b: a + b)
    _packed(f"v_pk_sub_{_kind}", _kind, 2, lambda a, b: a - b)
    _packed(f"v_pk_min_{_kind}", _kind, 2, np.minimum)
    _packed(f"v_pk_max_{_kind}", _kind, 2, np.maximum)
    _packed(f"v_pk_min3_{_kind}", _kind, 3, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    _packed(f"v_pk_max3_{_kind}", _kind, 3, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    _packed(f"v_pk_mad_{_kind}", _kind, 3, lambda a, b, c: a * b + c)
_packed("v_pk_mul_lo_u16", "u16", 2, lambda a, b: a * b)
_packed("v_pk_lshlrev_b16", "u16", 2, lambda a, b: b << (a & np.uint16(15)))
_packed("v_pk_lshrrev_b16", "u16", 2, lambda a, b: b >> (a & np.uint16(15)))
_packed("v_pk_ashrrev_i16", "i16", 2, lambda a, b: b >> (a & np.int16(15)))


def _bind_pk_fmac(ins: Instruction, ctx: Context) -> Step:
    """D = S0 * S1 + D, of both elements."""
    whole = replace(ins, operands=(*ins.operands, ins.operands[0]))
    return OPS["v_pk_fma_f16"].bind(whole, ctx)


OPS["v_pk_fmac_f16"] = Op(_bind_pk_fmac, "valu", 1, None, _bind_pk_fmac.__doc__ or "")


def _bind_pk_mov(ins: Instruction, ctx: Context) -> Step:
    """Take the low result from the register of S0 by op_sel[0], the high one from that of S1 by
    op_sel[1]."""
    destination = ins.operands[0]
    destination = register(destination)
    row = ctx.row(destination)
    reads = [
        _part(ins, operand, "u32", _flag(ins, "op_sel", place, False), ctx)
        for place, operand in enumerate(ins.operands[1:3])
    ]

    def step(b: Any) -> None:
        values = [np.array(np.broadcast_to(read(b), b.exec.shape)) for read in reads]
        for place, value in enumerate(values):
            np.copyto(b.v[row + place], value, where=b.exec)

    return step


OPS["v_pk_mov_b32"] = Op(_bind_pk_mov, "valu", 1, None, _bind_pk_mov.__doc__ or "")

# -- dot products ----------------------------------------------------------------------------------

_DOTS = {  # name -> (elements of a register, type of S0, type of S1, result)
    "v_dot2_f32_f16": (2, "f16", "f16", "f32"),
    "v_dot2_f32_bf16": (2, "bf16", "bf16", "f32"),
    "v_dot2c_f32_f16": (2, "f16", "f16", "f32"),
    "v_dot2c_f32_bf16": (2, "bf16", "bf16", "f32"),
    "v_dot2_f16_f16": (2, "f16", "f16", "f16"),
    "v_dot2_bf16_bf16": (2, "bf16", "bf16", "bf16"),
    "v_dot8_i32_i4": (8, "i4", "i4", "i32"),
    "v_dot8c_i32_i4": (8, "i4", "i4", "i32"),
    "v_dot8_u32_u4": (8, "u4", "u4", "u32"),
    "v_dot8_i32_iu4": (8, "iu4", "iu4", "i32"),
    "v_dot2c_i32_i16": (2, "i16", "i16", "i32"),
    "v_dot2_i32_i16": (2, "i16", "i16", "i32"),
    "v_dot2_u32_u16": (2, "u16", "u16", "u32"),
    "v_dot4_i32_i8": (4, "i8", "i8", "i32"),
    "v_dot4c_i32_i8": (4, "i8", "i8", "i32"),
    "v_dot4_u32_u8": (4, "u8", "u8", "u32"),
    "v_dot4_i32_iu8": (4, "iu8", "iu8", "i32"),
    "v_dot4_f32_fp8_fp8": (4, "fp8", "fp8", "f32"),
    "v_dot4_f32_bf8_bf8": (4, "bf8", "bf8", "f32"),
    "v_dot4_f32_fp8_bf8": (4, "fp8", "bf8", "f32"),
    "v_dot4_f32_bf8_fp8": (4, "bf8", "fp8", "f32"),
}


def _elements(bits: Any, kind: str, count: int, signed: bool) -> Any:
    width = 32 // count
    parts = [(bits >> _U32(width * i)) & _U32((1 << width) - 1) for i in range(count)]
    packed = np.stack(np.broadcast_arrays(*parts), -1)
    if kind in ("f16", "bf16", "i16", "u16"):
        return _from_half(packed.astype(np.uint16), kind).astype(np.float64)
    small = packed.astype(np.uint8)
    if kind in ("i4", "u4", "iu4"):
        wide = small.astype(np.float64)
        return np.where((wide >= 8) & (kind == "i4" or signed), wide - 16, wide)
    if kind in ("fp8", "bf8"):
        return small.view(narrow_dtype(kind, False)).astype(np.float64)
    return (small.view(np.int8) if kind == "i8" or signed else small).astype(np.float64)


def _dot(name: str, count: int, first: str, second: str, result: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = the sum of products of the elements of S0 and S1, plus S2."""
        operands = list(ins.operands[1:])
        if len(operands) == 2:  # the accumulating forms
            operands.append(ins.operands[0])
        x, y = (_bind.vector_reader(ins, o, "u32", ctx) for o in operands[:2])
        z = _bind.vector_reader(ins, operands[2], result, ctx)
        write = _bind.vector_writer(ins, ins.operands[0], result, ctx)
        signed = [_flag(ins, "neg_lo", i, False) for i in range(2)]

        def step(b: Any) -> None:
            products = _elements(
                x(b), first, count, signed[0] and first.startswith("iu")
            ) * _elements(y(b), second, count, signed[1] and second.startswith("iu"))
            total = products.sum(-1) + np.asarray(z(b)).astype(np.float64)
            if result in ("f32", "bf16"):
                write(b, total.astype(_F32))
            elif result == "f16":
                write(b, total.astype(np.float16))
            else:
                write(b, total.astype(np.int64).astype(_bind.TYPES[result]))

        return step

    OPS[name] = Op(bind, "valu", 1, None, bind.__doc__ or "")


for _name, (_count, _first, _second, _result) in _DOTS.items():
    _dot(_name, _count, _first, _second, _result)
