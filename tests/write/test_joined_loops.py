"""Two loops that do the same become one, where the second begins at the end of the first and has masks that the first needs not."""

import runpy

import numpy as np
import pytest

import gluon_write.tiles_of_pointers

pytestmark = [pytest.mark.once]

STEP = """
        keys = {start} + along
        key = gl.load(k + keys[None, :] * D + depth[:, None], mask=keys[None, :] < length, other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        seen = keys[None, :] < length
        {more}
        score = gl.where(seen, score * scale, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + keys[:, None] * D + depth[None, :], mask=keys[:, None] < length, other=0.0)
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
        largest = higher
"""
HEAD = """
import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def attention(q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    block = gl.program_id(0)
    along = gl.arange(0, BN)
    depth = gl.arange(0, D)
    row = block * BM + gl.arange(0, BM)
    place = row[:, None] * D + depth[None, :]
    query = gl.load(q + place, mask=row[:, None] < length, other=0.0)
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for low in range(0, block * BM, BN):"""
BETWEEN = """
    last = min((block + 1) * BM, length)
    for high in range(block * BM, last, BN):"""
END = """
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    gl.store(out + place, result, mask=row[:, None] < length)
"""
CAUSAL = "seen = seen & (row[:, None] >= keys[None, :])"
KERNEL = (
    HEAD
    + STEP.format(start="low", more="scores = seen")
    + BETWEEN
    + STEP.format(start="high", more=f"scores = seen\n        {CAUSAL}")
    + END
)
OTHERS = {
    "a step of its own": ("score * scale, -1e30)\n        higher", "score * scale, -1e29)\n        higher"),
    "a mask that the first needs": ("row[:, None] >= keys", "row[:, None] - 100 >= keys"),
    "another step": ("range(block * BM, last, BN)", "range(block * BM, last, BN // 2)"),
    "a later begin": ("range(block * BM, last, BN)", "range(block * BM + BN, last, BN)"),
    "a part of a step before": ("range(0, block * BM, BN)", "range(0, block * 96, BN)"),
    "a result between": ("\n    last = min(", "\n    total = total * 2\n    last = min("),
    "another sum": ("total = total * kept", "total = 2 * total * kept"),
}  # fmt: skip


def joins(monkeypatch, tmp_path, text, rows=200, name="kernel"):
    """Launch the kernel; return True if its loops became one, and the result."""
    seen = []
    joined = gluon_write.tiles_of_pointers.with_joined_loops

    def watched(fn, drawn):
        seen.append(joined(fn, drawn) is not fn)
        return joined(fn, drawn)

    monkeypatch.setattr(gluon_write.tiles_of_pointers, "with_joined_loops", watched)
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    kernel = runpy.run_path(str(path))["attention"]
    q, k, v = (
        np.random.default_rng(s).standard_normal((rows, 64)).astype(np.float16) for s in range(3)
    )
    out = np.zeros_like(q)
    grid = (-(-rows // 128),)
    kernel[grid](q, k, v, out, rows, 0.125, 64, 128, 64, num_warps=4, target="sim:hopper")
    score = q.astype(np.float64) @ k.astype(np.float64).T * 0.125
    weight = np.exp2(np.where(np.tril(np.ones((rows, rows), bool)), score, -np.inf))
    wanted = weight @ v.astype(np.float64) / weight.sum(-1, keepdims=True)
    return seen[-1], np.abs(out - wanted).max() < 5e-3


def test_causal_attention_has_one_loop(monkeypatch, tmp_path, chosen_sources):
    assert joins(monkeypatch, tmp_path, KERNEL) == (True, True)
    functions = {one.partition("(")[0]: one for one in chosen_sources[-1].split("def ")}
    consumer = functions["attention_rows"]
    assert "low" not in consumer and "range(masked_from + 128, last, 128)" in consumer
    assert consumer.count("gl.exp2(largest - higher)") == 4  # before loops and in them
    assert "& (length <= 1024):" in functions["attention"]  # few programs are pipelined
    assert "async_load(" in functions["attention_short"]


@pytest.mark.campaign
@pytest.mark.parametrize("difference", OTHERS)
def test_loops_that_differ_stay(monkeypatch, tmp_path, difference):
    old, new = OTHERS[difference]
    head, middle, tail = KERNEL.rpartition(old)
    assert middle
    assert not joins(monkeypatch, tmp_path, head + new + tail, name="other")[0]
