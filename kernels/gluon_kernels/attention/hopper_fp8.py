"""Flash attention of 8-bit floats on Hopper: TMA, `wgmma` and warp specialization.

The roles are those of `hopper.py`. Products take half as long as those of 16 bits, so that a step of two groups is bound by the latency of its
instructions; three groups fit the registers in heads of 64. The weighted sum of a step goes on during the softmax of the next one, and the
weights become bytes at the end of a step, four to a register.

The matrix unit reads 8-bit operands with the summed dimension in rows (PTX ISA, 9.7.15.5.1): values come transposed from a kernel of their own, or the
warps that copy transpose each tile, which saves a launch where calls are short, or wait for exponentials.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.fp8_values import keys_in_rows
from gluon_kernels.attention.parts import store_part
from gluon_kernels.attention.tiles import (
    mask_scores,
    rounds,
    sums_of_lanes,
    work_at,
)
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
def fetch_queries(queries, position, batch, head, row):
    """Copy the rows of each group of warps; return the next position."""
    for i in gl.static_range(len(queries)):
        queries[i].fetch(position, [[batch, head, row + i * 64, 0]])
    return position.next()


@gluon.jit
def copy_tiles(queries, keys, values, sizes, SETTINGS: gl.constexpr):
    """Copy the queries of each tile, and keys and values from the last ones on."""
    position = keys.producer()
    query = queries[0].producer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < sizes[0]:
            batch = head // sizes[3]
            head = head % sizes[3]
            query = fetch_queries(queries, query, batch, head, row)
            of_keys = head // SETTINGS[3]
            for j in range(stop - start):
                key = (stop - 1 - j) * SETTINGS[1]
                keys.fetch(position, [[batch, of_keys, key, 0]])
                values.fetch(position, [[batch, of_keys, 0, key]])
                position = position.next()


@gluon.jit
def slots_of(raw, STAGES: gl.constexpr, USERS: gl.constexpr):
    """Allocate slots for values with their keys in rows, before `gl.warp_specialize`: buffers, and barriers that say full and empty."""
    KEYS: gl.constexpr = raw.block_shape[2]
    D: gl.constexpr = raw.block_shape[3]
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, rank=2)
    buffers = gl.allocate_shared_memory(raw.dtype, [STAGES, D, KEYS], layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), 1)
        mbarrier.init(empty.index(slot), USERS)
    return buffers, full, empty


@gluon.jit
def copy_and_transpose(queries, keys, values, sizes, SETTINGS: gl.constexpr):
    """Copy the tiles as `copy_tiles` does, and store each one of values with its keys in rows, a tile behind the copies."""
    raw, slots = values
    buffers, full, empty = slots
    position = keys.producer()
    query = queries[0].producer()
    behind = raw.consumer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < sizes[0]:
            batch = head // sizes[3]
            head = head % sizes[3]
            query = fetch_queries(queries, query, batch, head, row)
            of_keys = head // SETTINGS[3]
            for j in range(stop - start + 1):
                key = (stop - 1 - j) * SETTINGS[1]
                if j < stop - start:
                    keys.fetch(position, [[batch, of_keys, key, 0]])
                    raw.fetch(position, [[batch, of_keys, key, 0]])
                    position = position.next()
                if j > 0:
                    tile = keys_in_rows(raw.wait(behind))
                    mbarrier.wait(empty.index(behind.index), behind.phase ^ 1)
                    buffers.index(behind.index).store(tile)
                    raw.release(behind)
                    fence_async_shared()
                    mbarrier.arrive(full.index(behind.index))
                    behind = behind.next()


@gluon.jit
def values_at(values, position, TRANSPOSES: gl.constexpr):
    """Wait for a tile of values with its keys in rows; return it as a right operand."""
    if TRANSPOSES:
        mbarrier.wait(values[1].index(position.index), position.phase)
        tile = values[0].index(position.index).permute((1, 0))
    else:
        tile = matrix_of(values.wait(position))
    return tile


@gluon.jit
def release_values(values, position, TRANSPOSES: gl.constexpr):
    """Release a tile of values."""
    if TRANSPOSES:
        mbarrier.arrive(values[2].index(position.index))
    else:
        values.release(position)


@gluon.jit
def skip_values(keys, values, position, stop, end, SIZE: gl.constexpr, TRANSPOSES: gl.constexpr):
    """Release tiles as `tiles.skip_unseen` does, and values with their keys in rows."""
    seen = gl.maximum(gl.cdiv(end, SIZE), 1)
    for _ in range(seen, stop):
        keys.wait(position)
        keys.release(position)
        values_at(values, position, TRANSPOSES)
        release_values(values, position, TRANSPOSES)
        position = position.next()
    return position, gl.minimum(stop, seen)


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
def matrix_of(tile):
    """Return a tile of keys or of transposed values as a right operand."""
    return tile.reshape([tile.shape[2], tile.shape[3]]).permute((1, 0))


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, writer, parts, sizes, scale, scales = work
    queries, keys, values = rings
    heads, length, key_length, of_sequence, _, _ = sizes
    CAUSAL: gl.constexpr = SETTINGS[2]
    TRANSPOSES: gl.constexpr = SETTINGS[5]
    dtype: gl.constexpr = keys.dtype
    ROWS: gl.constexpr = queries.block_shape[2]
    BLOCK_N: gl.constexpr = keys.block_shape[2]
    D: gl.constexpr = keys.block_shape[3]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 32])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 4)
    row: gl.constexpr = gl.SliceLayout(1, score_layout)

    position = keys.consumer()
    query = queries.consumer()
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, score_layout)
    key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, score_layout))
    for round in range(rounds(sizes, SETTINGS)):
        first, head, split, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            of_keys = head // SETTINGS[3]
            factor = scale * gl.load(scales[0] + head) * gl.load(scales[1] + of_keys)
            first += part * ROWS
            rows = first + gl.arange(0, ROWS, layout=row)
            if CAUSAL and BLOCK_N % SETTINGS[0] != 0:
                end = gl.minimum(first + ROWS, key_length)
                position, stop = skip_values(keys, values, position, stop, end, BLOCK_N, TRANSPOSES)

            q_tile = queries.wait(query).reshape([ROWS, D])
            score = warpgroup_mma(q_tile, matrix_of(keys.wait(position)), nothing, use_acc=False)
            keys.release(position)
            score = mask_scores(score, rows, (stop - 1) * BLOCK_N + key, key_length, CAUSAL)
            # Finite even where none of these keys is seen.
            top = gl.maximum(gl.max(score, 1) * factor - SHIFT, -1e30)
            p = gl.exp2(score * factor - top[:, None])
            total = sums_of_lanes(p)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            behind, position = position, position.next()

            for _ in range(start + 1, stop):
                # Between iterations bytes would have a register each.
                weights = weights_operand(p, dtype, p_layout)
                k_tile = matrix_of(keys.wait(position))
                score = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False, is_async=True)
                acc = warpgroup_mma(
                    weights, values_at(values, behind, TRANSPOSES), acc, is_async=True
                )
                score = warpgroup_mma_wait(1, deps=[score])
                keys.release(position)
                higher = gl.maximum(top, gl.max(score, 1) * factor - SHIFT)
                kept = gl.exp2(top - higher)
                p = gl.exp2(score * factor - higher[:, None])
                total = total * gl.convert_layout(kept, lanes)[:, None] + sums_of_lanes(p)
                top = higher
                # Came long ago. But ptxas moves a wait for `wgmma` up to the last branch, and here
                # that is one behind softmax.
                queries.wait(query)
                done = warpgroup_mma_wait(0, deps=[acc])
                release_values(values, behind, TRANSPOSES)
                acc = warpgroup_mma_init(
                    done * gl.convert_layout(kept, gl.SliceLayout(1, out_layout))[:, None]
                )
                behind, position = position, position.next()

            queries.release(query)
            query = query.next()
            weights = weights_operand(p, dtype, p_layout)
            acc = warpgroup_mma(weights, values_at(values, behind, TRANSPOSES), acc, is_async=True)
            whole = gl.convert_layout(gl.sum(total, 1), row)
            share = gl.load(scales[2] + of_keys) / whole
            result = warpgroup_mma_wait(0, deps=[acc])
            release_values(values, behind, TRANSPOSES)
            result = result * gl.convert_layout(share, gl.SliceLayout(1, out_layout))[:, None]
            place = [head // of_sequence, head % of_sequence, first, 0]
            if SETTINGS[4]:
                if split >= 0:
                    line = split * SETTINGS[0] + part * ROWS
                    store_part(parts, line, sizes, (result,), top + gl.log2(whole), SETTINGS)
                else:
                    writer.store(place, result)
            else:
                writer.store(place, result)
    writer.close()


@gluon.jit
def attention_fp8(
    q_desc, k_desc, v_desc, out_desc, scales, parts, heads, length, key_length, of_sequence, order, splits, scale,
    SHARED: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
    TRANSPOSES: gl.constexpr,
):  # fmt: skip
    """Store softmax(Q K^T * scale) V of 8-bit floats.

    Q and the result are [batch, of_sequence, length, D], K [batch, of_sequence / SHARED, key_length, D] and V [batch, of_sequence / SHARED, D,
    key_length], with keys renamed as in `weights_operand`, or, where it TRANSPOSES them itself, [batch, of_sequence / SHARED, key_length, D]; there are `heads` in all. `scales` are pointers to one number for each head of
    queries, keys and values. `scale` is that of the scores times log2(e), `order` a code of `order.py`.
    """
    PARTS: gl.constexpr = BLOCK_M // 64
    gl.static_assert(PARTS == 2 or PARTS == 3, "two or three groups of warps with 64 rows each")
    gl.assume(key_length > 0)  # without keys, groups would wait for tiles that nobody copies
    wait_for_predecessor()
    keys = tma_ring(k_desc, STAGES, consumers=PARTS)
    values = tma_ring(v_desc, STAGES, consumers=1 if TRANSPOSES else PARTS)
    SETTINGS: gl.constexpr = (
        BLOCK_M, k_desc.block_type.shape[2], CAUSAL, SHARED, parts is not None, TRANSPOSES
    )  # fmt: skip
    sizes = (heads, length, key_length, of_sequence, order, splits)
    AHEAD: gl.constexpr = PARTS - 1
    q0 = tma_ring(q_desc, AHEAD)
    q1 = tma_ring(q_desc, AHEAD)
    if TRANSPOSES and PARTS == 3:
        q2 = tma_ring(q_desc, AHEAD)
        slots = slots_of(values, STAGES, PARTS)
        a = ((q0, keys, slots), tma_writer(out_desc), parts, sizes, scale, scales)
        b = ((q1, keys, slots), tma_writer(out_desc), parts, sizes, scale, scales)
        c = ((q2, keys, slots), tma_writer(out_desc), parts, sizes, scale, scales)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (attend, (c, SETTINGS, 2)),
                (copy_and_transpose, ((q0, q1, q2), keys, (values, slots), sizes, SETTINGS)),
            ],
            [4, 4, 4],
            [152, 152, 56],
        )
    elif TRANSPOSES:
        slots = slots_of(values, STAGES, PARTS)
        a = ((q0, keys, slots), tma_writer(out_desc), parts, sizes, scale, scales)
        b = ((q1, keys, slots), tma_writer(out_desc), parts, sizes, scale, scales)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (copy_and_transpose, ((q0, q1), keys, (values, slots), sizes, SETTINGS)),
            ],
            [4, 4],
            [208, 88],
        )
    elif PARTS == 2:
        a = ((q0, keys, values), tma_writer(out_desc), parts, sizes, scale, scales)
        b = ((q1, keys, values), tma_writer(out_desc), parts, sizes, scale, scales)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (copy_tiles, ((q0, q1), keys, values, sizes, SETTINGS)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        q2 = tma_ring(q_desc, AHEAD)
        a = ((q0, keys, values), tma_writer(out_desc), parts, sizes, scale, scales)
        b = ((q1, keys, values), tma_writer(out_desc), parts, sizes, scale, scales)
        c = ((q2, keys, values), tma_writer(out_desc), parts, sizes, scale, scales)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (attend, (c, SETTINGS, 2)),
                (copy_tiles, ((q0, q1, q2), keys, values, sizes, SETTINGS)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
