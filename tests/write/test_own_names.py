"""Tiles that a step loads into one name, one after the other, are copied ahead all the same."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def two_products(a, b, c, K, B: gl.constexpr):
    """Add the products of two halves of the rows, whose tiles have one name."""
    row, step = gl.arange(0, B), gl.arange(0, B)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        y = gl.load(b + (k + step)[:, None] * B + row[None, :])
        x = gl.load(a + row[:, None] * K + (k + step)[None, :])
        acc = gl.portable.mma(x, y, acc)
        x = gl.load(a + (row + B)[:, None] * K + (k + step)[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + row[:, None] * B + row[None, :], acc)


def test_each_tile_is_copied(chosen_sources):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, size).astype(np.float16) for size in ((32, 64), (64, 16)))
    c = np.zeros((16, 16), np.float32)
    two_products[(1,)](a, b, c, 64, 16, num_stages=3, target="sim:sm_90")
    whole = a.astype(np.float32).reshape(2, 16, 64).sum(0)
    assert np.array_equal(c, whole @ b.astype(np.float32))
    assert "x_2_ring" in chosen_sources[0] and "x_ring" in chosen_sources[0]


@gluon.jit(layouts="auto")
def rectified(a, b, c, scales, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply the positive numbers of a matrix, whose tiles keep their name, and which columns of it scale."""
    row, step = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + row[:, None] * K + (k + step)[None, :])
        scale = gl.load(scales + k + step)
        x = (gl.maximum(x, 0.0) * scale[None, :]).to(gl.float16)
        y = gl.load(b + (k + step)[:, None] * B + row[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + row[:, None] * B + row[None, :], acc)


def test_a_tile_that_a_step_changes_is_copied(chosen_sources):
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-3, 4, size).astype(np.float16) for size in ((64, 96), (96, 64)))
    c, scales = np.zeros((64, 64), np.float32), rng.integers(0, 3, 96).astype(np.float32)
    rectified[(1,)](a, b, c, scales, 96, 64, 32, num_stages=3, target="sim:sm_90")
    assert np.array_equal(c, np.maximum(a, 0) * scales @ b.astype(np.float32))
    assert "x_2 = x_2_ring.index(slot).load()" in chosen_sources[0]
    assert "scale = scale_ring.index(slot).load()" in chosen_sources[0]


@gluon.jit(layouts="auto")
def rounds(a, codes, c, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply by the numbers of two tables of bytes, which a compile-time loop takes in turn."""
    row, step = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + row[:, None] * K + (k + step)[None, :])
        for part in gl.static_range(2):
            y = gl.load(codes + (part * K + k + step)[:, None] * B + row[None, :]).to(gl.float16)
            acc = gl.portable.mma(x, y, acc)
    gl.store(c + row[:, None] * B + row[None, :], acc)


def test_a_tile_that_an_expression_of_a_round_changes_is_copied(chosen_sources):
    rng = np.random.default_rng(5)
    a, codes = (
        rng.integers(-3, 4, s).astype(t)
        for s, t in (((64, 64), np.float16), ((2, 64, 64), np.int8))
    )
    c = np.zeros((64, 64), np.float32)
    rounds[(1,)](a, codes, c, 64, 64, 32, num_stages=3, target="sim:sm_90")
    assert np.array_equal(c, a @ codes.sum(0).astype(np.float32))
    assert "y_2_loaded_ring" in chosen_sources[0] and "warpgroup_mma(x, y_2," in chosen_sources[0]


@gluon.jit(layouts="auto")
def listed(a, b, c, blocks, count, B: gl.constexpr):
    """Add up the products with listed blocks of rows, which are cast to the dtype that they have."""
    row, lane = gl.arange(0, B), gl.arange(0, B)
    x = gl.load(a + row[:, None] * B + lane[None, :])
    acc = gl.zeros([B, B], gl.float32)
    for i in range(count):
        n = gl.load(blocks + i) * B + row
        y = gl.load(b + n[:, None] * B + lane[None, :])
        acc = gl.portable.mma(x, y.to(x.dtype), acc)
    gl.store(c + row[:, None] * B + lane[None, :], acc)


@pytest.mark.parametrize("stages", [3, 1])
def test_casts_to_the_same_dtype_and_listed_blocks_are_copied(chosen_sources, stages):
    """Also by a launch that asks for one stage, which would multiply from registers."""
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((64, 64), (4, 64, 64)))
    c, blocks = np.zeros((64, 64), np.float32), np.array([3, 1, 0], np.int32)
    listed[(1,)](a, b, c, blocks, 3, 64, num_stages=stages, target="sim:sm_90")
    assert np.array_equal(c, a @ b[blocks].astype(np.float32).sum(0))
    text = chosen_sources[0]
    assert "y_ring" in text and "mma(x, y, acc" in text  # without the cast
    assert "n_loaded_ahead = gl.load(blocks" in text  # of which each layout may compute its rows
