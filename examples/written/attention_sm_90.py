"""Attention without layouts: online softmax over blocks of keys, the source of the explicit files."""

# proved: attention on sim:sm_90

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


# Layouts for nvidia:sm_90, *fp16:16, *fp16:16, *fp16:16, *fp16:16, i32:16, fp32.
@gluon.jit
def attention(
    q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr
):  # fmt: skip
    # copy of q: 16 bytes a thread, 16 sectors a warp
    # store to out: 16 bytes a thread, 16 sectors a warp
    # copy of v: 16 bytes a thread, 16 sectors a warp
    # next best: gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]), costs 1.7% more
    place_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows_layout: gl.constexpr = gl.SliceLayout(1, place_layout)
    depth_layout: gl.constexpr = gl.SliceLayout(0, place_layout)
    # copy to it: 16 bytes a thread, no bank conflicts
    query_layout: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    # demanded by the matrix unit
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16]
    )
    largest_layout: gl.constexpr = gl.SliceLayout(1, acc_layout)
    # reduction over dimension 3: within a warp
    # next best: gl.BlockedLayout([1, 1, 1, 2], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0]), costs
    #   16.7% more
    pairs_layout: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[[0, 0, 0, 1], [8, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0]],
        lane_bases=[[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
        warp_bases=[[16, 0, 0, 0], [32, 0, 0, 0]],
        block_bases=[],
        shape=[64, 8, 4, 2],
    )
    # reduction over dimension 1: within a warp
    # next best: gl.BlockedLayout([1, 1, 2], [16, 1, 2], [4, 1, 1], [2, 0, 1]), costs 3.1% more
    pairs_dims_0_1_2_layout: gl.constexpr = gl.SliceLayout(3, pairs_layout)
    # reduction over dimension 1: within a warp
    # next best: gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],
    #   instr_shape=[16, 64, 16]), costs 8.0% more
    total_lanes_layout: gl.constexpr = gl.SliceLayout(1, pairs_dims_0_1_2_layout)
    total_layout: gl.constexpr = gl.SliceLayout(1, total_lanes_layout)
    pairs_dim_2_layout: gl.constexpr = gl.SliceLayout(0, total_lanes_layout)
    # copy to it: 16 bytes a thread, no bank conflicts
    key_ring_layout: gl.constexpr = gl.NVMMASharedLayout(
        swizzle_byte_width=128, element_bitwidth=16, transposed=True
    )
    # copy of k: 16 bytes a thread, 16 sectors a warp
    # next best: gl.BlockedLayout([4, 1], [16, 2], [1, 4], [0, 1]), costs 6.6% more
    k_layout: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
    keys_ahead_layout: gl.constexpr = gl.SliceLayout(0, k_layout)
    k_rows_layout: gl.constexpr = gl.SliceLayout(1, k_layout)
    keys_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    # demanded by the matrix unit
    weight_operand_layout: gl.constexpr = gl.DotOperandLayout(
        operand_index=0, parent=acc_layout, k_width=2
    )
    keys_layout_2: gl.constexpr = gl.SliceLayout(0, acc_layout)
    base = gl.program_id(1) * length * D
    rows = gl.program_id(0) * BM + gl.arange(0, BM, layout=rows_layout)
    depth = gl.arange(0, D, layout=depth_layout)
    place = base + rows[:, None] * D + depth[None, :]
    query = gl.allocate_shared_memory(q.dtype.element_ty, [64, 64], layout=query_layout)
    gl.nvidia.ampere.async_copy.async_load(query, q + place, mask=rows[:, None] < length)
    largest = gl.full([BM], -1e30, gl.float32, layout=largest_layout)
    total = gl.zeros([BM], gl.float32, layout=total_layout)
    acc = gl.zeros([BM, D], gl.float32, layout=acc_layout)
    # Each thread adds up its part of a row; the four parts are added up behind the loop.
    total_lanes = gl.where(
        (gl.arange(0, 4, layout=pairs_dim_2_layout) == 0)[None, :], total[:, None], 0.0
    )
    # The masks leave the steps before this one as they are.
    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    acc = gl.nvidia.hopper.warpgroup_mma_init(acc)
    # Rings of 3 buffers: copies run 2 steps ahead of the products.
    start_ahead = 0
    key_ring = gl.allocate_shared_memory(k.dtype.element_ty, [3, 64, 64], layout=key_ring_layout)
    value_ring = gl.allocate_shared_memory(v.dtype.element_ty, [3, 64, 64], layout=query_layout)
    for step in gl.static_range(2):
        keys_ahead = start_ahead + gl.arange(0, BN, layout=keys_ahead_layout)
        gl.nvidia.ampere.async_copy.async_load(
            key_ring.index(step % 3),
            k + base + gl.convert_layout(depth, k_rows_layout)[:, None] + keys_ahead[None, :] * D,
            mask=(keys_ahead[None, :] < length) & (start_ahead < length),
        )
        gl.nvidia.ampere.async_copy.async_load(
            value_ring.index(step % 3),
            v + base + gl.convert_layout(keys_ahead, rows_layout)[:, None] * D + depth[None, :],
            mask=(gl.convert_layout(keys_ahead, rows_layout)[:, None] < length)
            & (start_ahead < length),
        )
        gl.nvidia.ampere.async_copy.commit_group()
        start_ahead += BN
    step = 0
    for start in range(0, masked_from, BN):
        keys = start + gl.arange(0, BN, layout=keys_layout)
        slot = step % 3
        gl.nvidia.ampere.async_copy.wait_group(1)
        gl.nvidia.hopper.fence_async_shared()
        key = key_ring.index(slot)
        score_product = gl.nvidia.hopper.warpgroup_mma(
            query,
            key,
            gl.zeros([BM, BN], gl.float32, layout=acc_layout),
            is_async=True,
            use_acc=False,
        )
        acc, score_product = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc, score_product])
        keys_ahead = start_ahead + gl.arange(0, BN, layout=keys_ahead_layout)
        gl.nvidia.ampere.async_copy.async_load(
            key_ring.index((step + 2) % 3),
            k + base + gl.convert_layout(depth, k_rows_layout)[:, None] + keys_ahead[None, :] * D,
            mask=(keys_ahead[None, :] < length) & (start_ahead < length),
        )
        gl.nvidia.ampere.async_copy.async_load(
            value_ring.index((step + 2) % 3),
            v + base + gl.convert_layout(keys_ahead, rows_layout)[:, None] * D + depth[None, :],
            mask=(gl.convert_layout(keys_ahead, rows_layout)[:, None] < length)
            & (start_ahead < length),
        )
        gl.nvidia.ampere.async_copy.commit_group()
        start_ahead += BN
        score = score_product * scale
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2((largest - higher) * 1.4426950408889634)
        weight = gl.exp2(score * 1.4426950408889634 - (higher * 1.4426950408889634)[:, None])
        pairs = weight.reshape([weight.shape[0], weight.shape[1] // 8, 4, 2])
        total_lanes = (
            total_lanes * gl.convert_layout(kept[:, None], total_lanes_layout)
            + gl.sum(gl.sum(pairs, 3), 1)
        )
        largest = higher
        value = value_ring.index(slot)
        weight_operand = weight.to(value.dtype)
        acc = acc * kept[:, None]
        acc = gl.nvidia.hopper.warpgroup_mma(
            gl.convert_layout(weight_operand, weight_operand_layout), value, acc, is_async=True
        )
        step += 1
    acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])
    # The steps that the masks change.
    acc = gl.nvidia.hopper.warpgroup_mma_init(acc)
    for start in range(masked_from, length, BN):
        keys = start + gl.arange(0, BN, layout=keys_layout_2)
        slot_2 = step % 3
        gl.nvidia.ampere.async_copy.wait_group(1)
        gl.nvidia.hopper.fence_async_shared()
        key = key_ring.index(slot_2)
        score_product = gl.nvidia.hopper.warpgroup_mma(
            query,
            key,
            gl.zeros([BM, BN], gl.float32, layout=acc_layout),
            is_async=True,
            use_acc=False,
        )
        acc, score_product = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc, score_product])
        keys_ahead = start_ahead + gl.arange(0, BN, layout=keys_ahead_layout)
        gl.nvidia.ampere.async_copy.async_load(
            key_ring.index((step + 2) % 3),
            k + base + gl.convert_layout(depth, k_rows_layout)[:, None] + keys_ahead[None, :] * D,
            mask=(keys_ahead[None, :] < length) & (start_ahead < length),
        )
        gl.nvidia.ampere.async_copy.async_load(
            value_ring.index((step + 2) % 3),
            v + base + gl.convert_layout(keys_ahead, rows_layout)[:, None] * D + depth[None, :],
            mask=(gl.convert_layout(keys_ahead, rows_layout)[:, None] < length)
            & (start_ahead < length),
        )
        gl.nvidia.ampere.async_copy.commit_group()
        start_ahead += BN
        score = score_product * scale
        score = gl.where(keys[None, :] < length, score, -1e30)
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2((largest - higher) * 1.4426950408889634)
        weight = gl.exp2((score - higher[:, None]) * 1.4426950408889634)
        pairs = weight.reshape([weight.shape[0], weight.shape[1] // 8, 4, 2])
        total_lanes = (
            total_lanes * gl.convert_layout(kept[:, None], total_lanes_layout)
            + gl.sum(gl.sum(pairs, 3), 1)
        )
        largest = higher
        value = value_ring.index(slot_2)
        weight_operand = weight.to(value.dtype)
        acc = acc * kept[:, None]
        acc = gl.nvidia.hopper.warpgroup_mma(
            gl.convert_layout(weight_operand, weight_operand_layout), value, acc, is_async=True
        )
        step += 1
    acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])
    gl.nvidia.ampere.async_copy.wait_group(0)
    total = gl.convert_layout(gl.sum(total_lanes, 1), largest_layout)
    result = (acc * (1.0 / total)[:, None]).to(out.dtype.element_ty)
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
