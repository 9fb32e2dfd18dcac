"""Masks of loops of products are applied only in the steps that they change."""

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.explicit
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


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_masks_have_conditions(target, monkeypatch):
    sources = []
    chosen_for = gluon_write.explicit.chosen_for

    def kept(*args):
        graph, solution = chosen_for(*args)
        sources.append(graph.jits[0].src)
        return graph, solution

    monkeypatch.setattr(gluon_write.explicit, "chosen_for", kept)
    q, k = (
        np.random.default_rng(seed).standard_normal((256, 64)).astype(np.float16) for seed in (0, 1)
    )
    out = np.zeros(256, np.float32)
    top_scores[(2,)](q, k, out, 256, 64, 128, 32, target=target, num_warps=4, num_stages=2)
    row, column = np.arange(256)[:, None], np.arange(256)[None, :]
    seen = (row >= column) & (column < 253) & (column % 2 == 0)
    score = np.where(seen, q.astype(np.float32) @ k.astype(np.float32).T, -1e30)
    assert np.allclose(out, score.max(1), atol=1e-2)
    assert (
        "if gl.program_id(0) * BM < start + (BN - 1) or start + (BN - 1) >= length - 3:"
        in sources[0]
    )
    assert sources[0].count("if ") == 1  # parities are no order
