"""Attention by tiles without layouts: copies and products get warps of their own where that pays."""

# proved: attention on sim:sm_90

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def attention_copies(key_ring, value_ring, length, BN: gl.constexpr):
    """Copy the tiles of each step."""
    slot = key_ring.producer()
    # The masks leave the steps before this one as they are.
    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    for start in range(0, masked_from, BN):
        key_ring.fetch(slot, [[start, 0]])
        value_ring.fetch(slot, [[start, 0]])
        slot = slot.next()
    for start in range(masked_from, length, BN):
        key_ring.fetch(slot, [[start, 0]])
        value_ring.fetch(slot, [[start, 0]])
        slot = slot.next()


@gluon.jit
def attention_rows(
    key_ring, value_ring, out, length, scale, D: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, out_tiles, q_tiles, part_2: gl.constexpr
):
    """Compute a part of the rows."""
    # demanded by the matrix unit
    # reduction over dimension 1: within a warp
    # next best: gl.SliceLayout(1, pairs_dims_0_1_2_layout), costs 2.6% more
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16]
    )
    largest_layout: gl.constexpr = gl.SliceLayout(1, acc_layout)
    # reduction over dimension 3: within a warp
    # demanded by the kernel's source
    # next best: gl.BlockedLayout([1, 1, 1, 2], [1, 8, 4, 1], [4, 1, 1, 1], [3, 2, 1, 0]), costs
    #   2.5% more
    pairs_layout: gl.constexpr = gl.DistributedLinearLayout(
        reg_bases=[
            [0, 0, 0, 1], [8, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0], [0, 8, 0, 0]
        ],
        lane_bases=[[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
        warp_bases=[[16, 0, 0, 0], [32, 0, 0, 0]],
        block_bases=[],
        shape=[64, 16, 4, 2],
    )
    # reduction over dimension 1: within a warp
    # demanded by the kernel's source
    # next best: gl.BlockedLayout([1, 1, 2], [16, 1, 2], [4, 1, 1], [2, 0, 1]), costs 0.5% more
    pairs_dims_0_1_2_layout: gl.constexpr = gl.SliceLayout(3, pairs_layout)
    # reduction over dimension 1: within a warp
    # demanded by the kernel's source
    # next best: gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],
    #   instr_shape=[16, 128, 16]), costs 3.6% more
    total_lanes_layout: gl.constexpr = gl.SliceLayout(1, pairs_dims_0_1_2_layout)
    total_layout: gl.constexpr = gl.SliceLayout(1, total_lanes_layout)
    # demanded by the kernel's source
    pairs_dim_2_layout: gl.constexpr = gl.SliceLayout(0, total_lanes_layout)
    # demanded by the matrix unit
    query_layout: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=acc_layout, k_width=2)
    slot = key_ring.consumer()
    row = gl.program_id(0) * BM
    query = gl.portable.load(q_tiles, [row + part_2 * 64, 0])
    largest = gl.full([BM // 2], -1e30, gl.float32, layout=largest_layout)
    total = gl.zeros([BM // 2], gl.float32, layout=total_layout)
    acc = gl.zeros([BM // 2, D], gl.float32, layout=acc_layout)
    # Each thread adds up its part of a row; the four parts are added up behind the loop.
    total_lanes = gl.where(
        (gl.arange(0, 4, layout=pairs_dim_2_layout) == 0)[None, :], total[:, None], 0.0
    )
    # The masks leave the steps before this one as they are.
    masked_from = gl.cdiv(max(min(length, length - BN + 1), 0), BN) * BN
    if 0 < masked_from:
        start_before = 0
        nothing = gl.zeros([BM // 2, BN], gl.float32, layout=acc_layout)
        key = key_ring.wait(slot)
        score_product = gl.nvidia.hopper.warpgroup_mma(
            gl.convert_layout(query, query_layout),
            key.permute((1, 0)),
            nothing,
            is_async=True,
            use_acc=False,
        )
        score_product = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[score_product])
        key_ring.release(slot)
        score = score_product * scale
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        pairs = weight.reshape([weight.shape[0], weight.shape[1] // 8, 4, 2])
        total_lanes = (
            total_lanes * gl.convert_layout(kept[:, None], total_lanes_layout)
            + gl.sum(gl.sum(pairs, 3), 1)
        )
        largest = higher
        weight_operand = weight.to(value_ring.dtype)
        acc = acc * kept[:, None]
        query_operand = gl.convert_layout(query, layout=query_layout)
        for start in range(BN, masked_from, BN):
            next_slot = slot.next()
            nothing = gl.zeros([BM // 2, BN], gl.float32, layout=acc_layout)
            key = key_ring.wait(next_slot)
            score_product = gl.nvidia.hopper.warpgroup_mma(
                query_operand, key.permute((1, 0)), nothing, is_async=True, use_acc=False
            )
            value = value_ring.wait(slot)
            acc = gl.nvidia.hopper.warpgroup_mma(
                gl.convert_layout(weight_operand, query_layout), value, acc, is_async=True
            )
            score_product = gl.nvidia.hopper.warpgroup_mma_wait(1, deps=[score_product])
            key_ring.release(next_slot)
            score = score_product * scale
            higher = gl.maximum(largest, gl.max(score, axis=1))
            kept = gl.exp2(largest - higher)
            weight = gl.exp2(score - higher[:, None])
            pairs = weight.reshape([weight.shape[0], weight.shape[1] // 8, 4, 2])
            total_lanes = (
                total_lanes * gl.convert_layout(kept[:, None], total_lanes_layout)
                + gl.sum(gl.sum(pairs, 3), 1)
            )
            largest = higher
            weight_operand = weight.to(value_ring.dtype)
            # Its tile came long ago, but ptxas moves the next wait up to the last branch.
            value_ring.wait(slot)
            acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])
            value_ring.release(slot)
            acc = acc * kept[:, None]
            slot = next_slot
        value = value_ring.wait(slot)
        acc = gl.nvidia.hopper.warpgroup_mma(
            gl.convert_layout(weight_operand, query_layout), value, acc, is_async=True
        )
        acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])
        value_ring.release(slot)
        slot = slot.next()
    # One step at most is left.
    if masked_from < length:
        start = masked_from
        nothing = gl.zeros([BM // 2, BN], gl.float32, layout=acc_layout)
        key = key_ring.wait(slot)
        score_product = gl.nvidia.hopper.warpgroup_mma(
            gl.convert_layout(query, query_layout),
            key.permute((1, 0)),
            nothing,
            is_async=True,
            use_acc=False,
        )
        score_product = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[score_product])
        key_ring.release(slot)
        score = score_product * scale
        # Columns of a thread have constant distances: it compares them with one bound.
        parts: gl.constexpr = gl.DistributedLinearLayout(
            reg_bases=[
                [0, 0, 0, 1], [8, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0], [0, 4, 0, 0], [0, 8, 0, 0]
            ],
            lane_bases=[[0, 0, 1, 0], [0, 0, 2, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
            warp_bases=[[16, 0, 0, 0], [32, 0, 0, 0]],
            block_bases=[],
            shape=[64, 16, 4, 2],
        )
        eighth: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, parts)))
        lane: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, parts)))
        element: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, parts)))
        place = 8 * gl.arange(0, 16, layout=eighth)[None, :][:, :, None][:, :, :, None]
        place = place + gl.arange(0, 2, layout=element)[None, :][:, None, :][:, :, None, :]
        bound = (
            length - start - 2 * gl.arange(0, 4, layout=lane)[None, :][:, None, :][:, :, :, None]
        )
        score_pairs = gl.convert_layout(score.reshape([64, 16, 4, 2]), parts)
        score = gl.convert_layout(
            gl.where(place < bound, score_pairs, -1e30).reshape([64, 128]), layout=acc_layout
        )
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        weight = gl.exp2(score - higher[:, None])
        pairs = weight.reshape([weight.shape[0], weight.shape[1] // 8, 4, 2])
        total_lanes = (
            total_lanes * gl.convert_layout(kept[:, None], total_lanes_layout)
            + gl.sum(gl.sum(pairs, 3), 1)
        )
        largest = higher
        weight_operand = weight.to(value_ring.dtype)
        acc = acc * kept[:, None]
        value = value_ring.wait(slot)
        acc = gl.nvidia.hopper.warpgroup_mma(
            gl.convert_layout(weight_operand, query_layout), value, acc, is_async=True
        )
        acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])
        value_ring.release(slot)
        slot = slot.next()
    total = gl.convert_layout(gl.sum(total_lanes, 1), largest_layout)
    result = (acc * (1.0 / total)[:, None]).to(out.dtype.element_ty)
    gl.portable.store(out_tiles, [row + part_2 * 64, 0], result)


# Layouts for nvidia:sm_90, *fp16:16, *fp16:16, *fp16:16, *fp16:16, i32:16, fp32.
# Launched with launch_pdl=True, it begins while the kernel in front ends.
@gluon.jit
def attention(q, k, v, out, length, scale, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr):
    # The kernel in front may still run; the one behind may begin.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;",
        "=r,r",
        [0],
        gl.int32,
        False,
        1,
    )
    first = gl.program_id(1) * length
    q_tiles = gl.portable.descriptor(q + first * D, [length, D], [D, 1], [BM // 2, D])
    k_tiles = gl.portable.descriptor(k + first * D, [length, D], [D, 1], [BN, D])
    v_tiles = gl.portable.descriptor(v + first * D, [length, D], [D, 1], [BN, D])
    out_tiles = gl.portable.descriptor(out + first * D, [length, D], [D, 1], [BM // 2, D])
    # One partition copies, through rings of 2 slots; 2 have a part of the rows each.
    key_ring = gl.nvidia.hopper.tma_ring([k_tiles], 2, consumers=2)
    value_ring = gl.nvidia.hopper.tma_ring([v_tiles], 2, consumers=2)
    gl.warp_specialize(
        [
            (attention_copies, (key_ring, value_ring, length, BN)),
            (
                attention_rows,
                (key_ring, value_ring, out, length, scale, D, BM, BN, out_tiles, q_tiles, 0),
            ),
            (
                attention_rows,
                (key_ring, value_ring, out, length, scale, D, BM, BN, out_tiles, q_tiles, 1),
            ),
        ],
        [4, 4],
        [232, 232],
    )


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 288, 128)).astype(np.float16) for _ in range(3))
    out = np.zeros_like(q)
    scale = 0.125 * 1.44269504  # log2(e): exponentials are powers of 2
    attention[(3, 1)](q, k, v, out, 288, scale, D=128, BM=128, BN=128, num_warps=8, num_stages=2, launch_pdl=True)
    score = q.astype(np.float32) @ k.astype(np.float32).transpose(0, 2, 1) * 0.125
    weight = np.exp(score - score.max(-1, keepdims=True))
    wanted = weight @ v.astype(np.float32) / weight.sum(-1, keepdims=True)
    print("right:", np.allclose(out, wanted, atol=5e-3))
