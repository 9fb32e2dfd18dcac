"""Attention without layouts: online softmax over blocks of keys, the source of the explicit files."""

# proved: attention on sim:gfx942

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


# Layouts for amd:gfx942, *fp16:16, *fp16:16, *fp16:16, *fp16:16, i32:16, fp32.
@gluon.jit
def attention(
    q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr
):  # fmt: skip
    # load of q: 16 bytes a thread, 32 sectors a warp
    # store to out: 16 bytes a thread, 32 sectors a warp
    # load of v: 16 bytes a thread, 32 sectors a warp
    # next best: gl.AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=True,
    #   warps_per_cta=[2, 2], element_bitwidth=32, tiles_per_warp=[1, 1]), costs 0.8% more
    place_layout: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    rows_layout: gl.constexpr = gl.SliceLayout(1, place_layout)
    depth_layout: gl.constexpr = gl.SliceLayout(0, place_layout)
    # demanded by the matrix unit
    acc_layout: gl.constexpr = gl.AMDMFMALayout(
        version=3,
        instr_shape=[32, 32, 8],
        transposed=True,
        warps_per_cta=[2, 2],
        element_bitwidth=32,
        tiles_per_warp=[1, 1],
    )
    largest_layout: gl.constexpr = gl.SliceLayout(1, acc_layout)
    # load of k: 16 bytes a thread, 32 sectors a warp
    # next best: gl.BlockedLayout([4, 1], [16, 4], [1, 4], [0, 1]), costs 3.4% more
    key_ahead_layout: gl.constexpr = gl.BlockedLayout([8, 1], [8, 8], [1, 4], [0, 1])
    keys_ahead_layout: gl.constexpr = gl.SliceLayout(0, key_ahead_layout)
    key_ahead_rows_layout: gl.constexpr = gl.SliceLayout(1, key_ahead_layout)
    # demanded by the matrix unit
    query_operand_layout: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=acc_layout, k_width=4
    )
    keys_layout: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    # demanded by the matrix unit
    key_ahead_layout_2: gl.constexpr = gl.DotOperandLayout(
        operand_index=1, parent=acc_layout, k_width=4
    )
    keys_layout_2: gl.constexpr = gl.SliceLayout(0, acc_layout)
    base = gl.program_id(1) * length * D
    rows = gl.program_id(0) * BM + gl.arange(0, BM, layout=rows_layout)
    depth = gl.arange(0, D, layout=depth_layout)
    place = base + rows[:, None] * D + depth[None, :]
    query = gl.load(q + place, mask=rows[:, None] < length, other=0.0)
    largest = gl.full([BM], -1e30, gl.float32, layout=largest_layout)
    total = gl.zeros([BM], gl.float32, layout=largest_layout)
    acc = gl.zeros([BM, D], gl.float32, layout=acc_layout)
    # The masks leave the steps before this one as they are.
    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    # The loads of a step are under way during the products of the step before.
    start_ahead = 0
    keys_ahead = start_ahead + gl.arange(0, BN, layout=keys_ahead_layout)
    key_ahead = gl.load(
        k
        + base
        + gl.convert_layout(depth, key_ahead_rows_layout)[:, None]
        + keys_ahead[None, :] * D,
        mask=(keys_ahead[None, :] < length) & (start_ahead < masked_from),
        other=0,
    )
    value_ahead = gl.load(
        v + base + gl.convert_layout(keys_ahead, rows_layout)[:, None] * D + depth[None, :],
        mask=(gl.convert_layout(keys_ahead, rows_layout)[:, None] < length)
        & (start_ahead < masked_from),
        other=0,
    )
    start_ahead += BN
    query_operand = gl.convert_layout(query, layout=query_operand_layout)
    for start in range(0, masked_from, BN):
        keys = start + gl.arange(0, BN, layout=keys_layout)
        key = key_ahead
        value = value_ahead
        keys_ahead = start_ahead + gl.arange(0, BN, layout=keys_ahead_layout)
        key_ahead = gl.load(
            k
            + base
            + gl.convert_layout(depth, key_ahead_rows_layout)[:, None]
            + keys_ahead[None, :] * D,
            mask=(keys_ahead[None, :] < length) & (start_ahead < masked_from),
            other=0,
        )
        value_ahead = gl.load(
            v + base + gl.convert_layout(keys_ahead, rows_layout)[:, None] * D + depth[None, :],
            mask=(gl.convert_layout(keys_ahead, rows_layout)[:, None] < length)
            & (start_ahead < masked_from),
            other=0,
        )
        start_ahead += BN
        score_product = gl.portable.mma(
            query_operand,
            gl.convert_layout(key, key_ahead_layout_2),
            gl.zeros([BM, BN], gl.float32, layout=acc_layout),
        )
        score = score_product * scale
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp(largest - higher)
        weight = gl.exp(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        largest = higher
        weight_operand = weight.to(value.dtype)
        acc = acc * kept[:, None]
        acc = gl.portable.mma(
            gl.convert_layout(weight_operand, query_operand_layout),
            gl.convert_layout(value, key_ahead_layout_2),
            acc,
        )
    # The steps that the masks change.
    # The loads of a step are under way during the products of the step before.
    start_ahead_2 = masked_from
    keys_ahead_2 = start_ahead_2 + gl.arange(0, BN, layout=keys_ahead_layout)
    key_ahead_2 = gl.load(
        k
        + base
        + gl.convert_layout(depth, key_ahead_rows_layout)[:, None]
        + keys_ahead_2[None, :] * D,
        mask=(keys_ahead_2[None, :] < length) & (start_ahead_2 < length),
        other=0,
    )
    value_ahead_2 = gl.load(
        v + base + gl.convert_layout(keys_ahead_2, rows_layout)[:, None] * D + depth[None, :],
        mask=(gl.convert_layout(keys_ahead_2, rows_layout)[:, None] < length)
        & (start_ahead_2 < length),
        other=0,
    )
    start_ahead_2 += BN
    for start in range(masked_from, length, BN):
        keys = start + gl.arange(0, BN, layout=keys_layout_2)
        key = key_ahead_2
        value = value_ahead_2
        keys_ahead_2 = start_ahead_2 + gl.arange(0, BN, layout=keys_ahead_layout)
        key_ahead_2 = gl.load(
            k
            + base
            + gl.convert_layout(depth, key_ahead_rows_layout)[:, None]
            + keys_ahead_2[None, :] * D,
            mask=(keys_ahead_2[None, :] < length) & (start_ahead_2 < length),
            other=0,
        )
        value_ahead_2 = gl.load(
            v + base + gl.convert_layout(keys_ahead_2, rows_layout)[:, None] * D + depth[None, :],
            mask=(gl.convert_layout(keys_ahead_2, rows_layout)[:, None] < length)
            & (start_ahead_2 < length),
            other=0,
        )
        start_ahead_2 += BN
        score_product = gl.portable.mma(
            query_operand,
            gl.convert_layout(key, key_ahead_layout_2),
            gl.zeros([BM, BN], gl.float32, layout=acc_layout),
        )
        score = score_product * scale
        score = gl.where(keys[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp(largest - higher)
        weight = gl.exp(score - higher[:, None])
        total = total * kept + gl.sum(weight, axis=1)
        largest = higher
        weight_operand = weight.to(value.dtype)
        acc = acc * kept[:, None]
        acc = gl.portable.mma(
            gl.convert_layout(weight_operand, query_operand_layout),
            gl.convert_layout(value, key_ahead_layout_2),
            acc,
        )
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    gl.store(out + place, gl.convert_layout(result, place_layout), mask=rows[:, None] < length)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 96, 64)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    attention[(2, 1)](q, k, v, out, 96, 0.125, D=64, BM=64, BN=64)
    score = q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1) * 0.125
    weight = np.exp(score - score.max(-1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(-1, keepdims=True)
    print("right:", np.allclose(out, wanted, atol=5e-3))
