"""The gradients of chunks of the delta rule with one gate for each token on Hopper.

It computes `portable_backward.chunk_gradients`. With S and G the states before chunks and the gradients of those after them, e the products of decays from
a chunk's first token on, D_ij = e_i / e_j up to the diagonal, dY the gradients of values before their rates b, and L those of the rows of A below it,

    dQ = W K + scale e dO S,                        W = scale D * (dO N^T)
    dK = W^T Q + (L + L^T) K + (e_C / e) N G - b e dY S,    L = -b D * (dY N^T)

A program walks over groups. Four warps have the queries, with W and L of each head; four have the keys; sums of products of a row are those of four of
their threads. One warp copies tiles ahead, and one makes the gradients of gates and rates of the sums of rows.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.linear_attention.groups import (
    groups_of,
    item_of,
    layouts_of,
    slots_of_sums,
    store_keys,
)
from gluon_kernels.linear_attention.hopper_decay import barriers_of, wait_for
from gluon_kernels.linear_attention.portable import add, tokens_layout

__all__ = ["token_gradients"]

TILE = gl.constexpr(64)  # columns of values
SUMS = gl.constexpr(2)  # slots of sums of rows
DECAYS = gl.constexpr(4)  # slots of decays


@gluon.jit
def copy_groups(rings, sizes, SETTINGS: gl.constexpr):
    """Copy the queries and keys of each group, then the decays and tiles of its heads."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, decays_ring, ring = rings
    heads, chunks, _, _, each, shared = sizes
    wait_for_predecessor()  # nothing but these tiles is younger than the launch before
    key_position = keys_ring.producer()
    decay_position = decays_ring.producer()
    position = ring.producer()
    for group in range(groups_of(sizes)):
        batch, first, chunk = item_of(group * each, sizes)
        row = [batch, chunk * C, first // shared, 0]
        keys_ring.fetch(key_position, [row, row])
        key_position = key_position.next()
        for step in range(each):
            head = first + step
            place = (batch * heads + head) * chunks + chunk
            decays_ring.fetch(decay_position, [[place * (4 * C)]])
            decay_position = decay_position.next()
            for tile in range(TILES):
                values = [batch, chunk * C, head, tile * TILE]
                state = [place * (TILES * TILE) + tile * TILE, 0]
                ring.fetch(position, [values, values, values, values, state, state])
                position = position.next()


@gluon.jit
def take_queries(rings, own, sums, to_q, sizes, scale, SETTINGS: gl.constexpr):
    """Compute W and L of each head and the gradients of queries."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, decays_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    wide: gl.constexpr = LAYOUTS[1]
    operand: gl.constexpr = LAYOUTS[2]
    weights, lowers, written, used = own
    vectors, vectors_written, vectors_used = sums
    heads, _, _, length, each, _ = sizes
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C], gl.float32, i.type.layout)
    key_position = keys_ring.consumer()
    decay_position = decays_ring.consumer()
    position = ring.consumer()
    for group in range(groups_of(sizes)):
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        for_queries = gl.zeros([C, K], gl.float32, wide)
        for step in range(each):
            number = group * each + step
            decays = decays_ring.wait(decay_position)
            from_first = decays.slice(C, C).load(gl.SliceLayout(1, operand)) * scale
            to_weights = zeros
            to_lower = zeros
            of_query = none
            for tile in range(TILES):
                tiles = ring.wait(position)
                grad = tiles[0].reshape([C, TILE])
                news = tiles[1].reshape([C, TILE]).permute((1, 0))
                change = tiles[3].reshape([C, TILE])
                by_query = warpgroup_mma(
                    q, tiles[4].permute((1, 0)), zeros, use_acc=False, is_async=True
                )
                to_weights = warpgroup_mma(grad, news, to_weights, use_acc=tile > 0, is_async=True)
                to_lower = warpgroup_mma(change, news, to_lower, use_acc=tile > 0, is_async=True)
                out = grad.load(operand).to(gl.float32)
                taken = (out * from_first[:, None]).to(dtype)
                for_queries = warpgroup_mma(taken, tiles[4], for_queries, is_async=True)
                by_query = warpgroup_mma_wait(3, deps=[by_query])
                of_query += gl.sum(by_query * gl.convert_layout(out, square), 1)
                to_weights, to_lower, for_queries = warpgroup_mma_wait(
                    0, deps=[to_weights, to_lower, for_queries]
                )
                ring.release(position)
                position = position.next()
            scores = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
            log = decays.slice(0, C)
            away = log.load(i.type.layout)[:, None] - log.load(j.type.layout)[None, :]
            ratios = gl.exp2(gl.where(i[:, None] >= j[None, :], away, -float("inf")))
            to_scores = to_weights * ratios * scale
            to_lower = gl.where(i[:, None] > j[None, :], -to_lower * ratios, 0.0)
            factors = to_scores.to(dtype)
            slot = wait_for(used, number, SETTINGS[3], 1)
            weights.index(slot).store(factors)
            scores = warpgroup_mma_wait(0, deps=[scores])
            shares = to_scores * scores
            of_keys = warpgroup_mma(k, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
            factors = gl.convert_layout(factors, operand)
            for_queries = warpgroup_mma(factors, k, for_queries, is_async=True)
            rates = decays.slice(3 * C, C).load(i.type.layout)[:, None]
            lowers.index(slot).store((to_lower * rates).to(dtype))
            fence_async_shared()
            mbarrier.arrive(written.index(slot))
            of_keys = warpgroup_mma_wait(1, deps=[of_keys])
            low = to_lower * of_keys
            of_rate = gl.sum(low, 1)
            shares += low * rates
            of_row = gl.sum(shares, 1)
            of_column = gl.sum(shares.reshape([4, C // 4, C]), 1)
            place = wait_for(vectors_used, number, SUMS, 1)
            vectors[0].index(place).store(of_row)
            vectors[1].index(place).store(of_column)
            vectors[2].index(place).store(of_query)
            vectors[3].index(place).store(of_rate)
            mbarrier.arrive(vectors_written.index(place))
            decays_ring.release(decay_position)
            decay_position = decay_position.next()
            for_queries = warpgroup_mma_wait(0, deps=[for_queries])
        keys_ring.release(key_position)
        key_position = key_position.next()
        batch, head, chunk = item_of(group * each, sizes)
        store_keys(to_q, for_queries, batch, head // each, chunk, sizes, SETTINGS[2], False)


@gluon.jit
def take_keys(rings, own, sums, to_k, writer, sizes, SETTINGS: gl.constexpr):
    """Compute the gradients of values and of keys."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, decays_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    wide: gl.constexpr = LAYOUTS[1]
    operand: gl.constexpr = LAYOUTS[2]
    rows: gl.constexpr = gl.SliceLayout(1, operand)
    weights, lowers, written, used = own
    vectors, vectors_written, vectors_used = sums
    heads, _, _, length, each, _ = sizes
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C], gl.float32, i.type.layout)
    key_position = keys_ring.consumer()
    decay_position = decays_ring.consumer()
    position = ring.consumer()
    for group in range(groups_of(sizes)):
        batch, first_head, chunk = item_of(group * each, sizes)
        left = length - chunk * C
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        for_keys = gl.zeros([C, K], gl.float32, wide)
        for step in range(each):
            number = group * each + step
            head = first_head + step
            decays = decays_ring.wait(decay_position)
            to_last = decays.slice(2 * C, C).load(rows)
            rates = decays.slice(3 * C, C).load(rows)
            seen_by = decays.slice(C, C).load(rows) * -rates
            of_news = none
            of_seen = none
            of_whole = none
            to_rate = gl.zeros([C], gl.float32, rows)
            for tile in range(TILES):
                tiles = ring.wait(position)
                to_state = tiles[5].permute((1, 0))
                state = tiles[4].permute((1, 0))
                by_news = warpgroup_mma(k, to_state, zeros, use_acc=False, is_async=True)
                by_change = warpgroup_mma(k, state, zeros, use_acc=False, is_async=True)
                news = tiles[1].reshape([C, TILE]).load(operand).to(gl.float32)
                taken = (news * to_last[:, None]).to(dtype)
                for_keys = warpgroup_mma(taken, tiles[5], for_keys, is_async=True)
                by_news = warpgroup_mma_wait(2, deps=[by_news])
                of_news += gl.sum(by_news * gl.convert_layout(news, square), 1)
                both_states = warpgroup_mma(tiles[4], to_state, zeros, use_acc=False, is_async=True)
                change = tiles[3].reshape([C, TILE]).load(operand).to(gl.float32)
                seen = (change * seen_by[:, None]).to(dtype)
                for_keys = warpgroup_mma(seen, tiles[4], for_keys, is_async=True)
                by_change = warpgroup_mma_wait(3, deps=[by_change])
                of_seen += gl.sum(by_change * gl.convert_layout(change, square), 1)
                both_states = warpgroup_mma_wait(1, deps=[both_states])
                of_whole += gl.sum(gl.where(i[:, None] == j[None, :], both_states, 0.0), 1)
                values = tiles[2].reshape([C, TILE]).load(operand).to(gl.float32)
                to_rate += gl.sum(change * values, 1)
                change = change * rates[:, None]
                for_keys = warpgroup_mma_wait(0, deps=[for_keys])
                ring.release(position)
                position = position.next()
                writer.store([batch, chunk * C, head, tile * TILE], change)
            place = wait_for(vectors_used, number, SUMS, 1)
            vectors[4].index(place).store(of_news)
            vectors[5].index(place).store(of_seen)
            vectors[6].index(place).store(of_whole)
            vectors[7].index(place).store(to_rate)
            mbarrier.arrive(vectors_written.index(place))
            decays_ring.release(decay_position)
            decay_position = decay_position.next()
            # No constant: descriptions of operands, computed ahead of the loop, would be spilled.
            slot = wait_for(written, number, SETTINGS[3]) + gl.minimum(left, 0)
            lower = lowers.index(slot)
            for_keys = warpgroup_mma(
                weights.index(slot).permute((1, 0)), q, for_keys, is_async=True
            )
            for_keys = warpgroup_mma(lower, k, for_keys, is_async=True)
            for_keys = warpgroup_mma(lower.permute((1, 0)), k, for_keys, is_async=True)
            for_keys = warpgroup_mma_wait(0, deps=[for_keys])
            mbarrier.arrive(used.index(slot))
        keys_ring.release(key_position)
        key_position = key_position.next()
        part = first_head // each
        store_keys(to_k, for_keys, batch, part, chunk, sizes, SETTINGS[2], False)
    writer.close()


@gluon.jit
def finish_gates(rings, sums, to_g, to_beta, sizes, scale, SETTINGS: gl.constexpr):
    """Store the gradients of gates and of rates."""
    C: gl.constexpr = SETTINGS[0]
    decays_ring = rings[1]
    vectors, written, used = sums
    heads, _, _, length, each, _ = sizes
    flat: gl.constexpr = tokens_layout(C, 1, 32)
    parts: gl.constexpr = gl.BlockedLayout([4, C // 32], [1, 32], [1, 1], [1, 0])
    near = gl.arange(0, C, flat)
    position = decays_ring.consumer()
    for number in range(groups_of(sizes) * each):
        batch, head, chunk = item_of(number, sizes)
        left = length - chunk * C
        decays = decays_ring.wait(position)
        first = decays.slice(C, C).load(flat)
        last = decays.slice(2 * C, C).load(flat)
        rate = decays.slice(3 * C, C).load(flat)
        place = wait_for(written, number, SUMS)
        of_row = vectors[0].index(place).load(flat)
        of_column = gl.convert_layout(gl.sum(vectors[1].index(place).load(parts), 0), flat)
        of_query = vectors[2].index(place).load(flat)
        of_rate = vectors[3].index(place).load(flat)
        of_news = vectors[4].index(place).load(flat) * last
        seen = vectors[5].index(place).load(flat) * first
        of_whole = gl.sum(vectors[6].index(place).load(flat), 0)
        of_rate += vectors[7].index(place).load(flat) - seen
        whole = gl.sum(gl.where(near == C - 1, first, 0.0), 0)
        at_last = gl.sum(of_news, 0) + whole * of_whole
        to_decay = of_row - of_column + of_query * first * scale - of_news - seen * rate
        to_decay += gl.where(near == C - 1, at_last, 0.0)
        mbarrier.arrive(used.index(place))
        decays_ring.release(position)
        position = position.next()
        result = gl.associative_scan(to_decay, 0, add, reverse=True)
        target = (batch.to(gl.int64) * length + chunk * C) * heads + head
        gl.store(to_beta + target + near * heads, of_rate, mask=near < left)
        gl.store(to_g + target + near * heads, result, mask=near < left)


@gluon.jit
def token_gradients(
    q_desc, k_desc, v_desc, grad_desc, news_desc, changes_desc, states_desc, to_states_desc, decays_desc, to_q, to_k, to_v_desc, to_g, to_beta,
    length, heads, chunks, groups, each, shared, scale, TILES: gl.constexpr, EVEN: gl.constexpr, KEYS: gl.constexpr,
    STAGES: gl.constexpr, PAIRS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `groups`, as `portable_backward.chunk_gradients` does, over which so many programs as there are walk.

    Args:
        q_desc, k_desc: blocks [1, C, 1, K].
        v_desc, grad_desc, news_desc, changes_desc, to_v_desc: V, dO, N, dY and dV, blocks [1, C, 1, 64]; V has TILES times 64 columns.
        states_desc, to_states_desc: S and G, [batch, heads, chunks, V] rows of K, in blocks [64, K].
        decays_desc: those of `portable.prepare`, a block for each chunk.
        to_q, to_k: [batch, length, heads / each, K].
        EVEN: all chunks are full.
        KEYS, STAGES, PAIRS: slots for queries and keys, for tiles, and for W and L.
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    SETTINGS: gl.constexpr = (C, TILES, EVEN, PAIRS)
    rings = (
        tma_ring([k_desc, q_desc], KEYS, consumers=2),
        tma_ring([decays_desc], DECAYS, consumers=3),
        tma_ring(
            [grad_desc, news_desc, v_desc, changes_desc, states_desc, to_states_desc],
            STAGES,
            consumers=2,
        ),
    )
    squared: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    weights = gl.allocate_shared_memory(k_desc.dtype, [PAIRS, C, C], squared)
    lowers = gl.allocate_shared_memory(k_desc.dtype, [PAIRS, C, C], squared)
    own = (weights, lowers) + barriers_of(PAIRS, 1)
    sums = slots_of_sums(8, SUMS, C)
    sizes = (heads, chunks, groups, length, each, shared)
    writer = tma_writer(to_v_desc)
    gl.warp_specialize(
        [
            (take_queries, (rings, own, sums, to_q, sizes, scale, SETTINGS)),
            (take_keys, (rings, own, sums, to_k, writer, sizes, SETTINGS)),
            (finish_gates, (rings, sums, to_g, to_beta, sizes, scale, SETTINGS)),
            (copy_groups, (rings, sizes, SETTINGS)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )
