"""Attention, forward: two GEMMs with an online softmax between them.

    python examples/attention/forward.py

A program has 64 queries of a head and walks over the keys, 64 at a time. A row of scores is never complete: each step
raises its maximum and rescales its sum (`examples/reductions/long_rows.py`). `gluon_kernels.attention` is the tuned form.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def attention_kernel(q, k, v, out, length, scale, D: gl.constexpr, BLOCK: gl.constexpr):
    dtype: gl.constexpr = q.dtype.element_ty
    scores: gl.constexpr = gl.portable.mma_layouts(BLOCK, BLOCK, D, dtype, dtype)
    values: gl.constexpr = gl.portable.mma_layouts(BLOCK, D, BLOCK, dtype, dtype)
    rows: gl.constexpr = gl.portable.blocked_layout([BLOCK, D], dtype)
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    base = gl.program_id(1) * length * D
    inner = gl.arange(0, BLOCK, gl.SliceLayout(1, rows))[:, None]
    offsets = base + inner * D + gl.arange(0, D, gl.SliceLayout(0, rows))[None, :]

    first = gl.program_id(0) * BLOCK
    q_tile = gl.load(q + first * D + offsets, mask=first + inner < length, other=0.0)
    q_tile = gl.convert_layout(q_tile, scores.a)
    largest = gl.full([BLOCK], -1e30, gl.float32, by_row)
    total = gl.zeros([BLOCK], gl.float32, by_row)
    acc = gl.zeros([BLOCK, D], gl.float32, values.accumulator)
    for start in range(0, length, BLOCK):
        inside = start + inner < length
        k_tile = gl.load(k + start * D + offsets, mask=inside, other=0.0).permute([1, 0])
        v_tile = gl.load(v + start * D + offsets, mask=inside, other=0.0)
        score = gl.zeros([BLOCK, BLOCK], gl.float32, scores.accumulator)
        score = gl.portable.mma(q_tile, gl.convert_layout(k_tile, scores.b), score) * scale
        key = start + gl.arange(0, BLOCK, gl.SliceLayout(0, scores.accumulator))
        score = gl.where((key < length)[None, :], score, -1e30)
        higher = gl.maximum(largest, gl.max(score, 1))
        kept = gl.exp(largest - higher)
        p = gl.exp(score - higher[:, None])
        total = total * kept + gl.sum(p, 1)
        largest = higher
        acc = acc * gl.convert_layout(kept, gl.SliceLayout(1, values.accumulator))[:, None]
        p_tile = gl.convert_layout(p.to(dtype), values.a)
        acc = gl.portable.mma(p_tile, gl.convert_layout(v_tile, values.b), acc)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, values.accumulator))[:, None]
    result = gl.convert_layout(acc.to(dtype), rows)
    gl.store(out + first * D + offsets, result, mask=first + inner < length)


def main():
    place = gluon.testing.place()
    heads, length, depth = shape = 2, 144, 64
    qkv = np.random.default_rng(0).standard_normal((3, *shape)).astype(np.float16)
    out, grid = place.empty(shape, np.float16), (gluon.cdiv(length, 64), heads)
    attention_kernel[grid](
        *map(place.array, qkv), out, length, depth**-0.5, D=depth, BLOCK=64, target=place.target
    )
    q, k, v = qkv.astype(float)
    p = np.exp(q @ k.transpose(0, 2, 1) * depth**-0.5)
    wanted = p / p.sum(2, keepdims=True) @ v
    np.testing.assert_allclose(place.numpy(out), wanted, rtol=0.01, atol=0.01)
    print(f"attention on {place.target}: 2 heads, 144 positions, 64 wide")


if __name__ == "__main__":
    main()
