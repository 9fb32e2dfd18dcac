"""Vector arithmetic on integers and bits: VOP1, VOP2, VOP3.

ISA: CDNA3 6 and 12.7-12.11; RDNA3 7 and 16.7-16.10; RDNA4 7 and 16.7-16.10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import VCC, Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.salu_bits import highest_bit, lowest_bit, popcount, reverse_bits
from gluon_emu.amdgcn.isa.table import OPS, Op, Step, custom, vector

_U32, _U64, _I32, _I64 = np.uint32, np.uint64, np.int32, np.int64


def _wide(value: Any) -> Any:
    return np.asarray(value).astype(_U64)


vector("v_mov_b32", "v_dual_mov_b32", "v_mov_b32_e32", src="u32")(lambda a: a)
vector("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32", "v_accvgpr_read",
       "v_accvgpr_write", src="u32")(lambda a: a)  # fmt: skip
vector("v_mov_b64", dst="u64", src="u64")(lambda a: a)
vector("v_mov_b16", dst="u16", src="u16")(lambda a: a)
vector("v_not_b32", src="u32")(lambda a: ~np.asarray(a))
vector("v_not_b16", dst="u16", src="u16")(lambda a: ~np.asarray(a))
vector("v_bfrev_b32", src="u32")(reverse_bits)
vector("v_ffbh_u32", "v_clz_i32_u32", src="u32")(highest_bit)
vector("v_ffbl_b32", "v_ctz_i32_b32", src="u32")(lowest_bit)
vector("v_bcnt_u32_b32")(lambda a, b: popcount(a) + b)


@vector("v_ffbh_i32", "v_cls_i32", src="i32")
def v_ffbh_i32(a: Any) -> Any:
    """D = how many bits above are like the sign bit, -1 where all are."""
    value = np.atleast_1d(np.asarray(a))
    return highest_bit(np.where(value < 0, ~value, value).view(_U32))


# -- add, subtract, multiply -----------------------------------------------------------------------

_NO_CARRY = (("v_add_u32", "v_add_nc_u32", "v_dual_add_nc_u32"), ("v_sub_u32", "v_sub_nc_u32", "v_dual_sub_nc_u32"))  # fmt: skip
_I32_LIMITS = (-(2**31), 2**31 - 1)


def _saturating(names: tuple[str, ...], dst: str, function: Any, reverse: bool = False) -> None:
    """Register an addition or subtraction whose `clamp` saturates rather than wraps."""

    def pair(ins: Instruction, ctx: Context) -> tuple[Any, Any]:
        first, second = (
            _bind.vector_reader(ins, o, dst, ctx, i) for i, o in enumerate(ins.operands[1:3])
        )
        if reverse:
            first, second = second, first
        write = _bind.vector_writer(ins, ins.operands[0], dst, ctx)
        if "clamp" not in ins.modifiers:
            return (lambda b: function(first(b), second(b))), write
        dtype = _bind.TYPES[dst]
        limits: Any = np.iinfo(np.dtype(dtype).name)

        def clamped(b: Any) -> Any:
            x, y = np.asarray(first(b)).astype(_I64), np.asarray(second(b)).astype(_I64)
            return np.clip(function(x, y), limits.min, limits.max).astype(dtype)

        return clamped, write

    def bind(ins: Instruction, ctx: Context) -> Step:
        compute, write = pair(ins, ctx)
        return lambda b: write(b, compute(b))

    for name in names:
        OPS[name] = Op(bind, "valu", 1, pair, "D = S0 +- S1; saturates with clamp.")


_saturating(_NO_CARRY[0], "u32", np.add)
_saturating(_NO_CARRY[1], "u32", np.subtract)
_saturating(("v_subrev_u32", "v_subrev_nc_u32"), "u32", np.subtract, reverse=True)
_saturating(("v_add_i32", "v_add_nc_i32"), "i32", np.add)
_saturating(("v_sub_i32", "v_sub_nc_i32"), "i32", np.subtract)
_saturating(("v_add_u16", "v_add_nc_u16"), "u16", np.add)
_saturating(("v_sub_u16", "v_sub_nc_u16"), "u16", np.subtract)
_saturating(("v_subrev_u16",), "u16", np.subtract, reverse=True)
_saturating(("v_add_i16", "v_add_nc_i16"), "i16", np.add)
_saturating(("v_sub_i16", "v_sub_nc_i16"), "i16", np.subtract)


def _carrying(function: Any, takes: bool) -> Any:
    """D and a mask of carries from S0, S1 and, where it `takes` one, a mask that comes in."""

    def bind(ins: Instruction, ctx: Context) -> Step:
        x, y = (_bind.vector_reader(ins, o, "u32", ctx, i) for i, o in enumerate(ins.operands[2:4]))
        write = _bind.vector_writer(ins, ins.operands[0], "u32", ctx)
        carry_out = _bind.mask_writer(ins.operands[1], ctx)
        carry_in = _bind.mask_reader(ins.operands[4], ctx) if takes else None

        def step(b: Any) -> None:
            carry = _U64(0) if carry_in is None else carry_in(b).astype(_U64)
            total, flag = function(_wide(x(b)), _wide(y(b)), carry)
            write(b, total.astype(_U32))
            carry_out(b, np.broadcast_to(flag, b.exec.shape))

        return step

    return bind


def _sum(a: Any, b: Any, carry: Any) -> Any:
    total = a + b + carry
    return total, total >> _U64(32) != 0


def _difference(a: Any, b: Any, carry: Any) -> Any:
    return a - b - carry, b + carry > a


def _reversed(a: Any, b: Any, carry: Any) -> Any:
    return _difference(b, a, carry)


custom("v_add_co_u32", family="valu", results=2)(_carrying(_sum, False))
custom("v_sub_co_u32", family="valu", results=2)(_carrying(_difference, False))
custom("v_subrev_co_u32", family="valu", results=2)(_carrying(_reversed, False))
custom("v_addc_co_u32", "v_add_co_ci_u32", family="valu", results=2)(_carrying(_sum, True))
custom("v_subb_co_u32", "v_sub_co_ci_u32", family="valu", results=2)(_carrying(_difference, True))
custom("v_subbrev_co_u32", "v_subrev_co_ci_u32", family="valu", results=2)(
    _carrying(_reversed, True)
)

vector("v_add_nc_u64", "v_add_u64", dst="u64", src="u64 u64")(lambda a, b: a + b)
vector("v_sub_nc_u64", "v_sub_u64", dst="u64", src="u64 u64")(lambda a, b: a - b)
vector("v_mul_u64", dst="u64", src="u64 u64")(lambda a, b: a * b)
vector("v_add3_u32", src="u32 u32 u32")(lambda a, b, c: a + b + c)
vector("v_lshl_add_u32", src="u32 u32 u32")(lambda a, b, c: (a << (b & _U32(31))) + c)
vector("v_add_lshl_u32", src="u32 u32 u32")(lambda a, b, c: (a + b) << (c & _U32(31)))
vector("v_lshl_or_b32", src="u32 u32 u32")(lambda a, b, c: (a << (b & _U32(31))) | c)
vector("v_and_or_b32", src="u32 u32 u32")(lambda a, b, c: (a & b) | c)
vector("v_or3_b32", src="u32 u32 u32")(lambda a, b, c: a | b | c)
vector("v_xor3_b32", src="u32 u32 u32")(lambda a, b, c: a ^ b ^ c)
vector("v_xad_u32", src="u32 u32 u32")(lambda a, b, c: (a ^ b) + c)
vector("v_lshl_add_u64", dst="u64", src="u64 u32 u64")(
    lambda a, b, c: (a << _wide(b & _U32(7))) + c
)
vector("v_bfi_b32", src="u32 u32 u32")(lambda a, b, c: (a & b) | (~np.asarray(a) & c))
vector("v_mul_lo_u32")(lambda a, b: a * b)
vector("v_mul_lo_u16", dst="u16", src="u16 u16")(lambda a, b: a * b)
vector("v_mad_u32", src="u32 u32 u32")(lambda a, b, c: a * b + c)
vector("v_mad_u16", dst="u16", src="u16 u16 u16")(lambda a, b, c: a * b + c)
vector("v_mad_i16", dst="i16", src="i16 i16 i16")(lambda a, b, c: a * b + c)
vector("v_mul_hi_u32")(lambda a, b: ((_wide(a) * _wide(b)) >> _U64(32)).astype(_U32))
vector("v_mul_hi_i32", dst="i32", src="i32 i32")(
    lambda a, b: ((np.asarray(a).astype(_I64) * np.asarray(b).astype(_I64)) >> _I64(32)).astype(
        _I32
    )
)
_24 = _U32(0xFFFFFF)
vector("v_mul_u32_u24")(lambda a, b: (a & _24) * (b & _24))
vector("v_mad_u32_u24", src="u32 u32 u32")(lambda a, b, c: (a & _24) * (b & _24) + c)
vector("v_mul_hi_u32_u24")(
    lambda a, b: ((_wide(a & _24) * _wide(b & _24)) >> _U64(32)).astype(_U32)
)


def _signed24(value: Any) -> Any:
    return (value << _U32(8)).view(_I32) >> _I32(8)


vector("v_mul_hi_i32_i24", dst="i32", src="u32 u32")(
    lambda a, b: ((_signed24(a).astype(_I64) * _signed24(b).astype(_I64)) >> _I64(32)).astype(_I32)
)

vector("v_mul_i32_i24", dst="i32")(lambda a, b: _signed24(a) * _signed24(b))
vector("v_mad_i32_i24", dst="i32", src="u32 u32 i32")(
    lambda a, b, c: _signed24(a) * _signed24(b) + c
)
vector("v_mad_u32_u16", src="u16 u16 u32")(
    lambda a, b, c: np.asarray(a).astype(_U32) * np.asarray(b).astype(_U32) + c
)
vector("v_mad_i32_i16", dst="i32", src="i16 i16 i32")(
    lambda a, b, c: np.asarray(a).astype(_I32) * np.asarray(b).astype(_I32) + c
)


def _mad_wide(signed: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D (64 bits) = S0 * S1 + S2, with a mask of carries out where it is unsigned."""
        named = isinstance(ins.operands[1], Reg) and ins.operands[1].kind == "s" and len(ins.operands) == 5  # fmt: skip
        first = 2 if named else 1
        small = "i32" if signed else "u32"
        x, y = (
            _bind.vector_reader(ins, o, small, ctx, i)
            for i, o in enumerate(ins.operands[first : first + 2])
        )
        z = _bind.vector_reader(ins, ins.operands[first + 2], "u64", ctx, 2)
        write = _bind.vector_writer(ins, ins.operands[0], "u64", ctx)
        carry = _bind.mask_writer(ins.operands[1], ctx) if named else None
        wide = _I64 if signed else _U64

        def step(b: Any) -> None:
            product = (np.asarray(x(b)).astype(wide) * np.asarray(y(b)).astype(wide)).view(_U64)
            total = product + z(b)
            if carry is not None:
                carry(b, np.broadcast_to(total < product, b.exec.shape))
            write(b, total)

        return step

    return bind


custom("v_mad_u64_u32", "v_mad_co_u64_u32", "v_mad_nc_u64_u32", family="valu", results=2)(
    _mad_wide(False)
)
custom("v_mad_i64_i32", "v_mad_co_i64_i32", "v_mad_nc_i64_i32", family="valu", results=2)(
    _mad_wide(True)
)

# -- logic, shifts, fields -------------------------------------------------------------------------

vector("v_and_b32", "v_dual_and_b32")(lambda a, b: a & b)
vector("v_or_b32", "v_dual_or_b32")(lambda a, b: a | b)
vector("v_xor_b32", "v_dual_xor_b32")(lambda a, b: a ^ b)
vector("v_xnor_b32")(lambda a, b: ~(a ^ b))
vector("v_and_b16", dst="u16", src="u16 u16")(lambda a, b: a & b)
vector("v_or_b16", dst="u16", src="u16 u16")(lambda a, b: a | b)
vector("v_xor_b16", dst="u16", src="u16 u16")(lambda a, b: a ^ b)
vector("v_lshlrev_b32", "v_dual_lshlrev_b32")(lambda a, b: b << (a & _U32(31)))
vector("v_lshrrev_b32", "v_dual_lshrrev_b32")(lambda a, b: b >> (a & _U32(31)))
vector("v_ashrrev_i32", "v_dual_ashrrev_i32", dst="i32", src="i32 i32")(
    lambda a, b: b >> (a & _I32(31))
)
vector("v_lshlrev_b16", dst="u16", src="u16 u16")(lambda a, b: b << (a & np.uint16(15)))
vector("v_lshrrev_b16", dst="u16", src="u16 u16")(lambda a, b: b >> (a & np.uint16(15)))
vector("v_ashrrev_i16", dst="i16", src="i16 i16")(lambda a, b: b >> (a & np.int16(15)))
vector("v_lshlrev_b64", dst="u64", src="u32 u64")(lambda a, b: b << _wide(a & _U32(63)))
vector("v_lshrrev_b64", dst="u64", src="u32 u64")(lambda a, b: b >> _wide(a & _U32(63)))
vector("v_ashrrev_i64", dst="i64", src="u32 i64")(
    lambda a, b: b >> np.asarray(a & _U32(63)).astype(_I64)
)
vector("v_bfe_u32", src="u32 u32 u32")(
    lambda a, b, c: (a >> (b & _U32(31))) & ((_U32(1) << (c & _U32(31))) - _U32(1))
)
vector("v_bfm_b32")(lambda a, b: ((_U32(1) << (a & _U32(31))) - _U32(1)) << (b & _U32(31)))
vector("v_alignbit_b32", src="u32 u32 u32")(
    lambda a, b, c: (((_wide(a) << _U64(32)) | _wide(b)) >> _wide(c & _U32(31))).astype(_U32)
)
vector("v_alignbyte_b32", src="u32 u32 u32")(
    lambda a, b, c: (((_wide(a) << _U64(32)) | _wide(b)) >> _wide((c & _U32(3)) << _U32(3))).astype(
        _U32
    )  # fmt: skip
)


@vector("v_bfe_i32", dst="i32", src="i32 u32 u32")
def v_bfe_i32(a: Any, b: Any, c: Any) -> Any:
    """D = the S2[4:0] bits of S0 from bit S1[4:0] on, sign-extended."""
    offset, width = b & _U32(31), c & _U32(31)
    shifted = a >> np.asarray(offset).astype(_I32)
    up = np.asarray((_U32(32) - width) & _U32(31)).astype(_I32)
    return np.where(width == 0, _I32(0), (shifted << up) >> up)


@vector("v_perm_b32", src="u32 u32 u32")
def v_perm_b32(a: Any, b: Any, c: Any) -> Any:
    """Select for each byte of D one of the eight bytes of {S0, S1} by a byte of S2, a sign, 0 or 0xff."""
    source = (_wide(a) << _U64(32)) | _wide(b)
    choices = np.asarray(c)
    if choices.ndim == 0 or (choices.shape[-1] == 1 and (choices == choices.flat[0]).all()):
        return _perm_constant(source, int(choices.flat[0]))
    result = np.zeros(np.broadcast(source, c).shape, _U32)
    for place in range(4):
        choice = _wide((c >> _U32(8 * place)) & _U32(0xFF))
        byte = (source >> (np.minimum(choice, _U64(7)) * _U64(8))) & _U64(0xFF)
        sign = (choice >= 8) & (choice <= 11)
        bit = (source >> ((np.clip(choice, 8, 11) - _U64(8)) * _U64(16) + _U64(15))) & _U64(1)
        byte = np.where(sign, bit * _U64(0xFF), byte)
        byte = np.where(choice == 12, _U64(0), np.where(choice > 12, _U64(0xFF), byte))
        result |= byte.astype(_U32) << _U32(8 * place)
    return result


def _perm_constant(source: Any, selector: int) -> Any:
    result = np.zeros(source.shape, _U32)
    for place in range(4):
        choice = (selector >> (8 * place)) & 0xFF
        if choice <= 7:
            byte = (source >> _U64(8 * choice)) & _U64(0xFF)
        elif choice <= 11:
            byte = ((source >> _U64(16 * (choice - 8) + 15)) & _U64(1)) * _U64(0xFF)
        else:
            byte = _U64(0 if choice == 12 else 0xFF)
        result |= np.asarray(byte).astype(_U32) << _U32(8 * place)
    return result


def _truth_table(name: str, kind: str) -> None:
    def pair(ins: Instruction, ctx: Context) -> tuple[Any, Any]:
        """D = any function of three bits, given as its table."""
        reads = [_bind.vector_reader(ins, o, kind, ctx, i) for i, o in enumerate(ins.operands[1:4])]
        table = int(ins.modifiers.get("bitop3", ins.modifiers.get("bitop2", "0")), 0)
        write = _bind.vector_writer(ins, ins.operands[0], kind, ctx)

        def compute(b: Any) -> Any:
            a, c = reads[0](b), reads[1](b)
            d = reads[2](b) if len(reads) == 3 else np.zeros((), _bind.TYPES[kind])
            return bit_operation(table, a, c, d)

        return compute, write

    def bind(ins: Instruction, ctx: Context) -> Step:
        compute, write = pair(ins, ctx)
        return lambda b: write(b, compute(b))

    OPS[name] = Op(bind, "valu", 1, pair, pair.__doc__ or "")


def bit_operation(table: int, a: Any, b: Any, c: Any) -> Any:
    """Bit n of `table` is the result where the bits of (a, b, c) are those of n, `a` the highest."""
    common = {0x80: lambda: a & b & c, 0xFE: lambda: a | b | c, 0x96: lambda: a ^ b ^ c}
    if table in common:
        return common[table]()
    a, b, c = np.asarray(a), np.asarray(b), np.asarray(c)
    result: Any = a.dtype.type(0)
    for number in range(8):
        if table >> number & 1:
            term = (a if number & 4 else ~a) & (b if number & 2 else ~b)
            result = result | (term & (c if number & 1 else ~c))
    return result


_truth_table("v_bitop3_b32", "u32")
_truth_table("v_bitop3_b16", "u16")
_truth_table("v_dual_bitop2_b32", "u32")

# -- minimum, maximum ------------------------------------------------------------------------------

for _kind in ("u32", "i32", "u16", "i16"):
    vector(f"v_min_{_kind}", dst=_kind, src=(_kind,) * 2)(np.minimum)
    vector(f"v_max_{_kind}", dst=_kind, src=(_kind,) * 2)(np.maximum)
    vector(f"v_min3_{_kind}", dst=_kind, src=(_kind,) * 3)(
        lambda a, b, c: np.minimum(np.minimum(a, b), c)
    )
    vector(f"v_max3_{_kind}", dst=_kind, src=(_kind,) * 3)(
        lambda a, b, c: np.maximum(np.maximum(a, b), c)
    )
    vector(f"v_med3_{_kind}", dst=_kind, src=(_kind,) * 3)(
        lambda a, b, c: np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    )
for _kind in ("u32", "i32"):
    vector(f"v_add_max_{_kind}", dst=_kind, src=(_kind,) * 3)(lambda a, b, c: np.maximum(a + b, c))
    vector(f"v_add_min_{_kind}", dst=_kind, src=(_kind,) * 3)(lambda a, b, c: np.minimum(a + b, c))
    vector(f"v_maxmin_{_kind}", f"v_max_min_{_kind}", dst=_kind, src=(_kind,) * 3)(
        lambda a, b, c: np.minimum(np.maximum(a, b), c)
    )
    vector(f"v_minmax_{_kind}", f"v_min_max_{_kind}", dst=_kind, src=(_kind,) * 3)(
        lambda a, b, c: np.maximum(np.minimum(a, b), c)
    )
for _kind in ("u64", "i64"):
    vector(f"v_min_{_kind}", dst=_kind, src=(_kind,) * 2)(np.minimum)
    vector(f"v_max_{_kind}", dst=_kind, src=(_kind,) * 2)(np.maximum)
vector("v_dual_max_i32", dst="i32", src="i32 i32")(np.maximum)
vector("v_dual_min_i32", dst="i32", src="i32 i32")(np.minimum)
vector("v_sad_u32", src="u32 u32 u32")(lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c)

# -- choosing by a mask ----------------------------------------------------------------------------


def _conditional(name: str, kind: str) -> None:
    def pair(ins: Instruction, ctx: Context) -> tuple[Any, Any]:
        """D = the lane's bit of the mask ? S1 : S0."""
        no, yes = (
            _bind.vector_reader(ins, o, kind, ctx, i) for i, o in enumerate(ins.operands[1:3])
        )
        mask = ins.operands[3] if len(ins.operands) > 3 else Reg("s", VCC, ctx.lanes // 32)
        chosen = _bind.mask_reader(mask, ctx)
        write = _bind.vector_writer(ins, ins.operands[0], kind, ctx)
        return (lambda b: np.where(chosen(b), yes(b), no(b))), write

    def bind(ins: Instruction, ctx: Context) -> Step:
        compute, write = pair(ins, ctx)
        return lambda b: write(b, compute(b))

    OPS[name] = Op(bind, "valu", 1, pair, pair.__doc__ or "")


_conditional("v_cndmask_b16", "u16")
_conditional("v_dual_cndmask_b32", "f32")
_conditional("v_cndmask_b32", "f32")

# -- lanes -----------------------------------------------------------------------------------------


def _mbcnt(high: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = S1 + how many bits of S0, a mask of half a wave, lie below the lane's own."""
        mask = _bind.vector_reader(ins, ins.operands[1], "u32", ctx)
        add = _bind.vector_reader(ins, ins.operands[2], "u32", ctx)
        write = _bind.vector_writer(ins, ins.operands[0], "u32", ctx)
        lane = np.arange(ctx.lanes)
        below = np.clip(lane - 32, 0, 32) if high else np.clip(lane, 0, 32)
        ones = ((_U64(1) << below.astype(_U64)) - _U64(1)).astype(_U32)[None, :]

        def step(b: Any) -> None:
            write(b, popcount(np.broadcast_to(mask(b) & ones, b.exec.shape)) + add(b))

        return step

    return bind


custom("v_mbcnt_lo_u32_b32", family="valu")(_mbcnt(False))
custom("v_mbcnt_hi_u32_b32", family="valu")(_mbcnt(True))
custom("v_nop", family="valu", results=0)(lambda ins, ctx: lambda b: None)
