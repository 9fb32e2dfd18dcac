"""Single instructions on integers and scalars, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.emu.assembly import one, words

pytestmark = pytest.mark.once

RNG = np.random.default_rng(0)


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def perm(a: int, b: int, c: int) -> int:
    both = (a << 32 | b).to_bytes(8, "little")
    chosen = []
    for selector in c.to_bytes(4, "little"):
        if selector <= 7:
            chosen.append(both[selector])
        elif selector <= 11:
            chosen.append(0xFF * (both[2 * (selector - 8) + 1] >> 7))
        else:
            chosen.append(0 if selector == 12 else 0xFF)
    return int.from_bytes(bytes(chosen), "little")


def leading(x: int) -> int:
    return 0xFFFFFFFF if not x else 32 - x.bit_length()


INTEGER = {
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: (a + b & 0xFFFFFFFF) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mad_i32_i24": lambda a, b, c: signed(a, 24) * signed(b, 24) + signed(c),
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & (1 << (c & 31)) - 1,
    "v_bfe_i32": lambda a, b, c: signed(signed(a) >> (b & 31), c & 31) if c & 31 else 0,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_bfm_b32": lambda a, b: (1 << (a & 31)) - 1 << (b & 31),
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": perm,
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: signed(b) >> (a & 31),
    "v_ffbh_u32": leading,
    "v_ffbl_b32": lambda a: 0xFFFFFFFF if not a else (a & -a).bit_length() - 1,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_bcnt_u32_b32": lambda a, b: bin(a).count("1") + b,
    "v_min_i32": lambda a, b: min(signed(a), signed(b)),
    "v_max_u32": max,
    "v_max3_i32": lambda a, b, c: max(map(signed, (a, b, c))),
    "v_med3_u32": lambda a, b, c: sorted((a, b, c))[1],
    "v_sad_u32": lambda a, b, c: abs(a - b) + c,
    "v_cvt_f32_ubyte2": lambda a: int(np.float32(a >> 16 & 255).view(np.uint32)),
    "v_not_b32": lambda a: ~a,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
}


@pytest.mark.parametrize("name", INTEGER)
def test_integers(name):
    function = INTEGER[name]
    count = function.__code__.co_argcount if hasattr(function, "__code__") else 2
    sources = [words(i) for i in range(count)]
    if name == "v_perm_b32":
        sources[2] = RNG.integers(0, 16, (64, 4), dtype=np.uint8).view(np.uint32).ravel()
    text = f"{name} v9, " + ", ".join(f"v{i}" for i in range(count))
    (got,) = one(text, {f"v{i}": s for i, s in enumerate(sources)}, "v9")
    wanted = [function(*map(int, row)) & 0xFFFFFFFF for row in zip(*sources)]
    np.testing.assert_array_equal(got, np.array(wanted, np.uint32))


@pytest.mark.parametrize(
    "name", ["v_lshlrev_b64", "v_lshrrev_b64", "v_ashrrev_i64", "v_lshl_add_u64"]
)
def test_64_bits(name):
    low, high, shift, add = words(1), words(2), words(3), words(4)
    registers = {"v0": shift, "v2": low, "v3": high, "v4": add, "v5": low}
    if name == "v_lshl_add_u64":
        text = "v_lshl_add_u64 v[6:7], v[2:3], v0, v[4:5]"
    else:
        text = f"{name} v[6:7], v0, v[2:3]"
    got = one(text, registers, "v6", "v7")
    for i in range(64):
        value, n = int(high[i]) << 32 | int(low[i]), int(shift[i])
        wanted = {
            "v_lshlrev_b64": value << (n & 63),
            "v_lshrrev_b64": value >> (n & 63),
            "v_ashrrev_i64": signed(value, 64) >> (n & 63),
            "v_lshl_add_u64": (value << (n & 7)) + (int(low[i]) << 32 | int(add[i])),
        }[name]
        assert (int(got[1][i]) << 32 | int(got[0][i])) == wanted & (1 << 64) - 1


def test_carries():
    a, b = words(1), words(2)
    carry = int(RNG.integers(0, 2**63))
    low, out = one("v_add_co_u32_e32 v2, vcc, v0, v1", {"v0": a, "v1": b}, "v2", "vcc")
    total = a.astype(np.uint64) + b
    np.testing.assert_array_equal(low, total.astype(np.uint32))
    np.testing.assert_array_equal(out, total >> np.uint64(32) != 0)
    high, out = one(
        "v_subb_co_u32_e32 v2, vcc, v0, v1, vcc", {"v0": a, "v1": b, "vcc": carry}, "v2", "vcc"
    )
    borrow = np.array([carry >> i & 1 for i in range(64)])
    difference = a.astype(np.int64) - b - borrow
    np.testing.assert_array_equal(high, difference.astype(np.uint64).astype(np.uint32))
    np.testing.assert_array_equal(out, difference < 0)


def test_mad_of_64_bits():
    a, b, c, d = (words(i) for i in range(4))
    registers = {"v0": a, "v1": b, "v2": c, "v3": d}
    low, high = one("v_mad_u64_u32 v[4:5], s[0:1], v0, v1, v[2:3]", registers, "v4", "v5")
    for i in range(64):
        wanted = int(a[i]) * int(b[i]) + (int(d[i]) << 32 | int(c[i]))
        assert (int(high[i]) << 32 | int(low[i])) == wanted & (1 << 64) - 1


@pytest.mark.parametrize("table", [0x36, 0x6C, 0x54, 0x80, 0xFE, 0x96, 0x01, 0xE8])
def test_bitop3(table):
    a, b, c = (words(i) for i in range(3))
    text = f"v_bitop3_b32 v9, v0, v1, v2 bitop3:{table:#x}"
    (got,) = one(text, {"v0": a, "v1": b, "v2": c}, "v9", arch="gfx950")
    wanted = np.zeros(64, np.uint32)
    for bit in range(32):
        x, y, z = ((v >> np.uint32(bit)) & np.uint32(1) for v in (a, b, c))
        index = x * np.uint32(4) + y * np.uint32(2) + z
        wanted |= ((np.uint32(table) >> index) & np.uint32(1)) << np.uint32(bit)
    np.testing.assert_array_equal(got, wanted)


# -- scalars ---------------------------------------------------------------------------------------

SCALAR = {
    "s_add_u32": lambda a, b: (a + b, a + b > 0xFFFFFFFF),
    "s_sub_u32": lambda a, b: (a - b, b > a),
    "s_add_i32": lambda a, b: (a + b, not -(2**31) <= signed(a) + signed(b) < 2**31),
    "s_sub_i32": lambda a, b: (a - b, not -(2**31) <= signed(a) - signed(b) < 2**31),
    "s_and_b32": lambda a, b: (a & b, a & b != 0),
    "s_andn2_b32": lambda a, b: (a & ~b, a & ~b & 0xFFFFFFFF != 0),
    "s_xor_b32": lambda a, b: (a ^ b, a ^ b != 0),
    "s_nor_b32": lambda a, b: (~(a | b), ~(a | b) & 0xFFFFFFFF != 0),
    "s_lshl_b32": lambda a, b: (a << (b & 31), (a << (b & 31)) & 0xFFFFFFFF != 0),
    "s_ashr_i32": lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_u32": lambda a, b: (max(a, b), a >= b),
    "s_lshl2_add_u32": lambda a, b: ((a << 2) + b, (a << 2) + b > 0xFFFFFFFF),
    "s_bfe_u32": lambda a, b: (field(a, b), field(a, b) != 0),
    "s_bfe_i32": lambda a, b: (sfield(a, b), sfield(a, b) != 0),
    "s_absdiff_i32": lambda a, b: (abs(signed(a - b)), a != b),
}


def field(a, b):
    return a >> (b & 31) & (1 << min(b >> 16 & 0x7F, 32)) - 1


def sfield(a, b):
    width = min(b >> 16 & 0x7F, 32)
    return signed(signed(a) >> (b & 31), width) if width else 0


@pytest.mark.parametrize("name", SCALAR)
def test_scalars(name):
    for a, b in zip(words(5)[:24].tolist(), words(6)[:24].tolist()):
        if "bfe" in name:
            b &= 0x3F001F
        got, scc = one(f"{name} s2, s0, s1", {"s0": a, "s1": b}, "s2", "scc")
        wanted, flag = SCALAR[name](a, b)
        assert int(got) == wanted & 0xFFFFFFFF, (a, b)
        assert bool(scc) == flag, (a, b)


def test_saveexec():
    mask = words(3, 2)
    registers = {"s4": int(mask[0]), "s5": int(mask[1])}
    on = np.random.default_rng(1).random(64) < 0.5
    saved = one("s_and_saveexec_b64 s[2:3], s[4:5]", registers, "exec", "s2", exec_mask=on)
    chosen = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    np.testing.assert_array_equal(saved[0], on & chosen)
    assert int(saved[1]) == int(np.packbits(on, bitorder="little").view(np.uint32)[0])
