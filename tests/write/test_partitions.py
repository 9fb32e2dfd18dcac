"""Attention-like kernels in partitions: one copies, two have half of the rows of each block."""

import importlib.util
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.explicit
import gluon_write.partitions.walk
from gluon_core import language as gl
from gluon_sim.errors import RaceError
from gluon_sim.settings import using
from gluon_write.partitions.programs import heavy_axis
from gluon_write.preferred import preferred_form

pytestmark = [pytest.mark.once, pytest.mark.sampled(7)]

PLAIN, ALIBI, WINDOW, CAPPED = range(4)
LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def changed(score, rows, columns, kind: gl.constexpr):
    """Return scores with a bias, a window or a cap."""
    distance = rows[:, None] - columns[None, :]
    if kind == 1:
        score = score - gl.abs(distance).to(gl.float32) * 0.03
    elif kind == 2:
        score = gl.where((distance < 40) & (distance > -40), score, -1e30)
    elif kind == 3:
        score = 5.0 * (1 - 2 / (gl.exp(score * 0.4) + 1))
    return score


@gluon.jit
def attend(acc, total, largest, q, k_tiles, v_tiles, first, last, start, scale, rows, BN: gl.constexpr, kind: gl.constexpr, masked: gl.constexpr):  # fmt: skip
    for here in range(first, last, BN):
        key = gl.portable.load(k_tiles, [start + here, 0]).T
        zeros = gl.zeros([q.shape[0], BN], gl.float32)
        score = gl.portable.mma(q, key, zeros) * scale
        columns = here + gl.arange(0, BN)
        score = changed(score, rows, columns, kind) * LOG2E
        if masked:
            score = gl.where(rows[:, None] >= columns[None, :], score, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.portable.load(v_tiles, [start + here, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
    return acc, total, largest


@gluon.jit(layouts="auto")
def attention(
    q, k, v, out, logs, scale, heads, length, group, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    kind: gl.constexpr, causal: gl.constexpr,
):  # fmt: skip
    """Attention of grouped heads, with a logarithm of the sum of each row."""
    q_tiles = gl.portable.descriptor(q, [heads * length, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [heads // group * length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [heads // group * length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [heads * length, D], [D, 1], [BM, D])
    block, head = gl.program_id(0), gl.program_id(1)
    start = head // group * length
    rows = block * BM + gl.arange(0, BM)
    acc = gl.zeros([BM, D], gl.float32)
    total = gl.zeros([BM], gl.float32)
    largest = gl.full([BM], -1e30, gl.float32)
    query = gl.portable.load(q_tiles, [head * length + block * BM, 0])
    if causal:
        acc, total, largest = attend(
            acc,
            total,
            largest,
            query,
            k_tiles,
            v_tiles,
            0,
            block * BM,
            start,
            scale,
            rows,
            BN,
            kind,
            False,
        )
        acc, total, largest = attend(
            acc, total, largest, query, k_tiles, v_tiles, block * BM, (block + 1) * BM, start, scale, rows,
            BN, kind, masked=True,
        )  # fmt: skip
    else:
        acc, total, largest = attend(
            acc,
            total,
            largest,
            query,
            k_tiles,
            v_tiles,
            0,
            length,
            start,
            scale,
            rows,
            BN,
            kind,
            False,
        )
    gl.store(logs + head * length + rows, largest + gl.log2(total))
    result = acc / total[:, None]
    gl.portable.store(out_tiles, [head * length + block * BM, 0], result.to(out.dtype.element_ty))


@gluon.jit(layouts="auto")
def persistent(
    q,
    k,
    v,
    out,
    tiles,
    programs,
    scale,
    length,
    D: gl.constexpr,
    BM: gl.constexpr,
    BN: gl.constexpr,
):
    """Walk over tiles of queries; the rings go on from one to the next."""
    q_tiles = gl.portable.descriptor(q, [tiles * BM, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out, [tiles * BM, D], [D, 1], [BM, D])
    for tile in range(gl.program_id(0), tiles, programs):
        query = gl.portable.load(q_tiles, [tile * BM, 0])
        acc = gl.zeros([BM, D], gl.float32)
        total = gl.zeros([BM], gl.float32)
        largest = gl.full([BM], -1e30, gl.float32)
        for here in range(0, length, BN):
            key = gl.portable.load(k_tiles, [here, 0])
            score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32)) * scale
            higher = gl.maximum(largest, gl.max(score, 1))
            kept = gl.exp2(largest - higher)
            weight = gl.exp2(score - higher[:, None])
            total = total * kept + gl.sum(weight, 1)
            value = gl.portable.load(v_tiles, [here, 0])
            acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
            largest = higher
        result = acc / total[:, None]
        gl.portable.store(out_tiles, [tile * BM, 0], result.to(out.dtype.element_ty))


@pytest.mark.parametrize(("causal", "units"), [(False, 3), (True, 3), (True, 2)])
def test_programs_walk_over_the_grid(sources, causal, units, monkeypatch):
    """Three multiprocessors have eight blocks; the rings go on from one block to the next.

    Two of them have two blocks of a head each, one head after the other.
    """
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", str(units))
    heads, length, D = 2, 512, 32 if units == 3 else 64
    q, k, v = (halves(heads, length, D, seed=seed) for seed in range(3))
    out, logs = np.zeros_like(q), np.zeros((heads, length), np.float32)
    attention[(length // 128, heads)](
        q, k, v, out, logs, D**-0.5, heads, length, 1, D, 128, 128, PLAIN, causal,
        num_warps=8, num_stages=2, target="sim:hopper",
    )  # fmt: skip
    head = "turn in range(0, sections * rounds)" if causal else "program in range"
    assert f"for {head}" in sources[0]
    for head in range(heads):
        score = scores(q[head], k[head], D**-0.5, PLAIN, causal)
        weight = np.exp(score - score.max(-1, keepdims=True))
        wanted = weight @ v[head].astype(np.float64) / weight.sum(-1, keepdims=True)
        assert np.abs(out[head] - wanted).max() < 5e-3


@gluon.jit(layouts="auto")
def gemm(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(c_tiles, [row, column], acc.to(c.dtype.element_ty))


def test_operands_of_a_gemm_have_a_producer_each(sources, monkeypatch):
    """Each producer makes the descriptor of its operand; two multiprocessors have six blocks."""
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", "2")
    for depth, schedule in ((32, "eager"), (208, "eager"), (208, "latest")):
        a, b, c = halves(256, depth), halves(depth, 192, seed=1), np.zeros((256, 192), np.float16)
        with using(schedule=schedule):
            gemm[(2, 3)](a, b, c, 256, 192, depth, 128, 64, 32, num_stages=3, target="sim:sm_90")
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        assert np.abs(c - wanted).max() < 0.05
    assert "producers=2)" in sources[0] and "tiles.part(1, b_tiles)" in sources[0]


def test_a_result_over_an_operand_is_a_race(sources):
    square = np.zeros((256, 256), np.float16)
    with pytest.raises(RaceError):
        gemm[(2, 2)](square, square, square, 256, 256, 256, 128, 128, 64, target="sim:sm_90")


def producer(body):
    """Return the text of a producer with a loop, and the count of an axis along which its steps grow."""
    text = f"def copies(ring, length):\n    slot = ring.producer()\n    {body}\n"
    drawn = SimpleNamespace(constants={}, jits=[])
    return heavy_axis(text, "copies", ["ring"], drawn, {"gl": gl}, {})


def test_programs_are_weighed_within_bounds():
    """Only copies count as steps; a producer whose rounds nothing bounds has no order."""
    copies = "for i in range(0, gl.program_id({}) * 64, 64): ring.fetch(slot, [[i]])"
    assert [producer(copies.format(axis)) for axis in range(3)] == [0, 1, 2]
    assert producer("for i in range(0, length, 64): ring.fetch(slot, [[i]])") is None
    bounds = "last = (gl.program_id({}) + 1).to(gl.int64) * 64 % gl.cdiv(length, 1).to(gl.int32)"
    wide = f"{bounds}\n    for i in range(min(0, last), last, 64): ring.fetch(slot, [[i]])"
    assert [producer(wide.format(axis)) for axis in range(3)] == [0, 1, 2]
    began = time.monotonic()
    nested = (
        "for i in range(4096):\n     for j in range(4096):\n      for k in range(4096): slot.next()"
    )
    assert producer(nested) is None and producer("while True: slot.next()") is None
    assert time.monotonic() - began < 20


@pytest.fixture
def sources(monkeypatch, chosen_sources):
    """Collect the sources of the kernels that get layouts, with loops in partitions."""
    with preferred_form("specialized"):
        yield chosen_sources


def halves(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def scores(q, k, scale, kind, causal):
    score = q.astype(np.float64) @ k.astype(np.float64).T * scale
    distance = np.arange(len(q))[:, None] - np.arange(len(k))[None, :]
    if kind == ALIBI:
        score = score - np.abs(distance) * 0.03
    if kind == WINDOW:
        score = np.where(np.abs(distance) < 40, score, -1e30)
    if kind == CAPPED:
        score = 5 * np.tanh(score * 0.2)
    return np.where(distance >= 0, score, -1e30) if causal else score


@pytest.mark.parametrize(
    "kind, causal, warps, D, BN, group",
    [(PLAIN, True, 8, 64, 64, 1), (ALIBI, False, 4, 64, 128, 2), (WINDOW, True, 8, 128, 128, 2),
     (CAPPED, False, 8, 32, 64, 1)],
)  # fmt: skip
def test_variants_of_attention(sources, kind, causal, warps, D, BN, group):
    heads, length, scale = 2, 256, D**-0.5
    q = halves(heads, length, D)
    k, v = halves(heads // group, length, D, seed=1), halves(heads // group, length, D, seed=2)
    for schedule in ("eager", "latest") if kind == PLAIN else ("latest",):
        out, logs = np.zeros_like(q), np.zeros((heads, length), np.float32)
        with using(schedule=schedule):
            attention[(length // 128, heads)](
                q, k, v, out, logs, scale, heads, length, group, D, 128, BN, kind, causal,
                num_warps=warps, num_stages=2, target="sim:hopper",
            )  # fmt: skip
        groups = 3 if kind == CAPPED else 2  # heads of 32 leave registers
        assert f"consumers={groups}" in sources[0] and "attention_rows" in sources[0]
        # Programs with a long row of keys start first.
        assert ("turn in range(0, sections" in sources[0]) == causal
        for head in range(heads):
            score = scores(q[head], k[head // group], scale, kind, causal)
            weight = np.exp(score - score.max(-1, keepdims=True))
            total = weight.sum(-1, keepdims=True)
            wanted = weight @ v[head // group].astype(np.float64) / total
            assert np.abs(out[head] - wanted).max() < 5e-3
            assert np.allclose(
                logs[head], (score.max(-1) + np.log(total[:, 0])) / math.log(2), atol=2e-2
            )


@gluon.jit(layouts="auto")
def product(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    row = gl.program_id(0) * BM
    column = gl.program_id(1) * BN
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(c_tiles, [row, column], gl.maximum(acc, 0.0).to(c.dtype.element_ty))


@gluon.jit(layouts="auto")
def own_walk(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """The product of a program that walks over the tiles by itself."""
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    across = gl.cdiv(N, BN)
    for tile in range(gl.program_id(0), gl.cdiv(M, BM) * across, gl.num_programs(0)):
        row, column = tile // across * BM, tile % across * BN
        acc = gl.zeros([BM, BN], gl.float32)
        for k in range(0, K, BK):
            x = gl.portable.load(a_tiles, [row, k])
            y = gl.portable.load(b_tiles, [k, column])
            acc = gl.portable.mma(x, y, acc)
        gl.portable.store(c_tiles, [row, column], gl.maximum(acc, 0.0).to(c.dtype.element_ty))


def test_the_walk_of_a_kernel_keeps_its_order(sources):
    a, b, c = halves(256, 96), halves(96, 512, seed=1), np.ones((256, 512), np.float16)
    with preferred_form(None):
        own_walk[(3,)](a, b, c, 256, 512, 96, 128, 256, 32, num_warps=8, num_stages=5, target="sim:hopper")  # fmt: skip
    assert "c_writer.store(" in sources[0] and "program in range" not in sources[0]
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
    assert np.abs(c - wanted).max() < 5e-2


@pytest.mark.parametrize("N, K, walks", [(512, 96, True), (64, 96, False)])
def test_products_walk_where_a_block_fills_a_multiprocessor(sources, N, K, walks, monkeypatch):
    """Two multiprocessors have four blocks; one partition stores tiles in parts of 64 columns."""
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", "2")
    a, b, c = halves(256, K), halves(K, N, seed=1), np.ones((256, N), np.float16)
    for schedule in ("eager", "latest") if N > 256 else ("eager",):
        with using(schedule=schedule), preferred_form(None):
            product[(2, N // min(N, 256))](
                a, b, c, 256, N, K, 128, min(N, 256), 32, num_warps=8, num_stages=5,
                target="sim:hopper",
            )  # fmt: skip
        assert ("c_writer.store(" in sources[0]) == walks == ("program in range" in sources[0])
        wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
        assert np.abs(c - wanted).max() < 5e-2


SOME_STEPS = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def some_steps(a, b, c, M, N, K, steps, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    for tile in range(gl.program_id(0), gl.cdiv(M, BM), gl.num_programs(0)):
        acc = gl.zeros([BM, BN], gl.float32)
        for k in range(0, {last}, BK):
            x = gl.portable.load(a_tiles, [tile * BM, k])
            y = gl.portable.load(b_tiles, [k, 0])
            acc = gl.portable.mma(x, y, acc)
        gl.portable.store(c_tiles, [tile * BM, 0], acc.to(c.dtype.element_ty))
"""


@pytest.mark.parametrize("last", ["steps", "steps if tile == 0 else 0"])
def test_sums_begin_with_their_first_products(sources, last, tmp_path):
    """A block without steps has zeros; where blocks have other steps, it would keep the sum of the block before."""
    path = tmp_path / "some_steps.py"
    path.write_text(SOME_STEPS.format(last=last))
    spec = importlib.util.spec_from_file_location("some_steps", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    same = last == "steps"
    a, b = halves(256, 64), halves(64, 256, seed=1)
    for steps in (64, 0):
        c = np.ones((256, 256), np.float16)
        with preferred_form("specialized"):
            module.some_steps[(1,)](
                a, b, c, 256, 256, 64, steps, 128, 256, 32, num_warps=8, num_stages=4,
                target="sim:hopper",
            )  # fmt: skip
        wanted = a[:, :steps].astype(np.float32) @ b[:steps].astype(np.float32)
        wanted[128:] *= same
        assert np.abs(c - wanted).max() < 5e-2
    assert ("use_acc=k != 0" in sources[0]) == same


def test_rings_without_room_for_the_result_walk(sources, monkeypatch):
    """Four slots and a whole result exceed shared memory: a program that walks stores it in parts."""
    monkeypatch.setattr(gluon_write.partitions.walk, "_UNITS", "1")
    a, b, c = halves(128, 128), halves(128, 512, seed=1), np.ones((128, 512), np.float16)
    with preferred_form(None):
        product[(1, 2)](
            a, b, c, 128, 512, 128, 128, 256, 64, num_warps=8, num_stages=4, target="sim:hopper"
        )
    assert "program in range" in sources[0] and "of 4 slots" in sources[0]
    wanted = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
    assert np.abs(c - wanted).max() < 5e-2


@pytest.mark.parametrize("programs", [1, 2])
def test_loops_around_loops(sources, programs):
    tiles, length, D = 3, 160, 64
    q, k, v = halves(tiles * 128, D), halves(length, D, seed=1), halves(length, D, seed=2)
    out = np.zeros_like(q)
    k[128:] = 0
    persistent[(programs,)](
        q, k, v, out, tiles, programs, 0.125, length, D, 128, 32,
        num_warps=8, num_stages=3, target="sim:hopper",
    )  # fmt: skip
    assert "consumers=2" in sources[0] and "query_ring_1" in sources[0]
    score = q.astype(np.float64) @ k.astype(np.float64).T * 0.125
    weight = np.exp2(score - score.max(-1, keepdims=True))
    wanted = weight @ v.astype(np.float64) / weight.sum(-1, keepdims=True)
    assert np.abs(out - wanted).max() < 5e-3


@gluon.jit(layouts="auto")
def mixed(q, k, v, out, most, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    """Scale all scores by the largest row: rows depend on each other."""
    q_tiles = gl.portable.descriptor(q, [BM, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v, [length, D], [D, 1], [BN, D])
    query = gl.portable.load(q_tiles, [0, 0])
    acc = gl.zeros([BM, D], gl.float32)
    for here in range(0, length, BN):
        key = gl.portable.load(k_tiles, [here, 0])
        score = gl.portable.mma(query, key.T, gl.zeros([BM, BN], gl.float32))
        top = gl.max(gl.max(score, 1), 0)
        value = gl.portable.load(v_tiles, [here, 0])
        acc = gl.portable.mma((score / top).to(value.dtype), value, acc)
    i, d = gl.arange(0, BM), gl.arange(0, D)
    gl.store(out + i[:, None] * D + d[None, :], acc)


def test_rows_that_depend_on_each_other_stay_together(sources):
    q, k, v = halves(128, 64), halves(128, 64, seed=1), halves(128, 64, seed=2)
    out = np.zeros((128, 64), np.float32)
    mixed[(1,)](q, k, v, out, 1.0, 128, 64, 128, 64, num_warps=8, num_stages=2, target="sim:hopper")
    assert "consumers=2" not in sources[0]
    wanted = 0
    for here in (0, 64):
        score = q.astype(np.float32) @ k[here : here + 64].astype(np.float32).T
        wanted = wanted + (score / score.max()) @ v[here : here + 64].astype(np.float32)
    assert np.abs(out - wanted).max() < 2e-2


@pytest.mark.parametrize("kind, causal, warps", [(PLAIN, True, 4), (ALIBI, False, 8)])
def test_tiles_ahead_without_partitions(sources, kind, causal, warps):
    """Keys are read transposed, and no tile is square."""
    heads, length, D = 1, 256, 32
    q, k, v = (halves(heads, length, D, seed=seed) for seed in range(3))
    for schedule in ("eager", "latest") if causal else ("latest",):
        out, logs = np.zeros_like(q), np.zeros((heads, length), np.float32)
        with using(schedule=schedule), preferred_form("pipelined"):
            attention[(2, heads)](
                q, k, v, out, logs, D**-0.5, heads, length, 1, D, 128, 64, kind, causal,
                num_warps=warps, num_stages=3, target="sim:hopper",
            )  # fmt: skip
        assert "portable.pipeline([k_tiles, v_tiles]" in sources[0]
        score = scores(q[0], k[0], D**-0.5, kind, causal)
        weight = np.exp(score - score.max(-1, keepdims=True))
        wanted = weight @ v[0].astype(np.float64) / weight.sum(-1, keepdims=True)
        assert np.abs(out[0] - wanted).max() < 5e-3


@gluon.jit(layouts="auto")
def perceptron(x, first, second, out, M, N, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    row = gl.program_id(0) * BM + gl.arange(0, BM)
    lane = gl.arange(0, D)
    inside = (row < M)[:, None]
    rows = gl.load(x + row[:, None] * D + lane[None, :], mask=inside, other=0.0)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, N, BN):
        unit = start + gl.arange(0, BN)
        a = gl.load(first + lane[:, None] * N + unit[None, :], mask=(unit < N)[None, :], other=0.0)
        hidden = gl.portable.mma(rows, a, gl.zeros([BM, BN], gl.float32))
        hidden = gl.maximum(hidden, 0.0).to(rows.dtype)
        b = gl.load(second + unit[:, None] * D + lane[None, :], mask=(unit < N)[:, None], other=0.0)
        acc = gl.portable.mma(hidden, b, acc)
    gl.store(out + row[:, None] * D + lane[None, :], acc.to(gl.float16), mask=inside)


@pytest.mark.sampled(1)
def test_warps_of_the_kernel_copy_alone():
    """Parts of eight warps are partitions of their own, which leave no registers for a second partition that copies."""
    pointers = dict.fromkeys(("x", "first", "second", "out"), "*fp16")
    compiled = gluon.compile(
        perceptron, "sm_90", signature={**pointers, "M": "i32", "N": "i32"},
        constexprs={"D": 128, "BM": 128, "BN": 64}, attrs=dict.fromkeys([*pointers, "M", "N"], 16),
        num_warps=8, num_stages=3,
    )  # fmt: skip
    assert "wgmma.mma_async" in compiled.asm["ptx"]
