"""Loops over a row keep its sums apart by threads, and the maximum that scales them where it begins with a number."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def logarithms(x, out, N, scale, BLOCK: gl.constexpr):
    """Compute the logarithm of a row's sum of exponentials, and the sum of the row."""
    row = x + gl.program_id(0) * N
    largest = -1e30
    total = 0.5
    plain = 3.0
    for start in range(0, N, BLOCK):
        index = start + gl.arange(0, BLOCK)
        values = gl.load(row + index, mask=index < N, other=-float("inf")).to(gl.float32)
        higher = gl.maximum(largest, gl.max(values, 0))
        total = gl.exp((largest - higher) * scale) * total + gl.sum(
            gl.exp((values - higher) * scale), 0
        )
        plain += gl.sum(gl.where(index < N, values, 0.0), 0)
        largest = higher
    gl.store(out + gl.program_id(0) * 3, largest)
    gl.store(out + gl.program_id(0) * 3 + 1, total)
    gl.store(out + gl.program_id(0) * 3 + 2, plain)


def test_sums_and_maxima_by_threads(chosen_sources):
    for N in (1000, 1024, 0):
        x = np.random.default_rng(N).standard_normal((2, max(N, 1))).astype(np.float16)
        out = np.zeros((2, 3), np.float32)
        logarithms[(2,)](x, out, N, 0.5, 512, num_warps=2, target="sim:sm_90")
        rows = x[:, :N].astype(np.float32)
        largest = rows.max(1, initial=-1e30)
        total = np.exp((rows - largest[:, None]) / 2).sum(1) + 0.5 * (N == 0)
        wanted = np.stack([largest, total, rows.sum(1) + 3], 1)
        assert np.allclose(out, wanted, rtol=1e-3, atol=1e-2), N
    assert "largest_threads = higher_threads" in chosen_sources[0]
    assert "plain_threads = plain_threads + gl.sum(gl.sum(parts" in chosen_sources[0]


@gluon.jit(layouts="auto")
def scaled(x, out, N, BLOCK: gl.constexpr):
    """Begin with no number, and keep a sum that the steps read."""
    largest = -float("inf")
    total = 0.0
    read = 0.0
    for start in range(0, N, BLOCK):
        index = start + gl.arange(0, BLOCK)
        values = gl.load(x + index, mask=index < N, other=-float("inf"))
        higher = gl.maximum(largest, gl.max(values, 0))
        total = total * gl.exp(largest - higher) + gl.sum(gl.exp(values - higher), 0)
        read += gl.sum(gl.where(index < N, values + read, 0.0), 0)
        largest = higher
    gl.store(out, largest)
    gl.store(out + 1, total)
    gl.store(out + 2, read)


def test_a_maximum_without_a_first_number_is_one_of_all_threads(chosen_sources):
    x, out, read = np.full(1000, -np.inf, np.float32), np.zeros(3, np.float32), np.float32(0)
    x[:700] = np.random.default_rng(1).standard_normal(700)
    scaled[(1,)](x, out, 700, 512, num_warps=2, target="sim:sm_90")
    for part in (x[:512], x[512:700]):
        read += (part + read).sum()
    assert np.allclose(out[:2], [x.max(), np.exp(x - x.max()).sum()], rtol=1e-5)
    assert np.isclose(out[2], read, rtol=1e-3)
    assert "total_threads" in chosen_sources[0] and "largest_threads" not in chosen_sources[0]
    assert "read_threads" not in chosen_sources[0]
