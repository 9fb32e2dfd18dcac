"""Sums of rows that a loop of products carries are added up by lanes, and across lanes behind the loop."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@gluon.jit(layouts="auto")
def sums(q, k, out, last, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """Store a sum of each row that starts at 1 and halves in each step, and one that each step compares."""
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    d = gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    total = gl.zeros([BM], gl.float32) + 1.0
    plain = gl.zeros([BM], gl.float32)
    watched = gl.zeros([BM], gl.float32)
    highest = gl.zeros([BM], gl.float32)
    counted = gl.zeros([BM], gl.int32)
    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        key = gl.load(k + d[:, None] + columns[None, :] * D)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        half = gl.full([BM], 0.5, gl.float32)
        step = gl.sum(score, axis=1)
        total = total * half + step
        plain += gl.sum(score * score, 1)
        watched += gl.sum(score, 1)
        counted += gl.sum((score > 0).to(gl.int32), 1)
        highest = gl.maximum(highest, watched)
    gl.store(out + rows, total + plain)
    gl.store(last + rows, highest + counted)


def test_sums(chosen_sources):
    """A sum that a step reads for something else stays whole, and so does one of integers."""
    q, k = (np.random.default_rng(s).standard_normal((128, 64)).astype(np.float16) for s in (0, 1))
    out, last = np.zeros(128, np.float32), np.zeros(128, np.float32)
    sums[(1,)](q, k, out, last, 128, 64, 128, 32, target="sim:hopper", num_warps=4, num_stages=2)
    scores = (q.astype(np.float32) @ k.astype(np.float32).T).reshape(128, 4, 32)
    total = 0.0625 + sum(scores[:, step].sum(1) * 0.5 ** (3 - step) for step in range(4))
    highest = np.maximum(np.cumsum(scores.sum(2), 1).max(1), 0)
    assert np.allclose(out, total + (scores**2).sum((1, 2)), rtol=1e-3)
    counted = (scores > 0).sum((1, 2))
    assert np.allclose(last, highest + counted, rtol=1e-3, atol=1e-2)
    assert "total_lanes" in chosen_sources[0] and "step = gl.sum(gl.sum(" in chosen_sources[0]
    assert "plain_lanes" in chosen_sources[0] and "watched_lanes" not in chosen_sources[0]
    assert "counted_lanes" not in chosen_sources[0]


@gluon.jit(layouts="auto")
def taps(x, w, y, D: gl.constexpr, T: gl.constexpr, W: gl.constexpr):
    """Add up rows times sums of a few weights each."""
    d, t, k = gl.arange(0, D), gl.arange(0, T), gl.arange(0, W)
    weights = gl.load(w + d[:, None] * W + k[None, :])
    acc = gl.zeros([T, D], gl.float32)
    for tap in gl.static_range(3):
        weight = gl.sum(gl.where(k[None, :] == tap, weights, 0.0), axis=1)
        acc += gl.load(x + (t[:, None] + tap) * D + d[None, :]) * weight[None, :]
    gl.store(y + t[:, None] * D + d[None, :], acc)


def test_small_reductions_stay_within_warps():
    """They went across warps, with two barriers each: 8 of them."""
    signature, sizes = {name: "*fp32" for name in "xwy"}, {"D": 16, "T": 8, "W": 4}
    compiled = gluon.compile(taps, target="sm_90", signature=signature, constexprs=sizes)
    assert "bar.sync" not in compiled.asm["ptx"]
