"""Floats in scalar registers (gfx11.5 and later): SOP1, SOP2.

ISA: CDNA3 5 and 12.1-12.4; RDNA3 6 and 16.1-16.4; RDNA4 6 and 16.1-16.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import (
    fma16,
    fma32,
    max_number,
    maximum,
    min_number,
    minimum,
    truncate_f16,
)
from gluon_emu.amdgcn.isa.table import Step, custom, scalar

_U32, _I32 = np.uint32, np.int32


# -- floats in scalar registers (gfx11.5 and later) ------------------------------------------------


def to_integer(value: Any, low: int, high: int, dtype: Any) -> Any:
    """Convert float to integer towards zero; values out of range saturate, NaN becomes 0."""
    value = np.asarray(value, np.float64)
    whole = np.trunc(np.where(np.isnan(value), 0.0, value))
    return np.clip(whole, low, high).astype(np.int64).astype(dtype)


scalar("s_cvt_f32_i32", dst="f32", src="i32")(lambda a: np.asarray(a).astype(np.float32))
scalar("s_cvt_f32_u32", dst="f32", src="u32")(lambda a: np.asarray(a).astype(np.float32))
scalar("s_cvt_u32_f32", dst="u32", src="f32")(lambda a: to_integer(a, 0, 2**32 - 1, _U32))
scalar("s_cvt_i32_f32", dst="i32", src="f32")(lambda a: to_integer(a, -(2**31), 2**31 - 1, _I32))
scalar("s_cvt_f16_f32", dst="f16", src="f32")(lambda a: np.asarray(a).astype(np.float16))
scalar("s_cvt_f32_f16", dst="f32", src="f16")(lambda a: np.asarray(a).astype(np.float32))
scalar("s_add_f32", dst="f32", src="f32 f32")(lambda a, b: a + b)
scalar("s_sub_f32", dst="f32", src="f32 f32")(lambda a, b: a - b)
scalar("s_mul_f32", dst="f32", src="f32 f32")(lambda a, b: a * b)
scalar("s_max_f32", "s_max_num_f32", dst="f32", src="f32 f32")(max_number)
scalar("s_min_f32", "s_min_num_f32", dst="f32", src="f32 f32")(min_number)
scalar("s_floor_f32", dst="f32", src="f32")(np.floor)
scalar("s_ceil_f32", dst="f32", src="f32")(np.ceil)
scalar("s_trunc_f32", dst="f32", src="f32")(np.trunc)
scalar("s_rndne_f32", dst="f32", src="f32")(np.rint)


for _kind in ("f32", "f16"):
    _two = (_kind, _kind)
    scalar(f"s_maximum_{_kind}", dst=_kind, src=_two)(maximum)
    scalar(f"s_minimum_{_kind}", dst=_kind, src=_two)(minimum)
scalar("s_add_f16", dst="f16", src="f16 f16")(lambda a, b: a + b)
scalar("s_sub_f16", dst="f16", src="f16 f16")(lambda a, b: a - b)
scalar("s_mul_f16", dst="f16", src="f16 f16")(lambda a, b: a * b)
scalar("s_max_f16", "s_max_num_f16", dst="f16", src="f16 f16")(max_number)
scalar("s_min_f16", "s_min_num_f16", dst="f16", src="f16 f16")(min_number)
for _name, _function in (("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("rndne", np.rint)):  # fmt: skip
    scalar(f"s_{_name}_f16", dst="f16", src="f16")(_function)


@scalar("s_cvt_hi_f32_f16", dst="f32", src="u32")
def s_cvt_hi_f32_f16(a: Any) -> Any:
    """D = the upper half of S0, a float16."""
    return np.asarray(a >> _U32(16)).astype(np.uint16).view(np.float16).astype(np.float32)


@scalar("s_cvt_pk_rtz_f16_f32", src="f32 f32")
def s_cvt_pk_rtz_f16_f32(a: Any, b: Any) -> Any:
    """D = {S1, S0} as float16, towards zero."""
    low, high = (np.asarray(truncate_f16(x)).view(np.uint16).astype(_U32) for x in (a, b))
    return low | high << _U32(16)


def _scalar_fma(place: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = S0 * S1 + D, or with a literal in one of the places."""
        sources = list(ins.operands[1:])
        if place == "fmac":
            sources.append(ins.operands[0])
        reads = [_bind.scalar_reader(o, "f32", ctx) for o in sources]
        write = _bind.scalar_writer(ins.operands[0], "f32", ctx)
        return lambda b: write(b, fma32(*[read(b) for read in reads]))

    return bind


@custom("s_fmac_f16", family="salu")
def s_fmac_f16(ins: Instruction, ctx: Context) -> Step:
    """D = S0 * S1 + D."""
    reads = [_bind.scalar_reader(o, "f16", ctx) for o in (*ins.operands[1:3], ins.operands[0])]
    write = _bind.scalar_writer(ins.operands[0], "f16", ctx)
    return lambda b: write(b, fma16(*(read(b) for read in reads)))


for _place in ("fmac", "fmaak", "fmamk"):
    custom(f"s_{_place}_f32", family="salu")(_scalar_fma(_place))
