"""Attention on Blackwell gets partitions: copies, products, the weights of each part of the rows, and corrections of sums."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.partitions.walk
from gluon_core import language as gl
from gluon_sim.settings import using

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


@gluon.jit(layouts="auto")
def attention(
    q, k, v, out, length, heads, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """Compute attention of heads that lie one below the other."""
    rows = length * heads
    q_tiles = gl.portable.descriptor(q, [rows, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [rows, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [rows, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [rows, D], [D, 1], [BM, D])
    first = gl.program_id(1) * length
    row = gl.program_id(0) * BM
    query = gl.portable.load(q_tiles, [first + row, 0])
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, row + BM if CAUSAL else length, BN):
        key = gl.portable.load(k_tiles, [first + start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32)) * scale
        if CAUSAL:
            keep = (start + gl.arange(0, BN))[None, :] <= (row + gl.arange(0, BM))[:, None]
            score = gl.where(keep, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        largest = higher
        value = gl.portable.load(v_tiles, [first + start, 0])
        acc = acc * kept[:, None]
        acc = gl.portable.mma(weight.to(value.dtype), value, acc)
    gl.portable.store(out_tiles, [first + row, 0], (acc / total[:, None]).to(out.dtype.element_ty))


@gluon.jit(layouts="auto")
def steps(
    acc, total, largest, query, k_tiles, v_tiles, first, low, high, scale, rows,
    BN: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    for start in range(low, high, BN):
        key = gl.portable.load(k_tiles, [first + start, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([query.shape[0], BN], gl.float32)) * scale
        if MASKED:
            score = gl.where((start + gl.arange(0, BN))[None, :] <= rows[:, None], score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        largest = higher
        value = gl.portable.load(v_tiles, [first + start, 0])
        acc = acc * kept[:, None]
        acc = gl.portable.mma(weight.to(value.dtype), value, acc)
    return acc, total, largest


@gluon.jit(layouts="auto")
def causal_attention(
    q, k, v, out, length, heads, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """Run a function for the steps before the diagonal, and for those at it."""
    rows = length * heads
    q_tiles = gl.portable.descriptor(q, [rows, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [rows, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [rows, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [rows, D], [D, 1], [BM, D])
    first = gl.program_id(1) * length
    row = gl.program_id(0) * BM
    there = row + gl.arange(0, BM)
    query = gl.portable.load(q_tiles, [first + row, 0])
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    acc, total, largest = steps(
        acc, total, largest, query, k_tiles, v_tiles, first, 0, row, scale, there, BN, MASKED=False
    )
    acc, total, largest = steps(
        acc, total, largest, query, k_tiles, v_tiles, first, row, row + BM, scale, there, BN, True
    )
    gl.portable.store(out_tiles, [first + row, 0], (acc / total[:, None]).to(out.dtype.element_ty))


@pytest.fixture
def sources(monkeypatch, chosen_sources):
    """Collect the sources of the kernels that get layouts; a device has two multiprocessors."""
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", "2")
    return chosen_sources


def right(rows, causal=False, D=64, target="sim:sm_100", length=512, warps=4, kernel=attention):
    """Return True if the results are those of NumPy."""
    rng = np.random.default_rng(rows)
    q, k, v = (rng.standard_normal((2 * length, D)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    kernel[(length // rows, 2)](
        q, k, v, out, length, 2, D**-0.5 * 1.4427, D, rows, 128, causal,
        num_warps=warps, num_stages=2, target=target,
    )  # fmt: skip
    q, k, v = (x.astype(np.float32).reshape(2, length, D) for x in (q, k, v))
    score = q @ k.transpose(0, 2, 1) * D**-0.5
    if causal:
        score = np.where(np.tril(np.ones((length, length), bool)), score, -1e30)
    weight = np.exp(score - score.max(-1, keepdims=True))
    wanted = weight @ v / weight.sum(-1, keepdims=True)
    return np.abs(out.reshape(wanted.shape) - wanted).max() < 5e-3


@pytest.mark.parametrize(
    "rows, causal, warps, schedule",
    [(128, False, 8, "latest"), (128, True, 4, "eager"), (256, False, 4, "latest")],
)
def test_partitions(sources, rows, causal, warps, schedule):
    """Each multiprocessor has several blocks; two parts have 128 rows each."""
    with using(schedule=schedule):
        assert right(rows, causal, warps=warps)
    assert "attention_corrections" in sources[0] and "program in range" in sources[0]
    assert ("scores_1" in sources[0]) == (rows == 256)


def test_functions_with_loops_of_products(sources):
    """The text of the function is the kernel's, once for each call."""
    assert right(128, True, length=384, kernel=causal_attention)
    assert "causal_attention_corrections" in sources[0]


@pytest.mark.campaign
def test_machine_code(sources):
    assert right(256, target="emu:sm_100", length=256)


def test_other_kernels_stay(sources):
    """A block of 64 rows is no part of tensor memory."""
    assert right(64, length=128)
    assert "attention_corrections" not in sources[0]
