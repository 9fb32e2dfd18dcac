"""Loops of reductions load for the next step before they reduce the elements of this one."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def best_score(q, k, pages, out, length, D: gl.constexpr, BN: gl.constexpr):
    """Find the largest product of one query with the keys of pages."""
    lane = gl.arange(0, D)
    query = gl.load(q + lane)
    largest = -1e30
    for start in range(0, length, BN):
        page = gl.load(pages + start // BN)
        row = start + gl.arange(0, BN)
        place = (page * BN + gl.arange(0, BN))[:, None] * D + lane[None, :]
        keys = gl.load(k + place, mask=(row < length)[:, None], other=0.0)
        score = gl.where(row < length, gl.sum(keys * query[None, :], 1), -1e30)
        largest = gl.maximum(largest, gl.max(score, 0))
    gl.store(out, largest)


def test_results_are_those_of_all_steps(chosen_sources):
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal(32, np.float32), rng.standard_normal((4, 32, 32), np.float32)
    pages, out = np.array([2, 0, 3], np.int32), np.ones(1, np.float32)
    for length in (0, 90):
        wanted = (k[pages].reshape(-1, 32)[:length] @ q).max(initial=-1e30)
        best_score[(1,)](q, k, pages, out, length, 32, 32, num_warps=2, target="sim:sm_90")
        assert np.allclose(out, wanted, atol=1e-4), length
    assert "page_ahead = gl.load(pages" in chosen_sources[-1]
    assert "keys = keys_ahead_now" in chosen_sources[-1]


@gluon.jit(layouts="auto")
def passed_on(x, N, BN: gl.constexpr):
    """Add the sum of each row to the next one."""
    for row in range(0, N):
        place = row * BN + gl.arange(0, BN)
        total = gl.sum(gl.load(x + place), 0)
        gl.store(x + place + BN, gl.load(x + place + BN) + total)


def test_loads_stay_behind_stores_of_the_step_before(chosen_sources):
    x = np.ones((3, 512), np.float32)
    passed_on[(1,)](x, 2, 512, num_warps=1, target="sim:sm_90")
    assert (x[1:, 0] == [513, 513 * 512 + 1]).all()
    assert "_ahead" not in chosen_sources[0]


@gluon.jit(layouts="auto")
def commented(x, out, length, BN: gl.constexpr):
    """Find the largest element, in 16ths; comments and strings are within the expressions that move."""
    largest = -1e30
    for start in range(0, length, BN):
        place = start + gl.arange(0, BN)
        part = gl.load(
            x + place,
            # The elements behind the end (
            mask=place < length,  # are the least ones)
            other=float("-inf"),
            # of all
        ).to(gl.float32)
        largest = gl.maximum(largest, gl.max(part * 16, 0))
    gl.store(out, largest)


def test_comments_within_expressions_end_with_their_line(chosen_sources):
    x, out = np.arange(150, dtype=np.float32)[::-1].copy(), np.zeros(1, np.float32)
    commented[(1,)](x, out, 150, 64, num_warps=1, target="sim:sm_90")
    assert out[0] == 149 * 16
    assert 'other=float("-inf"),' in chosen_sources[0] and "part_ahead" in chosen_sources[0]
