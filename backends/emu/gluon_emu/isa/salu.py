"""Scalar arithmetic: SOP1, SOP2, SOPC, SOPK.

ISA: CDNA3 5 and 12.1-12.4; RDNA3 6 and 16.1-16.4; RDNA4 6 and 16.1-16.4.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.decode.operands import EXEC, Const, Reg
from gluon_emu.decode.text import Instruction
from gluon_emu.isa import bind as _bind
from gluon_emu.isa.bind import Context
from gluon_emu.isa.floats import fma32, max_number, min_number
from gluon_emu.isa.table import Step, custom, scalar

_U32, _U64, _I32 = np.uint32, np.uint64, np.int32


def _wide(value: Any) -> Any:
    return np.asarray(value).astype(_U64)


# -- moves -----------------------------------------------------------------------------------------


@scalar("s_mov_b32", src="u32")
def s_mov_b32(a: Any) -> Any:
    """D = S0."""
    return a


@scalar("s_mov_b64", dst="u64", src="u64")
def s_mov_b64(a: Any) -> Any:
    """D = S0."""
    return a


@custom("s_movk_i32", family="salu")
def s_movk_i32(ins: Instruction, ctx: Context) -> Step:
    """D = the sign-extended 16 bits."""
    value = _sixteen(ins.operands[1])
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)
    return lambda b: write(b, value.view(_U32))


def _sixteen(operand: Any, signed: bool = True) -> Any:
    assert isinstance(operand, Const) and isinstance(operand.value, int)
    value = operand.value & 0xFFFF
    if signed and value >= 0x8000:
        value -= 0x10000
    return np.array(value & 0xFFFFFFFF, _U32).view(_I32)


@custom("s_cmovk_i32", family="salu")
def s_cmovk_i32(ins: Instruction, ctx: Context) -> Step:
    """if SCC: D = the sign-extended 16 bits."""
    value = _sixteen(ins.operands[1]).view(_U32)
    read = _bind.scalar_reader(ins.operands[0], "u32", ctx)
    write = _bind.scalar_writer(ins.operands[0], "u32", ctx)
    return lambda b: write(b, np.where(b.scc, value, read(b)))


def _conditional_move(kind: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """if SCC: D = S0."""
        read = _bind.scalar_reader(ins.operands[1], kind, ctx)
        old = _bind.scalar_reader(ins.operands[0], kind, ctx)
        write = _bind.scalar_writer(ins.operands[0], kind, ctx)
        return lambda b: write(b, np.where(b.scc, read(b), old(b)))

    return bind


custom("s_cmov_b32", family="salu")(_conditional_move("u32"))
custom("s_cmov_b64", family="salu")(_conditional_move("u64"))


def _select(kind: str) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = SCC ? S0 : S1."""
        yes, no = (_bind.scalar_reader(o, kind, ctx) for o in ins.operands[1:3])
        write = _bind.scalar_writer(ins.operands[0], kind, ctx)
        return lambda b: write(b, np.where(b.scc, yes(b), no(b)))

    return bind


custom("s_cselect_b32", family="salu")(_select("u32"))
custom("s_cselect_b64", family="salu")(_select("u64"))

# -- add and subtract ------------------------------------------------------------------------------


@scalar("s_add_u32", "s_add_co_u32", scc="own")
def s_add_u32(a: Any, b: Any) -> Any:
    """D = S0 + S1, SCC = carry out."""
    total = a + b
    return total, total < a


@scalar("s_sub_u32", "s_sub_co_u32", scc="own")
def s_sub_u32(a: Any, b: Any) -> Any:
    """D = S0 - S1, SCC = borrow."""
    return a - b, b > a


@scalar("s_add_i32", "s_add_co_i32", dst="i32", src="i32 i32", scc="own")
def s_add_i32(a: Any, b: Any) -> Any:
    """D = S0 + S1, SCC = signed overflow."""
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


@scalar("s_sub_i32", "s_sub_co_i32", dst="i32", src="i32 i32", scc="own")
def s_sub_i32(a: Any, b: Any) -> Any:
    """D = S0 - S1, SCC = signed overflow."""
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


def _with_carry(subtract: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = S0 +- S1 +- SCC, SCC = carry or borrow."""
        x, y = (_bind.scalar_reader(o, "u32", ctx) for o in ins.operands[1:3])
        write = _bind.scalar_writer(ins.operands[0], "u32", ctx)

        def step(b: Any) -> None:
            first, second, carry = _wide(x(b)), _wide(y(b)), b.scc.astype(_U64)
            if subtract:
                total, flag = first - second - carry, second + carry > first
            else:
                total = first + second + carry
                flag = total >> _U64(32) != 0
            write(b, total.astype(_U32))
            b.scc = np.broadcast_to(flag, b.scc.shape)

        return step

    return bind


custom("s_addc_u32", "s_add_co_ci_u32", family="salu")(_with_carry(False))
custom("s_subb_u32", "s_sub_co_ci_u32", family="salu")(_with_carry(True))


@scalar("s_add_nc_u64", "s_add_u64", dst="u64", src="u64 u64")
def s_add_nc_u64(a: Any, b: Any) -> Any:
    """D = S0 + S1."""
    return a + b


@scalar("s_sub_nc_u64", "s_sub_u64", dst="u64", src="u64 u64")
def s_sub_nc_u64(a: Any, b: Any) -> Any:
    """D = S0 - S1."""
    return a - b


@custom("s_addk_i32", "s_addk_co_i32", family="salu")
def s_addk_i32(ins: Instruction, ctx: Context) -> Step:
    """D += the sign-extended 16 bits, SCC = signed overflow."""
    value = _sixteen(ins.operands[1])
    read = _bind.scalar_reader(ins.operands[0], "i32", ctx)
    write = _bind.scalar_writer(ins.operands[0], "i32", ctx)

    def step(b: Any) -> None:
        old = read(b)
        total = old + value
        flag = ((old ^ total) & (value ^ total)) < 0
        write(b, total)
        b.scc = flag

    return step


@custom("s_mulk_i32", family="salu")
def s_mulk_i32(ins: Instruction, ctx: Context) -> Step:
    """D *= the sign-extended 16 bits."""
    value = _sixteen(ins.operands[1])
    read = _bind.scalar_reader(ins.operands[0], "i32", ctx)
    write = _bind.scalar_writer(ins.operands[0], "i32", ctx)
    return lambda b: write(b, read(b) * value)


def _shift_add(places: int) -> Any:
    def compute(a: Any, b: Any) -> Any:
        """D = (S0 << n) + S1, SCC = carry out."""
        total = (_wide(a) << _U64(places)) + _wide(b)
        return total.astype(_U32), total >> _U64(32) != 0

    return compute


for _places in (1, 2, 3, 4):
    scalar(f"s_lshl{_places}_add_u32", scc="own")(_shift_add(_places))

# -- multiply --------------------------------------------------------------------------------------


@scalar("s_mul_i32")
def s_mul_i32(a: Any, b: Any) -> Any:
    """D = low 32 bits of S0 * S1."""
    return a * b


@scalar("s_mul_hi_u32")
def s_mul_hi_u32(a: Any, b: Any) -> Any:
    """D = high 32 bits of the unsigned product."""
    return ((_wide(a) * _wide(b)) >> _U64(32)).astype(_U32)


@scalar("s_mul_hi_i32", dst="i32", src="i32 i32")
def s_mul_hi_i32(a: Any, b: Any) -> Any:
    """D = high 32 bits of the signed product."""
    product = np.asarray(a).astype(np.int64) * np.asarray(b).astype(np.int64)
    return (product >> np.int64(32)).astype(_I32)


@scalar("s_mul_u64", dst="u64", src="u64 u64")
def s_mul_u64(a: Any, b: Any) -> Any:
    """D = low 64 bits of S0 * S1."""
    return a * b


# -- logic, with SCC = D != 0 ----------------------------------------------------------------------

_LOGIC = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "and_not1": lambda a, b: a & ~b,
    "andn1": lambda a, b: b & ~a,
    "orn2": lambda a, b: a | ~b,
    "or_not1": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
_SAVE = {**_LOGIC, "and_not0": lambda a, b: b & ~a, "or_not0": lambda a, b: b | ~a}


def _save_exec(function: Any, kind: str, keep: bool = True) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D = EXEC; EXEC = S0 op EXEC; SCC = EXEC != 0. The `wrexec` forms write EXEC to D after."""
        mask = Reg("s", EXEC, 2 if kind == "u64" else 1)
        read = _bind.scalar_reader(ins.operands[1], kind, ctx)
        old = _bind.scalar_reader(mask, kind, ctx)
        write = _bind.scalar_writer(ins.operands[0], kind, ctx)
        update = _bind.scalar_writer(mask, kind, ctx)

        def step(b: Any) -> None:
            before = old(b).copy()
            after = function(read(b), before)
            update(b, after)
            write(b, before if keep else after)
            b.scc = np.broadcast_to(after != 0, b.scc.shape)

        return step

    return bind


for _bits, _kind in ((32, "u32"), (64, "u64")):
    for _name, _function in _LOGIC.items():
        if _name != "andn1":
            scalar(f"s_{_name}_b{_bits}", dst=_kind, src=(_kind, _kind), scc="nonzero")(_function)
    for _name, _function in _SAVE.items():
        # In the names of saveexec, n1 negates source 0 and n2 EXEC; not1 negates EXEC, not0 source 0.
        custom(f"s_{_name}_saveexec_b{_bits}", family="salu")(_save_exec(_function, _kind))
    custom(f"s_orn1_saveexec_b{_bits}", family="salu")(_save_exec(lambda a, b: b | ~a, _kind))
    for _name in ("andn1", "and_not0"):
        custom(f"s_{_name}_wrexec_b{_bits}", family="salu")(
            _save_exec(lambda a, b: b & ~a, _kind, keep=False)
        )
    for _name in ("andn2", "and_not1"):
        custom(f"s_{_name}_wrexec_b{_bits}", family="salu")(
            _save_exec(lambda a, b: a & ~b, _kind, keep=False)
        )
    scalar(f"s_not_b{_bits}", dst=_kind, src=(_kind,), scc="nonzero")(lambda a: ~a)

# -- shifts and fields -----------------------------------------------------------------------------


@scalar("s_lshl_b32", scc="nonzero")
def s_lshl_b32(a: Any, b: Any) -> Any:
    """D = S0 << S1[4:0]."""
    return a << (b & _U32(31))


@scalar("s_lshr_b32", scc="nonzero")
def s_lshr_b32(a: Any, b: Any) -> Any:
    """D = S0 >> S1[4:0], zeros from above."""
    return a >> (b & _U32(31))


@scalar("s_ashr_i32", dst="i32", src="i32 u32", scc="nonzero")
def s_ashr_i32(a: Any, b: Any) -> Any:
    """D = S0 >> S1[4:0], the sign from above."""
    return a >> np.asarray(b & _U32(31)).astype(_I32)


@scalar("s_lshl_b64", dst="u64", src="u64 u32", scc="nonzero")
def s_lshl_b64(a: Any, b: Any) -> Any:
    """D = S0 << S1[5:0]."""
    return a << _wide(b & _U32(63))


@scalar("s_lshr_b64", dst="u64", src="u64 u32", scc="nonzero")
def s_lshr_b64(a: Any, b: Any) -> Any:
    """D = S0 >> S1[5:0], zeros from above."""
    return a >> _wide(b & _U32(63))


@scalar("s_ashr_i64", dst="i64", src="i64 u32", scc="nonzero")
def s_ashr_i64(a: Any, b: Any) -> Any:
    """D = S0 >> S1[5:0], the sign from above."""
    return a >> np.asarray(b & _U32(63)).astype(np.int64)


def _field(value: Any, spec: Any, bits: int) -> tuple[Any, Any]:
    spec = np.asarray(spec)
    offset = (spec & _U32(bits - 1)).astype(_U64)
    width = np.minimum((spec >> _U32(16)) & _U32(0x7F), _U32(bits)).astype(_U64)
    return _wide(value) >> offset, width


@scalar("s_bfe_u32", scc="nonzero")
def s_bfe_u32(a: Any, b: Any) -> Any:
    """D = the S1[22:16] bits of S0 from bit S1[4:0] on."""
    shifted, width = _field(a, b, 32)
    return (shifted & ((_U64(1) << width) - _U64(1))).astype(_U32)


@scalar("s_bfe_i32", dst="i32", src="u32 u32", scc="nonzero")
def s_bfe_i32(a: Any, b: Any) -> Any:
    """The same, sign-extended."""
    extended = np.asarray(a).view(_I32).astype(np.int64).view(_U64)
    shifted, width = _field(extended, b, 32)
    up = _U64(64) - width
    whole = np.where(width == 0, _U64(0), shifted << np.minimum(up, _U64(63)))
    return (whole.view(np.int64) >> np.minimum(up, _U64(63)).astype(np.int64)).astype(_I32)


@scalar("s_bfe_u64", dst="u64", src="u64 u32", scc="nonzero")
def s_bfe_u64(a: Any, b: Any) -> Any:
    """D = the S1[22:16] bits of S0 from bit S1[5:0] on."""
    shifted, width = _field(a, b, 64)
    full = width >= 64
    ones = np.where(full, ~_U64(0), (_U64(1) << np.minimum(width, _U64(63))) - _U64(1))
    return shifted & ones


@scalar("s_bfe_i64", dst="i64", src="u64 u32", scc="nonzero")
def s_bfe_i64(a: Any, b: Any) -> Any:
    """The same, sign-extended."""
    spec = np.asarray(b)
    offset = (spec & _U32(63)).astype(np.int64)
    width = np.minimum(((spec >> _U32(16)) & _U32(0x7F)).astype(np.int64), 64 - offset)
    up = np.clip(64 - offset - width, 0, 63)
    value = (np.asarray(a) << up.astype(_U64)).view(np.int64) >> np.clip(64 - width, 0, 63)
    return np.where(width == 0, np.int64(0), value)


@scalar("s_bfm_b32")
def s_bfm_b32(a: Any, b: Any) -> Any:
    """D = S0[4:0] ones from bit S1[4:0] on."""
    return ((_U32(1) << (a & _U32(31))) - _U32(1)) << (b & _U32(31))


@scalar("s_bfm_b64", dst="u64", src="u32 u32")
def s_bfm_b64(a: Any, b: Any) -> Any:
    """D = S0[5:0] ones from bit S1[5:0] on."""
    return ((_U64(1) << _wide(a & _U32(63))) - _U64(1)) << _wide(b & _U32(63))


@scalar("s_pack_ll_b32_b16")
def s_pack_ll_b32_b16(a: Any, b: Any) -> Any:
    """D = {S1[15:0], S0[15:0]}."""
    return (a & _U32(0xFFFF)) | (b << _U32(16))


@scalar("s_pack_lh_b32_b16")
def s_pack_lh_b32_b16(a: Any, b: Any) -> Any:
    """D = {S1[31:16], S0[15:0]}."""
    return (a & _U32(0xFFFF)) | (b & _U32(0xFFFF0000))


@scalar("s_pack_hh_b32_b16")
def s_pack_hh_b32_b16(a: Any, b: Any) -> Any:
    """D = {S1[31:16], S0[31:16]}."""
    return (a >> _U32(16)) | (b & _U32(0xFFFF0000))


@scalar("s_pack_hl_b32_b16")
def s_pack_hl_b32_b16(a: Any, b: Any) -> Any:
    """D = {S1[15:0], S0[31:16]}."""
    return (a >> _U32(16)) | (b << _U32(16))


@scalar("s_sext_i32_i8", dst="i32", src="u32")
def s_sext_i32_i8(a: Any) -> Any:
    """D = S0[7:0], sign-extended."""
    return np.asarray(a).astype(np.uint8).view(np.int8).astype(_I32)


@scalar("s_sext_i32_i16", dst="i32", src="u32")
def s_sext_i32_i16(a: Any) -> Any:
    """D = S0[15:0], sign-extended."""
    return np.asarray(a).astype(np.uint16).view(np.int16).astype(_I32)


def _bitset(value: int) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """D[S0[4:0]] = a bit."""
        read = _bind.scalar_reader(ins.operands[1], "u32", ctx)
        old = _bind.scalar_reader(ins.operands[0], "u32", ctx)
        write = _bind.scalar_writer(ins.operands[0], "u32", ctx)

        def step(b: Any) -> None:
            bit = _U32(1) << (read(b) & _U32(31))
            write(b, old(b) | bit if value else old(b) & ~bit)

        return step

    return bind


custom("s_bitset0_b32", family="salu")(_bitset(0))
custom("s_bitset1_b32", family="salu")(_bitset(1))

# -- counting --------------------------------------------------------------------------------------


def popcount(value: Any) -> Any:
    """Ones in each element of an array of uint32 or uint64."""
    value = np.atleast_1d(np.asarray(value))
    flat = np.ascontiguousarray(value).view(np.uint8).reshape(*value.shape, -1)
    return np.unpackbits(flat, axis=-1).sum(-1, dtype=_U32)


def lowest_bit(value: Any) -> Any:
    """Index of the lowest one of each element, -1 (as uint32) where there is none."""
    value = np.asarray(value)
    one = value & (~value + value.dtype.type(1))
    found = popcount(one - value.dtype.type(1))
    return np.where(value == 0, _U32(0xFFFFFFFF), found)


def highest_bit(value: Any) -> Any:
    """Zeros above the highest one of each element, -1 (as uint32) where there is none."""
    value = np.atleast_1d(np.asarray(value))
    bits = value.dtype.itemsize * 8
    smeared = value.copy()
    for places in (1, 2, 4, 8, 16, 32):
        if places < bits:
            smeared = smeared | (smeared >> value.dtype.type(places))
    return np.where(value == 0, _U32(0xFFFFFFFF), _U32(bits) - popcount(smeared))


@scalar("s_bcnt1_i32_b32", src="u32", scc="nonzero")
def s_bcnt1_i32_b32(a: Any) -> Any:
    """D = how many ones S0 has."""
    return popcount(a)


@scalar("s_bcnt1_i32_b64", src="u64", scc="nonzero")
def s_bcnt1_i32_b64(a: Any) -> Any:
    """D = how many ones S0 has."""
    return popcount(a)


@scalar("s_bcnt0_i32_b32", src="u32", scc="nonzero")
def s_bcnt0_i32_b32(a: Any) -> Any:
    """D = how many zeros S0 has."""
    return popcount(~np.asarray(a))


@scalar("s_bcnt0_i32_b64", src="u64", scc="nonzero")
def s_bcnt0_i32_b64(a: Any) -> Any:
    """D = how many zeros S0 has."""
    return popcount(~np.asarray(a))


for _kind, _bits in (("u32", 32), ("u64", 64)):
    scalar(f"s_ff1_i32_b{_bits}", f"s_ctz_i32_b{_bits}", src=(_kind,))(lowest_bit)
    scalar(f"s_flbit_i32_b{_bits}", f"s_clz_i32_u{_bits}", src=(_kind,))(highest_bit)


@scalar("s_flbit_i32", "s_cls_i32", src="i32")
def s_flbit_i32(a: Any) -> Any:
    """D = how many bits above are like the sign bit, -1 where all are."""
    value = np.atleast_1d(np.asarray(a))
    return highest_bit(np.where(value < 0, ~value, value).view(_U32))


def _reverse(value: Any) -> Any:
    value = np.atleast_1d(np.asarray(value))
    flat = np.ascontiguousarray(value).view(np.uint8).reshape(*value.shape, -1)
    bits = np.unpackbits(flat, axis=-1, bitorder="little")[..., ::-1]
    packed = np.packbits(bits, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(value.dtype)[..., 0]


scalar("s_brev_b32", src="u32")(_reverse)
scalar("s_brev_b64", dst="u64", src="u64")(_reverse)


@scalar("s_abs_i32", dst="i32", src="i32", scc="nonzero")
def s_abs_i32(a: Any) -> Any:
    """D = |S0|."""
    return np.abs(a)


@scalar("s_absdiff_i32", dst="i32", src="i32 i32", scc="nonzero")
def s_absdiff_i32(a: Any, b: Any) -> Any:
    """D = |S0 - S1|."""
    return np.abs(a - b)


@scalar("s_min_i32", dst="i32", src="i32 i32", scc="own")
def s_min_i32(a: Any, b: Any) -> Any:
    """D = the smaller, SCC = it was S0."""
    return np.minimum(a, b), a < b


@scalar("s_max_i32", dst="i32", src="i32 i32", scc="own")
def s_max_i32(a: Any, b: Any) -> Any:
    """D = the larger, SCC = it was S0."""
    return np.maximum(a, b), a >= b


@scalar("s_min_u32", scc="own")
def s_min_u32(a: Any, b: Any) -> Any:
    """D = the smaller, SCC = it was S0."""
    return np.minimum(a, b), a < b


@scalar("s_max_u32", scc="own")
def s_max_u32(a: Any, b: Any) -> Any:
    """D = the larger, SCC = it was S0."""
    return np.maximum(a, b), a >= b


# -- comparisons -----------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def _compare_constant(function: Any, signed: bool) -> Any:
    def bind(ins: Instruction, ctx: Context) -> Step:
        """SCC = S0 op the 16 bits."""
        value = _sixteen(ins.operands[1], signed)
        read = _bind.scalar_reader(ins.operands[0], "i32" if signed else "u32", ctx)
        other = value if signed else value.view(_U32)

        def step(b: Any) -> None:
            b.scc = function(read(b), other)

        return step

    return bind


for _name, _function in _COMPARE.items():
    if _name == "ne":
        continue
    for _kind in ("i32", "u32"):
        scalar(f"s_cmp_{_name}_{_kind}", dst=None, src=(_kind, _kind))(_function)
        custom(f"s_cmpk_{_name}_{_kind}", family="salu", results=0)(
            _compare_constant(_function, _kind == "i32")
        )
    scalar(f"s_cmp_{_name}_f32", dst=None, src="f32 f32")(_function)
scalar("s_cmp_eq_u64", dst=None, src="u64 u64")(np.equal)
scalar("s_cmp_lg_u64", dst=None, src="u64 u64")(np.not_equal)
for _name, _base in (("nlt", "lt"), ("nle", "le"), ("ngt", "gt"), ("nge", "ge")):
    scalar(f"s_cmp_{_name}_f32", dst=None, src="f32 f32")(
        lambda a, b, compare=_COMPARE[_base]: ~compare(a, b)
    )
scalar("s_cmp_nlg_f32", dst=None, src="f32 f32")(lambda a, b: ~((a < b) | (a > b)))
scalar("s_cmp_neq_f32", dst=None, src="f32 f32")(np.not_equal)
scalar("s_cmp_o_f32", dst=None, src="f32 f32")(lambda a, b: (a == a) & (b == b))
scalar("s_cmp_u_f32", dst=None, src="f32 f32")(lambda a, b: (a != a) | (b != b))


def _bit_compare(wanted: int, kind: str) -> Any:
    def compute(a: Any, b: Any) -> Any:
        """SCC = whether bit S1 of S0 is as asked."""
        bits = 64 if kind == "u64" else 32
        place = np.asarray(b & _U32(bits - 1)).astype(np.asarray(a).dtype)
        one = np.asarray(a).dtype.type(1)
        return ((a >> place) & one) == one * np.asarray(a).dtype.type(wanted)

    return compute


for _wanted in (0, 1):
    scalar(f"s_bitcmp{_wanted}_b32", dst=None)(_bit_compare(_wanted, "u32"))
    scalar(f"s_bitcmp{_wanted}_b64", dst=None, src="u64 u32")(_bit_compare(_wanted, "u64"))

# -- floats in scalar registers (gfx11.5 and later) ------------------------------------------------


def to_integer(value: Any, low: int, high: int, dtype: Any) -> Any:
    """Float to integer towards zero; what does not fit becomes the nearest that does, NaN 0."""
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


for _place in ("fmac", "fmaak", "fmamk"):
    custom(f"s_{_place}_f32", family="salu")(_scalar_fma(_place))
