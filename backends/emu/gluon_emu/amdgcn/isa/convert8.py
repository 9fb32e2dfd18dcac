"""Conversions of eight numbers at once (gfx1250), with a scale.

LLVM's tests of gfx1250 name them; they work as CDNA4's conversions of two with a scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.convert import from_narrow, to_narrow
from gluon_emu.amdgcn.isa.floats import to_bf16
from gluon_emu.amdgcn.isa.table import OPS, Op, Step

__all__ = ["WIDTHS"]

_U32, _F32 = np.uint32, np.float32
WIDTHS = {"fp8": 8, "bf8": 8, "fp4": 4}


def _register(name: str, bind: Any) -> None:
    OPS[name] = Op(bind, "valu", 1, None, bind.__doc__ or "")


def _put(b: Any, row: int, words: Any) -> None:
    np.copyto(b.v[row], np.broadcast_to(words, b.exec.shape), where=b.exec)


def _widening(name: str, wide: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Eight numbers of S0, times two to the power of a byte of S1 less 127."""
        destination, source = ins.operands[:2]
        destination, source = register(destination), register(source)
        scale = _bind.vector_reader(ins, ins.operands[2], "u32", ctx)
        shift = _U32(8 * (int(ins.modifiers.get("scale_sel", "0"), 0) & 3))
        width, rows = WIDTHS[name], [ctx.row(source, i) for i in range(source.count)]
        first = ctx.row(destination)

        def step(b: Any) -> None:
            byte = ((scale(b) >> shift) & _U32(0xFF)).astype(np.int32)
            factor = np.where(byte == 255, np.nan, np.ldexp(1.0, byte - 127))
            words = np.stack([b.v[row] for row in rows])
            widened = []
            for i in range(8):
                bits = words[i * width // 32] >> _U32(i * width % 32)
                exact = from_narrow(bits & _U32((1 << width) - 1), name, False) * factor
                widened.append(np.asarray(exact).astype(_F32))
            if wide == "f32":
                for i, value in enumerate(widened):
                    _put(b, first + i, value.view(_U32))
                return
            for i in range(4):
                low, high = (_narrow(v, wide) for v in widened[2 * i : 2 * i + 2])
                _put(b, first + i, low | high << _U32(16))

        return step

    _register(f"v_cvt_scale_pk8_{wide}_{name}", bind)


def _narrow(value: Any, kind: str) -> Any:
    if kind == "bf16":
        return to_bf16(value).astype(_U32)
    return value.astype(np.float16).view(np.uint16).astype(_U32)


def _narrowing(name: str, wide: str) -> None:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """Eight numbers of S0 over the power of two in the exponent of S1."""
        destination, source = ins.operands[:2]
        destination, source = register(destination), register(source)
        scale = _bind.vector_reader(ins, ins.operands[2], "f32", ctx)
        width, rows = WIDTHS[name], [ctx.row(source, i) for i in range(source.count)]
        first, count = ctx.row(destination), destination.count

        def step(b: Any) -> None:
            exponent = (np.asarray(scale(b)).view(_U32) >> _U32(23) & _U32(0xFF)).astype(np.int32)
            factor = np.ldexp(1.0, exponent - 127)
            words = [b.v[row] for row in rows]
            if wide == "f32":
                values = [word.view(_F32) for word in words]
            else:
                values = [_half(word, wide, high) for word in words for high in (False, True)]
            packed = [np.zeros(b.exec.shape, _U32) for _ in range(count)]
            for i, value in enumerate(values):
                bits = to_narrow(value / factor, name, False).astype(_U32)
                packed[i * width // 32] |= bits << _U32(i * width % 32)
            for i, word in enumerate(packed):
                _put(b, first + i, word)

        return step

    _register(f"v_cvt_scalef32_pk8_{name}_{wide}", bind)


def _half(word: Any, kind: str, high: bool) -> Any:
    if kind == "bf16":
        return (word & _U32(0xFFFF0000) if high else word << _U32(16)).view(_F32)
    return (word >> _U32(16 if high else 0)).astype(np.uint16).view(np.float16).astype(_F32)


for _format in WIDTHS:
    for _wide in ("f32", "f16", "bf16"):
        _widening(_format, _wide)
        _narrowing(_format, _wide)
