"""Products of a step that need nothing of each other run at the same time, and vectors of the next step arrive."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def gradients(q, k, g, shift, dk, dv, dq, K, B: gl.constexpr):
    rows, lane = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    kept = gl.load(k + rows * B + lane)
    to_keys, to_values = gl.zeros([B, B], gl.float32), gl.zeros([B, B], gl.float32)
    for start in range(0, K, B):
        place = (start + rows) * B + lane
        inside = start + rows < K
        query = gl.load(q + place, mask=inside, other=0.0)
        grad = gl.load(g + place, mask=inside, other=0.0)
        i = start + gl.arange(0, B)
        less = gl.load(shift + i, mask=i < K, other=0.0)
        p = gl.portable.mma(kept, query.T, gl.zeros([B, B], gl.float32)) - less[None, :]
        p = gl.where(start + lane < K, p, 0.0)
        to_values = gl.portable.mma(p.to(grad.dtype), grad, to_values)
        change = gl.portable.mma(kept, grad.T, gl.zeros([B, B], gl.float32))
        score = (p * change).to(grad.dtype)
        to_keys = gl.portable.mma(score, query, to_keys)
        to_query = gl.portable.mma(score.T, kept, gl.zeros([B, B], gl.float32))
        gl.store(dq + place, to_query, mask=inside)
    gl.store(dk + rows * B + lane, to_keys)
    gl.store(dv + rows * B + lane, to_values)


def test_products_that_need_nothing_of_each_other_are_awaited_together(chosen_sources):
    """The masked last step has a loop of its own, which reads the keys from the buffer of the first one."""
    rng = np.random.default_rng(5)
    q, g = ((rng.standard_normal((100, 64)) / 8).astype(np.float16) for _ in range(2))
    k = (rng.standard_normal((64, 64)) / 8).astype(np.float16)
    dk, dv, dq = (np.zeros(shape, np.float32) for shape in ((64, 64), (64, 64), (100, 64)))
    shift = rng.standard_normal(100).astype(np.float32)
    gradients[(1,)](
        q, k, g, shift, dk, dv, dq, 100, 64, num_warps=4, num_stages=3, target="sim:hopper"
    )
    p = k.astype(np.float32) @ q.T.astype(np.float32) - shift
    score = (p * (k.astype(np.float32) @ g.T.astype(np.float32))).astype(np.float16)
    wanted = (score @ q, p.astype(np.float16) @ g, score.T @ k)
    for got, one in zip((dk, dv, dq), wanted):
        np.testing.assert_allclose(got, one.astype(np.float32), atol=5e-3)
    text = chosen_sources[-1]
    waits = re.findall(r"^ *(.*) = gl\.nvidia\.hopper\.warpgroup_mma_wait\(0, deps=", text, re.M)
    assert waits == ["to_values, change", "to_keys, to_query"] * (len(waits) // 2) and waits
    assert len(re.findall(r"allocate_shared_memory\(kept\.", text)) == 1
    # The vectors are loaded a step ahead, past the stores of another argument.
    ahead = r"less_ahead\w* = gl\.load\([^\n]*\n +less = less_ahead\w*_now\n +p_product = "
    assert len(re.findall(ahead, text)) == len(waits) // 2
