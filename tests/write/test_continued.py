"""Loops that go on with the steps of others take over their copies, and chained products have rows of warps."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def masked_attention(q, k, v, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    rows, d = gl.arange(0, BM), gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    largest = gl.full([BM], float("-inf"), gl.float32)
    total, acc = gl.zeros([BM], gl.float32), gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        inside = columns < length
        key = gl.load(k + d[:, None] + columns[None, :] * D, mask=inside[None, :], other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        score = gl.where(inside[None, :], score, float("-inf"))
        before = largest
        largest = gl.maximum(largest, gl.max(score, 1))
        weight = gl.exp2(score - largest[:, None])
        kept = gl.exp2(before - largest)
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + columns[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = gl.portable.mma(weight.to(gl.float16), value, acc * kept[:, None])
    gl.store(out + rows[:, None] * D + d[None, :], acc / total[:, None])


def attends(target, length, rows):
    """Return True if the kernel computes what NumPy does."""
    rng = np.random.default_rng(length)
    q, k, v = (rng.standard_normal((n, 32)).astype(np.float16) for n in (rows, length, length))
    score = q.astype(np.float32) @ k.astype(np.float32).T
    weight = np.exp2(score - score.max(1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(1, keepdims=True)
    out = np.zeros((rows, 32), np.float32)
    masked_attention[(1,)](q, k, v, out, length, 32, rows, 32, num_stages=3, target=target)
    return np.allclose(out, wanted, atol=1e-2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["sim:hopper", "sim:sm_80"])
@pytest.mark.parametrize("lengths", [(20, 200), (32, 96)])
def test_copies_go_on_behind_the_whole_steps(target, lengths, chosen_sources):
    for length in lengths:  # of one choice of layouts
        for schedule in ("eager", "latest"):
            with using(schedule=schedule):
                assert attends(target, length, 64)
    text = chosen_sources[0]
    assert text.count("in range(0, masked_from, BN)") == text.count("in range(masked_from,") == 1
    assert text.count("key_ring = ") == text.count("allocate_shared_memory(k") == 1
    assert text.count("wait_group(0)") == 1 and "start_ahead < masked_from" not in text
    copied = "async_load(query, q + " in text  # a unit that reads shared memory
    assert copied == (target == "sim:hopper")
    operand = "query" if copied else "query_operand"
    assert text.count(f"{operand} = ") == 1 and text.count(f"mma({operand}, ") == 2


@gluon.jit
def walked(
    acc, total, largest, query, k, v, begin, end, length, rows, D: gl.constexpr, BN: gl.constexpr, DIAGONAL: gl.constexpr
):  # fmt: skip
    d = gl.arange(0, D)
    for start in range(begin, end, BN):
        columns = start + gl.arange(0, BN)
        inside = columns < length
        key = gl.load(k + d[:, None] + columns[None, :] * D, mask=inside[None, :], other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([query.shape[0], BN], gl.float32))
        if DIAGONAL:
            score = gl.where(rows[:, None] >= columns[None, :], score, float("-inf"))
        before = largest
        largest = gl.maximum(largest, gl.max(score, 1))
        weight = gl.exp2(score - largest[:, None])
        kept = gl.exp2(before - largest)
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + columns[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = gl.portable.mma(weight.to(gl.float16), value, acc * kept[:, None])
    return acc, total, largest


@gluon.jit(layouts="auto")
def causal_attention(q, k, v, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    block = gl.program_id(0)
    rows, d = block * BM + gl.arange(0, BM), gl.arange(0, D)
    seen = rows[:, None] < length
    query = gl.load(q + rows[:, None] * D + d[None, :], mask=seen, other=0.0)
    largest = gl.full([BM], float("-inf"), gl.float32)
    total, acc = gl.zeros([BM], gl.float32), gl.zeros([BM, D], gl.float32)
    acc, total, largest = walked(
        acc, total, largest, query, k, v, 0, block * BM, length, rows, D, BN, False
    )
    acc, total, largest = walked(
        acc, total, largest, query, k, v, block * BM, min(block * BM + BM, length), length, rows, D, BN, True
    )  # fmt: skip
    gl.store(out + rows[:, None] * D + d[None, :], acc / total[:, None], mask=seen)


@pytest.mark.parametrize("length, columns", [(150, 32), (100, 128)])
def test_copies_go_on_with_the_steps_of_the_next_call(length, columns, chosen_sources):
    """The second call begins at a whole step of the first one, where rows are a multiple of its columns."""
    rng = np.random.default_rng(length)
    q, k, v = (rng.standard_normal((length, 32)).astype(np.float16) for _ in range(3))
    out = np.zeros((length, 32), np.float32)
    grid = (-(-length // 64),)
    causal_attention[grid](q, k, v, out, length, 32, 64, columns, num_stages=3, target="sim:hopper")
    text = "".join(chosen_sources)
    joined = columns <= 64
    assert ("in range(middle, " in text) == joined
    assert text.count("= gl.allocate_shared_memory(k") == (1 if joined else 2)
    if joined:
        assert text.count("wait_group(0)") == 1 and "_ahead < middle" not in text
        assert "if True:" not in text and "if False:" not in text
        score = np.where(
            np.tri(length, dtype=bool), q.astype(np.float32) @ k.T.astype(np.float32), -np.inf
        )
        weight = np.exp2(score - score.max(1, keepdims=True))
        wanted = weight @ v.astype(np.float32) / weight.sum(1, keepdims=True)
        assert np.allclose(out, wanted, atol=1e-2)


def layouts_of(rows, warps):
    """Return the parts of warps that products of 32 columns have."""
    signature = {n: "*fp16:16" for n in "qkv"} | {"out": "*fp32:16", "length": "i32"}
    sizes = {"D": 32, "BM": rows, "BN": 32}
    asked = gluon.compile(
        masked_attention,
        target="sm_80",
        signature=signature,
        constexprs=sizes,
        options={"num_warps": warps},
    )
    lines = [line for line in asked.asm["ttgir"].splitlines() if "#ttg.nvidia_mma" in line]
    return {line.partition("warpsPerCTA = ")[2].partition("]")[0] + "]" for line in lines}


@pytest.mark.parametrize("rows, warps, parts", [(64, 4, "[4, 1]"), (32, 4, "[2, 2]")])
def test_chained_products_have_rows_of_warps(rows, warps, parts):
    """Rows that are short of warps stay shared."""
    assert layouts_of(rows, warps) == {parts}
