"""Products of layout-free kernels whose operands are loaded through pointers: copied steps ahead."""

import importlib.util
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core._triton import VERSION
from gluon_sim.settings import using
from gluon_write.porting.port import port
from gluon_write.preferred import preferred_form
from tests.write.products import code, operands, product

pytestmark = [pytest.mark.once, pytest.mark.sampled(10)]


@pytest.fixture(autouse=True)
def copied_through_pointers():
    """Keep tiles of pointers from those of descriptors, which Hopper's unit copies."""
    with preferred_form("pipelined"):
        yield


FOLDER = Path(__file__).parent / "triton_kernels"


@gluon.jit(layouts="auto")
def by_index(a, b, c, places, K, BM: gl.constexpr, BK: gl.constexpr):
    """Load the rows of B that a table names."""
    rows, along = gl.arange(0, BM), gl.arange(0, BK)
    acc = gl.zeros([BM, BM], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + k + along[None, :])
        place = gl.load(places + k + along)
        y = gl.load(b + place[:, None] * BM + rows[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * BM + rows[None, :], acc)


@gluon.jit(layouts="auto")
def clamped(a, b, c, N, K, B: gl.constexpr, BK: gl.constexpr):
    """Load columns of B that have no neighbours in memory for all that is known: a condition chooses each."""
    rows, columns, along = gl.arange(0, B), gl.arange(0, B), gl.arange(0, BK)
    inside = gl.where(columns < N, columns, 0)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * N + inside[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * N + columns[None, :], acc, mask=(columns < N)[None, :])


@gluon.jit(layouts="auto")
def own_variable(a, b, c, stride, K, B: gl.constexpr, BK: gl.constexpr, GROUP: gl.constexpr):
    """Assign the variable of the loop, and divide a stride."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    width = stride // GROUP
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        k = gl.multiple_of(k, BK)
        x = gl.load(a + rows[:, None] * width + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * B + rows[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit
def both_ways(acc, other, a, b, K, first, last, B: gl.constexpr, BK: gl.constexpr):
    """Multiply by a tile, and by its transpose."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    left = gl.load(a + rows[:, None] * B + rows[None, :])
    for k in range(first, last, BK):
        y = gl.load(b + (k + along)[:, None] * B + rows[None, :])
        weights = gl.portable.mma(left, gl.permute(y, (1, 0)), gl.zeros([B, BK], gl.float32))
        acc = gl.portable.mma(weights.to(gl.float16), y, acc)
        other += gl.sum(weights, 1)
    return acc, other


@gluon.jit(layouts="auto")
def in_two_steps(a, b, c, d, K, half, B: gl.constexpr):
    """Call one function with tiles of two shapes."""
    rows = gl.arange(0, B)
    acc, other = gl.zeros([B, B], gl.float32), gl.zeros([B], gl.float32)
    acc, other = both_ways(acc, other, a, b, K, 0, half, B, 16)
    acc, other = both_ways(acc, other, a, b, K, half, K, B, 32)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)
    gl.store(d + rows, other)


@gluon.jit(layouts="auto")
def falling(a, b, c, K, B: gl.constexpr, BK: gl.constexpr):
    """Sum products from the last step to the first."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(K - BK, -1, -BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * B + rows[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def falling_tiles(a, b, c, K, B: gl.constexpr, BK: gl.constexpr):
    rows = gl.arange(0, B)
    a_tiles = gl.portable.descriptor(a, [B, K], [K, 1], [B, BK])
    b_tiles = gl.portable.descriptor(b, [K, B], [B, 1], [BK, B])
    acc = gl.zeros([B, B], gl.float32)
    for k in range(K, 0, -BK):
        x = gl.portable.load(a_tiles, [0, k - BK])
        y = gl.portable.load(b_tiles, [k - BK, 0])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def dequantized(a, q, scale, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Multiply by bytes with a scale for each column: each step computes its second operand."""
    rows, columns, along = gl.arange(0, BM), gl.arange(0, BN), gl.arange(0, BK)
    scales = gl.load(scale + columns)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        codes = gl.load(q + (k + along)[:, None] * N + columns[None, :])
        y = (codes.to(gl.float32) * scales[None, :]).to(gl.float16)
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@gluon.jit(layouts="auto")
def two_in_turn(q, k, v, out, length, stride, D: gl.constexpr, B: gl.constexpr):
    """Multiply by one operand before the other is loaded; rows are `stride` apart."""
    rows, columns = gl.arange(0, B), gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + columns[None, :])
    acc = gl.zeros([B, D], gl.float32)
    for start in range(0, length, B):
        key = gl.load(k + columns[:, None] + (start + rows)[None, :] * stride)
        score = gl.portable.mma(query, key, gl.zeros([B, B], gl.float32))
        weight = gl.exp2(gl.minimum(score, 1.0)).to(gl.float16)
        value = gl.load(v + (start + rows)[:, None] * stride + columns[None, :])
        acc = gl.portable.mma(weight, value, acc)
    gl.store(out + rows[:, None] * D + columns[None, :], acc)


@gluon.jit(layouts="auto")
def chained(q, k, v, out, length, stride, D: gl.constexpr, B: gl.constexpr):
    """Multiply by an operand that copies cannot move, and by one that they can."""
    rows, columns = gl.arange(0, B), gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + columns[None, :])
    acc = gl.zeros([B, D], gl.float32)
    for start in range(0, length, B):
        inside = start + rows < length
        key = gl.load(
            k + columns[:, None] * stride + (start + rows)[None, :], mask=inside[None, :], other=0.0
        )
        weight = gl.maximum(gl.portable.mma(query, key, gl.zeros([B, B], gl.float32)), 0.0)
        value = gl.load(
            v + (start + rows)[:, None] * D + columns[None, :], mask=inside[:, None], other=0.0
        )
        acc = gl.portable.mma(weight.to(gl.float16), value, acc)
    gl.store(out + rows[:, None] * D + columns[None, :], acc)


def test_loads_of_single_elements_leave_other_tiles_their_ring(chosen_sources):
    a, b, c, wanted = operands(64, 48, 96)
    clamped[(1,)](a, b, c, 48, 96, 64, 32, num_stages=3, target="sim:hopper")
    assert np.allclose(c, wanted, atol=1e-2)
    assert "async_load(x_ring" in chosen_sources[0] and "warpgroup_mma(" in chosen_sources[0]
    assert "async_load(y_ring" not in chosen_sources[0]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "target",
    ["sim:hopper", "sim:sm_80", "sim:sm_100", "sim:gfx942", "sim:gfx950", "sim:gfx1250"],
)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_product(target, stages):
    a, b, c, wanted = operands(64, 64, 144)
    for schedule in ("eager", "latest"):  # copies land as early, and as late as they may
        c[:] = 0
        with using(schedule=schedule):
            product[(1,)](a, b, c, 64, 144, 64, 64, 32, num_stages=stages, target=target)
        assert np.allclose(c, wanted, atol=1e-3), schedule


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
@pytest.mark.parametrize("n", [64, 67])
def test_operands_that_are_not_aligned_are_stored(target, n):
    """Rows of 147 halves begin at any address, and so do those of 67: one operand is copied, or none."""
    a, b, c, wanted = operands(64, n, 147)
    for schedule in ("eager", "latest"):
        c[:] = 0
        with using(schedule=schedule):
            product[(1,)](a, b, c, n, 147, 64, 64, 32, num_stages=3, target=target)
        assert np.allclose(c[:, :64], wanted[:, :64], atol=1e-3), schedule


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
@pytest.mark.parametrize("stride", [64, 65])
def test_operands_are_read_before_the_others_are_stored(target, stride):
    rng = np.random.default_rng(4)
    q = rng.standard_normal((64, 64)).astype(np.float16) / 8
    k, v = (rng.standard_normal((128, stride)).astype(np.float16) for _ in range(2))
    out = np.zeros((64, 64), np.float32)
    score = q.astype(np.float32) @ k[:, :64].astype(np.float32).T
    weight = np.exp2(np.minimum(score, 1)).astype(np.float16).astype(np.float32)
    for schedule in ("eager", "latest"):
        with using(schedule=schedule):
            two_in_turn[(1,)](q, k, v, out, 128, stride, 64, 64, num_stages=3, target=target)
        wanted = weight @ v[:, :64].astype(np.float32)
        assert np.allclose(out, wanted, atol=5e-2, rtol=1e-2), schedule


def test_a_chain_stays_under_way_where_an_operand_is_stored():
    """The sum of a loop without steps is in a branch of its own: else ptxas waits after each `wgmma`."""
    signature = {name: "*fp16:16" for name in "qkv"} | {"out": "*fp32:16"}
    signature |= {"length": "i32", "stride": "i32"}
    sizes = {"D": 64, "B": 64}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = gluon.compile(chained, target="sm_90", signature=signature, constexprs=sizes)
    assert asked.asm["ptx"].count("wgmma.wait_group") == 2
    rng = np.random.default_rng(5)
    for length in (0, 100):
        q, k, v = (
            rng.standard_normal(s).astype(np.float16) for s in ((64, 64), (64, 131), (128, 64))
        )
        out = np.ones((64, 64), np.float32)
        chained[(1,)](q, k, v, out, length, 131, 64, 64, num_stages=2, target="sim:hopper")
        weight = np.maximum(q.astype(np.float32) @ k[:, :length].astype(np.float32), 0)
        wanted = weight.astype(np.float16).astype(np.float32) @ v[:length].astype(np.float32)
        assert np.allclose(out, wanted, atol=0.3, rtol=1e-2), length


@gluon.jit(layouts="auto")
def large_query(q, k, v, out, length, M: gl.constexpr, D: gl.constexpr, B: gl.constexpr):
    row, depth, n = gl.arange(0, M), gl.arange(0, D), gl.arange(0, B)
    query = gl.load(q + row[:, None] * D + depth[None, :])
    acc = gl.zeros([M, D], gl.float32)
    for start in range(0, length, B):
        place = start + n
        key = gl.load(
            k + place[None, :] * D + depth[:, None], mask=place[None, :] < length, other=0.0
        )
        score = gl.portable.mma(query, key, gl.zeros([M, B], gl.float32))
        weight = gl.where(place[None, :] < length, gl.exp(score), 0.0)
        value = gl.load(
            v + place[:, None] * D + depth[None, :], mask=place[:, None] < length, other=0.0
        )
        acc = gl.portable.mma(weight.to(gl.float16), value, acc)
    gl.store(out + row[:, None] * D + depth[None, :], acc)


def test_loops_that_share_rings_count_the_same_buffers(chosen_sources):
    """The first loop copies the query, too, which leaves room for two steps; three would be in no ring."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((n, 256)).astype(np.float16) / 16 for n in (128, 160, 160))
    out = np.zeros((128, 256), np.float32)
    large_query[(1,)](q, k, v, out, 160, 128, 256, 64, num_stages=3, target="sim:hopper")
    q, k, v = (one.astype(np.float32) for one in (q, k, v))
    assert np.allclose(out, np.exp(q @ k.T) @ v, atol=5e-2, rtol=1e-2)
    assert "step % 2" in chosen_sources[-1] and "% 3" not in chosen_sources[-1]


@gluon.jit(layouts="auto")
def hidden_scores(q, k, v, seen, out, length, M: gl.constexpr, D: gl.constexpr, B: gl.constexpr):
    row, depth, n = gl.arange(0, M), gl.arange(0, D), gl.arange(0, B)
    query = gl.load(q + row[:, None] * D + depth[None, :])
    acc = gl.zeros([M, D], gl.float32)
    for start in range(0, length, B):
        key = gl.load(k + (start + n)[None, :] * D + depth[:, None])
        keep = gl.load(seen + row[:, None] * length + (start + n)[None, :])
        score = gl.portable.mma(query, key, gl.zeros([M, B], gl.float32))
        value = gl.load(v + (start + n)[:, None] * D + depth[None, :])
        acc = gl.portable.mma(gl.where(keep != 0, score, 0.0).to(gl.float16), value, acc)
    gl.store(out + row[:, None] * D + depth[None, :], acc)


@pytest.mark.parametrize("size, copied", [(128, True), (64, False)])
def test_masks_are_copied_where_as_many_programs_have_room(size, copied, chosen_sources):
    """The rings of a large head leave a multiprocessor one program in any case; those of a small one have three for four."""
    rng = np.random.default_rng(8)
    q, k, v = (rng.standard_normal((n, size)).astype(np.float16) / 8 for n in (size, 128, 128))
    seen = rng.integers(0, 2, (size, 128)).astype(np.int8)
    out = np.zeros((size, size), np.float32)
    launch = hidden_scores[(1,)]
    launch(q, k, v, seen, out, 128, size, size, 64, num_stages=3, target="sim:hopper")
    q, k, v = (one.astype(np.float32) for one in (q, k, v))
    assert np.allclose(out, np.where(seen, q @ k.T, 0) @ v, atol=5e-2, rtol=1e-2)
    assert (" = keep_ring.index(slot).load()" in chosen_sources[-1]) is copied


@gluon.jit(layouts="auto")
def one_behind_the_other(a, b, w, c, K, L, stride, B: gl.constexpr):
    i, j = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        x = gl.load(a + i * K + k + j, mask=k + j < K, other=0.0)
        acc = gl.portable.mma(x, gl.load(b + (k + i) * stride + j, mask=k + i < K, other=0.0), acc)
    for k in range(0, L, B):
        x = gl.load(a + i * K + k + j, mask=k + j < L, other=0.0)
        acc = gl.portable.mma(x, gl.load(w + (k + i) * stride + j, mask=k + i < L, other=0.0), acc)
    gl.store(c + i * B + j, acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
@pytest.mark.parametrize("stride", [64, 65])
def test_a_loop_begins_where_another_one_ends(target, stride):
    """Nothing is between them; rows of 65 pass through registers, and sums are under way in each loop."""
    rng = np.random.default_rng(6)
    a, b, w = (
        rng.standard_normal(s).astype(np.float16) for s in ((64, 128), (128, stride), (128, stride))
    )
    for length in (0, 96):
        c = np.zeros((64, 64), np.float32)
        one_behind_the_other[(1,)](a, b, w, c, 128, length, stride, 64, num_stages=3, target=target)
        a_, b_, w_ = (x.astype(np.float32) for x in (a, b[:, :64], w[:length, :64]))
        assert np.allclose(c, a_ @ b_ + a_[:, :length] @ w_, atol=1e-2), length


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
@pytest.mark.parametrize("depth", [0, 64, 160])
def test_second_operand_is_computed(target, depth):
    a, _, c, _ = operands(64, 64, depth)
    rng = np.random.default_rng(3)
    q = rng.integers(-8, 8, (depth, 64)).astype(np.int8)
    scale = rng.uniform(0.5, 2, 64).astype(np.float16)
    wanted = a.astype(np.float32) @ (q * scale.astype(np.float32)).astype(np.float16).astype(
        np.float32
    )
    for schedule in ("eager", "latest"):
        c[:] = 0
        with using(schedule=schedule):
            dequantized[(1,)](a, q, scale, c, 64, depth, 64, 64, 32, num_stages=3, target=target)
        assert np.allclose(c, wanted, atol=1e-2, rtol=1e-3), schedule


def test_units_read_computed_operands():
    signature = {"a": "*fp16:16", "q": "*i8:16", "scale": "*fp16:16", "c": "*fp32:16"}
    signature |= {"N": "i32:16", "K": "i32:16"}
    sizes = {"BM": 64, "BN": 64, "BK": 32}
    asked = gluon.compile(dequantized, target="sm_90", signature=signature, constexprs=sizes)
    assert "wgmma.mma_async" in asked.asm["ptx"] and "mma.sync" not in asked.asm["ptx"]
    text = asked.asm["ttgir"]  # products under way never meet the zeros of a loop without steps
    branch = text[text.index("scf.if") : text.index("tt.store")]
    assert branch.index("scf.for") < branch.rindex("warp_group_dot_wait") < branch.index("} else {")
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert loop.count("async_copy_global_to_local") == 2 and "tt.load" not in loop


@gluon.jit(layouts="auto")
def read_twice(a, b, c, squares, most, N, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply tiles whose elements the step reads, too, and which give it another operand."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc, other = gl.zeros([B, B], gl.float32), gl.zeros([B, B], gl.float32)
    largest = gl.full([B], -1e30, gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * N + rows[None, :])
        acc = gl.portable.mma(x, y, acc)
        largest = gl.maximum(largest, gl.max(x.to(gl.float32), 1))
        other = gl.portable.mma(x, (y * y).to(gl.float16), other)
    gl.store(c + rows[:, None] * N + rows[None, :], acc)
    gl.store(squares + rows[:, None] * N + rows[None, :], other)
    gl.store(most + rows, largest)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_steps_read_the_elements_of_operands(target, chosen_sources):
    a, b, c, _ = operands(64, 64, 64)
    squares, most = np.zeros((64, 64), np.float32), np.zeros(64, np.float32)
    with using(schedule="latest"):
        read_twice[(1,)](a, b, c, squares, most, 64, 64, 64, 32, num_stages=2, target=target)
    left, right = a.astype(np.float32), b.astype(np.float32)
    assert np.allclose(c, left @ right, atol=1e-2, rtol=1e-3)
    assert np.allclose(squares, left @ (b * b).astype(np.float32), atol=1e-2, rtol=1e-3)
    assert np.array_equal(most, left.max(1))
    loop = chosen_sources[-1].partition("for k in")[2]
    if target == "sim:hopper":  # all products under way, behind a fence each
        assert loop.count("warpgroup_mma(") == loop.count("fence_async_shared()") == 2
        assert "x = x_ring.index(slot).load()" in loop and "y_operand_ring.index(" in loop


def test_units_read_copied_tiles():
    hopper = code(product, "sm_90", BM=64, BN=64, BK=64)
    assert "wgmma.mma_async" in hopper and "cp.async.cg.shared.global" in hopper
    narrow = code(product, "sm_90", BM=32, BN=64, BK=32)  # a warp group has 64 rows
    assert "wgmma.mma_async" not in narrow and "cp.async" in narrow and "mma.sync" in narrow
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "N": "i32:16", "K": "i32"}
    sizes = {"BM": 64, "BN": 64, "BK": 64}
    asked = gluon.compile(product, target="sm_90", signature=signature, constexprs=sizes)
    text = asked.asm["ttgir"]  # rows of K elements may begin at any address, those of B do not
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    assert loop.count("async_copy_global_to_local") == loop.count("tt.load") == 1
    assert "warp_group_dot" in loop  # which reads both from shared memory
    blackwell = code(product, "sm_100", BM=128, BN=128, BK=64)
    assert "tcgen05.mma" in blackwell and "mma.sync" not in blackwell
    ampere = code(product, "sm_80", BM=64, BN=64, BK=32)
    assert "mma.sync" in ampere and "cp.async" in ampere


@pytest.mark.parametrize(
    "target, copy, load",
    [
        ("gfx950", "global_load_lds_dwordx4", r"(global|buffer)_load_(dword|u)"),
        ("gfx1250", "global_load_async_to_lds_b128", r"(global|buffer)_load_[bu]"),
    ],
)
@pytest.mark.skipif(VERSION[:2] == (3, 8), reason="Triton 3.8 leaves waits out")
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.sampled(8)
def test_copies_go_past_the_registers(target, copy, load, aligned):
    """Rows of K elements that may begin at any address are loaded a step ahead instead."""
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "N": "i32:16"}
    signature["K"] = "i32:16" if aligned else "i32"
    sizes = {"BM": 64, "BN": 64, "BK": 64}
    asked = gluon.compile(product, target=target, signature=signature, constexprs=sizes)
    text = asked.asm["amdgcn"]
    assert (copy in text) == aligned and bool(re.search(load, text)) == (not aligned)


@pytest.mark.parametrize("target", ["emu:gfx950", "emu:gfx1250"])
def test_machine_code_waits_for_its_copies(target):
    a, b, c, wanted = operands(64, 64, 144)
    product[(1,)](a, b, c, 64, 144, 64, 64, 64, num_stages=3, target=target)
    assert np.allclose(c, wanted, atol=1e-3)


def test_loads_run_ahead_on_amd():
    """In the written file the loads of the next step come before the products of this one."""
    file = Path(__file__).parents[2] / "examples" / "written" / "attention_gfx942.py"
    text = file.read_text()
    loop = text[text.index("for start in range") :]
    for load in ("key_ahead = gl.load(", "value_ahead = gl.load("):
        assert loop.index(load) < loop.index("gl.portable.mma")
    assert "start_ahead < masked_from" in loop


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
@pytest.mark.parametrize("kernel", [falling, falling_tiles])
def test_steps_that_fall(target, kernel):
    a, b, c, wanted = operands(64, 64, 160)
    kernel[(1,)](a, b, c, 160, 64, 32, num_stages=3, target=target)
    assert np.allclose(c, wanted, atol=1e-3)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
def test_loops_that_assign_their_variable(target):
    a, b, c, wanted = operands(64, 64, 160)
    own_variable[(1,)](a, b, c, 320, 160, 64, 32, 2, num_stages=3, target=target)
    assert np.allclose(c, wanted, atol=1e-3)


@gluon.jit
def places(a, b, k, K, B: gl.constexpr, BK: gl.constexpr):
    rows, along = gl.arange(0, B), k + gl.arange(0, BK)
    return a + rows[:, None] * K + along[None, :], b + along[:, None] * B + rows[None, :]


@gluon.jit(layouts="auto")
def moved_together(a, b, c, K, B: gl.constexpr, BK: gl.constexpr):
    left, right = places(a, b, 0, K, B, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        acc = gl.portable.mma(gl.load(left), gl.load(right), acc)
        left, right = left + BK, right + BK * B
    gl.store(c + gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :], acc)


@gluon.jit(layouts="auto")
def placed_together(a, b, c, K, B: gl.constexpr, BK: gl.constexpr):
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        left, right = places(a, b, k, K, B, BK)
        acc = gl.portable.mma(gl.load(left), gl.load(right), acc)
    gl.store(c + gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :], acc)


def test_pointers_that_a_tuple_moves(chosen_sources):
    for kernel in (moved_together, placed_together):
        a, b, c, wanted = operands(64, 64, 96)
        kernel[(1,)](a, b, c, 96, 64, 32, num_stages=3, target="sim:hopper")
        assert np.allclose(c, wanted, atol=1e-3)
        assert "warpgroup_mma" in chosen_sources[-1]


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
@pytest.mark.parametrize("depth", [64, 160])
def test_tiles_of_two_shapes_and_products(target, depth):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((n, 64)).astype(np.float16) / 8 for n in (64, depth))
    wanted = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16).astype(np.float32)
    for schedule in ("eager", "latest"):
        c, d = np.zeros((64, 64), np.float32), np.zeros(64, np.float32)
        with using(schedule=schedule):
            in_two_steps[(1,)](a, b, c, d, depth, 32, 64, num_stages=3, target=target)
        assert np.allclose(c, wanted @ b.astype(np.float32), atol=1e-2), schedule
        assert np.allclose(d, wanted.sum(1), atol=1e-2)


def test_units_read_tiles_of_two_products():
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "d": "*fp32:16"}
    signature |= {"K": "i32:16", "half": "i32:16"}
    asked = gluon.compile(in_two_steps, target="sm_90", signature=signature, constexprs={"B": 64})
    loops = asked.asm["ttgir"].split("scf.for")[1:]
    assert len(loops) == 2
    for loop in loops:
        inside = loop[: loop.index("scf.yield")]
        assert inside.count("warp_group_dot ") == 2
        assert inside.count("async_copy_global_to_local") == 1 and "tt.load" not in inside


def test_a_part_of_a_stride_is_aligned():
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "stride": "i32:16"}
    for group, copies in ((2, 2), (3, 1)):
        sizes = {"B": 64, "BK": 32, "GROUP": group}
        asked = gluon.compile(
            own_variable, target="sm_90", signature={**signature, "K": "i32:16"}, constexprs=sizes
        )
        text = asked.asm["ttgir"]
        loop = text[text.index("scf.for") : text.index("scf.yield")]
        assert loop.count("async_copy_global_to_local") == copies


@gluon.jit(layouts="auto")
def convolution(
    x, w, y, width, C: gl.constexpr, TAPS: gl.constexpr, B: gl.constexpr, BK: gl.constexpr
):
    """Convolve rows of C channels with TAPS taps, in one loop over taps and channels."""
    rows, columns = gl.arange(0, B), gl.arange(0, B)
    acc = gl.zeros([B, B], gl.float32)
    for first in range(0, TAPS * C, BK):
        k = first + gl.arange(0, BK)
        place = rows[:, None] + (k // C)[None, :] - TAPS // 2
        inside = (place >= 0) & (place < width) & (k[None, :] < TAPS * C)
        a = gl.load(x + place * C + (k % C)[None, :], mask=inside, other=0.0)
        right = w + columns[None, :] * (TAPS * C) + k[:, None]
        b = gl.load(right, mask=k[:, None] < TAPS * C, other=0.0)
        acc = gl.portable.mma(a, b, acc)
    gl.store(y + rows[:, None] * B + columns[None, :], acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
@pytest.mark.parametrize("channels", [16, 12])
def test_convolution(target, channels):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, channels)).astype(np.float16)
    w = rng.standard_normal((64, 3, channels)).astype(np.float16)
    y = np.zeros((64, 64), np.float32)
    convolution[(1,)](x, w, y, 50, channels, 3, 64, 32, target=target)
    padded = np.zeros((66, channels), np.float32)
    padded[1:51] = x
    wanted = sum(padded[tap : tap + 64] @ w[:, tap].astype(np.float32).T for tap in range(3))
    assert np.allclose(y[:50], wanted[:50], atol=2e-2)


def test_quotients_are_alike_where_their_rests_follow():
    """Rests of a division by 12 begin anew within eight neighbours: no copy takes them together."""
    signature = {"x": "*fp16:16", "w": "*fp16:16", "y": "*fp32:16", "width": "i32"}
    for channels, copies in ((64, 2), (16, 2), (12, 1)):
        sizes = {"C": channels, "TAPS": 4, "B": 64, "BK": 32}
        asked = gluon.compile(convolution, target="sm_90", signature=signature, constexprs=sizes)
        text = asked.asm["ttgir"]
        loop = text[text.index("scf.for") : text.index("scf.yield")]
        assert loop.count("async_copy_global_to_local") == copies


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
def test_rows_that_a_vector_names_are_copied(target, chosen_sources):
    """The vector of the step that is copied is loaded at the end of the step before, and no step later."""
    a, b, c, wanted = operands(64, 64, 64)
    places = np.random.default_rng(1).permutation(64).astype(np.int32)
    by_index[(1,)](a[:, places].copy(), b, c, places, 64, 64, 32, target=target)
    assert np.allclose(c, wanted, atol=1e-3)
    loop = chosen_sources[-1].split("for k in")[1]
    assert loop.index("y_ring") < loop.index("place_ahead = gl.load(") and loop.count(".load(") < 4


@pytest.mark.once
def test_ported_matmul_on_wgmma(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    path = tmp_path / "ported.py"
    path.write_text(port((FOLDER / "matmul.py").read_text(), "matmul.py").text)
    spec = importlib.util.spec_from_file_location("ported_matmul", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    for stored in (False, True):
        a, b = torch.randn(136, 104).half(), torch.randn(104, 88).half()
        b = b.t().contiguous().t() if stored else b
        c = torch.empty(136, 88, dtype=torch.float16)
        module.matmul_kernel[(6,)](
            a, b, c, 136, 88, 104, *a.stride(), *b.stride(), *c.stride(),
            BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, ACTIVATION="",
        )  # fmt: skip
        torch.testing.assert_close(c.float(), a.float() @ b.float(), atol=0.05, rtol=0.01)
