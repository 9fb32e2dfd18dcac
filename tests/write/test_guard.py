"""Masks of loops of products are applied only in the steps that they change."""

import runpy

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@gluon.jit(layouts="auto")
def top_scores(q, k, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):  # fmt: skip
    """The largest score of each row, by masks in the body of the loop."""
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    d = gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    largest = gl.full([BM], -1e30, gl.float32)
    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        key = gl.load(k + d[:, None] + columns[None, :] * D)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        score = gl.where(
            (rows[:, None] >= columns[None, :]) & (columns[None, :] < length - 3), score, -1e30
        )
        score = gl.where((columns % 2 == 0)[None, :], score, -1e30)
        largest = gl.maximum(largest, gl.max(score, 1))
    gl.store(out + rows, largest)


@gluon.jit(layouts="auto")
def top_near(q, k, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):  # fmt: skip
    """The largest score of each row among the columns that begin 48 before it."""
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    d = gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    largest = gl.full([BM], -1e30, gl.float32)
    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        key = gl.load(k + d[:, None] + columns[None, :] * D)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        score = gl.where(columns[None, :] > rows[:, None] - 48, score, -1e30)
        largest = gl.maximum(largest, gl.max(score, 1))
    gl.store(out + rows, largest)


def right(kernel, target, length, seen):
    """Return True if the largest scores are those of NumPy. `seen` has True where a row sees a column."""
    q, k = (
        np.random.default_rng(seed).standard_normal((256, 64)).astype(np.float16) for seed in (0, 1)
    )
    out = np.zeros(256, np.float32)
    kernel[(2,)](q, k, out, length, 64, 128, 32, target=target, num_warps=4, num_stages=2)
    score = np.where(seen, q.astype(np.float32) @ k.astype(np.float32).T, -1e30)
    return np.allclose(out, score.max(1), atol=1e-2)


ROW, COLUMN = np.arange(256)[:, None], np.arange(256)[None, :]


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_last_steps_have_masks(target, chosen_sources):
    """Steps in front of the diagonal and the end have a loop of their own; parities are no order and stay in both."""
    for length in (256, 200):
        seen = (ROW >= COLUMN) & (COLUMN < length - 3) & (COLUMN % 2 == 0)
        assert right(top_scores, target, length, seen)
    assert (
        "masked_from = gl.cdiv(max(min(length, gl.program_id(0) * BM - BN + 2, length - 3 - BN + 1), 0), BN)"
        in chosen_sources[0]
    )
    assert (
        chosen_sources[0].count("columns % 2") == 2 and chosen_sources[0].count("length - 3") == 2
    )


def test_first_steps_have_conditions(chosen_sources):
    """A window begins behind the first steps, which keep their place in the loop."""
    assert right(top_near, "sim:hopper", 256, COLUMN > ROW - 48)
    assert "if start <= gl.program_id(0) * BM + (BM - 1) - 48:" in chosen_sources[0]
    assert "masked_from" not in chosen_sources[0]


BEFORE = """
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit(layouts="auto")
def top_before(q, k, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    d = gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + d[None, :], mask=rows[:, None] < length, other=0.0)
    largest = gl.full([BM], -1e30, gl.float32)
    for start in range(0, gl.program_id(0) * BM, BN):
        columns = start + gl.arange(0, BN)
        key = gl.load(k + d[:, None] + columns[None, :] * D, mask=columns[None, :] < length, other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        score = gl.where(columns[None, :] < length, score, -1e30)
        largest = gl.maximum(largest, gl.max(score, 1))
    gl.store(out + rows, largest, mask=rows < length)
"""
CHANGES = {
    "longer": ("program_id(0) * BM, BN)", "program_id(0) * BM + BN, BN)"),
    "earlier": ("score = gl.where(columns[None, :] <", "score = gl.where(columns[None, :] + 2 <"),
    "behind": ("mask=rows < length)", "mask=rows < length + BM)"),
    "address": ("    gl.store", "    largest = gl.load(k + (largest < 0).to(gl.int32)).to(gl.float32)\n    gl.store"),
    "twice": ("mask=rows < length)", "mask=rows < length)\n    gl.store(out + rows + 512, largest)"),
}  # fmt: skip


@pytest.mark.parametrize("change", ["", *CHANGES])
def test_blocks_that_store_nothing_need_no_mask(change, chosen_sources, tmp_path):
    """A block without a row has masked columns alone: its scores may be any, if they decide nothing else."""
    (tmp_path / "kernel.py").write_text(BEFORE.replace(*CHANGES.get(change, ("", ""))))
    kernel = runpy.run_path(str(tmp_path / "kernel.py"))["top_before"]
    q, k = (np.random.default_rng(i).standard_normal((200, 16)).astype(np.float16) for i in (0, 1))
    out = np.full(1024, 7, np.float32)
    kernel[(3,)](q, k, out, 200, 16, 128, 64, target="sim:hopper", num_warps=4, num_stages=1)
    assert ("gl.where(" in chosen_sources[0]) == bool(change)
    if not change:
        score = q.astype(np.float32)[128:] @ k.astype(np.float32)[:128].T
        assert np.allclose(out[128:200], score.max(1), atol=1e-2) and (out[200:] == 7).all()
