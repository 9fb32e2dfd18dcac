"""Keys and values of bytes that warps multiply as halves: rings hold the bytes, and loops share them."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def decode(q, k, v, scales, out, length, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    rows, d = gl.arange(0, BM), gl.arange(0, D)
    query = gl.load(q + rows[:, None] * D + d[None, :])
    largest = gl.full([BM], -1e30, gl.float32)
    total, acc = gl.zeros([BM], gl.float32), gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        columns = start + gl.arange(0, BN)
        inside = columns < length
        key = gl.load(k + d[:, None] + columns[None, :] * D, mask=inside[None, :], other=0)
        scale = gl.load(scales + columns, mask=inside, other=0.0)
        score = gl.portable.mma(query, key.to(gl.float16), gl.zeros([BM, BN], gl.float32))
        score = gl.where(inside[None, :], score * scale[None, :], -1e30)
        before = largest
        largest = gl.maximum(largest, gl.max(score, 1))
        weight = gl.exp2(score - largest[:, None])
        kept = gl.exp2(before - largest)
        total = total * kept + gl.sum(weight, 1)
        value = gl.load(v + columns[:, None] * D + d[None, :], mask=inside[:, None], other=0)
        acc = gl.portable.mma(weight.to(gl.float16), value.to(gl.float16), acc * kept[:, None])
    gl.store(out + rows[:, None] * D + d[None, :], acc / total[:, None])


@pytest.mark.parametrize("target, length", [("sim:hopper", 150), ("sim:sm_80", 96)])
def test_bytes_are_copied_ahead(target, length, chosen_sources):
    rng = np.random.default_rng(length)
    q = rng.standard_normal((16, 32)).astype(np.float16)
    k, v = (rng.integers(-127, 128, (length, 32), dtype=np.int8) for _ in range(2))
    scales = (rng.random(length) * 0.01).astype(np.float32)
    score = q.astype(np.float32) @ k.T.astype(np.float32) * scales
    weight = np.exp2(score - score.max(1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(1, keepdims=True)
    for schedule in ("eager", "latest"):
        out = np.zeros((16, 32), np.float32)
        with using(schedule=schedule):
            decode[(1,)](q, k, v, scales, out, length, 32, 16, 32, num_stages=3, target=target)
        assert np.allclose(out, wanted, atol=0.1, rtol=1e-2)
    text = chosen_sources[0]
    assert text.count("key_ring = ") == text.count("value_ring = ") == 1
    assert text.count("= key_ring.index(slot") == 2 and text.count("wait_group(0)") == 1
