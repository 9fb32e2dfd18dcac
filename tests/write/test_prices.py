"""Prices of instructions that a layout repeats or saves, and of conversions of what all warps hold."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_write.solver.prices import conversion_table, maps_alike
from gluon_write.solver.solve import plan_of
from gluon_write.writing import chosen

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def stencil(x, weights, y, H, W, BH: gl.constexpr, BW: gl.constexpr):
    down = gl.program_id(0) * BH + gl.arange(0, BH)
    right = gl.program_id(1) * BW + gl.arange(0, BW)
    acc = gl.zeros([BH, BW], gl.float32)
    for dy in gl.static_range(-1, 2):
        for dx in gl.static_range(-1, 2):
            i, j = down[:, None] + dy, right[None, :] + dx
            seen = (i >= 0) & (i < H) & (j >= 0) & (j < W)
            weight = gl.load(weights + (dy + 1) * 3 + dx + 1)
            acc += weight * gl.load(x + i * W + j, mask=seen, other=0.0)
    inside = (down < H)[:, None] & (right < W)[None, :]
    gl.store(y + down[:, None] * W + right[None, :], acc, mask=inside)


def test_a_thread_has_few_rows_and_columns():
    """Four of each, where warps along the columns leave a thread all sixteen rows."""
    signature = {"x": "*fp32:16", "weights": "*fp32:16", "y": "*fp32:16", "H": "i32", "W": "i32:16"}
    compiled = gluon.compile(
        stencil, target="sm_90", signature=signature, constexprs={"BH": 16, "BW": 128}
    )
    layout = re.search(r"#blocked = #ttg\.blocked<(.*)>", compiled.asm["ttgir"])
    assert "threadsPerWarp = [1, 32], warpsPerCTA = [4, 1]" in layout[1]


def test_a_next_best_layout_puts_elements_elsewhere():
    lanes, warps = [[1], [2], [4], [8], [16]], [[32], [64]]
    blocked = gl.BlockedLayout([1], [32], [4], [0])
    linear = gl.DistributedLinearLayout([], lanes, warps, [], [128])
    assert maps_alike(blocked, linear, (128,)) and not maps_alike(
        blocked, gl.BlockedLayout([2], [32], [4], [0]), (128,)
    )


@gluon.jit(layouts="auto")
def rotated(x, y, step, B: gl.constexpr, N: gl.constexpr):
    row, column = gl.arange(0, B), gl.arange(0, N)
    place = row[:, None] * N + column[None, :]
    angle = row.to(gl.float32) * step
    wave = gl.cos(angle) * gl.sin(angle)
    gl.store(y + place, gl.load(x + place) * wave[:, None])


def test_a_thread_computes_few_sines():
    """One of 16 rows, which is converted, where the lanes of a tile repeat four."""
    signature = {"x": "*fp32:16", "y": "*fp32:16", "step": "fp32"}
    constants = {"B": 16, "N": 128}
    compiled = gluon.compile(rotated, target="sm_90", signature=signature, constexprs=constants)
    assert len(re.findall(r"convert_layout .*tensor<16x?1?xf32", compiled.asm["ttgir"])) == 1


@gluon.jit(layouts="auto")
def scanned(x, y, z, N: gl.constexpr):
    i = gl.arange(0, N)
    values = gl.load(x + i)
    gl.store(y + i, gl.cumsum(values, 0))
    gl.store(z + i, gl.cumsum(values, 0, reverse=True) + gl.cumprod(values, 0))


def test_warps_do_not_repeat_a_scan():
    """Each warp would have all of 128 elements, and store them to shared memory for the others."""
    signature = {name: "*fp32:16" for name in ("x", "y", "z")}
    text = gluon.compile(scanned, target="sm_90", signature=signature, constexprs={"N": 128})
    assert "convert_layout" not in text.asm["ttgir"]


@gluon.jit(layouts="auto")
def filtered(x, weight, y, T, D: gl.constexpr, W: gl.constexpr, BT: gl.constexpr, BW: gl.constexpr):
    time, channel, tap = gl.arange(0, BT), gl.arange(0, D), gl.arange(0, BW)
    known = (tap < W)[None, :]
    taps = gl.load(weight + channel[:, None] * W + tap[None, :], mask=known, other=0.0)
    acc = gl.zeros([BT, D], gl.float32)
    for w in gl.static_range(W):
        row = time[:, None] + w - W + 1
        inside = (row >= 0) & (row < T)
        part = gl.load(x + row * D + channel[None, :], mask=inside, other=0.0)
        near = (tap - w) * (tap - w)
        falling = ((9 - near) * (16 - near) * (25 - near)).to(gl.float32)
        acc += part * gl.sum(taps * falling[None, :], 1)[None, :]
    gl.store(y + time[:, None] * D + channel[None, :], acc, mask=(time < T)[:, None])


def test_a_thread_has_all_of_a_vector_that_a_compiler_computes():
    """Numbers for four taps cost nothing where each is a register, and the sums need no exchange."""
    signature = {"x": "*fp32:16", "weight": "*fp32:16", "y": "*fp32:16", "T": "i32"}
    sizes = {"D": 16, "W": 3, "BT": 8, "BW": 4}
    text = gluon.compile(filtered, target="sm_90", signature=signature, constexprs=sizes)
    assert "sizePerThread = [1, 4], threadsPerWarp = [32, 1]" in text.asm["ttgir"]


@gluon.jit(layouts="auto")
def resized(x, y, W, OW, scale, BH: gl.constexpr, BW: gl.constexpr):
    row, column = gl.arange(0, BH), gl.arange(0, BW)
    top, left = (
        (row.to(gl.float32) * scale).to(gl.int32),
        (column.to(gl.float32) * scale).to(gl.int32),
    )
    values = gl.load(x + top[:, None] * W + left[None, :])
    gl.store(y + row[:, None] * OW + column[None, :], values)


def test_places_of_a_gather_share_no_sector():
    """A tile that is gathered along both dimensions is loaded as it is stored."""
    signature = {"x": "*fp16:16", "y": "*fp16:16", "W": "i32", "OW": "i32", "scale": "fp32"}
    compiled = gluon.compile(
        resized, target="sm_90", signature=signature, constexprs={"BH": 8, "BW": 128}
    )
    assert "convert_layout" not in compiled.asm["ttgir"]


@gluon.jit(layouts="auto")
def butterflies(x, y, N: gl.constexpr, LOG: gl.constexpr):
    place = gl.arange(0, 4)[:, None] * N + gl.arange(0, N)[None, :]
    values = gl.load(x + place)
    for step in gl.static_range(LOG):
        pairs = gl.permute(gl.reshape(values, [4, N >> (step + 1), 2, 1 << step]), (0, 1, 3, 2))
        one, other = gl.split(pairs)
        both = gl.permute(gl.join(one + other, one - other), (0, 1, 3, 2))
        values = gl.reshape(both, [4, N])
    gl.store(y + place, values + gl.sum(values, 1)[:, None])


def test_tables_have_the_prices_of_plans(monkeypatch):
    """Those of all pairs of layouts, for reshapes, conversions before an op and behind it, and none."""
    problems = []
    solved = chosen.solve

    def kept(*args, **words):
        problems.append(solved(*args, **words).problem)
        return solved(*args, **words)

    monkeypatch.setattr(chosen, "solve", kept)
    signature = {"x": "*fp32:16", "y": "*fp32:16"}
    sizes = {"N": 4, "LOG": 2}
    gluon.compile(butterflies, target="sm_90", signature=signature, constexprs=sizes)
    problem, known = problems[0], set()
    for relation, (names, table) in zip(problem.graph.relations, problem.factors[problem.own :]):
        lists = [problem.lists[one.number] for one in (relation.source, relation.result)]
        if len(names) == 2 and relation.form() not in known:
            plans = [[plan_of(relation, one, other)[0] for other in lists[1]] for one in lists[0]]
            assert np.array_equal(table, plans), relation.kind
            known.add(relation.form())
    assert {kind[0] for kind, *_ in known} >= {"same", "expand", "trans", "infer", "reduce"}


@gluon.jit(layouts="auto")
def weighted(x, weights, y, N, BH: gl.constexpr, BW: gl.constexpr):
    row, column = gl.arange(0, BH), gl.program_id(0) * BW + gl.arange(0, BW)
    place, inside = row[:, None] * N + column[None, :], (column < N)[None, :]
    values = gl.load(x + place, mask=inside, other=0.0).to(gl.float32)
    scale = gl.load(weights + row).to(gl.float32)
    gl.store(y + place, (values * scale[:, None]).to(gl.float16), mask=inside)


def test_a_thread_has_neighbours_of_single_elements():
    """Rows that begin anywhere, whose weights a thread loads together."""
    signature = {"x": "*fp16:16", "weights": "*fp16:16", "y": "*fp16:16", "N": "i32"}
    compiled = gluon.compile(
        weighted, target="sm_90", signature=signature, constexprs={"BH": 128, "BW": 64}
    )
    assert "sizePerThread = [32, 1], threadsPerWarp = [1, 32]" in compiled.asm["ttgir"]
    assert "convert_layout" not in compiled.asm["ttgir"]


@gluon.jit(layouts="auto")
def products_of_rows(a, b, c, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    row, column = gl.arange(0, BM), gl.arange(0, BN)
    sums = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        step = k + gl.arange(0, BK)
        x = gl.load(a + row[:, None] * K + step[None, :], mask=(step < K)[None, :], other=0.0)
        y = gl.load(b + step[:, None] * BN + column[None, :], mask=(step < K)[:, None], other=0.0)
        sums = gl.portable.mma(x, y, sums)
    gl.store(c + row[:, None] * BN + column[None, :], sums)


def test_operands_of_products_have_no_neighbours_of_columns():
    """On an H200 they took 1.5 of the time, for copies to shared memory that meet in few banks."""
    signature = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "K": "i32"}
    sizes = {"BM": 32, "BN": 32, "BK": 16}
    compiled = gluon.compile(
        products_of_rows, target="sm_90", signature=signature, constexprs=sizes
    )
    assert "sizePerThread = [4, 1]" not in compiled.asm["ttgir"]


def test_prices_of_conversions_can_be_infinite():
    """A rule that refuses a layout makes a price infinite among those of exchanges, which are whole numbers."""
    down, right = (gl.BlockedLayout([1, 1], [8, 4], [4, 1], order) for order in ([0, 1], [1, 0]))
    table = conversion_table([down], [right], (32, 4), 32, 4)
    table[:, [0]] = np.inf
    assert np.isinf(table).all()


@gluon.jit(layouts="auto")
def middle_softmax(x, y, B, C, S: gl.constexpr, BC: gl.constexpr):
    b = gl.program_id(0) * 4 + gl.arange(0, 4)
    c = gl.arange(0, BC)
    place = (b[:, None, None] * S + gl.arange(0, S)[None, :, None]) * C + c[None, None, :]
    inside = (b < B)[:, None, None] & (c < C)[None, None, :]
    values = gl.load(x + place, mask=inside, other=0.0).to(gl.float32)
    e = gl.exp(values - gl.max(values, 1, keep_dims=True))
    gl.store(y + place, (e / gl.sum(e, 1, keep_dims=True)).to(gl.float16), mask=inside)


def test_rows_that_no_mask_names_stay_in_a_thread():
    """An offset without a condition costs less than a reduction across warps."""
    signature = {"x": "*fp16:16", "y": "*fp16:16", "B": "i32", "C": "i32"}
    sizes = {"S": 32, "BC": 32}
    text = gluon.compile(middle_softmax, target="sm_90", signature=signature, constexprs=sizes)
    assert "warpsPerCTA = [4, 1, 1]" in text.asm["ttgir"]


@gluon.jit(layouts="auto")
def channels_last(x, y, C, P, BC: gl.constexpr, BP: gl.constexpr):
    c, p = gl.arange(0, BC), gl.program_id(0) * BP + gl.arange(0, BP)
    values = gl.load(x + c[:, None] * P + p[None, :], mask=(c < C)[:, None] & (p < P)[None, :])
    inside = (p < P)[:, None] & (c < C)[None, :]
    gl.store(y + p[:, None] * C + c[None, :], gl.permute(values, (1, 0)), mask=inside)


def test_rows_of_a_tile_that_is_narrower_than_a_sector_follow_each_other():
    """Neighbouring pixels of three channels are in neighbouring lanes of a store."""
    signature = {"x": "*fp32:16", "y": "*fp32:16", "C": "i32", "P": "i32:16"}
    sizes = {"BC": 4, "BP": 256}
    text = gluon.compile(channels_last, target="sm_90", signature=signature, constexprs=sizes)
    assert "sizePerThread = [1, 1], threadsPerWarp = [8, 4]" in text.asm["ttgir"]


@gluon.jit(layouts="auto")
def scaled_groups(x, q, s, G: gl.constexpr):
    place = (gl.program_id(0) * G + gl.arange(0, G))[:, None] * 128 + gl.arange(0, 128)[None, :]
    values = gl.load(x + place).to(gl.float32)
    scale = gl.maximum(gl.max(gl.abs(values), 1), 1e-10) / 448.0
    gl.store(q + place, (values / scale[:, None]).to(gl.float8e4nv))
    gl.store(s + gl.program_id(0) * G + gl.arange(0, G), scale)


def test_two_of_the_widest_loads_fill_a_thread():
    """The second load finds the rest of each sector in the L1 cache, and a store takes all at once."""
    signature = {"x": "*bf16:16", "q": "*fp8e4nv:16", "s": "*fp32:16"}
    text = gluon.compile(scaled_groups, target="sm_90", signature=signature, constexprs={"G": 16})
    assert "sizePerThread = [1, 16], threadsPerWarp = [4, 8]" in text.asm["ttgir"]


@gluon.jit(layouts="auto")
def pruned(weights, out, N, K: gl.constexpr, BN: gl.constexpr):
    """Copy kept pairs of weights, each to the four columns that it belongs to."""
    column, k = gl.arange(0, BN), gl.arange(0, K)
    kept = gl.load(weights + column[None, :] * N + (k // 4 * 2)[:, None])
    gl.store(out + k[:, None] * N + column[None, :] * N * K, kept)


def test_lanes_share_quotients():
    """Their addresses are neighbours, where those of columns are as far apart as an argument says."""
    signature = {"weights": "*fp16:16", "out": "*fp16:16", "N": "i32"}
    constants = {"K": 64, "BN": 64}
    text = gluon.compile(pruned, target="sm_90", signature=signature, constexprs=constants)
    load = re.search(r"tt\.load .*?(#blocked\d*)>", text.asm["ttgir"])
    layout = re.search(rf"{load[1]} = #ttg\.blocked<(.*)>", text.asm["ttgir"])
    assert "threadsPerWarp = [32, 1]" in layout[1]


@gluon.jit(layouts="auto")
def packed_signs(x, words, n, W: gl.constexpr):
    word, bit = gl.program_id(0) * W + gl.arange(0, W), gl.arange(0, 32)
    place = word[:, None] * 32 + bit[None, :]
    values = gl.load(x + place, mask=place < n, other=0.0)
    packed = gl.sum((values > 0).to(gl.int32) << bit[None, :], 1)
    gl.store(words + word, packed, mask=word * 32 < n)


def test_one_instruction_reduces_integers_of_a_warp():
    """Sums of two neighbours in each of 16 lanes take four shuffles."""
    signature = {"x": "*fp32:16", "words": "*i32:16", "n": "i32"}
    text = gluon.compile(packed_signs, target="sm_90", signature=signature, constexprs={"W": 64})
    assert "redux.sync.add.s32" in text.asm["ptx"] and "shfl" not in text.asm["ptx"]


@gluon.jit(layouts="auto")
def log_sums_down(x, y, M, N, BM: gl.constexpr, BN: gl.constexpr):
    column = gl.program_id(0) * BN + gl.arange(0, BN)
    largest, total = gl.full([BN], -1e30, gl.float32), gl.zeros([BN], gl.float32)
    for start in range(0, M, BM):
        row = start + gl.arange(0, BM)
        inside = (row < M)[:, None] & (column < N)[None, :]
        values = gl.load(x + row[:, None] * N + column[None, :], mask=inside, other=-1e30)
        values = values.to(gl.float32)
        higher = gl.maximum(largest, gl.max(values, 0))
        total = total * gl.exp(largest - higher) + gl.sum(gl.exp(values - higher[None, :]), 0)
        largest = higher
    gl.store(y + column, largest + gl.log(total), mask=column < N)


def test_rows_of_halves_stay_in_a_thread_without_products():
    """On an H200 it took 1.5 of the time with rows in four warps, whose reductions cross them in each step."""
    signature = {"x": "*fp16:16", "y": "*fp32:16", "M": "i32", "N": "i32"}
    sizes = {"BM": 32, "BN": 128}
    text = gluon.compile(log_sums_down, target="sm_90", signature=signature, constexprs=sizes)
    assert "warpsPerCTA = [1, 4]" in text.asm["ttgir"] and "bar.sync" not in text.asm["ptx"]


@gluon.jit(layouts="auto")
def spread(x, y, H, W, rate, BH: gl.constexpr, BW: gl.constexpr):
    down = gl.program_id(0) * BH + gl.arange(0, BH)
    right = gl.program_id(1) * BW + gl.arange(0, BW)
    place = down[:, None] * W + right[None, :]
    inside = (down < H)[:, None] & (right < W)[None, :]
    within = ((down > 0) & (down < H - 1))[:, None] & ((right > 0) & (right < W - 1))[None, :]
    own = gl.load(x + place, mask=inside, other=0.0)
    around = gl.load(x + place - W, mask=within) + gl.load(x + place + W, mask=within)
    around += gl.load(x + place - 1, mask=within) + gl.load(x + place + 1, mask=within)
    result = gl.where(within, own + rate * (around - 4 * own), own)
    gl.store(y + place, result, mask=inside)


def test_warps_that_hold_one_vector_wait_for_a_conversion():
    """Columns in the layout of their use cost less than barriers, though each warp has all of them."""
    signature = {"x": "*fp32:16", "y": "*fp32:16", "H": "i32:16", "W": "i32:16", "rate": "fp32"}
    constants = {"BH": 16, "BW": 128}
    compiled = gluon.compile(spread, target="sm_90", signature=signature, constexprs=constants)
    assert "bar.sync" not in compiled.asm["ptx"]
