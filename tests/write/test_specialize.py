"""Loops of products in partitions: copies in a warp of their own, and products in the order of a schedule."""

import warnings

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using
from gluon_write.pipelines.schedule import Step, interval_of, scheduled
from gluon_write.preferred import preferred_form

pytestmark = [pytest.mark.once, pytest.mark.sampled(12)]


@gluon.jit(layouts="auto")
def matmul(a, b, c, M, N, K, first, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Sum products from column `first` on, and count the steps."""
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [N, K], [K, 1], [BN, BK])
    acc = gl.zeros([BM, BN], gl.float32)
    steps = 0
    for k in range(first, K, BK):
        here = k + 0
        x = gl.portable.load(a_tiles, [row, here])
        # the rows of B are its columns
        y = gl.portable.load(b_tiles, [column, here])
        acc = gl.portable.mma(x, gl.permute(y, (1, 0)), acc)
        steps += 1
    i, j = gl.arange(0, BM), gl.arange(0, BN)
    gl.store(c + (row + i)[:, None] * N + column + j[None, :], acc + steps)


@gluon.jit(layouts="auto")
def attention(q, k, v, out, stop, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    q_tiles = gl.portable.descriptor(q, [BM, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [length, D], [D, 1], [BN, D])
    query = gl.portable.load(q_tiles, [0, 0])
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, stop, BN):
        key = gl.portable.load(k_tiles, [start, 0])
        score = gl.portable.mma(query, gl.permute(key, (1, 0)), gl.zeros([BM, BN], gl.float32))
        if D > 64:
            score = score * 0.5
        score = gl.where((start + gl.arange(0, BN))[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        value = gl.portable.load(v_tiles, [start, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    i, d = gl.arange(0, BM), gl.arange(0, D)
    gl.store(out + i[:, None] * D + d[None, :], acc / gl.maximum(total, 1e-30)[:, None])


@gluon.jit(layouts="auto")
def stored(a, b, c, K, BM: gl.constexpr, BK: gl.constexpr):
    """Store a sum in each step: the copies may need what it stores."""
    a_tiles = gl.portable.descriptor(a, [BM, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, BM], [BM, 1], [BK, BM])
    acc = gl.zeros([BM, BM], gl.float32)
    i = gl.arange(0, BM)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [0, k])
        y = gl.portable.load(b_tiles, [k, 0])
        acc = gl.portable.mma(x, y, acc)
        gl.store(c + i[:, None] * BM + i[None, :], acc)


def halves(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("K, first", [(64, 64), (64, 0), (200, 0), (200, 72)])
def test_gemm(stages, K, first):
    a, b = halves(128, K), halves(64, K, seed=1)
    for schedule in ("eager", "latest"):
        c = np.zeros((128, 64), np.float32)
        with preferred_form("specialized"), using(schedule=schedule):
            matmul[(1, 1)](
                a, b, c, 128, 64, K, first, 128, 64, 64, num_stages=stages, target="sim:hopper"
            )
        wanted = a[:, first:K].astype(np.float32) @ b[:, first:K].astype(np.float32).T
        assert np.allclose(c, wanted + -(-(K - first) // 64), atol=2e-2), schedule


@pytest.mark.parametrize("length", [0, 40, 64, 136])
@pytest.mark.parametrize("D, warps", [(64, 4), (128, 8)])
def test_attention(length, D, warps):
    BM = 16 * warps
    q, k, v = halves(BM, D), halves(max(length, 8), D, seed=1), halves(max(length, 8), D, seed=2)
    out = np.zeros((BM, D), np.float32)
    with preferred_form("specialized"):
        attention[(1,)](
            q,
            k,
            v,
            out,
            length,
            len(k),
            D,
            BM,
            64,
            num_warps=warps,
            num_stages=2,
            target="sim:hopper",
        )
    if length == 0:
        assert not out.any()
        return
    score = (q.astype(np.float32) @ k[:length].astype(np.float32).T) * (0.5 if D > 64 else 1)
    weight = np.exp2(score - score.max(-1, keepdims=True))
    wanted = weight @ v[:length].astype(np.float32) / weight.sum(-1, keepdims=True)
    assert np.allclose(out, wanted, atol=1e-2)


SIGNATURE = {
    "q": "*fp16:16",
    "k": "*fp16:16",
    "v": "*fp16:16",
    "out": "*fp32:16",
    "stop": "i32",
    "length": "i32:16",
}


def test_products_overlap_softmax():
    """The next scores begin before softmax, and ptxas does not warn that it waits after each `wgmma`."""
    with preferred_form("specialized"):
        asked = gluon.compile(
            attention, target="sm_90", signature=SIGNATURE, num_warps=8, num_stages=2,
            constexprs={"D": 128, "BM": 128, "BN": 128},
        )  # fmt: skip
    ptx = asked.asm["ptx"]
    loop = ptx[: ptx.index("ex2.approx")]
    assert "setmaxnreg.dec" in ptx and "wgmma.mma_async" in loop


@gluon.jit(layouts="auto")
def gated(q, k, v, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    head = gl.program_id(1) * length * D
    row, d = gl.program_id(0) * BM + gl.arange(0, BM), gl.arange(0, D)
    tile = head + row[:, None] * D + d[None, :]
    query = gl.load(q + tile, mask=row[:, None] < length, other=0.0)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        column = start + gl.arange(0, BN)
        inside = column < length
        key = gl.load(k + head + column[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        weight = gl.where(inside[None, :], gl.exp2(gl.minimum(score, 4.0)), 0.0)
        value = gl.load(
            v + head + column[:, None] * D + d[None, :], mask=inside[:, None], other=0.0
        )
        acc = gl.portable.mma(weight.to(gl.float16), value, acc)
    gl.store(out + tile, acc, mask=row[:, None] < length)


def test_two_products_end_in_each_step():
    """With a sum under way in the next step ptxas warns that it waits after each `wgmma`."""
    q, k, v = (halves(100, 64, seed=seed) * 0.3 for seed in range(3))
    out = np.zeros((100, 64), np.float32)
    signature = dict.fromkeys("qkv", "*fp16:16") | {"out": "*fp32:16", "length": "i32:16"}
    sizes, options = {"D": 64, "BM": 128, "BN": 64}, {"num_warps": 4, "num_stages": 2}
    with preferred_form("specialized"), warnings.catch_warnings():
        warnings.simplefilter("error")
        gated[(1, 1)](q, k, v, out, 100, **sizes, **options, target="sim:hopper")
        asked = gluon.compile(
            gated, target="sm_90", signature=signature, constexprs=sizes, options=options
        )
    assert "setmaxnreg" in asked.asm["ptx"]
    x, y, z = (one.astype(np.float32) for one in (q, k, v))
    assert np.allclose(out, np.exp2(np.minimum(x @ y.T, 4.0)) @ z, rtol=1e-2, atol=0.2)


def test_stores_in_the_loop_stay_in_one_form():
    a, b = halves(64, 128), halves(128, 64, seed=1)
    c = np.zeros((64, 64), np.float32)
    with preferred_form("specialized"):
        stored[(1,)](a, b, c, 128, 64, 64, target="sim:hopper")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=2e-2)
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32:16"}
    with preferred_form("specialized"):
        asked = gluon.compile(
            stored, target="sm_90", signature=signature, constexprs={"BM": 64, "BK": 64}
        )
    assert "setmaxnreg" not in asked.asm["ptx"]


def test_schedules():
    """The second stage hides arithmetic behind products; a sum that a product needs cannot be hoisted."""
    score = Step("matrix", 1000, 50, ((0, 2),))
    softmax = Step("warps", 1500, 0, ((0, 0), (3, 1)), frozenset({0}))
    rescale = Step("warps", 100, 0, ((1, 0), (3, 1)), frozenset({1}))
    weighted = Step("matrix", 1000, 50, ((1, 0), (3, 2)), frozenset({1, 2}))
    steps = [score, Step("warps", 1500, 0, ((0, 0),), frozenset({0})), rescale, weighted]
    plain = interval_of(steps, range(4), frozenset(), 1)
    best = scheduled(steps, 1, lambda late: True)
    assert best.late and best.order[0] == 0 and best.interval < 0.8 * plain
    assert not scheduled(steps, 1, lambda late: False).late
    bound = [Step("matrix", 1000, 50, ((3, 1),)), softmax, rescale, weighted]
    assert not scheduled(bound, 1, lambda late: True).late
