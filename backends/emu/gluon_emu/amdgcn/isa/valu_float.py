"""Vector arithmetic on floats.

ISA: CDNA3 6 and 12.7-12.11; RDNA3 7 and 16.7-16.10; RDNA4 7 and 16.7-16.10. Transcendental
instructions are documented to about 1 ULP, denormals flushed; here they are rounded correctly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import VCC, Reg, register
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.floats import (
    flush,
    fma16,
    fma32,
    fma64,
    max_number,
    maximum,
    median,
    min_number,
    minimum,
)
from gluon_emu.amdgcn.isa.table import OPS, Op, Step, custom, output_modifiers, vector

_U32 = np.uint32
_F32, _F64 = np.float32, np.float64

_FMA = {"f32": fma32, "f16": fma16, "f64": fma64}


def _both(base: str, kind: str, dual: str = "") -> tuple[str, ...]:
    names = [f"v_{base}_{kind}"]
    if kind == "f32" and dual:
        names.append(f"v_dual_{dual}_f32")
    return tuple(names)


for _kind in ("f32", "f16", "f64"):
    _two, _three = (_kind,) * 2, (_kind,) * 3
    vector(*_both("add", _kind, "add"), dst=_kind, src=_two)(lambda a, b: a + b)
    vector(*_both("mul", _kind, "mul"), dst=_kind, src=_two)(lambda a, b: a * b)
    if _kind != "f64":
        vector(*_both("sub", _kind, "sub"), dst=_kind, src=_two)(lambda a, b: a - b)
        vector(*_both("subrev", _kind, "subrev"), dst=_kind, src=_two)(lambda a, b: b - a)
    vector(*_both("max", _kind, "max"), *_both("max_num", _kind, "max_num"), dst=_kind, src=_two)(
        max_number
    )
    vector(*_both("min", _kind, "min"), *_both("min_num", _kind, "min_num"), dst=_kind, src=_two)(
        min_number
    )
    vector(f"v_maximum_{_kind}", dst=_kind, src=_two)(maximum)
    vector(f"v_minimum_{_kind}", dst=_kind, src=_two)(minimum)
    vector(*_both("fma", _kind, "fma"), dst=_kind, src=_three)(_FMA[_kind])
    for _name in ("max3", "max3_num"):
        vector(f"v_{_name}_{_kind}", dst=_kind, src=_three)(
            lambda a, b, c: max_number(max_number(a, b), c)
        )
    for _name in ("min3", "min3_num"):
        vector(f"v_{_name}_{_kind}", dst=_kind, src=_three)(
            lambda a, b, c: min_number(min_number(a, b), c)
        )
    for _name in ("maxmin", "maxmin_num"):
        vector(f"v_{_name}_{_kind}", dst=_kind, src=_three)(
            lambda a, b, c: min_number(max_number(a, b), c)
        )
    for _name in ("minmax", "minmax_num"):
        vector(f"v_{_name}_{_kind}", dst=_kind, src=_three)(
            lambda a, b, c: max_number(min_number(a, b), c)
        )
    vector(f"v_maximum3_{_kind}", dst=_kind, src=_three)(lambda a, b, c: maximum(maximum(a, b), c))
    vector(f"v_minimum3_{_kind}", dst=_kind, src=_three)(lambda a, b, c: minimum(minimum(a, b), c))
    vector(f"v_maximumminimum_{_kind}", dst=_kind, src=_three)(
        lambda a, b, c: minimum(maximum(a, b), c)
    )
    vector(f"v_minimummaximum_{_kind}", dst=_kind, src=_three)(
        lambda a, b, c: maximum(minimum(a, b), c)
    )
    for _name in ("med3", "med3_num"):
        vector(f"v_{_name}_{_kind}", dst=_kind, src=_three)(median)
    vector(f"v_floor_{_kind}", dst=_kind, src=(_kind,))(np.floor)
    vector(f"v_ceil_{_kind}", dst=_kind, src=(_kind,))(np.ceil)
    vector(f"v_trunc_{_kind}", dst=_kind, src=(_kind,))(np.trunc)
    vector(f"v_rndne_{_kind}", dst=_kind, src=(_kind,))(np.rint)

for _kind in ("f32", "f16"):
    vector(f"v_mad_{_kind}", dst=_kind, src=(_kind,) * 3)(lambda a, b, c: a * b + c)


@vector("v_mul_legacy_f32", "v_mul_dx9_zero_f32", "v_dual_mul_dx9_zero_f32", dst="f32", src="f32 f32")  # fmt: skip
def v_mul_legacy_f32(a: Any, b: Any) -> Any:
    """D = S0 * S1, where 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), _F32(0), a * b)


@vector("v_fma_dx9_zero_f32", "v_fma_legacy_f32", dst="f32", src="f32 f32 f32")
def v_fma_dx9_zero_f32(a: Any, b: Any, c: Any) -> Any:
    """D = S0 * S1 + S2, where 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), c, fma32(a, b, c))


def _accumulating(name: str, kind: str, literal: str = "") -> None:
    """D = S0 * S1 + D; with a literal in place of one of the operands."""

    def pair(ins: Instruction, ctx: Context) -> tuple[Any, Any]:
        sources = list(ins.operands[1:])
        if not literal:
            sources.append(ins.operands[0])
        reads = [
            _bind.vector_reader(ins, o, kind, ctx, i if i < 2 else -1)
            for i, o in enumerate(sources)
        ]
        write = _bind.vector_writer(ins, ins.operands[0], kind, ctx)
        fma = _FMA[kind]
        finish = output_modifiers(ins.modifiers, kind)

        def compute(b: Any) -> Any:
            values = [read(b) for read in reads]
            if b.flushes and kind == "f32":
                result = flush(fma(*[flush(v) for v in values]))
            else:
                result = fma(*values)
            return result if finish is None else finish(result)

        return compute, write

    def bind(ins: Instruction, ctx: Context) -> Step:
        compute, write = pair(ins, ctx)
        return lambda b: write(b, compute(b))

    OPS[name] = Op(bind, "valu", 1, pair, _accumulating.__doc__ or "")


for _kind in ("f32", "f16", "f64"):
    for _name in ("fmac", "mac"):
        _accumulating(f"v_{_name}_{_kind}", _kind)
        _accumulating(f"v_{_name}ak_{_kind}" if _name == "mac" else f"v_fmaak_{_kind}", _kind, "k")
        _accumulating(f"v_{_name}mk_{_kind}" if _name == "mac" else f"v_fmamk_{_kind}", _kind, "k")
_accumulating("v_dual_fmac_f32", "f32")
_accumulating("v_dual_fmaak_f32", "f32", "k")
_accumulating("v_dual_fmamk_f32", "f32", "k")


def _mixed(name: str, result: str) -> None:
    """D = S0 * S1 + S2, sources float32 or, where `op_sel_hi` says so, half of a register."""

    def bind(ins: Instruction, ctx: Context) -> Step:
        narrow = "bf16" if name.endswith("bf16") else "f16"
        high = [_flag(ins, "op_sel", i) for i in range(3)]
        half = [_flag(ins, "op_sel_hi", i) for i in range(3)]
        reads = []
        for i, operand in enumerate(ins.operands[1:4]):
            reads.append(_mixed_reader(ins, operand, ctx, half[i], high[i], narrow))
        clamp = output_modifiers({"clamp": "1"} if "clamp" in ins.modifiers else {}, "f32")
        if result == "f32":
            write = _bind.vector_writer(ins, ins.operands[0], "f32", ctx)
        else:
            write = _half_writer(register(ins.operands[0]), ctx, result == "hi", narrow)

        def step(b: Any) -> None:
            value = fma32(*[read(b) for read in reads])
            write(b, value if clamp is None else clamp(value))

        return step

    OPS[name] = Op(bind, "valu", 1, None, _mixed.__doc__ or "")


def _flag(ins: Instruction, name: str, place: int, default: bool = False) -> bool:
    return _bind.selection_bit(ins.modifiers.get(name), place, default)


def _mixed_reader(
    ins: Instruction, operand: Any, ctx: Context, half: bool, high: bool, narrow: str
) -> Any:
    if not half or not isinstance(operand, Reg):
        return _bind.vector_reader(ins, operand, "f32" if not half else narrow, ctx)
    raw = _bind.raw_reader(operand, ctx)
    shift = _U32(16 if high else 0)

    def read(b: Any) -> Any:
        bits = (raw(b) >> shift).astype(np.uint16)
        if narrow == "bf16":
            value = (bits.astype(_U32) << _U32(16)).view(_F32)
        else:
            value = bits.view(np.float16).astype(_F32)
        value = np.abs(value) if operand.abs else value
        return -value if operand.neg else value

    return read


def _half_writer(operand: Reg, ctx: Context, high: bool, narrow: str) -> Any:
    row = ctx.row(operand)

    def write(b: Any, value: Any) -> None:
        if narrow == "f16":
            value = np.asarray(value).astype(np.float16)
        bits = _bind.to_bits(value, narrow)
        if high:
            bits = (b.v[row] & _U32(0xFFFF)) | (bits << _U32(16))
        else:
            bits = (b.v[row] & _U32(0xFFFF0000)) | bits
        np.copyto(b.v[row], bits, where=b.exec)

    return write


for _stem in ("v_fma_mix", "v_mad_mix"):
    _mixed(f"{_stem}_f32", "f32")
    _mixed(f"{_stem}lo_f16", "lo")
    _mixed(f"{_stem}hi_f16", "hi")
_mixed("v_fma_mix_f32_bf16", "f32")
_mixed("v_fma_mixlo_bf16", "lo")
_mixed("v_fma_mixhi_bf16", "hi")


# -- transcendental --------------------------------------------------------------------------------


def _transcendental(name: str, function: Any, *more: str) -> None:
    def float32(a: Any) -> Any:
        return flush(function(flush(a).astype(_F64)).astype(_F32))

    float32.__doc__ = function.__doc__
    vector(f"v_{name}_f32", *more, dst="f32", src="f32", family="trans")(float32)
    vector(f"v_{name}_f16", dst="f16", src="f16", family="trans")(
        lambda a: function(np.asarray(a, _F64)).astype(np.float16)
    )
    vector(f"v_{name}_bf16", dst="bf16", src="bf16", family="trans")(
        lambda a: function(np.asarray(a, _F64)).astype(_F32)
    )


_transcendental("rcp", lambda a: 1.0 / a, "v_rcp_iflag_f32")
_transcendental("rsq", lambda a: 1.0 / np.sqrt(a))
_transcendental("sqrt", np.sqrt)
_transcendental("exp", np.exp2, "v_exp_legacy_f32")
_transcendental("log", np.log2, "v_log_legacy_f32")
_transcendental("sin", lambda a: np.sin(2 * np.pi * a))
_transcendental("cos", lambda a: np.cos(2 * np.pi * a))
_transcendental("tanh", np.tanh)
vector("v_rcp_f64", dst="f64", src="f64", family="trans")(lambda a: 1.0 / a)
vector("v_rsq_f64", dst="f64", src="f64", family="trans")(lambda a: 1.0 / np.sqrt(a))
vector("v_sqrt_f64", dst="f64", src="f64", family="trans")(np.sqrt)


def _scalar_transcendental(name: str, function: Any) -> None:
    def half(ins: Instruction, ctx: Context) -> Step:
        """Return a transcendental function on a float16 in a scalar register."""
        read = _bind.scalar_reader(ins.operands[1], "f16", ctx)
        write = _bind.scalar_writer(ins.operands[0], "f16", ctx)
        return lambda b: write(b, function(np.asarray(read(b), _F64)).astype(np.float16))

    def bind(ins: Instruction, ctx: Context) -> Step:
        """Return a transcendental function on scalar registers."""
        read = _bind.scalar_reader(ins.operands[1], "f32", ctx)
        write = _bind.scalar_writer(ins.operands[0], "f32", ctx)
        return lambda b: write(b, flush(function(flush(read(b)).astype(_F64)).astype(_F32)))

    custom(f"v_s_{name}_f32", family="trans")(bind)
    custom(f"v_s_{name}_f16", family="trans")(half)


_scalar_transcendental("rcp", lambda a: 1.0 / a)
_scalar_transcendental("rsq", lambda a: 1.0 / np.sqrt(a))
_scalar_transcendental("sqrt", np.sqrt)
_scalar_transcendental("exp", np.exp2)
_scalar_transcendental("log", np.log2)

for _kind, _int in (("f32", "i32"), ("f64", "i32"), ("f16", "i16")):
    vector(f"v_ldexp_{_kind}", dst=_kind, src=(_kind, _int))(
        lambda a, b, t=_bind.TYPES[_kind]: _ldexp(a, b).astype(t)
    )
    vector(f"v_fract_{_kind}", dst=_kind, src=(_kind,))(
        lambda a: np.minimum(
            a - np.floor(a), np.nextafter(np.asarray(a).dtype.type(1), np.asarray(a).dtype.type(0))
        )  # fmt: skip
    )
    vector(f"v_frexp_mant_{_kind}", dst=_kind, src=(_kind,))(
        lambda a: np.where(np.isfinite(a), np.frexp(a)[0], a)
    )


def _ldexp(a: Any, b: Any) -> Any:
    a = np.asarray(a)
    if a.dtype == _F64:
        return np.ldexp(a, np.asarray(b).astype(np.int32))
    return np.ldexp(a.astype(_F64), np.clip(np.asarray(b).astype(np.int32), -600, 600))


vector("v_frexp_exp_i32_f32", dst="i32", src="f32")(
    lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)
)
vector("v_frexp_exp_i32_f64", dst="i32", src="f64")(
    lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)
)
vector("v_frexp_exp_i16_f16", dst="i16", src="f16")(
    lambda a: np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int16)
)

# -- division --------------------------------------------------------------------------------------

_LAYOUT = {  # mantissa bits, exponent mask, scale, smallest difference that is scaled, tiny exponent
    "f32": (23, 0xFF, 64, 96, 23),
    "f64": (52, 0x7FF, 128, 768, 53),
}


def _exponent(value: Any, kind: str) -> Any:
    mantissa, mask = _LAYOUT[kind][:2]
    bits = np.asarray(value).view(_U32 if kind == "f32" else np.uint64)
    return ((bits >> bits.dtype.type(mantissa)) & bits.dtype.type(mask)).astype(np.int64)


def _denormal(value: Any, kind: str) -> Any:
    smallest = 2.0**-126 if kind == "f32" else 2.0**-1022
    return (np.abs(value) < smallest) & (np.asarray(value) != 0)


def div_scale(x: Any, d: Any, n: Any, kind: str) -> tuple[Any, Any]:
    """`x`, one of denominator `d` and numerator `n`, scaled so that dividing by Newton's method
    neither overflows nor loses bits; and whether the quotient must be scaled back."""
    _, _, scale, far, tiny = _LAYOUT[kind]
    dtype = _bind.TYPES[kind]
    x, d, n = np.broadcast_arrays(*(np.asarray(v, dtype) for v in (x, d, n)))
    up, down = _scaled(x, scale), _scaled(x, -scale)
    same_d, same_n = x == d, x == n
    quotient, reciprocal = n / d, dtype(1) / d
    zero = (n == 0) | (d == 0)
    large = _exponent(n, kind) - _exponent(d, kind) >= far
    small_d, small_r, small_q = (
        _denormal(d, kind),
        _denormal(reciprocal, kind),
        _denormal(quotient, kind),
    )
    conditions = [zero, large, small_d, small_r & small_q, small_r, small_q, _exponent(n, kind) <= tiny]  # fmt: skip
    results = [
        np.full_like(x, np.nan),
        np.where(same_d, up, x),
        up,
        np.where(same_d, up, x),
        down,
        np.where(same_n, up, x),
        up,
    ]
    value = np.select(conditions, results, x)
    flag = np.select(conditions, [False, True, False, True, False, True, False], False)
    return value, flag


def _scaled(x: Any, places: Any) -> Any:
    return np.ldexp(x, places)


def _div_scale(kind: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = S0 scaled for a division of S2 by S1; the mask says where to scale back."""
        x, d, n = (_bind.vector_reader(ins, o, kind, ctx) for o in ins.operands[2:5])
        write = _bind.vector_writer(ins, ins.operands[0], kind, ctx)
        mask = _bind.mask_writer(ins.operands[1], ctx)

        def step(b: Any) -> None:
            value, flag = div_scale(x(b), d(b), n(b), kind)
            write(b, value)
            mask(b, np.broadcast_to(flag, b.exec.shape))

        return step

    return bind


def _div_fmas(kind: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = S0 * S1 + S2, scaled back where VCC says so.

        The documents give one factor for both directions. A quotient that was made smaller is above
        2, one that was made larger far below 1: the exponent of S2 tells them apart.
        """
        reads = [_bind.vector_reader(ins, o, kind, ctx) for o in ins.operands[1:4]]
        write = _bind.vector_writer(ins, ins.operands[0], kind, ctx)
        mask = _bind.mask_reader(Reg("s", VCC, ctx.lanes // 32), ctx)
        fma, places = _FMA[kind], _LAYOUT[kind][2]
        middle = _LAYOUT[kind][1] >> 1

        def step(b: Any) -> None:
            x, y, z = (read(b) for read in reads)
            value = fma(x, y, z)
            back = np.where(_exponent(z, kind) > middle, places, -places)
            write(b, np.where(mask(b), _scaled(value, back), value))

        return step

    return bind


def div_fixup(q: Any, d: Any, n: Any) -> Any:
    """Return the quotient `q` of `n` by `d`, corrected for special values."""
    q, d, n = np.broadcast_arrays(q, d, n)
    dtype = q.dtype.type
    sign = np.signbit(d) ^ np.signbit(n)
    signed = np.where(sign, dtype(-1), dtype(1))
    invalid = ((d == 0) & (n == 0)) | (np.isinf(d) & np.isinf(n))
    infinite = (d == 0) | np.isinf(n)
    zero = np.isinf(d) | (n == 0)
    conditions = [np.isnan(n), np.isnan(d), invalid, infinite, zero]
    results = [n, d, np.full_like(q, -np.nan), signed * dtype(np.inf), signed * dtype(0)]
    if q.dtype == _F32:  # out of a quotient's range: Newton's method may have left anything
        apart = _exponent(n, "f32") - _exponent(d, "f32")
        conditions.append(apart < -150)
        results.append(signed * dtype(0))
    return np.select(conditions, results, np.abs(q) * signed)


for _kind in ("f32", "f64"):
    custom(f"v_div_scale_{_kind}", family="valu", results=2)(_div_scale(_kind))
    custom(f"v_div_fmas_{_kind}", family="valu")(_div_fmas(_kind))
for _kind in ("f32", "f64", "f16"):
    vector(f"v_div_fixup_{_kind}", dst=_kind, src=(_kind,) * 3)(div_fixup)

vector("v_dual_add_f64", dst="f64", src="f64 f64")(lambda a, b: a + b)
vector("v_dual_mul_f64", dst="f64", src="f64 f64")(lambda a, b: a * b)
vector("v_dual_fma_f64", dst="f64", src="f64 f64 f64")(fma64)
vector("v_dual_max_num_f64", dst="f64", src="f64 f64")(np.fmax)
vector("v_dual_min_num_f64", dst="f64", src="f64 f64")(np.fmin)
