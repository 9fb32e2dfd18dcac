"""Scaled WMMA of gfx1250 in the simulator, against float64."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import gfx1250 as unit
from gluon_core.testing import TRITON_VERSION

LAYOUTS = [
    gl.amd.AMDWMMALayout(3, True, warps_per_cta=[2, 2], instr_shape=[16, 16, depth])
    for depth in (128, 64)
]
ACC, PACK = (gl.constexpr(layout) for layout in LAYOUTS)


@gluon.jit
def product(
    a,
    b,
    s,
    t,
    c,
    FA: gl.constexpr,
    FB: gl.constexpr,
    PA: gl.constexpr,
    PB: gl.constexpr,
    FACTOR: gl.constexpr,
    K: gl.constexpr,
):
    KA: gl.constexpr = K // 2 if FA == "e2m1" else K
    KB: gl.constexpr = K // 2 if FB == "e2m1" else K
    LA: gl.constexpr = gl.DotOperandLayout(0, PA, 16)
    LB: gl.constexpr = gl.DotOperandLayout(1, PB, 16)
    SA: gl.constexpr = unit.get_wmma_scale_layout(LA, [64, K // FACTOR], FACTOR)
    SB: gl.constexpr = unit.get_wmma_scale_layout(LB, [64, K // FACTOR], FACTOR)
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, LA))
    k = gl.arange(0, KA, layout=gl.SliceLayout(0, LA))
    x = unit.buffer_load(a, m[:, None] * KA + k[None, :])
    k = gl.arange(0, KB, layout=gl.SliceLayout(1, LB))
    n = gl.arange(0, 64, layout=gl.SliceLayout(0, LB))
    y = unit.buffer_load(b, n[None, :] * KB + k[:, None])
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, SA))
    i = gl.arange(0, K // FACTOR, layout=gl.SliceLayout(0, SA))
    u = unit.buffer_load(s, m[:, None] * (K // FACTOR) + i[None, :])
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, SB))
    i = gl.arange(0, K // FACTOR, layout=gl.SliceLayout(0, SB))
    v = unit.buffer_load(t, m[:, None] * (K // FACTOR) + i[None, :])
    acc = gl.full([64, 64], 1, gl.float32, layout=ACC)
    acc = unit.wmma_scaled(x, u, FA, y, v, FB, acc)
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, ACC))
    n = gl.arange(0, 64, layout=gl.SliceLayout(0, ACC))
    unit.buffer_store(acc, c, m[:, None] * 64 + n[None, :])


HALVES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FP4 = np.concatenate([HALVES, -HALVES])
DTYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def operand(rng, format, k):
    """(bytes as the kernel takes them, values)."""
    if format == "e2m1":
        raw = rng.integers(0, 256, (64, k // 2)).astype(np.uint8)
        return raw, np.stack([FP4[raw & 15], FP4[raw >> 4]], -1).reshape(64, k)
    values = rng.standard_normal((64, k)).astype(DTYPES[format])
    return values.view(np.uint8), values.astype(np.float64)


def run(fa, fb, factor=32, k=128, fp8=False):
    rng = np.random.default_rng(8)
    (a, wide_a), (b, wide_b) = operand(rng, fa, k), operand(rng, fb, k)
    if fp8:
        s, t = rng.uniform(0.25, 4, (2, 64, k // factor)).astype(ml_dtypes.float8_e4m3fn)
        factors = [x.astype(np.float64) for x in (s, t)]
    else:
        s, t = rng.integers(120, 134, (2, 64, k // factor)).astype(np.uint8)
        factors = [2.0 ** (x.astype(int) - 127) for x in (s, t)]
    c = np.zeros((64, 64), np.float32)
    packs = [LAYOUTS[format == "e2m1"] for format in (fa, fb)]
    product[(1,)](a, b, s, t, c, fa, fb, *packs, factor, k)
    x, y = (w * np.repeat(f, factor, 1) for w, f in zip((wide_a, wide_b), factors))
    wanted = 1 + x @ y.T
    np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.fixture(autouse=True)
def gfx1250(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx1250")


FORMATS = ["e2m1", "e4m3", "e5m2"]


@pytest.mark.parametrize("fa, fb", list(itertools.product(FORMATS, FORMATS)))
def test_formats(fa, fb):
    run(fa, fb)


def test_a_longer_k():
    run("e4m3", "e2m1", k=256)


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
@pytest.mark.parametrize("fa, fb", [("e4m3", "e5m2"), ("e2m1", "e2m1")])
def test_blocks_of_16(fa, fb):
    run(fa, fb, factor=16)


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
@pytest.mark.parametrize("factor", [16, 32])
def test_scales_of_fp8(factor):
    run("e2m1", "e2m1", factor=factor, fp8=True)
