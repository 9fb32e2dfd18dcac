"""Packed arithmetic and pairs of float32 on the simulator: rounded once, as the instructions do."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import float2
from gluon_core.testing import TRITON_VERSION

if TRITON_VERSION >= (3, 8):
    from gluon_core.language.nvidia.rubin import add2, fma2, max2, min2, mul2, sub2

L = gl.constexpr(gl.BlockedLayout([2, 4], [4, 8], [4, 1], [1, 0]))
newer = pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
ROWS, COLUMNS = 32, 64


@pytest.fixture(autouse=True)
def _blackwell(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_107" if TRITON_VERSION >= (3, 9) else "sim:sm_100")


@gluon.jit
def tile(p):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    return p + rows[:, None] * 64 + columns[None, :]


@gluon.jit
def pairs(a, b, c, out, sums, AXIS: gl.constexpr):
    x = float2.pack(gl.load(tile(a)), AXIS)
    y = float2.pack(gl.load(tile(b)), AXIS)
    z = float2.pack(gl.load(tile(c)), AXIS)
    gl.store(tile(out), float2.unpack(float2.fma(x, y, z), AXIS))
    gl.store(
        tile(out) + 2048, float2.unpack((x + y) * z - float2.full_like(x, gl.to_tensor(3.0)), AXIS)
    )
    lo, hi = float2.unpack2(x.sum(AXIS))
    gl.store(
        sums + gl.arange(0, 32, layout=lo.type.layout)
        if AXIS == 1
        else sums + gl.arange(0, 64, layout=lo.type.layout),
        lo + hi,
    )


def numbers(count, seed=0):
    random = np.random.default_rng(seed)
    exponents = random.integers(-40, 40, (count, ROWS, COLUMNS))
    return (random.standard_normal((count, ROWS, COLUMNS)) * 2.0**exponents).astype(np.float32)


def nearest(x):
    """A fraction rounded to float32 once, by exact arithmetic."""
    if x == 0:
        return np.float32(0)
    exponent = max(math.floor(math.log2(abs(x))), -126)
    while Fraction(2) ** (exponent + 1) <= abs(x):
        exponent += 1
    while Fraction(2) ** exponent > abs(x) and exponent > -126:
        exponent -= 1
    step = Fraction(2) ** (exponent - 23)
    return np.float32(float(round(x / step) * step))


def fma(a, b, c):
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a.ravel(), b.ravel(), c.ravel())
    ]
    return np.array([nearest(x) for x in exact], np.float32).reshape(a.shape)


@pytest.mark.parametrize("axis", [0, 1])
def test_pairs(axis):
    a, b, c = numbers(3)
    out, sums = (
        np.zeros((2, ROWS, COLUMNS), np.float32),
        np.zeros(ROWS if axis else COLUMNS, np.float32),
    )
    pairs[(1,)](a, b, c, out, sums, axis)
    np.testing.assert_array_equal(out[0], fma(a, b, c))
    np.testing.assert_array_equal(out[1], (a + b) * c - np.float32(3))
    np.testing.assert_allclose(sums, a.sum(axis), rtol=1e-3, atol=1e-3 * np.abs(a).sum(axis).max())


@gluon.jit
def packed(a, b, c, out, KIND: gl.constexpr, DTYPE: gl.constexpr, RESULT: gl.constexpr):
    x = gl.load(tile(a)).to(DTYPE)
    y = gl.load(tile(b)).to(DTYPE)
    z = gl.load(tile(c)).to(DTYPE)
    if KIND == "add":
        r = add2(x, y, RESULT)
    elif KIND == "sub":
        r = sub2(x, y, RESULT)
    elif KIND == "mul":
        r = mul2(x, y, RESULT)
    elif KIND == "fma":
        r = fma2(x, y, z, RESULT)
    elif KIND == "min":
        r = min2(x, y, RESULT)
    else:
        r = max2(x, y, RESULT)
    gl.store(tile(out), r.to(gl.float32))


def run(kind, a, b, c, dtype, result=None):
    out = np.zeros((ROWS, COLUMNS), np.float32)
    packed[(1,)](a, b, c, out, kind, dtype, result or dtype)
    return out


@pytest.mark.once
@newer
def test_float32():
    a, b, c = numbers(3, 1)
    np.testing.assert_array_equal(run("add", a, b, c, gl.float32), a + b)
    np.testing.assert_array_equal(run("sub", a, b, c, gl.float32), a - b)
    np.testing.assert_array_equal(run("mul", a, b, c, gl.float32), a * b)
    np.testing.assert_array_equal(run("fma", a, b, c, gl.float32), fma(a, b, c))


@pytest.mark.once
@newer
@pytest.mark.parametrize("kind", ["add", "mul", "min", "max"])
def test_float16(kind):
    random = np.random.default_rng(2)
    a, b = random.standard_normal((2, ROWS, COLUMNS)).astype(np.float16)
    a[0, 0], b[0, 1] = np.nan, np.nan
    wanted = {"add": np.add, "mul": np.multiply, "min": np.fmin, "max": np.fmax}[kind](a, b)
    wide = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(run(kind, *wide, wide[0], gl.float16), wanted.astype(np.float32))


@pytest.mark.skipif(TRITON_VERSION < (3, 9), reason="needs Triton 3.9")
@pytest.mark.parametrize("kind", ["add", "mul"])
def test_narrowing_rounds_toward_zero(kind):
    random = np.random.default_rng(3)
    a, b = random.standard_normal((2, ROWS, COLUMNS)).astype(np.float32)
    exact = {"add": np.add, "mul": np.multiply}[kind](a.astype(np.float64), b.astype(np.float64))
    got = run(kind, a, b, a, gl.float32, gl.bfloat16)
    bits = exact.astype(np.float32).view(np.int32)
    assert (np.abs(got) <= np.abs(exact)).all()
    assert (np.abs(got.view(np.int32) - (bits & ~0xFFFF)) <= 0x10000).all()
    half = run(kind, a, b, a, gl.float32, gl.float16)
    beyond = np.nextafter(np.abs(half).astype(np.float16), np.float16(np.inf)).astype(np.float64)
    normal = np.abs(exact) >= 2.0**-14
    assert (np.abs(half) <= np.abs(exact)).all() and (beyond > np.abs(exact))[normal].all()
    tiny = np.full((ROWS, COLUMNS), 2.0**-20, np.float32)
    assert not run("add", tiny, tiny, tiny, gl.float32, gl.float16).any()  # flushed
