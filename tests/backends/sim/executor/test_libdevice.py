"""The vendors' math libraries in the simulator: every function of theirs has a model, and it is right."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.extra import libdevice
from gluon_core.plugin.reference import MATH, MORE_MATH
from gluon_core.registry.load import registry
from gluon_sim.executor import special

L = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
WAVE = gl.constexpr(gl.BlockedLayout([1], [64], [2], [0]))


@pytest.mark.parametrize("backend, library", [("nvidia", "cuda"), ("amd", "hip")])
def test_every_function_has_a_model(backend, library):
    module = importlib.import_module(f"triton.language.extra.{library}.libdevice")
    names = set(re.findall(r'"(__(?:nv|ocml|triton_hip)_\w+)"', Path(module.__file__).read_text()))
    reference = importlib.import_module(registry().backend(backend).language.reference)
    assert len(names) > 100 and not names - set(reference.EXTERNS)
    named = {model for model in reference.EXTERNS.values() if isinstance(model, str)}
    assert len(named) > 40 and not named - set(special.FUNCTIONS)


def test_the_simulator_has_the_functions_that_the_contract_lists():
    assert set(special.FUNCTIONS) == {*MATH, *MORE_MATH}
    assert special.function("no such function") is None


@gluon.jit
def cuda_kernel(x, y, n, out, whole, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK, layout=L)
    a, b, k = gl.load(x + i), gl.load(y + i), gl.load(n + i)
    gl.store(out + i, libdevice.add_rd(a, b))
    gl.store(out + BLOCK + i, libdevice.div_ru(a, b))
    gl.store(out + 2 * BLOCK + i, libdevice.sqrt_rz(libdevice.abs(a)))
    gl.store(out + 3 * BLOCK + i, libdevice.erfinv(libdevice.tanh(a)))
    gl.store(out + 4 * BLOCK + i, libdevice.j0(a))
    gl.store(out + 5 * BLOCK + i, libdevice.jn(k & 3, a))
    gl.store(out + 6 * BLOCK + i, libdevice.fma(a, b, a))
    gl.store(out + 7 * BLOCK + i, libdevice.ldexp(a, k & 3))
    gl.store(whole + i, libdevice.clz(k))
    gl.store(whole + BLOCK + i, libdevice.mulhi(k, k))
    gl.store(whole + 2 * BLOCK + i, libdevice.float2int_rd(a))
    gl.store(whole + 3 * BLOCK + i, libdevice.float_as_int(a))
    gl.store(whole + 4 * BLOCK + i, libdevice.brev(k))


def test_functions_of_cuda():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(128).astype(np.float32) for _ in range(2))
    n = rng.integers(-(1 << 31), 1 << 31, 128).astype(np.int32)
    out, whole = np.zeros((8, 128), np.float32), np.zeros((5, 128), np.int32)
    cuda_kernel[(1,)](x, y, n, out, whole, BLOCK=128)
    wide, other = x.astype(np.float64), y.astype(np.float64)
    exact = wide + other
    assert (out[0] <= exact).all() and (np.nextafter(out[0], np.float32(np.inf)) > exact).all()
    exact = wide / other
    assert (out[1] >= exact).all() and (np.nextafter(out[1], np.float32(-np.inf)) < exact).all()
    assert (out[2].astype(np.float64) ** 2 <= np.abs(wide)).all()
    import math

    again = [math.erf(float(v)) for v in out[3]]
    np.testing.assert_allclose(again, np.tanh(wide), rtol=1e-6)
    np.testing.assert_allclose(out[4], special.bessel_j(0)(wide), rtol=1e-5, atol=1e-7)
    of_two = 2 / wide * special.bessel_j(1)(wide) - special.bessel_j(0)(wide)
    np.testing.assert_allclose(out[5][n & 3 == 2], of_two[n & 3 == 2], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(out[6], (wide * other + wide).astype(np.float32))
    np.testing.assert_array_equal(out[7], np.ldexp(x, n & 3))
    unsigned = [int(v) & 0xFFFFFFFF for v in n]
    assert whole[0].tolist() == [32 - v.bit_length() for v in unsigned]
    assert whole[1].tolist() == [int(v) * int(v) >> 32 for v in n]
    np.testing.assert_array_equal(whole[2], np.floor(x).astype(np.int32))
    np.testing.assert_array_equal(whole[3], x.view(np.int32))
    reversed_bits = [int(f"{v:032b}"[::-1], 2) for v in unsigned]
    assert [int(v) & 0xFFFFFFFF for v in whole[4]] == reversed_bits


@gluon.jit
def hip_kernel(x, out, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK, layout=WAVE)
    a = gl.load(x + i)
    gl.store(out + i, libdevice.nearbyint(a))
    gl.store(out + BLOCK + i, libdevice.ldexp(a, 3))
    gl.store(out + 2 * BLOCK + i, libdevice.cyl_bessel_i0(a))
    gl.store(out + 3 * BLOCK + i, libdevice.fma(a, a, a))


def test_functions_of_hip():
    x = np.linspace(-4, 4, 128, dtype=np.float32)
    out = np.zeros((4, 128), np.float32)
    hip_kernel[(1,)](x, out, BLOCK=128, num_warps=2, target="sim:gfx942")
    np.testing.assert_array_equal(out[0], np.rint(x))
    np.testing.assert_array_equal(out[1], x * 8)
    np.testing.assert_allclose(out[2], np.i0(x.astype(np.float64)), rtol=1e-6)
    np.testing.assert_array_equal(out[3], (x.astype(np.float64) * x + x).astype(np.float32))


# Abramowitz and Stegun, tables 7.1, 9.1, 9.2 and 9.8.
KNOWN = [
    (special.bessel_j(0), 1.0, 0.7651976866),
    (special.bessel_j(1), 10.0, 0.0434727462),
    (special.bessel_y(0), 1.0, 0.0882569642),
    (special.bessel_y(1), 2.5, 0.1459181380),
    (special.bessel_i(1), 1.0, 0.5651591040),
    (special.erfinv, 0.8427007929, 1.0),
    (special.erfcinv, 0.1572992071, 1.0),
    (special.erfcx, 1.0, 0.4275835762),
    (special.normcdf, 1.0, 0.8413447461),
    (special.normcdfinv, 0.8413447461, 1.0),
    (special.lgamma, 10.0, 12.8018274801),
]


@pytest.mark.parametrize("case", range(len(KNOWN)))
def test_special_functions(case):
    fn, x, wanted = KNOWN[case]
    np.testing.assert_allclose(fn(np.array([x])), [wanted], rtol=2e-8)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_bessel_functions_agree_where_their_formulas_change(order):
    """Wronskian's identity on both sides of the change, which no single mistake survives."""
    x = np.array([0.5, 20.0, 999.0, 1001.0, 1e5])
    j, y = special.bessel_j, special.bessel_y
    wronskian = j(order + 1)(x) * y(order)(x) - j(order)(x) * y(order + 1)(x)
    np.testing.assert_allclose(wronskian, 2 / (np.pi * x), rtol=1e-8)


def test_directed_sums_of_zeros_and_beyond_the_largest():
    from gluon_nvidia.reference import EXTERNS

    zero, most = np.zeros(1), np.array([np.finfo(np.float64).max])
    assert np.signbit(EXTERNS["__nv_dadd_rd"](-zero, zero)) and not np.signbit(zero + zero)
    assert not np.signbit(EXTERNS["__nv_fma_rd"](zero, most, zero))
    assert EXTERNS["__nv_fma_ru"](most, most, most) == np.inf
    assert EXTERNS["__nv_fma_rz"](most, most, most) == most
    assert EXTERNS["__nv_fma_rn"](most, most, np.array([-np.inf])) == -np.inf
