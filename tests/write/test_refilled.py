"""Tiles of later steps are copied to the buffers that a step has read, where more programs have room so."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def decode(q, k, v, slots, out, length, D: gl.constexpr, E: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):  # fmt: skip
    rows, d, e = gl.arange(0, BM), gl.arange(0, D), gl.arange(0, E)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    largest = gl.full([BM], float("-inf"), gl.float32)
    total, acc = gl.zeros([BM], gl.float32), gl.zeros([BM, E], gl.float32)
    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        inside = columns < length
        slot = gl.load(slots + columns, mask=inside, other=0)
        key = gl.load(k + d[:, None] + slot[None, :] * D, mask=inside[None, :], other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32))
        score = gl.where(inside[None, :], score, float("-inf"))
        before = largest
        largest = gl.maximum(largest, gl.max(score, 1))
        weight = gl.exp2(score - largest[:, None])
        kept = gl.exp2(before - largest)
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + slot[:, None] * E + e[None, :], mask=inside[:, None], other=0.0)
        acc = gl.portable.mma(weight.to(gl.float16), value, acc * kept[:, None])
    gl.store(out + rows[:, None] * E + e[None, :], acc / total[:, None])


@pytest.mark.parametrize("stages, wide", [(2, 256), (3, 128), (2, 64)])
def test_tiles_are_copied_to_the_buffers_that_were_read(stages, wide, chosen_sources):
    """Values of 256 and 128 columns leave room for one program, or for two with one buffer less."""
    rng = np.random.default_rng(stages)
    q, k = (rng.standard_normal((n, 64)).astype(np.float16) for n in (16, 150))
    v = rng.standard_normal((150, wide)).astype(np.float16)
    slots = rng.permutation(150).astype(np.int32)
    score = q.astype(np.float32) @ k.T.astype(np.float32)
    weight = np.exp2(score - score.max(1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(1, keepdims=True)
    for schedule in ("eager", "latest"):  # copies land as early, and as late as they may
        out = np.zeros((16, wide), np.float32)
        with using(schedule=schedule):
            decode[(1,)](
                q, k, v, slots, out, 150, 64, wide, 16, 128,
                num_warps=1, num_stages=stages, target="sim:hopper",
            )  # fmt: skip
        assert np.allclose(out, wanted, atol=1e-2)
    text = chosen_sources[0]
    refilled = wide > 64
    buffers = stages - refilled
    assert f"key_ring = gl.allocate_shared_memory(k.dtype.element_ty, [{buffers}, " in text
    assert (f"wait_group({2 * stages - 3})" in text) == refilled
    if refilled:
        first = text.index(".load()\n", text.index("key = key_ring.index("))
        assert text.index("async_load(key_ring", first) < text.index("mma(", first)
