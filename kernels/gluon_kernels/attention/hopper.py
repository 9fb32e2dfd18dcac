"""Flash attention forward on Hopper: TMA, `wgmma` and warp specialization.

One warp copies tiles of Q, K and V. One to three groups of four warps have 64 rows of Q each and walk
over the keys, the last ones first: with a causal mask only those need masking. Scores of the next tile
are multiplied while the softmax of this one is computed, and in heads of 64, where exponentials take as long as products, so is the
weighted sum of the last one. Tensors of 8-bit floats have `hopper_fp8.py`.

Softmax is online (Milakov and Gimelshein, 2018); its overlap with the matrix unit is that of
FlashAttention-3 (Shah et al., 2024). Programs walk over many tiles, in an order that gives all of them
equal work.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    ordered_barrier,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.parts import store_part
from gluon_kernels.attention.tiles import (
    mask_scores,
    powers,
    rounds,
    skip_unseen,
    sums_of_lanes,
    with_sink,
    work_at,
)
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def places_of(batch, head, row, COLUMNS: gl.constexpr):
    """Return where the parts of a tile begin."""
    places = ()
    for i in gl.static_range(len(COLUMNS)):
        places = places + ([batch, head, row, COLUMNS[i]],)
    return places


@gluon.jit
def copy_tiles(queries, keys, values, sizes, SETTINGS: gl.constexpr, COLUMNS: gl.constexpr):
    """Copy the queries of each tile, and keys and values from the last ones on; COLUMNS are those at which parts of a head begin."""
    BLOCK_N: gl.constexpr = SETTINGS[1]
    SHARED: gl.constexpr = SETTINGS[3]
    position = keys.producer()
    query = queries[0].producer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < sizes[0]:
            batch = head // sizes[3]
            head = head % sizes[3]
            with gl.scope("copy Q"):
                for i in gl.static_range(len(queries)):
                    queries[i].fetch(query, places_of(batch, head, row + i * 64, COLUMNS))
            query = query.next()
            for j in range(stop - start):
                key = (stop - 1 - j) * BLOCK_N
                with gl.scope("copy K and V"):
                    keys.fetch(position, places_of(batch, head // SHARED, key, COLUMNS))
                    values.fetch(position, places_of(batch, head // SHARED, key, COLUMNS))
                position = position.next()


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, order, writer, logsums, parts, sinks, sizes, scale = work
    queries, keys, values = rings
    heads, length, key_length, of_sequence, _, _ = sizes
    CAUSAL: gl.constexpr = SETTINGS[2]
    dtype: gl.constexpr = keys.dtype
    ROWS: gl.constexpr = queries.block_shape[2]
    BLOCK_N: gl.constexpr = keys.block_shape[2]
    D: gl.constexpr = keys.block_shape[3]
    # Where exponentials take as long as products, the weighted sum goes on during softmax, too.
    OVERLAP: gl.constexpr = D <= 64
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row: gl.constexpr = gl.SliceLayout(1, score_layout)

    position = keys.consumer()
    query = queries.consumer()
    ORDERED: gl.constexpr = order is not None
    if ORDERED:
        turn = order.first(part)
    nothing = gl.zeros([ROWS, BLOCK_N], gl.float32, score_layout)
    key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, score_layout))
    for round in range(rounds(sizes, SETTINGS)):
        first, head, split, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            first += part * ROWS
            rows = first + gl.arange(0, ROWS, layout=row)
            if CAUSAL and BLOCK_N % SETTINGS[0] != 0:
                position, stop = skip_unseen(
                    keys, values, position, stop, gl.minimum(first + ROWS, key_length), BLOCK_N
                )

            with gl.scope("wait for Q"):
                q_tile = queries.wait(query).reshape([ROWS, D])
            if not OVERLAP:
                # There are registers for it, and less is read from shared memory.
                q_tile = q_tile.load(gl.DotOperandLayout(0, score_layout, 2))
            k_tile = keys.wait(position).reshape([BLOCK_N, D]).permute((1, 0))
            score = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False)
            if not OVERLAP:
                # An arrival does not wait for the loads before it; the product has their registers.
                queries.release(query)
                query = query.next()
            keys.release(position)
            score = mask_scores(score, rows, (stop - 1) * BLOCK_N + key, key_length, CAUSAL)
            # Finite even where none of these keys is seen.
            top = gl.maximum(gl.max(score, 1) * scale, -1e30)
            p = gl.exp2(score * scale - top[:, None])
            total = sums_of_lanes(p)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            p_tile = gl.convert_layout(p.to(dtype), p_layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            behind, position = position, position.next()

            for _ in range(start + 1, stop):
                with gl.scope("wait for K"):
                    k_tile = keys.wait(position).reshape([BLOCK_N, D]).permute((1, 0))
                if ORDERED:
                    order.wait(turn)
                coming = warpgroup_mma(q_tile, k_tile, nothing, use_acc=False, is_async=True)
                with gl.scope("wait for V"):
                    v_tile = values.wait(behind).reshape([BLOCK_N, D])
                acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
                if ORDERED:
                    order.arrive(turn)
                    turn = turn.next()
                with gl.scope("wait for the scores"):
                    score = warpgroup_mma_wait(1, deps=[coming])
                gl.scope_begin("softmax" if OVERLAP else "row maxima")
                keys.release(position)
                higher = gl.maximum(top, gl.max(score, 1) * scale)
                if not OVERLAP:
                    # While scopes are recorded, ptxas moves the wait up to the last of them, and conversions behind one
                    # at the end: the exponentials have none.
                    gl.scope_end("row maxima")
                    done = warpgroup_mma_wait(0, deps=[acc])
                    values.release(behind)
                kept = gl.exp2(top - higher)
                p = powers(score * scale - higher[:, None], SETTINGS[5])
                fresh = sums_of_lanes(p)
                total = total * gl.convert_layout(kept, lanes)[:, None] + fresh
                top = higher
                if OVERLAP:
                    # Came long ago. But ptxas moves a wait for `wgmma` up to the last branch, and here
                    # that is one behind softmax.
                    queries.wait(query)
                    gl.scope_end("softmax")
                    done = warpgroup_mma_wait(0, deps=[acc])
                    values.release(behind)
                acc = warpgroup_mma_init(
                    done * gl.convert_layout(kept, gl.SliceLayout(1, out_layout))[:, None]
                )
                p_tile = gl.convert_layout(p.to(dtype), p_layout)
                behind, position = position, position.next()

            if OVERLAP:
                queries.release(query)
                query = query.next()
            v_tile = values.wait(behind).reshape([BLOCK_N, D])
            acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
            whole = gl.convert_layout(gl.sum(total, 1), row)
            result = warpgroup_mma_wait(0, deps=[acc])
            values.release(behind)
            kept = 1.0
            if sinks is not None:
                sink = gl.load(sinks + head % of_sequence)
                if SETTINGS[4]:
                    sink = gl.where(split < 0, sink.to(gl.float32), -float("inf"))
                top, whole, kept = with_sink(sink, top, whole)
            result = (
                result * gl.convert_layout(kept / whole, gl.SliceLayout(1, out_layout))[:, None]
            )
            logsum = top + gl.log2(whole)
            with gl.scope("store"):
                tile = (head, first, result, logsum)
                if SETTINGS[4]:
                    if split >= 0:
                        place = split * SETTINGS[0] + part * ROWS
                        store_part(parts, place, sizes, (result,), logsum, SETTINGS)
                    else:
                        store_tile(writer, logsums, sizes, tile, rows)
                else:
                    store_tile(writer, logsums, sizes, tile, rows)
    writer.close()


@gluon.jit
def store_tile(writer, logsums, sizes, tile, rows):
    """Store rows of the result, and the logarithms of their sums if these are wanted."""
    head, first, result, logsum = tile
    if logsums is not None:
        gl.store(logsums + head * sizes[1] + rows, logsum, mask=rows < sizes[1])
    writer.store([head // sizes[3], head % sizes[3], first, 0], result)


@gluon.jit
def attention_hopper(
    q_desc, k_desc, v_desc, out_desc, logsums, parts, sinks, heads, length, key_length, of_sequence, order, splits, scale,
    SHARED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    CAUSAL: gl.constexpr, ORDERED: gl.constexpr, COMPUTED: gl.constexpr,
):  # fmt: skip
    """Store softmax(Q K^T * scale) V.

    Q and the result are [batch, of_sequence, length, D], K and V [batch, of_sequence / SHARED, key_length, D]; there are
    `heads` in all. For the gradients, the logarithm (base 2) of each row's sum, goes to `logsums`, [heads,
    length], if that is not None. `sinks`, if not None, are scores without values, one for each of `of_sequence` heads. `scale` is that of the scores times log2(e): exponentials are powers of 2.

    `order` is a code of `order.py`. If `parts` is not None, there is no mask, and `order` says from which tile of queries on each is computed for
    `splits` parts of the keys: those are stored in `parts` and joined later (`parts.join_tiles`). With ORDERED, two groups of warps start their products in a
    ping-pong schedule: exponentials of one run during products of the other.
    """
    PARTS: gl.constexpr = BLOCK_M // 64
    gl.static_assert(PARTS <= 3, "up to three groups of warps with 64 rows each")
    SPLIT: gl.constexpr = parts is not None
    gl.static_assert(not (SPLIT and CAUSAL), "parts of the keys have no mask")
    gl.static_assert(BLOCK_N % 64 == 0, "the diagonal of a group's rows is within one tile of keys")
    gl.assume(key_length > 0)  # without keys, groups would wait for tiles that nobody copies
    wait_for_predecessor()
    keys = tma_ring(k_desc, STAGES, consumers=PARTS)
    values = tma_ring(v_desc, STAGES, consumers=PARTS)
    SETTINGS: gl.constexpr = (BLOCK_M, BLOCK_N, CAUSAL, SHARED, SPLIT, COMPUTED)
    sizes = (heads, length, key_length, of_sequence, order, splits)
    # Three groups keep the rows until their last product.
    AHEAD: gl.constexpr = 2 if PARTS == 3 else 1
    q0 = tma_ring(q_desc, AHEAD)
    order = None
    if ORDERED:
        gl.static_assert(
            BLOCK_M == 128 and BLOCK_N % 128 == 0, "two groups with as many tiles of keys"
        )
        order = ordered_barrier(2)
    a = ((q0, keys, values), order, tma_writer(out_desc), logsums, parts, sinks, sizes, scale)
    if PARTS == 1:
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (copy_tiles, ((q0,), keys, values, sizes, SETTINGS, (0,))),
            ],
            [1],
            [24],
        )
    elif PARTS == 2:
        q1 = tma_ring(q_desc, AHEAD)
        b = ((q1, keys, values), order, tma_writer(out_desc), logsums, parts, sinks, sizes, scale)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (copy_tiles, ((q0, q1), keys, values, sizes, SETTINGS, (0,))),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        q1 = tma_ring(q_desc, AHEAD)
        b = ((q1, keys, values), order, tma_writer(out_desc), logsums, parts, sinks, sizes, scale)
        q2 = tma_ring(q_desc, AHEAD)
        c = ((q2, keys, values), order, tma_writer(out_desc), logsums, parts, sinks, sizes, scale)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, 0)),
                (attend, (b, SETTINGS, 1)),
                (attend, (c, SETTINGS, 2)),
                (copy_tiles, ((q0, q1, q2), keys, values, sizes, SETTINGS, (0,))),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
