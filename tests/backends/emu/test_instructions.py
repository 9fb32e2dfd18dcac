"""What single instructions compute, against Python's integers and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from gluon_emu.amdgcn.isa.floats import fma32
from gluon_emu.amdgcn.isa.trig import trig_preop, two_over_pi
from tests.backends.emu.assembly import lanes_of, one, run

RNG = np.random.default_rng(0)
EDGES = np.array(
    [0, 1, 2, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000,
     0x80000001, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32
)  # fmt: skip


def words(seed: int, lanes: int = 64) -> np.ndarray:
    """Random words, edges among them."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 2**32, lanes, dtype=np.uint64).astype(np.uint32)
    places = rng.choice(lanes, lanes // 3, replace=False)
    made[places] = rng.choice(EDGES, places.size)
    return made


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def perm(a: int, b: int, c: int) -> int:
    both = (a << 32 | b).to_bytes(8, "little")
    found = []
    for selector in c.to_bytes(4, "little"):
        if selector <= 7:
            found.append(both[selector])
        elif selector <= 11:
            found.append(0xFF * (both[2 * (selector - 8) + 1] >> 7))
        else:
            found.append(0 if selector == 12 else 0xFF)
    return int.from_bytes(bytes(found), "little")


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
    given = {"s4": int(mask[0]), "s5": int(mask[1])}
    on = np.random.default_rng(1).random(64) < 0.5
    saved = one("s_and_saveexec_b64 s[2:3], s[4:5]", given, "exec", "s2", exec_mask=on)
    chosen = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
    np.testing.assert_array_equal(saved[0], on & chosen)
    assert int(saved[1]) == int(np.packbits(on, bitorder="little").view(np.uint32)[0])


# -- floats ----------------------------------------------------------------------------------------


def nearest_float32(value: Fraction) -> np.float32:
    """The float32 nearest to a fraction, ties to even, by trying the neighbours."""
    guess = np.float32(float(value))
    around = [
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    ]
    around = [x for x in around if np.isfinite(x)]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1))


def test_digits_of_two_over_pi():
    digits = "0.63661977236758134307553505349005744813783858296182579499"  # 2/pi
    exact = Fraction(digits)
    assert abs(Fraction(two_over_pi(), 2**1201) - exact) < Fraction(1, 10**55)
    parts = [Fraction(float(trig_preop(np.float64([1.0]), np.uint32([i]))[0])) for i in range(3)]
    assert all(part.numerator.bit_length() <= 53 for part in parts)
    assert 0 <= exact - sum(parts) < Fraction(1, 2**158)
    # An exponent of 1077 + 10 asks for the digits from the tenth on.
    (far,) = trig_preop(np.ldexp(1.0, [1087 - 1023]), np.uint32([0]))
    mask = (1 << 53) - 1
    assert far == float(two_over_pi() >> (1201 - 63) & mask) * 2.0**-63


def test_fma_rounds_once():
    """Sums that lie halfway between two float32 but for a bit far below, and denormal results."""
    rng = np.random.default_rng(2)
    a = (1 + rng.integers(0, 2**12, 400) * 2.0**-12).astype(np.float32)
    b = (1 + rng.integers(0, 2**12, 400) * 2.0**-12).astype(np.float32)
    c = (rng.integers(-(2**24), 2**24, 400) * 2.0 ** rng.integers(-60, 3, 400)).astype(np.float32)
    a[:100] *= np.float32(2.0**-80)
    b[:100] *= np.float32(2.0**-66)
    c[:100] = (rng.integers(-64, 64, 100) * 2.0**-149).astype(np.float32)
    a[100:110], b[100:110] = 1 + 2.0**-23, 1 + 2.0**-23
    c[100:110] = 2.0 ** -np.arange(20, 30)
    got = fma32(a, b, c)
    for x, y, z, found in zip(a, b, c, got):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert found == nearest_float32(exact), (x, y, z)


def floats(seed):
    made = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    made[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38]
    return made


@pytest.mark.parametrize("text, wanted", [
    ("v_add_f32 v2, v0, v1", lambda a, b: a + b),
    ("v_sub_f32 v2, v0, v1", lambda a, b: a - b),
    ("v_mul_f32_e64 v2, -v0, |v1|", lambda a, b: -a * np.abs(b)),
    ("v_max_f32 v2, v0, v1", np.fmax),
    ("v_add_f32_e64 v2, v0, v1 clamp", lambda a, b: np.clip(np.nan_to_num(a + b, nan=0), 0, 1)),
    ("v_mul_f32_e64 v2, v0, v1 mul:2", lambda a, b: a * b * np.float32(2)),
    ("v_mul_f32_e64 v2, v0, 0.5 div:2", lambda a, b: a * np.float32(0.25)),
])  # fmt: skip
def test_floats(text, wanted):
    a, b = floats(1), floats(2)[::-1].copy()
    (got,) = one(text, {"v0": a, "v1": b}, "v2")
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got.view(np.float32), wanted(a, b))


@pytest.mark.parametrize("text, wide", [
    ("v_pk_sub_u16 v2, v0, v1", lambda a, b: a - b),
    ("v_pk_add_u16 v2, v0, v1", lambda a, b: a + b),
    ("v_pk_sub_i16 v2, v0, v1", lambda a, b: a - b),
    ("v_pk_mad_i16 v2, v0, v1, v0", lambda a, b: a * b + a),
])  # fmt: skip
def test_packed_integers_saturate_with_clamp(text, wide):
    dtype = np.dtype("int16" if "_i16" in text else "uint16")
    a, b = np.random.default_rng(3).integers(0, 1 << 16, (2, 64, 2)).astype(np.uint16).view(dtype)
    sources = {"v0": a.view(np.uint32)[:, 0], "v1": b.view(np.uint32)[:, 0]}
    exact, limits = wide(a.astype(np.int64), b.astype(np.int64)), np.iinfo(dtype)
    for modifier, want in (("", exact), (" clamp", np.clip(exact, limits.min, limits.max))):
        (got,) = one(text + modifier, sources, "v2")
        np.testing.assert_array_equal(got.view(dtype).reshape(64, 2), want.astype(dtype))


def test_zeros_of_max_and_min():
    a, b = np.float32([0.0, -0.0] * 32), np.float32([-0.0, 0.0] * 32)
    (high,) = one("v_max_f32 v2, v0, v1", {"v0": a, "v1": b}, "v2")
    (low,) = one("v_min_f32 v2, v0, v1", {"v0": a, "v1": b}, "v2")
    assert not high.any() and (low == 0x80000000).all()


def test_denormals_as_the_mode_says():
    tiny = np.full(64, 1e-40, np.float32)
    (kept,) = one("v_add_f32 v2, v0, v0", {"v0": tiny}, "v2")
    (gone,) = one("v_add_f32 v2, v0, v0", {"v0": tiny}, "v2", denormals=0)
    assert kept.view(np.float32)[0] == np.float32(1e-40) * 2 and not gone.any()


def divided(n, d, arch="gfx942"):
    """n / d by the sequence that compilers emit."""

    def do(text, *wanted, **registers):
        return one(text, registers, *wanted, arch=arch)

    (x,) = do("v_div_scale_f32 v2, vcc, v1, v1, v0", "v2", v0=n, v1=d)
    y, flag = do("v_div_scale_f32 v2, vcc, v0, v1, v0", "v2", "vcc", v0=n, v1=d)
    (r,) = do("v_rcp_f32 v2, v0", "v2", v0=x)
    (e,) = do("v_fma_f32 v2, -v0, v1, 1.0", "v2", v0=x, v1=r)
    (r,) = do("v_fmac_f32 v1, v0, v1", "v1", v0=e, v1=r)
    (q,) = do("v_mul_f32 v2, v0, v1", "v2", v0=y, v1=r)
    (e,) = do("v_fma_f32 v2, -v0, v1, v3", "v2", v0=x, v1=q, v3=y)
    (q,) = do("v_fmac_f32 v2, v0, v1", "v2", v0=e, v1=r, v2=q)
    (e,) = do("v_fma_f32 v2, -v0, v1, v3", "v2", v0=x, v1=q, v3=y)
    mask = int(np.packbits(flag, bitorder="little").view(np.uint64)[0])
    (q,) = do("v_div_fmas_f32 v3, v0, v1, v2", "v3", v0=e, v1=r, v2=q, vcc=mask)
    (q,) = do("v_div_fixup_f32 v3, v0, v1, v2", "v3", v0=q, v1=d, v2=n)
    return q.view(np.float32)


def test_division_is_right_to_the_last_bit():
    rng = np.random.default_rng(3)
    n = (rng.standard_normal(64) * 2.0 ** rng.integers(-120, 120, 64)).astype(np.float32)
    d = (rng.standard_normal(64) * 2.0 ** rng.integers(-100, 120, 64)).astype(np.float32)
    n[:6], d[:6] = [1, 0, np.inf, 1, np.nan, 3e38], [0, 5, 2, np.inf, 1, 1e-2]
    with np.errstate(all="ignore"):
        wanted = n / d
    normal = ~((np.abs(wanted) < 2.0**-126) & (wanted != 0))
    np.testing.assert_array_equal(divided(n, d)[normal], wanted[normal])


@pytest.mark.parametrize("name, reference", [
    ("v_rcp_f32", lambda x: 1 / x), ("v_exp_f32", np.exp2), ("v_log_f32", np.log2),
    ("v_sqrt_f32", np.sqrt), ("v_rsq_f32", lambda x: 1 / np.sqrt(x)),
])  # fmt: skip
def test_transcendental_within_a_unit(name, reference):
    x = np.abs(np.random.default_rng(4).standard_normal(64).astype(np.float32)) + np.float32(0.01)
    (got,) = one(f"{name} v1, v0", {"v0": x}, "v1")
    wanted = reference(x.astype(np.float64))
    unit = np.spacing(np.abs(wanted).astype(np.float32))
    assert (np.abs(got.view(np.float32) - wanted) <= unit).all()


def test_float_to_integer_saturates():
    x = np.float32([0.5, -0.5, 1.9, -1.9, 3e9, -3e9, np.nan, np.inf] * 8)
    (u,) = one("v_cvt_u32_f32 v1, v0", {"v0": x}, "v1")
    (i,) = one("v_cvt_i32_f32 v1, v0", {"v0": x}, "v1")
    assert u[:8].tolist() == [0, 0, 1, 0, 3000000000, 0, 0, 2**32 - 1]
    wanted = [0, 0, 1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1]
    assert i.view(np.int32)[:8].tolist() == wanted


def test_narrow_floats():
    x = np.float32(list(np.linspace(-300, 300, 64)))
    (fnuz,) = one("v_cvt_pk_fp8_f32 v1, v0, v0", {"v0": x}, "v1")
    (ocp,) = one("v_cvt_pk_fp8_f32 v1, v0, v0", {"v0": x}, "v1", arch="gfx950")
    assert (fnuz != ocp).any()  # another bias
    (back,) = one("v_cvt_f32_fp8 v1, v0", {"v0": ocp}, "v1", arch="gfx950")
    assert (np.abs(back.view(np.float32) - x) <= np.abs(x) / 16 + 2.0**-10).all()


# -- lanes -----------------------------------------------------------------------------------------


def lane_sources(control: str, lanes: int):
    """For each lane the lane it reads by the ISA's table of controls, None for none."""
    name, _, value = control.partition(":")
    found = []
    for lane in range(lanes):
        row, at = lane // 16 * 16, lane % 16
        if name == "row_shl":
            found.append(row + at + int(value) if at + int(value) < 16 else None)
        elif name == "row_shr":
            found.append(row + at - int(value) if at >= int(value) else None)
        elif name == "row_ror":
            found.append(row + (at - int(value)) % 16)
        elif name == "quad_perm":
            found.append(lane // 4 * 4 + int(value[1 + 2 * (lane % 4)]))
        elif name == "row_mirror":
            found.append(row + 15 - at)
        elif name == "row_half_mirror":
            found.append(lane // 8 * 8 + 7 - lane % 8)
        elif name == "row_bcast" and value == "15":
            found.append(row - 1 if row else None)
        elif name == "row_bcast":
            found.append(31 if lane >= 32 else None)
        elif name == "row_xmask":
            found.append(row + (at ^ int(value)))
        else:
            found.append(row + int(value))
    return found


@pytest.mark.parametrize("control, arch", [
    ("row_shl:3", "gfx942"), ("row_shr:1", "gfx942"), ("row_ror:5", "gfx942"),
    ("quad_perm:[1,0,3,2]", "gfx942"), ("row_mirror", "gfx942"), ("row_half_mirror", "gfx942"),
    ("row_bcast:15", "gfx942"), ("row_bcast:31", "gfx942"), ("row_newbcast:4", "gfx942"),
    ("row_share:4", "gfx1100"), ("row_xmask:5", "gfx1201"), ("row_shr:8", "gfx1250"),
])  # fmt: skip
@pytest.mark.parametrize("bound", [True, False])
def test_dpp(control, arch, bound):
    lanes = lanes_of(arch)
    value, old = words(1, lanes), words(2, lanes)
    on = np.random.default_rng(3).random(lanes) < 0.8
    more = "row_mask:0xb bank_mask:0xd" + (" bound_ctrl:1" if bound else "")
    text = f"v_mov_b32_dpp v1, v0 {control} {more}"
    (got,) = one(text, {"v0": value, "v1": old}, "v1", arch=arch, exec_mask=on)
    for lane, source in enumerate(lane_sources(control, lanes)):
        wanted = old[lane]
        there = source is not None and on[source]
        chosen = 0xB >> lane // 16 & 1 and 0xD >> lane % 16 // 4 & 1
        if on[lane] and chosen and (there or bound):
            wanted = value[source] if there else 0
        assert got[lane] == wanted, lane


@pytest.mark.parametrize("select", ["BYTE_0", "BYTE_3", "WORD_1"])
@pytest.mark.parametrize("unused", ["UNUSED_PAD", "UNUSED_PRESERVE"])
def test_sdwa(select, unused):
    a, b, old = words(1), words(2), words(3)
    text = (
        f"v_or_b32_sdwa v2, v0, v1 dst_sel:WORD_1 dst_unused:{unused} "
        f"src0_sel:{select} src1_sel:BYTE_1"
    )
    (got,) = one(text, {"v0": a, "v1": b, "v2": old}, "v2")
    shift, mask = {"BYTE_0": (0, 255), "BYTE_3": (24, 255), "WORD_1": (16, 65535)}[select]
    value = (a >> np.uint32(shift) & np.uint32(mask)) | (b >> np.uint32(8) & np.uint32(255))
    kept = old & np.uint32(0xFFFF) if unused == "UNUSED_PRESERVE" else np.uint32(0)
    np.testing.assert_array_equal(got, value << np.uint32(16) | kept)


def test_readlane_and_friends():
    value = words(1)
    on = np.arange(64) >= 5
    assert one("v_readfirstlane_b32 s2, v0", {"v0": value}, "s2", exec_mask=on)[0] == value[5]
    assert one("v_readlane_b32 s2, v0, 63", {"v0": value}, "s2")[0] == value[63]
    (below,) = one("v_mbcnt_lo_u32_b32 v1, -1, 0", {}, "v1")
    np.testing.assert_array_equal(below, np.minimum(np.arange(64), 32))
    (all_below,) = one("v_mbcnt_hi_u32_b32 v1, -1, v0", {"v0": below}, "v1")
    np.testing.assert_array_equal(all_below, np.arange(64))


def test_permlane_swap():
    a, b = words(1), words(2)
    x, y = one("v_permlane32_swap_b32 v0, v1", {"v0": a, "v1": b}, "v0", "v1", arch="gfx950")
    np.testing.assert_array_equal(x, np.concatenate((a[:32], b[:32])))
    np.testing.assert_array_equal(y, np.concatenate((a[32:], b[32:])))


def test_permlanex16():
    a = words(1, 32)
    text = "v_permlanex16_b32 v1, v0, s0, s1"
    picks = np.random.default_rng(0).integers(0, 16, 16)
    table = sum(int(p) << 4 * i for i, p in enumerate(picks))
    given = {"v0": a, "s0": table & 0xFFFFFFFF, "s1": table >> 32}
    (got,) = one(text, given, "v1", arch="gfx1201")
    np.testing.assert_array_equal(got, a[np.concatenate((16 + picks, picks))])


def test_bpermute_and_permute():
    a = words(1)
    to = np.random.default_rng(0).permutation(64).astype(np.uint32)
    (pulled,) = one("ds_bpermute_b32 v2, v0, v1", {"v0": to * np.uint32(4), "v1": a}, "v2")
    np.testing.assert_array_equal(pulled, a[to])
    (pushed,) = one("ds_permute_b32 v2, v0, v1", {"v0": to * np.uint32(4), "v1": a}, "v2")
    np.testing.assert_array_equal(pushed[to], a)


def test_swizzle():
    a = words(1, 32)
    for text, lane in (("swizzle(SWAP,4)", np.arange(32) ^ 4), ("swizzle(BROADCAST,8,2)", np.arange(32) // 8 * 8 + 2)):  # fmt: skip
        (got,) = one(f"ds_swizzle_b32 v1, v0 offset:{text}", {"v0": a}, "v1", arch="gfx1250")
        np.testing.assert_array_equal(got, a[lane])


def test_a_dual_instruction_reads_before_it_writes():
    a, b = words(1, 32), words(2, 32)
    text = "v_dual_mov_b32 v0, v1 :: v_dual_add_nc_u32 v1, v0, v1"
    x, y = one(text, {"v0": a, "v1": b}, "v0", "v1", arch="gfx1100")
    np.testing.assert_array_equal(x, b)
    np.testing.assert_array_equal(y, a + b)


def test_comparisons_leave_inactive_lanes_clear():
    a, b = words(1), words(2)
    on = np.random.default_rng(0).random(64) < 0.5
    (got,) = one("v_cmp_lt_u32_e32 vcc, v0, v1", {"v0": a, "v1": b}, "vcc", exec_mask=on)
    np.testing.assert_array_equal(got, (a < b) & on)
    a, b, on = words(1, 32), words(2, 32), on[:32]
    text, given = "v_cmpx_lt_i32_e32 v0, v1", {"v0": a, "v1": b}
    (mask,) = one(text, given, "exec", arch="gfx1100", exec_mask=on)
    np.testing.assert_array_equal(mask, (a.view(np.int32) < b.view(np.int32)) & on)


# -- matrices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, depth, arch", [(32, 8, "gfx942"), (16, 16, "gfx942"), (16, 32, "gfx950"), (32, 16, "gfx950")])  # fmt: skip
def test_mfma(size, depth, arch):
    """By the lane maps of the ISA: rows of A and columns of B by lane, K along the elements."""
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 8, (size, depth)).astype(np.float16)
    b = rng.integers(-8, 8, (depth, size)).astype(np.float16)
    held = size * depth // 64
    registers = {}
    for name, matrix in (("a", a), ("b", b.T)):
        lanes = np.stack(
            [matrix[lane % size, lane // size * held :][:held] for lane in range(64)]
        ).astype(np.float16)
        for i, word in enumerate(lanes.view(np.uint32).T):
            registers[f"v{i + (0 if name == 'a' else 8)}"] = word.copy()
    words_ = held // 2
    count = size * size // 64
    text = (
        f"v_mfma_f32_{size}x{size}x{depth}_f16 v[16:{15 + count}], v[0:{words_ - 1}], "
        f"v[8:{7 + words_}], 1.0"
    )
    got = one(text, registers, *(f"v{16 + i}" for i in range(count)), arch=arch)
    result = a.astype(np.float32) @ b.astype(np.float32) + 1
    for i in range(count):
        for lane in range(64):
            row = 4 * (lane // size) + i % 4 + (4 * 64 // size) * (i // 4)
            assert got[i].view(np.float32)[lane] == result[row, lane % size]


@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize("size, depth, kind", [(16, 32, "f16"), (32, 16, "f16"), (16, 64, "i8"), (32, 32, "i8")])  # fmt: skip
def test_sparse_products(size, depth, kind, chosen):
    """Two of four elements along K of A are given, with two bits for the place of each."""
    rng = np.random.default_rng(1)
    dtype, result = (np.float16, np.float32) if kind == "f16" else (np.int8, np.int32)
    places = np.sort(rng.permuted(np.tile(np.arange(4), (size, depth // 4, 1)), axis=2)[..., :2])
    given = rng.integers(-8, 8, places.shape).astype(dtype)
    a = np.zeros((size, depth // 4, 4), dtype)
    np.put_along_axis(a, places, given, 2)
    a, b = a.reshape(size, depth), rng.integers(-8, 8, (depth, size)).astype(dtype)
    held = size * depth // 64  # along K, of a lane
    registers = {"v8": np.zeros(64, np.uint32)}
    for lane in range(64):
        row, first = lane % size, lane // size * held
        mine = given[row, first // 4 : (first + held) // 4].ravel()
        bits = places[row, first // 4 : (first + held) // 4].ravel()
        number = sum(int(bit) << 2 * i for i, bit in enumerate(bits))
        others = 0xA5A5A5A5 & ~(((1 << held) - 1) << chosen * held)
        registers["v8"][lane] = number << chosen * held | others
        for name, part in ((0, mine), (4, b[first : first + held, row])):
            for i, word in enumerate(np.ascontiguousarray(part).view(np.uint32)):
                registers.setdefault(f"v{name + i}", np.zeros(64, np.uint32))[lane] = word
    count = size * size // 64
    old = rng.integers(-99, 99, (count, 64)).astype(result)
    registers.update({f"v{16 + i}": old[i].view(np.uint32) for i in range(count)})
    text = (
        f"v_smfmac_{'f32' if kind == 'f16' else 'i32'}_{size}x{size}x{depth}_{kind} "
        f"v[16:{15 + count}], v[0:1], v[4:7], v8 abid:{chosen}"
    )
    got = one(text, registers, *(f"v{16 + i}" for i in range(count)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    for i in range(count):
        for lane in range(64):
            row = 4 * (lane // size) + i % 4 + (4 * 64 // size) * (i // 4)
            assert got[i].view(result)[lane] == wanted[row, lane % size] + old[i][lane]


NARROW = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp4": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("kind", list(NARROW))
def test_conversions_of_eight(kind):
    """To float32 by a byte of scale, and back over a float's exponent."""
    values = np.random.default_rng(4).uniform(-6, 6, (8, 32)).astype(NARROW[kind])
    width = 4 if kind == "fp4" else 8
    codes = values.view(np.uint8).astype(np.uint64) & np.uint64((1 << width) - 1)
    whole = np.bitwise_or.reduce(codes << (width * np.arange(8, dtype=np.uint64))[:, None])
    words = {"v0": (whole & np.uint64(0xFFFFFFFF)).astype(np.uint32)}
    source = "v0"
    if width == 8:
        words["v1"], source = (whole >> np.uint64(32)).astype(np.uint32), "v[0:1]"
    text = f"v_cvt_scale_pk8_f32_{kind} v[8:15], {source}, v2 scale_sel:1"
    scale = {"v2": np.full(32, 0x55008255, np.uint32)}
    found = one(text, {**words, **scale}, *[f"v{8 + i}" for i in range(8)], arch="gfx1250")
    wanted = values.astype(np.float32) * np.float32(8)  # 0x82 - 127 = 3
    np.testing.assert_array_equal(np.stack(found).view(np.float32), wanted)
    registers = {f"v{8 + i}": wanted[i].view(np.uint32) for i in range(8)}
    text = f"v_cvt_scalef32_pk8_{kind}_f32 {source}, v[8:15], v2"
    registers["v2"] = np.full(32, 8.0, np.float32).view(np.uint32)
    for got, word in zip(one(text, registers, *words, arch="gfx1250"), words.values()):
        np.testing.assert_array_equal(got, word)


def test_a_clock_of_cycles_goes_on():
    out = np.zeros(32, np.uint32)
    run(
        """
    s_load_b64 s[4:5], s[0:1], 0x0
    s_getreg_b32 s6, hwreg(HW_REG_SHADER_CYCLES_LO)
    s_getreg_b32 s7, hwreg(HW_REG_SHADER_CYCLES_LO)
    s_sub_co_u32 s6, s7, s6
    v_mov_b32_e32 v1, s6
    v_lshlrev_b32_e32 v0, 2, v0
    s_wait_kmcnt 0x0
    global_store_b32 v0, v1, s[4:5]
    """,
        out,
        arch="gfx1201",
    )
    assert (out > 0).all()
