"""Rows of packed numbers are loaded once in loops of products."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def weights_of_4_bits(x, w, scales, out, N, K, START: gl.constexpr, END: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, G: gl.constexpr):  # fmt: skip
    """Multiply by weights of 4 bits, eight in an integer, with a scale for G rows of a column."""
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(START, END, BK):
        index = k + gl.arange(0, BK)
        group = index // G
        left = gl.load(x + rows[:, None] * K + index[None, :])
        words = gl.load(w + (index // 8)[:, None] * N + columns[None, :])
        scale = gl.load(scales + group[:, None] * N + columns[None, :], mask=(group < K // G)[:, None] & (columns < N)[None, :], other=0.0)  # fmt: skip
        right = (((words >> (index % 8 * 4)[:, None]) & 15) - 8).to(gl.float16) * scale
        acc = gl.portable.mma(left, right, acc)
    gl.store(out + rows[:, None] * N + columns[None, :], acc)


@gluon.jit(layouts="auto")
def values_of_4_bits(x, w, out, N, K, MASKED: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):  # fmt: skip
    """Multiply numbers of 4 bits, eight of a row in an integer."""
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        index = k + gl.arange(0, BK)
        words = gl.load(x + rows[:, None] * (K // 8) + (index // 8)[None, :], mask=(index < K)[None, :] if MASKED else True, other=0)  # fmt: skip
        left = ((words >> (index % 8 * 4)[None, :]) & 15).to(gl.float16)
        acc = gl.portable.mma(left, gl.load(w + index[:, None] * N + columns[None, :]), acc)
    gl.store(out + rows[:, None] * N + columns[None, :], acc)


def fields(words, axis):
    """Return the eight numbers of each word along an axis."""
    k = np.arange(words.shape[axis] * 8)
    shift = (k % 8 * 4).reshape((-1, 1) if axis == 0 else (1, -1))
    return ((np.take(words, k // 8, axis) >> shift) & 15).astype(np.float32)


def numbers(*shape):
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape).astype(np.float16)


def packed(*shape):
    rng = np.random.default_rng(sum(shape))
    return rng.integers(-(2**31), 2**31, shape).astype(np.int32)


def multiply(start, end, target):
    """Check a product of some rows."""
    x, w, scales = numbers(64, 128), packed(16, 32), numbers(8, 32)
    out = np.zeros((64, 32), np.float32)
    sizes = 32, 128, start, end, 64, 32, 32, 16
    weights_of_4_bits[(1,)](x, w, scales, out, *sizes, target=target)
    right = (fields(w, 0) - 8) * np.repeat(scales, 16, 0)
    wanted = x[:, start:end].astype(np.float32) @ right[start:end]
    assert np.allclose(out, wanted, atol=0.5, rtol=1e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sim:sm_90", "sim:gfx942"])
def test_words_and_scales_come_once(target, chosen_sources):
    multiply(0, 128, target)
    for name, rows in (("words", 4), ("scale", 2)):
        assert f"{name} = gl.reshape({name}_wide, [32, 32])" in chosen_sources[0]
        assert f"gl.arange(0, {rows})" in chosen_sources[0]


def test_rows_that_begin_within_a_word_are_left_alone(chosen_sources):
    multiply(4, 100, "sim:sm_90")
    assert "_wide" not in chosen_sources[0]


@pytest.mark.parametrize("masked", [False, True])
def test_words_of_first_operands_come_once(masked, chosen_sources):
    """A mask may tell neighbours apart."""
    x, w, out = packed(64, 8), numbers(64, 32), np.zeros((64, 32), np.float32)
    values_of_4_bits[(1,)](x, w, out, 32, 64, masked, 64, 32, 32, target="sim:sm_90")
    assert np.allclose(out, fields(x, 1) @ w.astype(np.float32), atol=0.5, rtol=1e-2)
    assert ("gl.reshape(words_wide, [64, 32])" in chosen_sources[0]) != masked
