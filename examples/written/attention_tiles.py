"""Attention by tiles without layouts: copies and products get warps of their own where that pays."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def attention(q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    first = gl.program_id(1) * length
    row = gl.program_id(0) * BM
    q_tiles = gl.portable.descriptor(q + first * D, [length, D], [D, 1], [BM, D])
    k_tiles = gl.portable.descriptor(k + first * D, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v + first * D, [length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out + first * D, [length, D], [D, 1], [BM, D])
    query = gl.portable.load(q_tiles, [row, 0])
    largest = gl.full([BM], -1e30, gl.float32)
    total = gl.zeros([BM], gl.float32)
    acc = gl.zeros([BM, D], gl.float32)
    for start in range(0, length, BN):
        key = gl.portable.load(k_tiles, [start, 0])
        nothing = gl.zeros([BM, BN], gl.float32)
        score = gl.portable.mma(query, gl.permute(key, (1, 0)), nothing) * scale
        score = gl.where((start + gl.arange(0, BN))[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        largest = higher
        value = gl.portable.load(v_tiles, [start, 0])
        acc = gl.portable.mma(weight.to(value.dtype), value, acc * kept[:, None])
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    gl.portable.store(out_tiles, [row, 0], result)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 288, 128)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    scale = 0.125 * 1.44269504  # log2(e): exponentials are powers of 2
    attention[(3, 1)](q, k, v, out, 288, scale, D=128, BM=128, BN=128, num_warps=8, num_stages=2)
    score = q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1) * 0.125
    weight = np.exp(score - score.max(-1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(-1, keepdims=True)
    print("right:", np.allclose(out, wanted, atol=5e-3))
