"""Casts and arithmetic of the simulator against torch, exact fractions and NumPy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.dtypes import cast_float, float_to_int, int_cast, round_tf32

rng = np.random.default_rng(7)
EDGES = [0, -0.0, np.inf, -np.inf, np.nan, 240, 248, 448, 464, 465, 480, 57344, 61440, 65519, 65520]
FLOATS = np.concatenate(
    [
        rng.standard_normal(20000).astype(np.float32) * np.float32(s)
        for s in (1, 1e-6, 300, 1e5, 1e-38, 1e37)
    ]
    + [np.array(EDGES, np.float32)]
)
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
LARGEST = {"fp8e4nv": 448, "fp8e5": 57344, "fp8e4b8": 240, "fp8e5b16": 57344}


pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


@pytest.mark.parametrize("name", TORCH)
def test_narrowing_rounds_to_nearest_even_as_torch_does(name):
    inputs = torch.from_numpy(FLOATS)
    if name in LARGEST:
        inputs = inputs.clamp(-LARGEST[name], LARGEST[name])  # torch does not saturate
    wanted = inputs.to(TORCH[name]).float().numpy()
    values = cast_float(FLOATS, "fp32", name).astype(np.float32)
    np.testing.assert_array_equal(values, wanted)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(values)[number], np.signbit(wanted)[number])


@pytest.mark.parametrize("name", TORCH)
def test_rounding_toward_zero_is_the_nearest_value_not_beyond(name):
    values = cast_float(FLOATS, "fp32", name, "rtz").astype(np.float64)
    near = cast_float(FLOATS, "fp32", name).astype(np.float64)
    exact = FLOATS.astype(np.float64)
    finite = np.isfinite(exact) & (np.abs(exact) < LARGEST.get(name, np.inf))
    assert (np.abs(values) <= np.abs(exact))[finite].all()
    # Where nearest does not overshoot, both agree.
    same = finite & (np.abs(near) <= np.abs(exact))
    np.testing.assert_array_equal(values[same], near[same])
    assert (values != near)[finite].any()


@pytest.mark.parametrize("name", TORCH)
def test_widening_is_exact_for_every_bit_pattern(name):
    wide = {2: np.uint16, 1: np.uint8}[torch.empty(0, dtype=TORCH[name]).element_size()]
    bits = np.arange(np.iinfo(wide).max + 1, dtype=wide)
    wanted = torch.from_numpy(bits.view({2: np.int16, 1: np.int8}[wide().nbytes]).copy())
    wanted = wanted.view(TORCH[name]).float().numpy()
    from gluon_sim.tracing.dtypes import _NUMPY

    values = cast_float(bits.view(_NUMPY[name]), name, "fp32")
    np.testing.assert_array_equal(values, wanted)


def test_fp8e4b15_round_trips_every_pattern_but_the_largest():
    bits = np.arange(256, dtype=np.uint8)
    values = cast_float(bits, "fp8e4b15", "fp32")
    assert values.max() == 1.875 and np.isfinite(values).all()
    np.testing.assert_array_equal(cast_float(values, "fp32", "fp8e4b15")[:127], bits[:127])
    # As PTX for an H100 and an H200 does: min with 1.75, and half a unit added before the cut.
    some = np.float32([7.0, 1.875, np.nan, np.inf, 1 + 1 / 16, 1 + 3 / 16, -1 - 1 / 16, 1 + 1 / 17])
    result = cast_float(some, "fp32", "fp8e4b15")
    assert result.tolist() == [0x7E, 0x7E, 0x7E, 0x7E, 0x79, 0x7A, 0xF9, 0x78]


def test_float64_to_bf16_rounds_once():
    # Halfway in bf16 plus less than float32 can see: rounding twice would go down.
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-40])
    values = cast_float(x, "fp64", "bf16").astype(np.float64)
    assert values.tolist() == [1 + 2.0**-7, 1.0, 1.0]


def test_tf32_drops_the_low_13_bits():
    x = np.float32([1 + 2.0**-10 + 2.0**-11 + 2.0**-23, -3.3])
    bits = round_tf32(x).view(np.uint32)
    assert (bits & 0x1FFF == 0).all() and (np.abs(round_tf32(x)) <= np.abs(x)).all()
    assert round_tf32(x)[0] == np.float32(1 + 2.0**-10)


def _nearest(exact: Fraction) -> np.float32:
    start = np.float32(float(exact))
    around = [
        np.nextafter(start, np.float32(-np.inf)),
        start,
        np.nextafter(start, np.float32(np.inf)),
    ]
    return min(around, key=lambda q: (abs(Fraction(float(q)) - exact), q.view(np.int32) & 1))


def test_fma_rounds_once():
    a, b = rng.standard_normal((2, 500)).astype(np.float32)
    nearly = -(a.astype(np.float64) * b) * (1 + rng.integers(-3, 4, 500) * 2.0**-24)
    c = (nearly + rng.standard_normal(500) * 2.0**-30).astype(np.float32)
    result = ELEMENTWISE["fma"](a, b, c)
    for x, y, z, r in zip(a, b, c, result):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert r == _nearest(exact)
    a, b = rng.standard_normal((2, 500))
    c = -(a * b) * (1 + rng.integers(-3, 4, 500) * 2.0**-53)
    for x, y, z, r in zip(a, b, c, ELEMENTWISE["fma"](a, b, c)):
        assert r == float(Fraction(x) * Fraction(y) + Fraction(z))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integer_division_is_that_of_c(dtype):
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, 2000, dtype=dtype, endpoint=True)
    b = rng.integers(-9, 10, 2000).astype(dtype)
    ok = b != 0
    quotient, remainder = ELEMENTWISE["sdiv"](a, b), ELEMENTWISE["srem"](a, b)
    for x, y, q, r in zip(
        a[ok].tolist(), b[ok].tolist(), quotient[ok].tolist(), remainder[ok].tolist()
    ):
        expected = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        wrapped = (expected - info.min) % (1 << info.bits) + info.min
        assert q == wrapped and r == x - expected * y
    assert (quotient[~ok] == -1).all()
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[a.itemsize]
    ua, ub = a.view(unsigned)[ok], b.view(unsigned)[ok]
    assert (ELEMENTWISE["udiv"](a[ok], b[ok]).view(unsigned) == ua // ub).all()
    assert (ELEMENTWISE["urem"](a[ok], b[ok]).view(unsigned) == ua % ub).all()


def test_wide_shifts_clamp_and_umulhi_is_exact():
    x = np.array([-8, 5], np.int32)
    for by, left, logical, arithmetic in (
        (1, [-16, 10], [2**31 - 4, 2], [-4, 2]),
        (40, [0, 0], [0, 0], [-1, 0]),
    ):
        amount = np.full(2, by, np.int32)
        assert ELEMENTWISE["shl"](x, amount).tolist() == left
        assert ELEMENTWISE["lshr"](x, amount).tolist() == logical
        assert ELEMENTWISE["ashr"](x, amount).tolist() == arithmetic
    a, b = rng.integers(0, 2**64, (2, 300), dtype=np.uint64)
    high = ELEMENTWISE["umulhi"](a.view(np.int64), b.view(np.int64)).view(np.uint64)
    assert [int(h) for h in high] == [(int(x) * int(y)) >> 64 for x, y in zip(a, b)]


def test_nan_rules_of_min_max_and_comparisons():
    nan, one = np.float32([np.nan]), np.float32([1])
    assert np.isnan(ELEMENTWISE["maximumf"](nan, one)) and ELEMENTWISE["maxnumf"](nan, one) == 1
    assert np.isnan(ELEMENTWISE["minimumf"](one, nan)) and ELEMENTWISE["minnumf"](one, nan) == 1
    for name, ordered in (("EQ", False), ("LT", False), ("NE", False)):
        assert ELEMENTWISE[f"fcmpO{name}"](nan, one) == ordered
        assert ELEMENTWISE[f"fcmpU{name}"](nan, one) == (not ordered)
    assert ELEMENTWISE["fcmpONE"](one, one + 1) and not ELEMENTWISE["fcmpUNE"](one, one)


def test_float_to_int_saturates_and_truncates():
    x = np.float32([1e10, -1e10, np.nan, 300.7, -1.5])
    with np.errstate(all="ignore"):
        assert float_to_int(x, np.dtype(np.int32), True).tolist() == [
            2**31 - 1,
            -(2**31),
            0,
            300,
            -1,
        ]
        assert float_to_int(x, np.dtype(np.int8), True).tolist() == [-1, 0, 0, 44, -1]
        big = np.float32([-3, 4e9, 1e30])
        assert float_to_int(big, np.dtype(np.int64), False).view(np.uint64).tolist() == [
            0, 4000000000, 2**64 - 1,
        ]  # fmt: skip


def test_int_cast_extends_by_sign_or_zero():
    x = np.array([-1, 3], np.int8)
    assert int_cast(x, np.dtype(np.int32), True).tolist() == [-1, 3]
    assert int_cast(x, np.dtype(np.int32), False).tolist() == [255, 3]
    bits = np.array([True, False])
    assert int_cast(bits, np.dtype(np.int32), False).tolist() == [1, 0]
    assert int_cast(bits, np.dtype(np.int32), True).tolist() == [-1, 0]
    assert int_cast(np.array([2, 3]), np.dtype(np.bool_), False).tolist() == [False, True]


def test_erf_matches_the_math_library():
    x = rng.standard_normal(50).astype(np.float32)
    result = ELEMENTWISE["erf"](x)
    np.testing.assert_array_equal(result, np.float32([math.erf(float(v)) for v in x]))


@pytest.mark.parametrize("dtype, k", [(np.int8, 1024), (np.uint8, 256)])
def test_bytes_multiply_exactly_without_a_matrix_unit(dtype, k):
    @gluon.jit
    def kernel(a, b, c, K: gl.constexpr):
        layouts: gl.constexpr = gl.portable.mma_layouts(
            8, 4, K, a.dtype.element_ty, b.dtype.element_ty
        )
        gl.static_assert(layouts.lowering == "fma")
        i = gl.arange(0, 8, gl.SliceLayout(1, layouts.a))[:, None]
        x = gl.load(a + i * K + gl.arange(0, K, gl.SliceLayout(0, layouts.a))[None, :])
        j = gl.arange(0, 4, gl.SliceLayout(0, layouts.b))[None, :]
        y = gl.load(b + gl.arange(0, K, gl.SliceLayout(1, layouts.b))[:, None] * 4 + j)
        acc = gl.full([8, 4], 7, gl.int32, layouts.accumulator)
        acc = gl.portable.mma(x, y, acc)
        rows = gl.arange(0, 8, gl.SliceLayout(1, layouts.accumulator))[:, None]
        gl.store(c + rows * 4 + gl.arange(0, 4, gl.SliceLayout(0, layouts.accumulator))[None, :], acc)  # fmt: skip

    a = np.full((8, k), np.iinfo(dtype).min or 255, dtype)
    b = a.reshape(k, 8)[:, :4].copy()
    b[0, 0] = 1
    c = np.zeros((8, 4), np.int32)
    kernel[(1,)](a, b, c, k, target="sim:sm_80", num_warps=1)
    assert (c == a.astype(np.int32) @ b.astype(np.int32) + 7).all()
    with pytest.raises(CapabilityError, match="can exceed 2\\^24"):
        kernel[(1,)](a, b, c, 2 * k, target="sim:sm_80", num_warps=1)
