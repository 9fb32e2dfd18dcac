"""Loads that need no reduction start before it, where the registers leave as many programs."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def scaled(x, w, shift, out, N, BLOCK: gl.constexpr):
    """Divide a row by its sum, multiply it by weights, and add a row that the sum names."""
    column = gl.arange(0, BLOCK)
    place = gl.program_id(0) * N + column
    values = gl.load(x + place, mask=column < N, other=0.0)
    total = gl.sum(values, 0)
    kept = total
    weight = gl.load(w + column, mask=column < N, other=0.0)
    row = (total > 0).to(gl.int32)
    added = gl.load(shift + row * N + column, mask=column < N, other=0.0)
    gl.store(out + place, values / kept * weight + added, mask=column < N)
    column = gl.load(w + gl.arange(0, BLOCK), mask=gl.arange(0, BLOCK) < N, other=0.0)
    gl.store(w + gl.arange(0, BLOCK), column + 1, mask=gl.arange(0, BLOCK) < N)


def test_weights_are_loaded_before_the_sum(chosen_sources):
    rng = np.random.default_rng(4)
    for N, BLOCK, early in ((5001, 8192, True), (1901, 2048, False)):
        x, w, shift = (rng.random((rows, N), np.float32) for rows in (1, 1, 2))
        out, weights = np.zeros((1, N), np.float32), w.copy()
        scaled[(1,)](x, weights, shift, out, N, BLOCK, num_warps=8, target="sim:sm_90")
        assert np.allclose(out, x / x.sum(1)[:, None] * w + shift[1], atol=1e-5)
        assert np.allclose(weights, w + 1)
        source = chosen_sources[-1]
        assert (source.index("weight = gl.load") < source.index("total = gl.sum")) is early, N
        assert source.index("total = gl.sum") < source.index("added = gl.load")
        assert source.index("gl.store(out") < source.index("column = gl.load")
