"""Operands that all steps of a loop multiply, and dead code, buffers and loads around products."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_write.text.unread import without_unread

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def chained(x, first, second, out, whole, K, B: gl.constexpr, D: gl.constexpr):
    rows, lane = gl.arange(0, B), gl.arange(0, D)
    kept = gl.load(x + rows[:, None] * D + lane[None, :]) * 2
    acc = gl.zeros([B, D], gl.float32)
    for k in range(0, whole, D):
        unit = k + lane
        place = first + lane[:, None] * K + unit[None, :]
        left = gl.load(place)
        hidden = gl.portable.mma(kept, left, gl.zeros([B, D], gl.float32))
        hidden = gl.maximum(hidden, 0.0).to(kept.dtype)
        right = gl.load(second + unit[:, None] * D + lane[None, :])
        acc = gl.portable.mma(hidden, right, acc)
    for k in range(whole, K, D // 2):
        unit = k + gl.arange(0, D // 2)
        place = first + lane[:, None] * K + unit[None, :]
        left = gl.load(place)
        hidden = gl.portable.mma(kept, left, gl.zeros([B, D // 2], gl.float32))
        hidden = gl.maximum(hidden, 0.0).to(kept.dtype)
        right = gl.load(second + unit[:, None] * D + lane[None, :])
        acc = gl.portable.mma(hidden, right, acc)
    gl.store(out + rows[:, None] * D + lane[None, :], acc)


def test_units_read_kept_operands_from_shared_memory(chosen_sources):
    """Registers are left for the sums."""
    rng = np.random.default_rng(3)
    x, first, second = (
        (rng.standard_normal(shape) * 0.3).astype(np.float16) for shape in ((64, 32), (32, 96), (96, 32))
    )  # fmt: skip
    out = np.zeros((64, 32), np.float32)
    chained[(1,)](
        x, first, second, out, 64, 96, 64, 32, num_warps=4, num_stages=3, target="sim:hopper"
    )
    hidden = np.maximum(2 * x.astype(np.float32) @ first.astype(np.float32), 0).astype(np.float16)
    assert np.allclose(out, hidden.astype(np.float32) @ second.astype(np.float32), atol=1e-2)
    text = chosen_sources[-1]
    assert "kept_operand = gl.allocate_shared_memory(kept.dtype, kept.shape, value=kept)" in text
    assert text.count("value=kept") == 1  # for products of 32 and of 16 columns
    # Copies start behind the second product, and nothing computes addresses for the step itself.
    loop = text[text.index("for k in range") :]
    assert loop.index("mma(hidden,") < loop.index("async_load(") < loop.index("step += 1")
    assert "place = " not in text and "unit = k" not in text


@gluon.jit(layouts="auto")
def scores(x, w, out, N, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    rows, lane, columns = gl.arange(0, BM), gl.arange(0, D), gl.arange(0, BN)
    kept = gl.load(x + rows[:, None] * D + lane[None, :])
    most = gl.full([BM], float("-inf"), gl.float32)
    for n in range(0, N, BN):
        tile = gl.load(w + (n + columns)[None, :] * D + lane[:, None])
        score = gl.portable.mma(kept, tile, gl.zeros([BM, BN], gl.float32))
        most = gl.maximum(most, gl.max(score, 1))
    gl.store(out + rows, most)


@pytest.mark.parametrize("depth, loaded", [(128, False), (256, True)])
def test_steps_load_operands_that_take_many_registers(depth, loaded, chosen_sources):
    """Four warps that share 16 rows have 32 or 64 registers of them."""
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal((n, depth)).astype(np.float16) for n in (16, 96))
    out = np.zeros(16, np.float32)
    scores[(1,)](x, w, out, 96, depth, 16, 32, num_warps=4, target="sim:hopper")
    assert np.allclose(out, (x.astype(np.float32) @ w.T).max(1), rtol=1e-3)
    text = chosen_sources[-1]
    assert ("kept_operand = gl.allocate_shared_memory(kept.dtype" in text) == loaded
    assert ("kept_operand.load()" in text) == loaded


@gluon.jit(layouts="auto")
def on_both_sides(x, w, out, K, B: gl.constexpr):
    rows, lane = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    kept = gl.load(x + rows * B + lane)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        tile = gl.load(w + (k + rows) * B + lane)
        score = gl.portable.mma(kept, tile, gl.zeros([B, B], gl.float32)).to(kept.dtype)
        acc = gl.portable.mma(score.T, kept, acc)
    gl.store(out + rows * B + lane, acc)


def test_one_buffer_has_an_operand_on_both_sides(chosen_sources):
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal((n, 64)).astype(np.float16) for n in (64, 128))
    out = np.zeros((64, 64), np.float32)
    on_both_sides[(1,)](x, w, out, 128, 64, num_warps=4, num_stages=3, target="sim:hopper")
    scores = [(x.astype(np.float32) @ tile).astype(np.float16).T for tile in (w[:64], w[64:])]
    assert np.allclose(
        out, sum(scores).astype(np.float32) @ x.astype(np.float32), rtol=1e-2, atol=1
    )


@gluon.jit(layouts="auto")
def cast_in_steps(p, w, out, K, B: gl.constexpr):
    """Multiply by a tensor that each step casts to the dtype of the tile it loads."""
    rows, lane = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    share = gl.load(p + rows * B + lane)
    for k in range(0, K):
        tile = gl.load(w + (k * B + rows) * B + lane)
        sums = gl.zeros([B, B], gl.float32)
        gl.store(out + (k * B + rows) * B + lane, gl.portable.mma(share.to(tile.dtype), tile, sums))


def test_casts_of_kept_operands_leave_the_loop(chosen_sources):
    rng = np.random.default_rng(4)
    p, w = rng.standard_normal((16, 16)).astype(np.float32), rng.standard_normal((3, 16, 16))
    out = np.zeros((3, 16, 16), np.float32)
    cast_in_steps[(1,)](p, w.astype(np.float16), out, 3, 16, target="sim:hopper")
    assert np.allclose(out, p.astype(np.float16).astype(np.float32) @ w, atol=2e-2)
    before = chosen_sources[-1].partition("for k in")[0]
    assert "share_operand = gl.convert_layout(share.to(gl.float16)" in before


@gluon.jit(layouts="auto")
def with_residual(a, b, r, c, K, B: gl.constexpr, D: gl.constexpr):
    rows, lane, along = gl.arange(0, B), gl.arange(0, B), gl.arange(0, D)
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, D):
        x = gl.load(a + rows[:, None] * K + (k + along)[None, :])
        y = gl.load(b + (k + along)[:, None] * B + lane[None, :])
        acc = gl.portable.mma(x, y, acc)
    place = rows[:, None] * B + lane[None, :]
    acc += gl.load(r + place).to(gl.float32)
    gl.store(c + place, acc.to(gl.float16))


def compiled(kernel, stages, **sizes):
    names = kernel.arg_names[:-3]
    signature = {name: "*fp16:16" for name in names} | {"K": "i32:16"}
    options = {"num_warps": 4, "num_stages": stages}
    return gluon.compile(
        kernel, target="sm_90", signature=signature, constexprs=sizes, options=options
    )


def test_tiles_are_loaded_by_rows_and_converted_for_sums():
    """The layout of a matrix unit loads 4 bytes at a time."""
    text = compiled(with_residual, 4, B=128, D=64).asm["ttgir"]
    load = re.search(r"tt\.load .*tensor<128x128x!tt\.ptr<f16>, (#\w+)>", text)
    store = re.search(r"tt\.store .*tensor<128x128x!tt\.ptr<f16>, (#\w+)>", text)
    layout = re.search(rf"{load[1]} = #ttg\.blocked<{{sizePerThread = \[(\d, \d)\]", text)
    assert load[1] == store[1] and layout[1] == "1, 8"


def test_a_buffer_more_where_it_costs_no_program_or_leaves_enough():
    """Four stages of 32 KB hold a multiprocessor for one program; so do five, with three steps under way."""
    for stages, buffers in ((3, 3), (4, 5)):
        text = compiled(with_residual, stages, B=128, D=64).asm["ttgir"]
        assert f"memdesc<{buffers}x128x64xf16" in text
    # Four buffers of 8 KB save a barrier in each step and leave enough programs, four of 16 KB do not.
    for tile, buffers in ((64, 4), (128, 3)):
        text = compiled(with_residual, 3, B=tile, D=32).asm["ttgir"]
        assert f"memdesc<{buffers}x{tile}x32xf16" in text


def test_statements_that_only_dead_ones_read_are_dead():
    text = "def f(x, n):\n    a = x\n    for i in range(n):\n        b = i + 1\n        b = b * a\n        d = b\n        c = a\n        x += c\n    if n:\n        e = 1\n    return x\n"
    left = without_unread(text, {})
    assert "b = " not in left and "d = b" not in left
    assert "c = a" in left and "e = 1" in left  # a block keeps a statement
    assert "b = i + 1" in without_unread(text, {}, {"d"}) and "d = b" not in without_unread(
        text, {}, {"d"}
    )
