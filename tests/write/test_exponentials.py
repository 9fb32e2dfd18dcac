"""Weights of an online softmax are powers of two, and vectors of a step are loaded during the step before."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import tl
from gluon_write.preferred import preferred_form

pytestmark = pytest.mark.once

SEEN = ((np.arange(150) % 3 != 1) & (np.arange(150) >= 64)).astype(np.int32)
sigmoid = tl.sigmoid
LOWEST = float(np.finfo(np.float32).min)


@gluon.jit(layouts="auto")
def attention(q, k, v, out, logs, more, scale, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    row = gl.program_id(0) * BM + gl.arange(0, BM)
    depth = gl.arange(0, D)
    along = gl.arange(0, BN)
    query = gl.load(q + row[:, None] * D + depth[None, :], mask=row[:, None] < length, other=0.0)
    largest = gl.full([BM], float("-inf"), gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        keys = start + along
        key = gl.load(
            k + keys[None, :] * D + depth[:, None], mask=keys[None, :] < length, other=0.0
        )
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32)) * scale
        if KIND == "mask":
            seen = (keys[None, :] < length) & (gl.load(more + keys, mask=keys < length, other=0)[None, :] != 0)  # fmt: skip
            score = gl.where(seen, score, float("-inf"))
        else:
            bias = gl.load(more + keys, mask=keys < length, other=float("-inf"))
            score = score + bias[None, :]
        higher = gl.maximum(largest, gl.max(score, 1))
        known = gl.where(higher == float("-inf"), 0.0, higher)
        weight = gl.exp(score - known[:, None])
        kept = gl.exp(largest - known)
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(
            v + keys[:, None] * D + depth[None, :], mask=keys[:, None] < length, other=0.0
        )
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    gl.store(logs + row, largest + gl.log(total), mask=row < length)
    gl.store(
        out + row[:, None] * D + depth[None, :],
        acc / total[:, None],
        mask=row[:, None] < length,
    )


def right(kind, scale, more, length=150):
    """Return True if results and logarithms of sums are those of NumPy; `more` are masks or biases of keys."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((length, 64)).astype(np.float16) for _ in range(3))
    out, logs = np.zeros((length, 64), np.float32), np.zeros(length, np.float32)
    with preferred_form("specialized"):
        attention[(-(-length // 128),)](
            q, k, v, out, logs, more, scale, length, 64, 128, 64, kind,
            num_warps=4, num_stages=2, target="sim:hopper",
        )  # fmt: skip
    score = (q.astype(np.float64) @ k.astype(np.float64).T * np.float32(scale)).astype(np.float32)
    score = np.where(more != 0, score, -np.inf) if kind == "mask" else score + more
    higher = score.max(1, keepdims=True)
    weight = np.exp((score - higher).astype(np.float64))
    total = weight.sum(1, keepdims=True)
    wanted = weight @ v.astype(np.float64) / total
    near = np.allclose(logs, higher[:, 0] + np.log(total[:, 0]), rtol=1e-6, atol=1e-3)
    return near and np.allclose(out, wanted, rtol=0, atol=5e-3)


def test_a_mask_of_keys(chosen_sources):
    """No row sees a key of the first step, whose largest score is -inf."""
    assert right("mask", -0.1, SEEN)
    text = chosen_sources[-1]
    assert "weight = gl.exp2(score * (size * 1.4426950408889634) - (known * " in text
    assert "kept = gl.exp2((largest - known) * 1.4426950408889634)" in text
    assert "higher = gl.maximum(largest, gl.max(score, 1) * size)" in text
    use = text.index("(seen_ahead[None, :] != 0)\n")
    assert (
        use < text.index("seen_ahead = gl.load(more + keys_ahead", use) < text.index("weight", use)
    )


@gluon.jit
def capped(x, cap):
    return cap * (2.0 / (1.0 + gl.exp(-2.0 * x)) - 1.0)


@gluon.jit
def gated(x):
    return 2 * sigmoid(2 * x) - 1


@gluon.jit(layouts="auto")
def capped_attention(q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, KIND: gl.constexpr):  # fmt: skip
    row, depth = gl.arange(0, BM), gl.arange(0, D)
    query = gl.load(q + row[:, None] * D + depth[None, :])
    largest = gl.full([BM], float("-inf"), gl.float32)
    total, acc = gl.zeros([BM], gl.float32), gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        keys = start + gl.arange(0, BN)
        key = gl.load(k + keys[None, :] * D + depth[:, None])
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32)) * scale
        if KIND == "capped":
            score = capped(score, 1.0)
        else:
            score = gated(score)
        higher = gl.maximum(largest, gl.max(score, 1))
        weight = gl.exp(score - higher[:, None])
        kept = gl.exp(largest - higher)
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + keys[:, None] * D + depth[None, :])
        acc = gl.portable.mma(weight.to(gl.float16), value, acc * kept[:, None])
        largest = higher
    gl.store(out + row[:, None] * D + depth[None, :], acc / total[:, None])


@pytest.mark.parametrize("kind", ["capped", "gated"])
def test_exponentials_next_to_one(kind, chosen_sources):
    """Scores of -1,000 have exponentials without end, and those of 1,000 none."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((64, 32)).astype(np.float16) for _ in range(3))
    for scale in (0.3, 100.0):
        out = np.zeros((64, 32), np.float32)
        capped_attention[(1,)](q, k, v, out, 64, scale, 32, 64, 32, kind, target="sim:hopper")
        weight = np.exp(np.tanh(q.astype(np.float32) @ k.T.astype(np.float32) * np.float32(scale)))
        wanted = weight @ v.astype(np.float32) / weight.sum(1, keepdims=True)
        assert np.allclose(out, wanted, atol=5e-3)
    text = chosen_sources[-1]
    assert "gl.exp(" not in text and "sigmoid(" not in text
    assert text.count("* -1.4426950408889634") + text.count("x) * 1.4426950408889634") == 1
    assert "weight = gl.exp2(score * 1.4426950408889634 - " in text


@pytest.mark.campaign
def test_a_mask_of_keys_whose_scores_are_zero():
    """A scale of 0 leaves masked scores at -inf."""
    assert right("mask", 0.0, SEEN)


@pytest.mark.campaign
def test_biases_of_the_lowest_number(chosen_sources):
    """A step of such biases has equal weights until another step has a higher score: they are no numbers where both sides are scaled."""
    bias = np.where(np.arange(150) < 64, LOWEST, np.linspace(-1, 1, 150)).astype(np.float32)
    assert right("bias", 0.1, bias) and right("bias", 0.1, np.full(150, LOWEST, np.float32))
    assert "weight = gl.exp2((score - known[:, None]) * 1.4426950408889634)" in chosen_sources[-1]
