"""Attention of heads of 65 to 96 and of 129 to 256 columns, forward, on Hopper.

The roles are those of `hopper.py`. Heads have two parts, of 64 and 32 columns or of 128 and 64 or 128, so that those of 96 and 192 are not padded:
scores are the sum of two products, and a group of warps has two accumulators. The weighted sum of a tile goes on during softmax of the
next one.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.hopper import copy_tiles
from gluon_kernels.attention.tiles import (
    mask_scores,
    rounds,
    skip_unseen,
    sums_of_lanes,
    with_sink,
    work_at,
)
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def tile_of(block):
    """Return a block of one head as a matrix."""
    return block.reshape([block.shape[2], block.shape[3]])


@gluon.jit
def start_scores(queries, keys, nothing):
    """Start to multiply both parts of queries and keys."""
    pending = warpgroup_mma(
        tile_of(queries[0]), tile_of(keys[0]).permute((1, 0)), nothing, use_acc=False, is_async=True
    )
    return warpgroup_mma(
        tile_of(queries[1]), tile_of(keys[1]).permute((1, 0)), pending, is_async=True
    )


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, SECOND: gl.constexpr, part: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, writers, logsums, sinks, sizes, scale = work
    queries, keys, values = rings
    heads, length, key_length, of_sequence, _, _ = sizes
    dtype: gl.constexpr = keys.dtype
    ROWS: gl.constexpr = 64
    KEYS: gl.constexpr = SETTINGS[1]
    FIRST: gl.constexpr = SETTINGS[5]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    left_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    right_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SECOND, 16])
    left_row: gl.constexpr = gl.SliceLayout(1, left_layout)
    right_row: gl.constexpr = gl.SliceLayout(1, right_layout)
    row: gl.constexpr = gl.SliceLayout(1, score_layout)
    position = keys.consumer()
    query = queries.consumer()
    nothing = gl.zeros([ROWS, KEYS], gl.float32, score_layout)
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(0, score_layout))
    for round in range(rounds(sizes, SETTINGS)):
        first, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            first += part * ROWS
            rows = first + gl.arange(0, ROWS, layout=row)
            if SETTINGS[2]:
                position, stop = skip_unseen(
                    keys, values, position, stop, gl.minimum(first + ROWS, key_length), KEYS
                )

            q_tiles = queries.wait(query)
            coming = start_scores(q_tiles, keys.wait(position), nothing)
            score = warpgroup_mma_wait(0, deps=[coming])
            keys.release(position)
            score = mask_scores(score, rows, (stop - 1) * KEYS + key, key_length, SETTINGS[2])
            top = gl.maximum(gl.max(score, 1) * scale, -1e30)
            p = gl.exp2(score * scale - top[:, None])
            total = sums_of_lanes(p)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            p_left = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, left_layout, 2))
            p_right = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, right_layout, 2))
            left = warpgroup_mma_init(gl.zeros([ROWS, FIRST], gl.float32, left_layout))
            right = warpgroup_mma_init(gl.zeros([ROWS, SECOND], gl.float32, right_layout))
            behind, position = position, position.next()

            for _ in range(start + 1, stop):
                coming = start_scores(q_tiles, keys.wait(position), nothing)
                v_tiles = values.wait(behind)
                left = warpgroup_mma(p_left, tile_of(v_tiles[0]), left, is_async=True)
                right = warpgroup_mma(p_right, tile_of(v_tiles[1]), right, is_async=True)
                score = warpgroup_mma_wait(2, deps=[coming])
                keys.release(position)
                higher = gl.maximum(top, gl.max(score, 1) * scale)
                kept = gl.exp2(top - higher)
                p = gl.exp2(score * scale - higher[:, None])
                fresh = sums_of_lanes(p)
                total = total * gl.convert_layout(kept, lanes)[:, None] + fresh
                top = higher
                queries.wait(query)  # came long ago; see `hopper.attend`
                done, other = warpgroup_mma_wait(0, deps=[left, right])
                values.release(behind)
                left = warpgroup_mma_init(done * gl.convert_layout(kept, left_row)[:, None])
                right = warpgroup_mma_init(other * gl.convert_layout(kept, right_row)[:, None])
                p_left = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, left_layout, 2))
                p_right = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, right_layout, 2))
                behind, position = position, position.next()

            queries.release(query)
            query = query.next()
            v_tiles = values.wait(behind)
            left = warpgroup_mma(p_left, tile_of(v_tiles[0]), left, is_async=True)
            right = warpgroup_mma(p_right, tile_of(v_tiles[1]), right, is_async=True)
            whole = gl.convert_layout(gl.sum(total, 1), row)
            done, other = warpgroup_mma_wait(0, deps=[left, right])
            values.release(behind)
            kept = 1.0
            if sinks is not None:
                top, whole, kept = with_sink(gl.load(sinks + head % of_sequence), top, whole)
            factor = kept / whole
            if logsums is not None:
                gl.store(logsums + head * length + rows, top + gl.log2(whole), mask=rows < length)
            batch = head // of_sequence
            place = head % of_sequence
            done = done * gl.convert_layout(factor, left_row)[:, None]
            other = other * gl.convert_layout(factor, right_row)[:, None]
            writers[0].store([batch, place, first, 0], done)
            writers[1].store([batch, place, first, FIRST], other)
    writers[0].close()
    writers[1].close()


@gluon.jit
def attention_wide(
    q_desc, k_desc, v_desc, out_desc, logsums, sinks, heads, length, key_length, of_sequence, order, scale,
    SHARED: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Store softmax(Q K^T * scale) V; arguments are those of `hopper.attention_hopper`, descriptors of operands pairs for both parts."""
    gl.assume(key_length > 0)  # without keys, groups would wait for tiles that nobody copies
    wait_for_predecessor()
    KEYS: gl.constexpr = k_desc[0].block_type.shape[2]
    FIRST: gl.constexpr = v_desc[0].block_type.shape[3]
    SECOND: gl.constexpr = v_desc[1].block_type.shape[3]
    STORED: gl.constexpr = out_desc.block_type.shape[3]
    keys = tma_ring(k_desc, STAGES, consumers=2)
    values = tma_ring(v_desc, STAGES, consumers=2)
    SETTINGS: gl.constexpr = (128, KEYS, CAUSAL, SHARED, False, FIRST)
    sizes = (heads, length, key_length, of_sequence, order, 1)
    upper = tma_ring(q_desc, 1)
    lower = tma_ring(q_desc, 1)
    first = (
        tma_writer(out_desc, FIRST // STORED, 1),
        tma_writer(out_desc, SECOND // STORED, 1),
    )
    second = (
        tma_writer(out_desc, FIRST // STORED, 1),
        tma_writer(out_desc, SECOND // STORED, 1),
    )
    a = ((upper, keys, values), first, logsums, sinks, sizes, scale)
    b = ((lower, keys, values), second, logsums, sinks, sizes, scale)
    gl.warp_specialize(
        [
            (attend, (a, SETTINGS, SECOND, 0)),
            (attend, (b, SETTINGS, SECOND, 1)),
            (copy_tiles, ((upper, lower), keys, values, sizes, SETTINGS, (0, FIRST))),
        ],
        [4, 1],
        [240, 24],
    )
