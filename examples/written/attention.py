"""Attention without layouts: online softmax over blocks of keys, the source of the explicit files."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def attention(
    q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr
):  # fmt: skip
    base = gl.program_id(1) * length * D
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    depth = gl.arange(0, D)
    place = base + rows[:, None] * D + depth[None, :]
    query = gl.load(q + place, mask=rows[:, None] < length, other=0.0)
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        keys = start + gl.arange(0, BN)
        key = gl.load(
            k + base + depth[:, None] + keys[None, :] * D, mask=keys[None, :] < length, other=0.0
        )
        score = gl.portable.mma(query, key, gl.zeros([BM, BN], gl.float32)) * scale
        score = gl.where(keys[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp(largest - higher)
        weight = gl.exp(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        largest = higher
        value = gl.load(
            v + base + keys[:, None] * D + depth[None, :], mask=keys[:, None] < length, other=0.0
        )
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    gl.store(out + place, result, mask=rows[:, None] < length)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 96, 64)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    attention[(2, 1)](q, k, v, out, 96, 0.125, D=64, BM=64, BN=64)
    score = q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1) * 0.125
    weight = np.exp(score - score.max(-1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(-1, keepdims=True)
    print("right:", np.allclose(out, wanted, atol=5e-3))
