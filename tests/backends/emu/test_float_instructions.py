"""Single instructions on floats, against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gluon_emu.amdgcn.isa.floats import fma32
from gluon_emu.amdgcn.isa.trig import trig_preop, two_over_pi
from tests.backends.emu.assembly import one


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
    for x, y, z, result in zip(a, b, c, got):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert result == nearest_float32(exact), (x, y, z)


def floats(seed):
    values = np.random.default_rng(seed).standard_normal(64).astype(np.float32)
    values[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38]
    return values


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


@pytest.mark.parametrize("text, wanted", [
    ("v_pk_max3_num_f16 v2, v0, v1, v0", np.fmax),
    ("v_pk_min3_num_f16 v2, v0, v1, v0", np.fmin),
    ("v_pk_max3_i16 v2, v0, v1, v0", np.maximum),
    ("v_pk_min3_u16 v2, v0, v1, v0", np.minimum),
])  # fmt: skip
def test_packed_extremes_of_three(text, wanted):
    dtype = {"f16": np.float16, "i16": np.int16, "u16": np.uint16}[text.split()[0][-3:]]
    a, b = np.random.default_rng(4).integers(0, 0x7C00, (2, 32, 2)).astype(np.uint16)
    a[0], b[1] = 0x7E00, 0x7E00  # one operand is no number
    sources = {"v0": a.view(np.uint32)[:, 0], "v1": b.view(np.uint32)[:, 0]}
    third = np.roll(a, 1, 1)  # the halves of the last operand change places
    swapped = f"{text} op_sel:[0,0,1] op_sel_hi:[1,1,0]"
    for line, last in ((text, a), (swapped, third)):
        (got,) = one(line, sources, "v2", arch="gfx1250")
        want = wanted(wanted(a.view(dtype), b.view(dtype)), last.view(dtype))
        np.testing.assert_array_equal(got.view(dtype).reshape(32, 2), want)


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
