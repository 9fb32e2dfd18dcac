"""Conversions between formats.

ISA: CDNA3 12.8 and 12.10, CDNA4 the same sections (scaled conversions), RDNA3/RDNA4 16.8 and 16.10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import Reg, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import narrow_dtype, to_bf16, truncate_f16
from gluon_emu.amdgcn.isa.salu_float import to_integer
from gluon_emu.amdgcn.isa.table import OPS, Op, Step, custom, vector

_U32, _F32, _F64 = np.uint32, np.float32, np.float64
_I32_MIN, _I32_MAX, _U32_MAX = -(2**31), 2**31 - 1, 2**32 - 1


def _to(dtype: Any) -> Any:
    return lambda a: np.asarray(a).astype(dtype)


vector("v_cvt_f32_i32", dst="f32", src="i32")(_to(_F32))
vector("v_cvt_f32_u32", dst="f32", src="u32")(_to(_F32))
vector("v_cvt_f64_i32", dst="f64", src="i32")(_to(_F64))
vector("v_cvt_f64_u32", dst="f64", src="u32")(_to(_F64))
vector("v_cvt_f64_f32", dst="f64", src="f32")(_to(_F64))
vector("v_cvt_f32_f64", dst="f32", src="f64")(_to(_F32))
vector("v_cvt_f32_f16", dst="f32", src="f16")(_to(_F32))
vector("v_cvt_f16_f32", dst="f16", src="f32")(_to(np.float16))
vector("v_cvt_f16_u16", dst="f16", src="u16")(_to(np.float16))
vector("v_cvt_f16_i16", dst="f16", src="i16")(_to(np.float16))
vector("v_cvt_f32_bf16", dst="f32", src="bf16")(_to(_F32))
for _source in ("f32", "f64"):
    vector(f"v_cvt_u32_{_source}", dst="u32", src=_source)(
        lambda a: to_integer(a, 0, _U32_MAX, _U32)
    )
    vector(f"v_cvt_i32_{_source}", dst="i32", src=_source)(
        lambda a: to_integer(a, _I32_MIN, _I32_MAX, np.int32)
    )
vector("v_cvt_u16_f16", dst="u16", src="f16")(lambda a: to_integer(a, 0, 65535, np.uint16))
vector("v_cvt_i16_f16", dst="i16", src="f16")(lambda a: to_integer(a, -32768, 32767, np.int16))
vector("v_cvt_flr_i32_f32", "v_cvt_floor_i32_f32", dst="i32", src="f32")(
    lambda a: to_integer(np.floor(a), _I32_MIN, _I32_MAX, np.int32)
)
vector("v_cvt_rpi_i32_f32", "v_cvt_nearest_i32_f32", dst="i32", src="f32")(
    lambda a: to_integer(np.floor(np.asarray(a, _F64) + 0.5), _I32_MIN, _I32_MAX, np.int32)
)
for _byte in range(4):
    vector(f"v_cvt_f32_ubyte{_byte}", dst="f32", src="u32")(
        lambda a, n=_byte: ((a >> _U32(8 * n)) & _U32(0xFF)).astype(_F32)
    )
vector("v_cvt_u32_u16", src="u16")(_to(_U32))
vector("v_cvt_i32_i16", dst="i32", src="i16")(_to(np.int32))


def _pack16(low: Any, high: Any) -> Any:
    low, high = np.broadcast_arrays(low, high)
    return low.astype(_U32) | (high.astype(_U32) << _U32(16))


def _half_bits(value: Any) -> Any:
    return np.asarray(value).astype(np.float16).view(np.uint16)


vector("v_cvt_pkrtz_f16_f32", "v_cvt_pk_rtz_f16_f32", src="f32 f32")(
    lambda a, b: _pack16(truncate_f16(a).view(np.uint16), truncate_f16(b).view(np.uint16))
)
vector("v_cvt_pk_f16_f32", src="f32 f32")(lambda a, b: _pack16(_half_bits(a), _half_bits(b)))
vector("v_cvt_pk_bf16_f32", src="f32 f32")(lambda a, b: _pack16(to_bf16(a), to_bf16(b)))
vector("v_pack_b32_f16", src="f16 f16")(
    lambda a, b: _pack16(np.asarray(a).view(np.uint16), np.asarray(b).view(np.uint16))
)
vector("v_cvt_pk_u16_u32", src="u32 u32")(
    lambda a, b: _pack16(np.minimum(a, _U32(65535)), np.minimum(b, _U32(65535)))
)
vector("v_cvt_pk_i16_i32", src="i32 i32")(
    lambda a, b: _pack16(
        np.clip(a, -32768, 32767).astype(np.int16).view(np.uint16),
        np.clip(b, -32768, 32767).astype(np.int16).view(np.uint16),
    )
)
for _kind, _low, _high in (("i16", -32768, 32767), ("u16", 0, 65535)):
    vector(f"v_cvt_pk_{_kind}_f32", src="f32 f32")(
        lambda a, b, low=_low, high=_high, kind=_kind: _pack16(
            to_integer(a, low, high, kind).view(np.uint16),
            to_integer(b, low, high, kind).view(np.uint16),
        )
    )
vector("v_cvt_pknorm_i16_f32", "v_cvt_pk_norm_i16_f32", src="f32 f32")(
    lambda a, b: _pack16(
        np.rint(np.clip(a, -1, 1) * 32767).astype(np.int16).view(np.uint16),
        np.rint(np.clip(b, -1, 1) * 32767).astype(np.int16).view(np.uint16),
    )
)

# -- eight bits and less ---------------------------------------------------------------------------


def to_narrow(value: Any, name: str, fnuz: bool) -> Any:
    """float32 to the bits of a narrow format (uint8), to nearest even.

    fp6, bf6 and fp4 have no NaN and no infinity: too large a value becomes the largest.
    """
    dtype = narrow_dtype(name, fnuz)
    value = np.asarray(value, _F32)
    if name in ("fp6", "bf6", "fp4"):
        largest = {"fp6": 7.5, "bf6": 28.0, "fp4": 6.0}[name]
        value = np.clip(np.where(np.isnan(value), _F32(largest), value), -largest, largest)
    return value.astype(dtype).view(np.uint8)


def from_narrow(bits: Any, name: str, fnuz: bool) -> Any:
    """Return the bits of a narrow format (uint8) to float32."""
    return np.asarray(bits).astype(np.uint8).view(narrow_dtype(name, fnuz)).astype(_F32)


def is_fnuz(ctx: Context) -> bool:
    return ctx.architecture in ("gfx940", "gfx941", "gfx942")


def _selected_half(ins: Instruction) -> tuple[bool, bool]:
    """Which half of source 0 is read, and which half of the result is written."""
    text = ins.modifiers.get("op_sel")
    places = [piece.strip() == "1" for piece in (text or "").strip("[]").split(",")] if text else []
    return bool(places and places[0]), bool(places and places[-1])


def _narrowing(name: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Convert two float32 to two bytes in one half of D; the other half stays."""
        reads = [_bind.vector_reader(ins, o, "f32", ctx) for o in ins.operands[1:3]]
        destination = ins.operands[0]
        destination = register(destination)
        row, fnuz = ctx.row(destination), is_fnuz(ctx)
        high = _selected_half(ins)[1] or destination.half == "h"

        def step(b: Any) -> None:
            low, top = np.broadcast_arrays(*[read(b) for read in reads])
            value = to_narrow(low, name, fnuz).astype(_U32)
            value = value | (to_narrow(top, name, fnuz).astype(_U32) << _U32(8))
            if high:
                value = (b.v[row] & _U32(0xFFFF)) | (value << _U32(16))
            else:
                value = (b.v[row] & _U32(0xFFFF0000)) | value
            np.copyto(b.v[row], value, where=b.exec)

        return step

    OPS[f"v_cvt_pk_{name}_f32"] = Op(bind, "valu", 1, None, bind.__doc__ or "")


def _widening(name: str) -> None:
    def single(ins: Instruction, ctx: Context) -> Step:
        """Return a byte of S0 to float32."""
        read = _bind.vector_reader(ins, ins.operands[1], "u32", ctx, 0)
        write = _bind.vector_writer(ins, ins.operands[0], "f32", ctx)
        fnuz, shift = is_fnuz(ctx), _U32(8 * int(ins.modifiers.get("byte_sel", "0"), 0))
        text = ins.modifiers.get("op_sel")
        if text:
            bits = [p.strip() == "1" for p in text.strip("[]").split(",")]
            shift = _U32(8 * (2 * bits[0] + bits[1]))
        return lambda b: write(b, from_narrow((read(b) >> shift) & _U32(0xFF), name, fnuz))

    def double(ins: Instruction, ctx: Context) -> Step:
        """Convert two bytes of S0 to two float32."""
        destination, source = register(ins.operands[0]), register(ins.operands[1])
        read = _bind.vector_reader(ins, source, "u32", ctx, 0)
        fnuz = is_fnuz(ctx)
        shift = 16 if _selected_half(ins)[0] or source.half == "h" else 0
        first = Reg(destination.kind, destination.first)
        second = Reg(destination.kind, destination.first + 1)
        low, high = (_bind.vector_writer(ins, r, "f32", ctx) for r in (first, second))

        def step(b: Any) -> None:
            bits = read(b) >> _U32(shift)
            low(b, from_narrow(bits & _U32(0xFF), name, fnuz))
            high(b, from_narrow((bits >> _U32(8)) & _U32(0xFF), name, fnuz))

        return step

    OPS[f"v_cvt_f32_{name}"] = Op(single, "valu", 1, None, single.__doc__ or "")
    OPS[f"v_cvt_pk_f32_{name}"] = Op(double, "valu", 1, None, double.__doc__ or "")


for _format in ("fp8", "bf8"):
    _narrowing(_format)
    _widening(_format)


def _power(scale: Any) -> Any:
    """Return the power of two that a float32 scale's exponent stands for."""
    exponent = ((np.asarray(scale).view(_U32) >> _U32(23)) & _U32(0xFF)).astype(np.int32)
    return np.ldexp(_F64(1), exponent - 127)


def _scaled_widening(name: str, wide: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Multiply two numbers of S0 by the power of two in S1's exponent."""
        source, destination = ins.operands[1], ins.operands[0]
        source, destination = register(source), register(destination)
        read = _bind.raw_reader(source, ctx)
        scale = _bind.vector_reader(ins, ins.operands[2], "f32", ctx)
        text = ins.modifiers.get("op_sel", "[0,0]")
        picks = [p.strip() == "1" for p in text.strip("[]").split(",")]
        if name == "fp4":
            start, width = 8 * (picks[0] + 2 * picks[1]), 4
        else:
            start, width = 16 * picks[0], 8
        field = _U32((1 << width) - 1)
        row = ctx.row(destination)

        def step(b: Any) -> None:
            bits, factor = read(b) >> _U32(start), _power(scale(b))
            parts = [
                from_narrow((bits >> _U32(width * i)) & field, name, False) * factor
                for i in range(2)
            ]
            low, high = (np.broadcast_to(p, b.exec.shape).astype(_F32) for p in parts)
            if wide == "f32":
                np.copyto(b.v[row], low.view(_U32), where=b.exec)
                np.copyto(b.v[row + 1], high.view(_U32), where=b.exec)
            else:
                narrow = to_bf16 if wide == "bf16" else _half_bits
                np.copyto(b.v[row], _pack16(narrow(low), narrow(high)), where=b.exec)

        return step

    OPS[f"v_cvt_scalef32_pk_{wide}_{name}"] = Op(bind, "valu", 1, None, bind.__doc__ or "")


def _scaled_narrowing(name: str, wide: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Divide two numbers by the power of two in the scale's exponent, into a part of D."""
        destination = ins.operands[0]
        destination = register(destination)
        if wide == "f32":
            reads = [_bind.vector_reader(ins, o, "f32", ctx) for o in ins.operands[1:3]]
        else:
            source = ins.operands[1]
            source = register(source)
            raw = _bind.raw_reader(source, ctx)
            reads = [_half_of(raw, wide, False), _half_of(raw, wide, True)]
        scale = _bind.vector_reader(ins, ins.operands[-1], "f32", ctx)
        text = ins.modifiers.get("op_sel", "")
        picks = [p.strip() == "1" for p in text.strip("[]").split(",")] if text else [False] * 4
        if name == "fp4":
            start, width = 8 * (picks[-2] + 2 * picks[-1]), 4
        else:
            start, width = 16 * picks[-1], 8
        row = ctx.row(destination)
        field = _U32(((1 << 2 * width) - 1) << start)

        def step(b: Any) -> None:
            factor = _power(scale(b))
            low, high = (to_narrow(read(b) / factor, name, False).astype(_U32) for read in reads)
            value = ((low | (high << _U32(width))) << _U32(start)) & field
            np.copyto(b.v[row], (b.v[row] & ~field) | value, where=b.exec)

        return step

    OPS[f"v_cvt_scalef32_pk_{name}_{wide}"] = Op(bind, "valu", 1, None, bind.__doc__ or "")


def _half_of(raw: Any, kind: str, high: bool) -> Any:
    shift = _U32(16 if high else 0)

    def read(b: Any) -> Any:
        bits = (raw(b) >> shift).astype(np.uint16)
        if kind == "bf16":
            return (bits.astype(_U32) << _U32(16)).view(_F32)
        return bits.view(np.float16).astype(_F32)

    return read


for _format in ("fp8", "bf8", "fp4"):
    for _wide in ("f32", "f16", "bf16"):
        _scaled_widening(_format, _wide)
        _scaled_narrowing(_format, _wide)


@custom("v_cvt_off_f32_i4", family="valu")
def v_cvt_off_f32_i4(ins: Instruction, ctx: Context) -> Step:
    """D = the signed four bits of S0 over 16."""
    read = _bind.vector_reader(ins, ins.operands[1], "u32", ctx, 0)
    write = _bind.vector_writer(ins, ins.operands[0], "f32", ctx)

    def step(b: Any) -> None:
        four = (read(b) & _U32(15)).astype(np.int32)
        write(b, (np.where(four >= 8, four - 16, four) / 16).astype(_F32))

    return step
