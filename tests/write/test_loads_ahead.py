"""Loads that nothing copies in the background run a step ahead, and those of their addresses two."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(12)]


@gluon.jit(layouts="auto")
def weighted(a, q, c, N, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply by bytes, whose scale each step loads."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        inside = along < K - k
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :], mask=inside[None, :], other=0.0)
        codes = gl.load(q + (k + along)[:, None] * N + rows[None, :], mask=inside[:, None], other=0)
        weights = (codes.to(gl.float16) / 8).to(gl.float16)
        acc = gl.portable.mma(x, weights, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def gathered(a, b, c, pages, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply by pages that a table names."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        page = gl.load(pages + k // BK).to(gl.int64)
        y = gl.load(b + (page * BK + along)[:, None] * B + rows[None, :])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def scaled(a, q, scales, c, N, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply by bytes, and each step's product by factors of its own."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        codes = gl.load(q + (k + along)[:, None] * N + rows[None, :])
        scale = gl.load(scales + k // BK * N + rows)
        acc += (
            gl.portable.mma(x, codes.to(gl.float16), gl.zeros([B, B], gl.float32)) * scale[None, :]
        )
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def attention(q, keys, values, out, pages, count, B: gl.constexpr):
    """Multiply by keys and values of pages that a table names."""
    rows = gl.arange(0, B)
    tile = rows[:, None] * B + rows[None, :]
    x = gl.load(q + tile)
    acc = gl.zeros([B, B], gl.float32)
    for number in range(count):
        page = gl.load(pages + number)
        k = gl.load(keys + page * B * B + tile)
        score = gl.exp(gl.portable.mma(x, k, gl.zeros([B, B], gl.float32)))
        v = gl.load(values + page * B * B + tile)
        acc = gl.portable.mma(score.to(gl.float16), v, acc)
    gl.store(out + tile, acc)


@gluon.jit(layouts="auto")
def handed_on(a, b, c, K, B: gl.constexpr, BK: gl.constexpr):
    """Store in each step the words that the next step loads."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * B + rows[None, :])
        acc = gl.portable.mma(x, (y + 1).to(gl.float16), acc)
        gl.store(b + (k + BK + along)[:, None] * B + rows[None, :], (y + 1).to(gl.float16))
        gl.barrier()
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@gluon.jit(layouts="auto")
def shifted(q, keys, values, shifts, factors, out, count, B: gl.constexpr):
    """Two products of tiles that are copied ahead; each step has shifts and factors of its columns."""
    rows = gl.arange(0, B)
    tile = rows[:, None] * B + rows[None, :]
    x = gl.load(q + tile)
    acc = gl.zeros([B, B], gl.float32)
    for step in range(count):
        key = gl.load(keys + step * B * B + tile)
        shift = gl.load(shifts + step * B + rows)
        score = gl.portable.mma(x, key, gl.zeros([B, B], gl.float32)) - shift[None, :]
        factor = gl.load(factors + step * B + rows)
        value = gl.load(values + step * B * B + tile)
        acc = gl.portable.mma((score * factor[None, :]).to(gl.float16), value, acc)
    gl.store(out + tile, acc)


@gluon.jit(layouts="auto")
def forth_and_back(a, b, out, M, N, K, B: gl.constexpr):
    """Multiply by a transposed matrix whose rows begin anywhere, and add products with it to the rows of the result."""
    rows, along = gl.arange(0, B), gl.arange(0, B)
    left = a + rows[:, None] * K + along[None, :]
    right = b + rows[:, None] * K + along[None, :]
    sums = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        inside = along < K - k
        x = gl.load(left, mask=(rows < M)[:, None] & inside[None, :], other=0.0)
        y = gl.load(right, mask=(rows < N)[:, None] & inside[None, :], other=0.0)
        sums = gl.portable.mma(x, y.trans(), sums)
        left += B
        right += B
    sums = sums.to(gl.float16)
    for k in range(0, K, B):
        known = (rows < N)[:, None] & (k + along < K)[None, :]
        w = gl.load(b + rows[:, None] * K + (k + along)[None, :], mask=known, other=0.0)
        inside = (rows < M)[:, None] & (k + along < K)[None, :]
        place = out + rows[:, None] * K + (k + along)[None, :]
        old = gl.load(place, mask=inside, other=0.0)
        new = gl.portable.mma(sums, w, gl.zeros([B, B], gl.float32))
        gl.store(place, old + new, mask=inside)


def loop_of(kernel, signature, **constants):
    """Return the loop of a compiled kernel, which a load within feeds or not."""
    asked = gluon.compile(kernel, target="sm_90", signature=signature, constexprs=constants)
    text = asked.asm["ttgir"]
    return text[text.index("scf.for") : text.index("scf.yield")]


def is_late(loop, element):
    """Return True if a loop converts or stores the result of a load of this very step."""
    names = re.findall(rf"(%\S+) = tt\.load [^\n]*!tt\.ptr<{element}>", loop)
    assert names
    return any(loop.count(f"{name} ") + loop.count(f"{name},") > 1 for name in names)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
@pytest.mark.parametrize("depth", [32, 160, 150])
def test_words_of_the_next_step(target, depth):
    rng = np.random.default_rng(1)
    a = rng.standard_normal((32, depth)).astype(np.float16)
    q = rng.integers(-8, 8, (depth, 32)).astype(np.int8)
    c = np.zeros((32, 32), np.float32)
    weighted[(1,)](a, q, c, 32, depth, 32, 32, num_stages=3, target=target)
    assert np.allclose(c, a.astype(np.float32) @ (q / 8), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_pages_of_the_next_step(target, count):
    rng = np.random.default_rng(2)
    pages = rng.permutation(count).astype(np.int32)
    a = rng.standard_normal((32, 16 * count)).astype(np.float16)
    b = rng.standard_normal((count, 16, 32)).astype(np.float16)
    c = np.zeros((32, 32), np.float32)
    gathered[(1,)](a, b, c, pages, 16 * count, 32, 16, num_stages=3, target=target)
    assert np.allclose(c, a.astype(np.float32) @ b[pages].reshape(-1, 32), atol=1e-2, rtol=1e-3)


def test_loads_of_a_loop_that_stores_stay():
    rng = np.random.default_rng(3)
    a = rng.standard_normal((32, 64)).astype(np.float16)
    b = np.zeros((96, 32), np.float16)
    b[:16] = rng.integers(-4, 4, (16, 32))
    wanted = sum(a[:, i * 16 :][:, :16].astype(np.float32) @ (b[:16] + i + 1) for i in range(4))
    c = np.zeros((32, 32), np.float32)
    handed_on[(1,)](a, b, c, 64, 32, 16, num_stages=3, target="sim:hopper")
    assert np.allclose(c, wanted, atol=1e-2, rtol=1e-3)


def test_the_step_uses_no_load_of_its_own():
    pointers = {"a": "*fp16:16", "c": "*fp32:16", "N": "i32:16", "K": "i32:16"}
    loop = loop_of(weighted, {**pointers, "q": "*i8:16"}, B=32, BK=32)
    assert loop.count("async_copy_global_to_local") == 2 and "tt.load" not in loop
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16"}
    signature |= {"pages": "*i32:16", "K": "i32:16"}
    loop = loop_of(gathered, signature, B=32, BK=16)
    assert loop.count("async_copy_global_to_local") == 2


def test_bytes_next_to_products_under_way_are_copied():
    pointers = {"a": "*fp16:16", "c": "*fp32:16", "N": "i32:16", "K": "i32:16", "q": "*i8:16"}
    loop = loop_of(weighted, pointers, B=64, BK=32)
    assert "warp_group_dot" in loop and loop.count("async_copy_global_to_local") == 2


def test_the_last_step_branches_around_narrow_loads():
    pointers = {"a": "*fp16", "c": "*fp32", "N": "i32", "K": "i32", "q": "*i8"}
    loop = loop_of(weighted, pointers, B=16, BK=16)
    assert "scf.if" in loop and loop.index("scf.if") < loop.index("tt.load")


def test_narrow_operands_of_both_loops(chosen_sources):
    rng = np.random.default_rng(6)
    a, b = (rng.standard_normal((n, 40)).astype(np.float16) for n in (13, 16))
    out = rng.standard_normal((13, 40)).astype(np.float32)
    sums = (a.astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16)
    wanted = out + sums.astype(np.float32) @ b.astype(np.float32)
    forth_and_back[(1,)](a, b, out, 13, 16, 40, 16, num_stages=3, target="sim:hopper")
    assert np.allclose(out, wanted, atol=5e-2, rtol=1e-2)
    before, first, second = chosen_sources[-1].split("for k in")
    # The mask ends with the loop, pointers are moved where a step follows, and one barrier is for both tiles.
    assert "x_ahead = gl.load(" in before and "k_ahead <" not in before
    assert re.search(r"left\w*_ahead \+= B\n.*x_ahead = gl\.load\(", first, re.S)
    assert first.index("y_ring.index(0).store(y)") < first.index("x = x_ring.index(0).load()")
    assert second.index("old = gl.load(") < second.index(".store(w)")


def test_factors_of_the_one_product_stay():
    """They are on their way while it runs."""
    pointers = {"a": "*fp16:16", "q": "*i8:16", "scales": "*fp32:16", "c": "*fp32:16"}
    loop = loop_of(scaled, {**pointers, "N": "i32:16", "K": "i32:16"}, B=32, BK=32)
    assert is_late(loop, "f32") and loop.count("async_copy_global_to_local") == 2


def test_pages_of_two_products_stay():
    """Their numbers alone are a step ahead."""
    signature = dict.fromkeys(("q", "keys", "values"), "*fp16:16") | {"out": "*fp32:16"}
    signature |= {"pages": "*i32:16", "count": "i32"}
    loop = loop_of(attention, signature, B=16)
    assert is_late(loop, "f16") and not is_late(loop, "i32")


def test_pages_of_narrow_loads_stay():
    """Other programs hide the time of so short a step."""
    signature = {"a": "*fp16:16", "b": "*fp16", "c": "*fp32:16", "pages": "*i32:16", "K": "i32:16"}
    loop = loop_of(gathered, signature, B=32, BK=16)
    assert loop.count("async_copy_global_to_local") == 1 and is_late(loop, "i32")


@gluon.jit
def multiplied(acc, a, b, page, K, k, B: gl.constexpr, BK: gl.constexpr):
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
    y = gl.load(b + (page * BK + along)[:, None] * B + rows[None, :])
    return gl.portable.mma(x, y, acc)


@gluon.jit(layouts="auto")
def through_steps(a, b, c, pages, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply by pages in a function that each step calls."""
    rows = gl.arange(0, B)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, BK):
        page = gl.load(pages + k // BK)
        acc = multiplied(acc, a, b, page, K, k, B, BK)
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80", "sim:gfx942"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_pages_of_functions_that_steps_call(target, count):
    """Pages beyond the table are not read: its last number is followed by nothing."""
    rng = np.random.default_rng(4)
    pages = rng.permutation(max(count, 1)).astype(np.int32)
    a = rng.standard_normal((64, max(64 * count, 1))).astype(np.float16)
    b = rng.standard_normal((max(count, 1), 64, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    through_steps[(1,)](a, b, c, pages, 64 * count, 64, 64, num_stages=3, target=target)
    wanted = a[:, : 64 * count].astype(np.float32) @ b[pages[:count]].reshape(-1, 64)
    assert np.allclose(c, wanted, atol=1e-2, rtol=1e-3)


def test_large_pages_are_copied_ahead():
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16"}
    signature |= {"pages": "*i32:16", "K": "i32:16"}
    loop = loop_of(through_steps, signature, B=64, BK=64)
    assert loop.count("ttg.async_copy_global_to_local") == 2 and "f16>" not in "".join(
        line for line in loop.splitlines() if "tt.load" in line
    )


@pytest.mark.sampled(1)
def test_vectors_run_ahead_of_products_under_way(chosen_sources):
    """Loads of whole tiles would end that: ptxas waited after each of them."""
    rng = np.random.default_rng(0)
    count, B = 3, 64
    q, keys, values = (rng.standard_normal((n, B)).astype(np.float16) for n in (B, 192, 192))
    shifts, factors = (rng.standard_normal((count, B)).astype(np.float32) for _ in range(2))
    out = np.zeros((B, B), np.float32)
    shifted[(1,)](q, keys, values, shifts, factors, out, count, B, target="sim:hopper")
    wanted = np.zeros((B, B), np.float32)
    for step in range(count):
        key, value = (x[step * B :][:B].astype(np.float32) for x in (keys, values))
        score = (q.astype(np.float32) @ key - shifts[step]) * factors[step]
        wanted += score.astype(np.float16).astype(np.float32) @ value
    assert np.abs(out - wanted).max() < 1e-2 * np.abs(wanted).max()
    text = chosen_sources[0]
    assert "is_async=True" in text and "shift_ahead = gl.load" in text
    assert text.index("factor_ahead = gl.load", text.index("for step")) < text.index(
        "warpgroup_mma(", text.index("for step")
    )
