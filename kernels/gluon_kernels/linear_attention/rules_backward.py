"""The gradients of chunks of one head of the delta rule with one gate for each token on Hopper.

It computes what `tokens_backward.py` does, with its names, for heads that do not add up: with L without rates,

    dQ = W K + scale e dO S,    R = L K - e dY S,    dK = W^T Q + (b L)^T K + (e_C / e) N G + b R

A logarithm of e is part of each exponent of a query and of a key as a row of A, and, negative, of each of a key as a column: its gradient is
q dq + b k r - k (dk - b r). The gradient of a rate takes k r, too. So both need few products but those of queries, keys and states. Four warps
have the queries, with W; four the rows of A, with L and the gradients of values; four the keys. One warp copies tiles ahead, and one makes the gradients of
gates and rates of the sums of rows.
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
from gluon_kernels.linear_attention.groups import groups_of, item_of, layouts_of, store_keys
from gluon_kernels.linear_attention.heads_backward import ratios_of
from gluon_kernels.linear_attention.hopper_decay import barriers_of, wait_for
from gluon_kernels.linear_attention.portable import add, tokens_layout
from gluon_kernels.linear_attention.tokens_backward import copy_groups

__all__ = ["rule_gradients"]

TILE = gl.constexpr(64)  # columns of values
SUMS = gl.constexpr(2)  # slots of sums of rows
DECAYS = gl.constexpr(4)  # slots of decays


@gluon.jit
def take_queries(rings, own, sums, to_q, sizes, scale, SETTINGS: gl.constexpr):
    """Compute W, the gradients of queries, and the products of states and their gradients."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, decays_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    wide: gl.constexpr = LAYOUTS[1]
    operand: gl.constexpr = LAYOUTS[2]
    weights, _, written, used = own
    vectors, vectors_written, vectors_used = sums
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C, K], gl.float32, wide)
    nothing = gl.zeros([C], gl.float32, i.type.layout)
    key_position = keys_ring.consumer()
    decay_position = decays_ring.consumer()
    position = ring.consumer()
    for number in range(groups_of(sizes)):
        decays = decays_ring.wait(decay_position)
        from_first = decays.slice(C, C).load(gl.SliceLayout(1, operand)) * scale
        to_weights = zeros
        for_queries = none
        of_whole = nothing
        for tile in range(TILES):
            tiles = ring.wait(position)
            grad = tiles[0].reshape([C, TILE])
            news = tiles[1].reshape([C, TILE]).permute((1, 0))
            both_states = warpgroup_mma(
                tiles[4], tiles[5].permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            both_states = warpgroup_mma_wait(0, deps=[both_states])
            of_whole += gl.sum(gl.where(i[:, None] == j[None, :], both_states, 0.0), 1)
            to_weights = warpgroup_mma(grad, news, to_weights, use_acc=tile > 0, is_async=True)
            taken = (grad.load(operand).to(gl.float32) * from_first[:, None]).to(dtype)
            for_queries = warpgroup_mma(
                taken, tiles[4], for_queries, use_acc=tile > 0, is_async=True
            )
            to_weights, for_queries = warpgroup_mma_wait(0, deps=[to_weights, for_queries])
            ring.release(position)
            position = position.next()
        ratios = ratios_of(decays.slice(0, C), i, j, True)
        decays_ring.release(decay_position)
        decay_position = decay_position.next()
        factors = (to_weights * (ratios * scale)).to(dtype)
        slot = wait_for(used, number, SETTINGS[4], 1)
        weights.index(slot).store(factors)
        fence_async_shared()
        mbarrier.arrive(written.index(slot))
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        for_queries = warpgroup_mma(
            gl.convert_layout(factors, operand), k, for_queries, is_async=True
        )
        wide_q = q.load(wide).to(gl.float32)
        for_queries = warpgroup_mma_wait(0, deps=[for_queries])
        keys_ring.release(key_position)
        key_position = key_position.next()
        of_query = gl.sum(wide_q * for_queries, 1)
        place = wait_for(vectors_used, number, SUMS, 1)
        vectors[0].index(place).store(of_query)
        vectors[1].index(place).store(of_whole)
        mbarrier.arrive(vectors_written.index(place))
        batch, head, chunk = item_of(number, sizes)
        store_keys(to_q, for_queries, batch, head, chunk, sizes, SETTINGS[2], SETTINGS[3])
    if SETTINGS[3]:
        to_q.close()


@gluon.jit
def take_rows(rings, own, sums, writer, sizes, SETTINGS: gl.constexpr):
    """Compute L, the products of keys as rows of A with their gradients, and the gradients of values."""
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
    _, lowers, written, used = own
    vectors, vectors_written, vectors_used = sums
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C, K], gl.float32, wide)
    nothing = gl.zeros([C], gl.float32, rows)
    key_position = keys_ring.consumer()
    decay_position = decays_ring.consumer()
    position = ring.consumer()
    for number in range(groups_of(sizes)):
        batch, head, chunk = item_of(number, sizes)
        decays = decays_ring.wait(decay_position)
        seen_by = -decays.slice(C, C).load(rows)
        rates = decays.slice(3 * C, C).load(rows)
        to_lower = zeros
        for_rows = none
        to_rate = nothing
        for tile in range(TILES):
            tiles = ring.wait(position)
            news = tiles[1].reshape([C, TILE]).permute((1, 0))
            change_tile = tiles[3].reshape([C, TILE])
            change = change_tile.load(operand).to(gl.float32)
            values = tiles[2].reshape([C, TILE]).load(operand).to(gl.float32)
            to_rate += gl.sum(change * values, 1)
            writer.store([batch, chunk * C, head, tile * TILE], change * rates[:, None])
            to_lower = warpgroup_mma(change_tile, news, to_lower, use_acc=tile > 0, is_async=True)
            seen = (change * seen_by[:, None]).to(dtype)
            for_rows = warpgroup_mma(seen, tiles[4], for_rows, use_acc=tile > 0, is_async=True)
            to_lower, for_rows = warpgroup_mma_wait(0, deps=[to_lower, for_rows])
            ring.release(position)
            position = position.next()
        ratios = ratios_of(decays.slice(0, C), i, j, True)
        rated = decays.slice(3 * C, C).load(i.type.layout)[:, None]
        fence_async_shared()  # nothing has used the rates yet
        decays_ring.release(decay_position)
        decay_position = decay_position.next()
        lower = gl.where(i[:, None] > j[None, :], -to_lower * ratios, 0.0)
        slot = wait_for(used, number, SETTINGS[4], 1)
        lowers.index(slot).store((lower * rated).to(dtype))
        fence_async_shared()
        mbarrier.arrive(written.index(slot))
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        factors = gl.convert_layout(lower.to(dtype), operand)
        for_rows = warpgroup_mma(factors, k, for_rows, is_async=True)
        wide_k = k.load(wide).to(gl.float32)
        for_rows = warpgroup_mma_wait(0, deps=[for_rows])
        keys_ring.release(key_position)
        key_position = key_position.next()
        of_row = gl.sum(wide_k * for_rows, 1)
        place = wait_for(vectors_used, number, SUMS, 1)
        vectors[2].index(place).store(of_row)
        vectors[3].index(place).store(to_rate)
        mbarrier.arrive(vectors_written.index(place))
    writer.close()


@gluon.jit
def take_keys(rings, own, sums, to_k, sizes, SETTINGS: gl.constexpr):
    """Compute the gradients of keys."""
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
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C, K], gl.float32, wide)
    nothing = gl.zeros([C], gl.float32, gl.SliceLayout(1, square))
    key_position = keys_ring.consumer()
    decay_position = decays_ring.consumer()
    position = ring.consumer()
    for number in range(groups_of(sizes)):
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        decays = decays_ring.wait(decay_position)
        to_last = decays.slice(2 * C, C).load(rows)
        seen_by = decays.slice(C, C).load(rows) * -decays.slice(3 * C, C).load(rows)
        fence_async_shared()  # nothing has used them yet
        decays_ring.release(decay_position)
        decay_position = decay_position.next()
        for_keys = none
        of_news = nothing
        for tile in range(TILES):
            tiles = ring.wait(position)
            by_news = warpgroup_mma(
                k, tiles[5].permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            news = tiles[1].reshape([C, TILE]).load(operand).to(gl.float32)
            by_news = warpgroup_mma_wait(0, deps=[by_news])
            of_news += gl.sum(by_news * gl.convert_layout(news, square), 1)
            taken = (news * to_last[:, None]).to(dtype)
            for_keys = warpgroup_mma(taken, tiles[5], for_keys, use_acc=tile > 0, is_async=True)
            change = tiles[3].reshape([C, TILE]).load(operand).to(gl.float32)
            seen = (change * seen_by[:, None]).to(dtype)
            for_keys = warpgroup_mma(seen, tiles[4], for_keys, is_async=True)
            for_keys = warpgroup_mma_wait(0, deps=[for_keys])
            ring.release(position)
            position = position.next()
        slot = wait_for(written, number, SETTINGS[4])
        lower = lowers.index(slot)
        for_keys = warpgroup_mma(weights.index(slot).permute((1, 0)), q, for_keys, is_async=True)
        for_keys = warpgroup_mma(lower, k, for_keys, is_async=True)
        for_keys = warpgroup_mma(lower.permute((1, 0)), k, for_keys, is_async=True)
        wide_k = k.load(wide).to(gl.float32)
        for_keys = warpgroup_mma_wait(0, deps=[for_keys])
        mbarrier.arrive(used.index(slot))
        keys_ring.release(key_position)
        key_position = key_position.next()
        of_key = gl.sum(wide_k * for_keys, 1)
        place = wait_for(vectors_used, number, SUMS, 1)
        vectors[4].index(place).store(of_key)
        vectors[5].index(place).store(of_news)
        mbarrier.arrive(vectors_written.index(place))
        batch, head, chunk = item_of(number, sizes)
        store_keys(to_k, for_keys, batch, head, chunk, sizes, SETTINGS[2], SETTINGS[3])
    if SETTINGS[3]:
        to_k.close()


@gluon.jit
def finish_gates(rings, sums, to_g, to_beta, sizes, SETTINGS: gl.constexpr):
    """Store the gradients of gates and of rates."""
    C: gl.constexpr = SETTINGS[0]
    decays_ring = rings[1]
    vectors, written, used = sums
    heads, _, _, length, _, _ = sizes
    flat: gl.constexpr = tokens_layout(C, 1, 32)
    near = gl.arange(0, C, flat)
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    position = decays_ring.consumer()
    for number in range(groups_of(sizes)):
        batch, head, chunk = item_of(number, sizes)
        decays = decays_ring.wait(position)
        whole = gl.sum(decays.slice(2 * C - 1, 1).load(one), 0)
        last = decays.slice(2 * C, C).load(flat)
        rate = decays.slice(3 * C, C).load(flat)
        place = wait_for(written, number, SUMS)
        of_query = vectors[0].index(place).load(flat)
        of_whole = gl.sum(vectors[1].index(place).load(flat), 0)
        of_row = vectors[2].index(place).load(flat)
        of_rate = vectors[3].index(place).load(flat) + of_row
        of_key = vectors[4].index(place).load(flat)
        of_news = vectors[5].index(place).load(flat)
        at_last = gl.sum(of_news * last, 0) + whole * of_whole
        to_decay = of_query + 2.0 * rate * of_row - of_key
        to_decay += gl.where(near == C - 1, at_last, 0.0)
        mbarrier.arrive(used.index(place))
        decays_ring.release(position)
        position = position.next()
        result = gl.associative_scan(to_decay, 0, add, reverse=True)
        inside = near < length - chunk * C
        target = (batch.to(gl.int64) * length + chunk * C) * heads + head
        gl.store(to_beta + target + near * heads, of_rate, mask=inside)
        gl.store(to_g + target + near * heads, result, mask=inside)


@gluon.jit
def rule_gradients(
    q_desc, k_desc, v_desc, grad_desc, news_desc, changes_desc, states_desc, to_states_desc, decays_desc, to_q, to_k, to_v_desc, to_g, to_beta,
    length, heads, chunks, groups, shared, scale, TILES: gl.constexpr, EVEN: gl.constexpr, WRITTEN: gl.constexpr, KEYS: gl.constexpr,
    STAGES: gl.constexpr, PAIRS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `groups`, chunks of a head, over which so many programs as there are walk.

    Arguments are those of `tokens_backward.token_gradients` for groups of one head; WRITTEN, `to_q` and `to_k` are descriptors, blocks [1, C, 1, K].
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    SETTINGS: gl.constexpr = (C, TILES, EVEN, WRITTEN, PAIRS)
    rings = (
        tma_ring([k_desc, q_desc], KEYS, consumers=3),
        tma_ring([decays_desc], DECAYS, consumers=4),
        tma_ring(
            [grad_desc, news_desc, v_desc, changes_desc, states_desc, to_states_desc],
            STAGES,
            consumers=3,
        ),
    )
    squared: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    weights = gl.allocate_shared_memory(k_desc.dtype, [PAIRS, C, C], squared)
    lowers = gl.allocate_shared_memory(k_desc.dtype, [PAIRS, C, C], squared)
    own = (weights, lowers) + barriers_of(PAIRS, 1, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    vectors = ()
    for _ in gl.static_range(6):
        vectors = vectors + (gl.allocate_shared_memory(gl.float32, [SUMS, C], plain),)
    sums = (vectors,) + barriers_of(SUMS, 1, 3)
    sizes = (heads, chunks, groups, length, 1, shared)
    writer = tma_writer(to_v_desc)
    if WRITTEN:
        to_q = tma_writer(to_q)
        to_k = tma_writer(to_k)
    gl.warp_specialize(
        [
            (take_queries, (rings, own, sums, to_q, sizes, scale, SETTINGS)),
            (take_rows, (rings, own, sums, writer, sizes, SETTINGS)),
            (take_keys, (rings, own, sums, to_k, sizes, SETTINGS)),
            (finish_gates, (rings, sums, to_g, to_beta, sizes, SETTINGS)),
            (copy_groups, (rings, sizes, SETTINGS)),
        ],
        [4, 4, 1, 1],
        [152, 152, 40, 40],
    )
