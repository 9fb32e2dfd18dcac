"""Scalar moves, integer arithmetic and comparisons: SOP1, SOP2, SOPC, SOPK.

ISA: CDNA3 5 and 12.1-12.4; RDNA3 6 and 16.1-16.4; RDNA4 6 and 16.1-16.4.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.amdgcn.decode.operands import immediate
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Step, custom, scalar

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
    value = immediate(operand) & 0xFFFF
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
scalar("s_cmp_eq_u64", dst=None, src="u64 u64")(np.equal)
scalar("s_cmp_lg_u64", dst=None, src="u64 u64")(np.not_equal)
for _kind in ("f32", "f16"):
    _two = (_kind, _kind)
    for _name in ("eq", "gt", "ge", "lt", "le"):
        scalar(f"s_cmp_{_name}_{_kind}", dst=None, src=_two)(_COMPARE[_name])
    scalar(f"s_cmp_lg_{_kind}", dst=None, src=_two)(lambda a, b: (a < b) | (a > b))
    for _name, _base in (("nlt", "lt"), ("nle", "le"), ("ngt", "gt"), ("nge", "ge")):
        scalar(f"s_cmp_{_name}_{_kind}", dst=None, src=_two)(
            lambda a, b, compare=_COMPARE[_base]: ~compare(a, b)
        )
    scalar(f"s_cmp_nlg_{_kind}", dst=None, src=_two)(lambda a, b: ~((a < b) | (a > b)))
    scalar(f"s_cmp_neq_{_kind}", dst=None, src=_two)(np.not_equal)
    scalar(f"s_cmp_o_{_kind}", dst=None, src=_two)(lambda a, b: (a == a) & (b == b))
    scalar(f"s_cmp_u_{_kind}", dst=None, src=_two)(lambda a, b: (a != a) | (b != b))


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
