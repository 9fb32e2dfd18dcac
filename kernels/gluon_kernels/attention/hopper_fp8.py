"""Flash attention of 8-bit floats on Hopper: TMA, `wgmma` and warp specialization.

The roles are those of `hopper.py`. Products take half as long as those of 16 bits, so that exponentials bound the rate, and the steps'
fixed costs count twice: a step has 192 keys, as a tile of 128 and one of 64, or 256 in heads of 64. The weighted sum of a step goes on during the softmax of the
next one, and the weights become bytes at the end of a step, four to a register.
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
from gluon_kernels.attention.tiles import mask_scores, rounds, sums_of_lanes, work_at
from gluon_kernels.dependent import wait_for_predecessor

SHIFT = gl.constexpr(8)  # weights up to 256 use the range of e4m3

FOUR_BYTES = gl.constexpr(
    """{
.reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
mov.b32 $0, {low, high};
}"""
)


@gluon.jit
def copy_tiles(queries, keys, values, sizes, SETTINGS: gl.constexpr):
    """Copy the queries of each tile, and keys and values from the last ones on."""
    FIRST: gl.constexpr = SETTINGS[5]
    position = keys.producer()
    query = queries[0].producer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < sizes[0]:
            batch = head // sizes[3]
            head = head % sizes[3]
            for i in gl.static_range(len(queries)):
                queries[i].fetch(query, [[batch, head, row + i * 64, 0]])
            query = query.next()
            of_keys = head // SETTINGS[3]
            for j in range(stop - start):
                key = (stop - 1 - j) * SETTINGS[1]
                keys.fetch(position, [[batch, of_keys, key, 0], [batch, of_keys, key + FIRST, 0]])
                values.fetch(position, [[batch, of_keys, 0, key], [batch, of_keys, 0, key + FIRST]])
                position = position.next()


@gluon.jit
def weights_operand(p, dtype: gl.constexpr, layout: gl.constexpr):
    """Return weights as the left operand of a product.

    A thread has pairs of neighbouring sums, but four neighbouring operands. Keys of a product may have any order: those of each 16
    are renamed here, as they are in the values (see `fp8_values.transpose`), so that nothing moves between threads. Four at a time become
    a register: Triton's conversion takes two, whose bytes LLVM takes apart and puts together again.
    """
    M: gl.constexpr = p.shape[0]
    N: gl.constexpr = p.shape[1]
    p = p.reshape([M, N // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([M, N])
    p = gl.convert_layout(p, layout)
    return gl.inline_asm_elementwise(FOUR_BYTES, "=r,r,r,r,r", [p], dtype, True, 4)


@gluon.jit
def keys_of(tile):
    """Return a tile of keys as a right operand."""
    return tile.reshape([tile.shape[2], tile.shape[3]]).permute((1, 0))


@gluon.jit
def lane_maxima(x):
    """Return the maxima of the four threads that hold a row of a `wgmma` result, [rows, 4]."""
    pairs = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
    return gl.max(gl.max(pairs, 3), 1)


@gluon.jit
def row_maxima(scores):
    """Return the maxima of the rows of both tiles, in the layout of the first one's rows."""
    first = lane_maxima(scores[0])
    second = gl.convert_layout(lane_maxima(scores[1]), first.type.layout)
    row: gl.constexpr = gl.SliceLayout(1, scores[0].type.layout)
    return gl.convert_layout(gl.max(gl.maximum(first, second), 1), row)


@gluon.jit
def powers(scores, factor, top):
    """Return the weights of both tiles relative to the maxima, and the sums of each thread's."""
    first = gl.exp2(scores[0] * factor - top[:, None])
    other: gl.constexpr = gl.SliceLayout(1, scores[1].type.layout)
    second = gl.exp2(scores[1] * factor - gl.convert_layout(top, other)[:, None])
    fresh = sums_of_lanes(first)
    fresh += gl.convert_layout(sums_of_lanes(second), fresh.type.layout)
    return (first, second), fresh


@gluon.jit
def add_values(p, values, acc, dtype: gl.constexpr, layout: gl.constexpr):
    """Start to add the values of both tiles."""
    for i in gl.static_range(2):
        tile = values[i].reshape([values[i].shape[2], values[i].shape[3]]).permute((1, 0))
        acc = warpgroup_mma(p[i], tile, acc, is_async=True)
    return acc


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, writer, sizes, scale, scales = work
    queries, keys, values = rings
    heads, length, key_length, of_sequence, _, _ = sizes
    CAUSAL: gl.constexpr = SETTINGS[2]
    dtype: gl.constexpr = queries.dtype
    ROWS: gl.constexpr = queries.block_shape[2]
    D: gl.constexpr = queries.block_shape[3]
    BLOCK_N: gl.constexpr = SETTINGS[1]
    FIRST: gl.constexpr = SETTINGS[5]
    SECOND: gl.constexpr = BLOCK_N - FIRST
    first_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 32])
    second_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SECOND, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 4)
    row: gl.constexpr = gl.SliceLayout(1, first_layout)

    position = keys.consumer()
    query = queries.consumer()
    nothing = gl.zeros([ROWS, FIRST], gl.float32, first_layout)
    nothing_more = gl.zeros([ROWS, SECOND], gl.float32, second_layout)
    key = gl.arange(0, FIRST, layout=gl.SliceLayout(0, first_layout))
    key_more = FIRST + gl.arange(0, SECOND, layout=gl.SliceLayout(0, second_layout))
    for round in range(rounds(sizes, SETTINGS)):
        first, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            of_keys = head // SETTINGS[3]
            factor = scale * gl.load(scales[0] + head) * gl.load(scales[1] + of_keys)
            first += part * ROWS
            rows = first + gl.arange(0, ROWS, layout=row)
            if CAUSAL:
                # The other group's rows may see more. Without those tiles the first alone needs the mask.
                seen = gl.maximum(gl.cdiv(gl.minimum(first + ROWS, key_length), BLOCK_N), 1)
                for _ in range(seen, stop):
                    keys.wait(position)
                    keys.release(position)
                    values.wait(position)
                    values.release(position)
                    position = position.next()
                stop = gl.minimum(stop, seen)

            q_tile = queries.wait(query).reshape([ROWS, D])
            tiles = keys.wait(position)
            score = warpgroup_mma(q_tile, keys_of(tiles[0]), nothing, use_acc=False, is_async=True)
            more = warpgroup_mma(
                q_tile, keys_of(tiles[1]), nothing_more, use_acc=False, is_async=True
            )
            score, more = warpgroup_mma_wait(0, deps=[score, more])
            keys.release(position)
            begin = (stop - 1) * BLOCK_N
            score = mask_scores(score, rows, begin + key, key_length, CAUSAL)
            other: gl.constexpr = gl.SliceLayout(1, second_layout)
            more = mask_scores(
                more, gl.convert_layout(rows, other), begin + key_more, key_length, CAUSAL
            )
            # Finite even where none of these keys is seen.
            top = gl.maximum(row_maxima((score, more)) * factor - SHIFT, -1e30)
            p, total = powers((score, more), factor, top)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            behind, position = position, position.next()

            for _ in range(start + 1, stop):
                weights = (
                    weights_operand(p[0], dtype, p_layout),
                    weights_operand(p[1], dtype, p_layout),
                )
                tiles = keys.wait(position)
                score = warpgroup_mma(
                    q_tile, keys_of(tiles[0]), nothing, use_acc=False, is_async=True
                )
                more = warpgroup_mma(
                    q_tile, keys_of(tiles[1]), nothing_more, use_acc=False, is_async=True
                )
                acc = add_values(weights, values.wait(behind), acc, dtype, p_layout)
                score, more = warpgroup_mma_wait(2, deps=[score, more])
                keys.release(position)
                higher = gl.maximum(top, row_maxima((score, more)) * factor - SHIFT)
                kept = gl.exp2(top - higher)
                p, fresh = powers((score, more), factor, higher)
                total = total * gl.convert_layout(kept, lanes)[:, None] + fresh
                top = higher
                # Came long ago. But ptxas moves a wait for `wgmma` up to the last branch, and here
                # that is one behind softmax.
                queries.wait(query)
                done = warpgroup_mma_wait(0, deps=[acc])
                values.release(behind)
                acc = warpgroup_mma_init(
                    done * gl.convert_layout(kept, gl.SliceLayout(1, out_layout))[:, None]
                )
                behind, position = position, position.next()

            queries.release(query)
            query = query.next()
            weights = (
                weights_operand(p[0], dtype, p_layout),
                weights_operand(p[1], dtype, p_layout),
            )
            acc = add_values(weights, values.wait(behind), acc, dtype, p_layout)
            share = gl.load(scales[2] + of_keys) / gl.convert_layout(gl.sum(total, 1), row)
            result = warpgroup_mma_wait(0, deps=[acc])
            values.release(behind)
            result = result * gl.convert_layout(share, gl.SliceLayout(1, out_layout))[:, None]
            writer.store([head // of_sequence, head % of_sequence, first, 0], result)
    writer.close()


@gluon.jit
def attention_fp8(
    q_desc, k_descs, v_descs, out_desc, scales, heads, length, key_length, of_sequence, order, scale,
    SHARED: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Store softmax(Q K^T * scale) V of 8-bit floats.

    Q and the result are [batch, of_sequence, length, D], K [batch, of_sequence / SHARED, key_length, D] and V [batch, of_sequence / SHARED, D,
    key_length], with keys renamed as in `weights_operand`; there are `heads` in all. K and V have two descriptors each: of the first keys of
    a step and of the others. `scales` are pointers to one number for each head of queries, keys and values. `scale` is that of the scores
    times log2(e), `order` a code of `order.py`.
    """
    gl.assume(key_length > 0)  # without keys, groups would wait for tiles that nobody copies
    wait_for_predecessor()
    keys = tma_ring(k_descs, STAGES, consumers=2)
    values = tma_ring(v_descs, STAGES, consumers=2)
    FIRST: gl.constexpr = k_descs[0].block_type.shape[2]
    STEP: gl.constexpr = FIRST + k_descs[1].block_type.shape[2]
    SETTINGS: gl.constexpr = (128, STEP, CAUSAL, SHARED, False, FIRST)
    sizes = (heads, length, key_length, of_sequence, order, 1)
    q0 = tma_ring(q_desc, 1)
    q1 = tma_ring(q_desc, 1)
    a = ((q0, keys, values), tma_writer(out_desc), sizes, scale, scales)
    b = ((q1, keys, values), tma_writer(out_desc), sizes, scale, scales)
    gl.warp_specialize(
        [
            (attend, (a, SETTINGS, 0)),
            (attend, (b, SETTINGS, 1)),
            (copy_tiles, ((q0, q1), keys, values, sizes, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
