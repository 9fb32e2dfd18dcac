"""Loops of products move scalars where tiles of pointers would take registers."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@gluon.jit(layouts="auto")
def split(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, PARTS: gl.constexpr):  # fmt: skip
    """Add the product of every PARTS-th block of columns."""
    row = gl.program_id(0) * BM + gl.arange(0, BM)
    column = gl.program_id(1) * BN + gl.arange(0, BN)
    step = gl.program_id(2) * BK + gl.arange(0, BK)
    left = a + row[:, None] * K + step[None, :]
    right = b + (step[:, None] * N + column[None, :])
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK * PARTS):
        x = gl.load(left, mask=(row < M)[:, None] & (step < K - k)[None, :], other=0.0)
        y = gl.load(right, mask=(step < K - k)[:, None] & (column < N)[None, :], other=0.0)
        acc = gl.portable.mma(x, y, acc)
        left += BK * PARTS
        right += BK * PARTS * N
    inside = (row < M)[:, None] & (column < N)[None, :]
    gl.atomic_add(c + row[:, None] * N + column[None, :], acc, mask=inside)


@gluon.jit(layouts="auto")
def read_behind(a, b, c, K, BM: gl.constexpr, BK: gl.constexpr):
    """Add the last tile of the first operand to a product of square tiles."""
    row, step = gl.arange(0, BM), gl.arange(0, BK)
    left, right = a + row[:, None] * K + step[None, :], b + step[:, None] * K + row[None, :]
    acc = gl.zeros([BM, BM], gl.float32)
    for k in range(0, K, BK):
        inside = step < K - k
        x = gl.load(left, mask=inside[None, :], other=0.0)
        acc = gl.portable.mma(x, gl.load(right, mask=inside[:, None], other=0.0), acc)
        left += BK
        right += BK * K
    last = gl.load(left - BK, mask=(step < 1)[None, :], other=0.0)
    gl.store(c + row[:, None] * BM + row[None, :], acc + gl.sum(last.to(gl.float32), 1)[:, None])


SIZES = {"BM": 64, "BN": 32, "BK": 32, "PARTS": 2}


@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_80"])
def test_rows_that_begin_anywhere(target, chosen_sources):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((75, 147), (147, 41)))
    c, wanted = np.zeros((75, 41), np.float32), a.astype(np.float32) @ b.astype(np.float32)
    split[(2, 2, 2)](a, b, c, 75, 41, 147, *SIZES.values(), num_stages=3, target=target)
    assert np.allclose(c, wanted, atol=1e-2)
    for name, distance in (("left", "BK * PARTS"), ("right", "BK * PARTS * N")):
        assert f"{name}_base += {distance}" in chosen_sources[0]
        assert f"{name} += " not in chosen_sources[0]


def test_few_pointers_stay(chosen_sources):
    a, b = np.ones((16, 147), np.float16), np.ones((147, 41), np.float16)
    c, sizes = np.zeros((16, 41), np.float32), {"BM": 16, "BN": 32, "BK": 16, "PARTS": 1}
    split[(1, 2, 1)](a, b, c, 16, 41, 147, *sizes.values(), num_stages=3, target="sim:sm_90")
    assert (c == 147).all()
    assert "left_ahead += BK" in chosen_sources[0] and "_base" not in chosen_sources[0]
    assert " left += BK" not in chosen_sources[0]  # nothing reads what copies took over


def test_pointers_that_are_read_behind_the_loop_stay(chosen_sources):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 75)).astype(np.float16), rng.standard_normal((75, 75))
    b, c = b.astype(np.float16), np.zeros((64, 64), np.float32)
    read_behind[(1,)](a, b, c, 75, 64, 32, num_stages=3, target="sim:sm_90")
    wanted = a.astype(np.float32) @ b[:, :64].astype(np.float32) + a[:, 64:65]
    assert np.allclose(c, wanted, atol=1e-2)
    assert "left += BK" in chosen_sources[0] and "right_base += BK * K" in chosen_sources[0]


def test_aligned_rows_are_copied(chosen_sources):
    a, b = np.zeros((64, 64), np.float16), np.zeros((64, 32), np.float16)
    c = np.zeros((64, 32), np.float32)
    split[(1, 1, 2)](a, b, c, 64, 32, 64, *SIZES.values(), num_stages=3, target="sim:sm_90")
    assert "_base" not in chosen_sources[0] and "async_load" in chosen_sources[0]
