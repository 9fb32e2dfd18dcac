"""Scalar logic, shifts, fields and counting of bits, EXEC masks among them: SOP1, SOP2.

ISA: CDNA3 5 and 12.1-12.4; RDNA3 6 and 16.1-16.4; RDNA4 6 and 16.1-16.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.amdgcn.decode.operands import EXEC, Reg
from gluon_emu.amdgcn.decode.program import Instruction
from gluon_emu.amdgcn.isa import bind as _bind
from gluon_emu.amdgcn.isa.bind import Context
from gluon_emu.amdgcn.isa.table import Step, custom, scalar

_U32, _U64, _I32 = np.uint32, np.uint64, np.int32


def _wide(value: Any) -> Any:
    return np.asarray(value).astype(_U64)


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
    """Return the same, sign-extended."""
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
    """Return the same, sign-extended."""
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


def _bitset(value: int, kind: str) -> Any:
    one = _bind.TYPES[kind](1)
    places = 8 * one.itemsize - 1

    def bind(ins: Instruction, ctx: Context) -> Step:
        """D[S0] = a bit."""
        read = _bind.scalar_reader(ins.operands[1], "u32", ctx)
        old = _bind.scalar_reader(ins.operands[0], kind, ctx)
        write = _bind.scalar_writer(ins.operands[0], kind, ctx)

        def step(b: Any) -> None:
            bit = one << np.asarray(read(b) & _U32(places)).astype(one.dtype)
            write(b, old(b) | bit if value else old(b) & ~bit)

        return step

    return bind


for _value in (0, 1):
    custom(f"s_bitset{_value}_b32", family="salu")(_bitset(_value, "u32"))
    custom(f"s_bitset{_value}_b64", family="salu")(_bitset(_value, "u64"))

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
    zeros = popcount(one - value.dtype.type(1))
    return np.where(value == 0, _U32(0xFFFFFFFF), zeros)


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


@scalar("s_flbit_i32_i64", "s_cls_i32_i64", src="i64")
def s_flbit_i32_i64(a: Any) -> Any:
    """D = how many bits above are like the sign bit, -1 where all are."""
    value = np.atleast_1d(np.asarray(a))
    return highest_bit(np.where(value < 0, ~value, value).view(_U64))


for _kind, _bits in (("u32", 32), ("u64", 64)):
    scalar(f"s_ff0_i32_b{_bits}", src=(_kind,))(lambda a: lowest_bit(~np.asarray(a)))


def _quads(value: Any, places: int, whole: bool) -> Any:
    """For each four bits whether one is set: one bit each, or all four (`whole`)."""
    value = np.asarray(value)
    kind = value.dtype.type
    quads = np.zeros_like(value)
    for i in range(places // 4):
        bit = ((value >> kind(4 * i)) & kind(15) != 0).astype(kind)
        quads |= (bit * kind(15)) << kind(4 * i) if whole else bit << kind(i)
    return quads


for _name, _whole in (("quadmask", False), ("wqm", True)):
    for _kind, _bits in (("u32", 32), ("u64", 64)):
        scalar(f"s_{_name}_b{_bits}", dst=_kind, src=(_kind,), scc="nonzero")(
            lambda a, places=_bits, whole=_whole: _quads(a, places, whole)
        )


@scalar("s_bitreplicate_b64_b32", dst="u64", src="u32")
def s_bitreplicate_b64_b32(a: Any) -> Any:
    """D = each bit of S0 twice."""
    doubled = np.zeros(np.shape(a), _U64)
    for i in range(32):
        doubled |= _wide((a >> _U32(i)) & _U32(1)) * _U64(3) << _U64(2 * i)
    return doubled


def reverse_bits(value: Any) -> Any:
    value = np.atleast_1d(np.asarray(value))
    flat = np.ascontiguousarray(value).view(np.uint8).reshape(*value.shape, -1)
    bits = np.unpackbits(flat, axis=-1, bitorder="little")[..., ::-1]
    packed = np.packbits(bits, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(value.dtype)[..., 0]


scalar("s_brev_b32", src="u32")(reverse_bits)
scalar("s_brev_b64", dst="u64", src="u64")(reverse_bits)


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
