"""The gradients of chunks of one head without the delta rule on Hopper, from the states before chunks and the gradients of those after them.

With the names of `decays_backward.py`, and R, P for a head of its own,

    dN = P^T dO + (e_C / e) K G^T,    dQ = W K + scale e dO S,    dK = W^T Q + (e_C / e) N G

A logarithm of e is part of each exponent of a query and, negative, of each of a key: its gradient is q dq - k dk. The last one of a chunk is part of
what the state takes in, too. So the gradients of gates need no product but those of queries, keys and states. Four warps have the queries, with W; four the
keys; four the values, with P, transposed, in registers. One warp copies tiles ahead, two compute decays, and one makes the gradients of gates of the sums of rows.
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
from gluon_kernels.linear_attention.decays_backward import copy_groups, fill_decays
from gluon_kernels.linear_attention.groups import groups_of, item_of, layouts_of, store_keys
from gluon_kernels.linear_attention.hopper_decay import barriers_of, slot_of, wait_for
from gluon_kernels.linear_attention.portable import add, tokens_layout

__all__ = ["head_gradients"]

DECAYS = gl.constexpr(4)  # chunks with decays in shared memory
PAIRS = gl.constexpr(2)  # slots of W, and of sums of rows
TILE = gl.constexpr(64)  # columns of values


@gluon.jit
def ratios_of(log, i, j, LATER: gl.constexpr):
    """Return e of a later token over that of an earlier one, zero elsewhere; LATER, rows `i` have the later ones, else columns `j`."""
    row = log.load(i.type.layout)[:, None]
    column = log.load(j.type.layout)[None, :]
    if LATER:
        return gl.exp2(gl.where(i[:, None] >= j[None, :], row - column, -float("inf")))
    return gl.exp2(gl.where(j[None, :] >= i[:, None], column - row, -float("inf")))


@gluon.jit
def take_queries(rings, slots, own, sums, to_q, sizes, scale, SETTINGS: gl.constexpr):
    """Compute W and the gradients of queries."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    wide: gl.constexpr = LAYOUTS[1]
    operand: gl.constexpr = LAYOUTS[2]
    decays, decays_written, decays_used = slots
    weights, written, used = own
    vectors, vectors_written, vectors_used = sums
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C, K], gl.float32, wide)
    key_position = keys_ring.consumer()
    position = ring.consumer()
    for number in range(groups_of(sizes)):
        of_decays = wait_for(decays_written, number, DECAYS)
        of_head = slot_of(decays, of_decays)
        from_first = of_head[1].load(gl.SliceLayout(1, operand)) * scale
        to_weights = zeros
        for_queries = none
        for tile in gl.static_range(TILES):
            tiles = ring.wait(position)
            grad = tiles[0].reshape([C, TILE])
            v = tiles[1].reshape([C, TILE]).permute((1, 0))
            to_weights = warpgroup_mma(grad, v, to_weights, use_acc=tile > 0, is_async=True)
            taken = (grad.load(operand).to(gl.float32) * from_first[:, None]).to(dtype)
            for_queries = warpgroup_mma(
                taken, tiles[2], for_queries, use_acc=tile > 0, is_async=True
            )
            if tile + 1 < TILES:
                to_weights, for_queries = warpgroup_mma_wait(0, deps=[to_weights, for_queries])
                ring.release(position)
                position = position.next()
        ratios = ratios_of(of_head[0], i, j, True)
        mbarrier.arrive(decays_used.index(of_decays))
        to_weights = warpgroup_mma_wait(1, deps=[to_weights])
        factors = (to_weights * (ratios * scale)).to(dtype)
        slot = wait_for(used, number, PAIRS, 1)
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
        ring.release(position)
        position = position.next()
        keys_ring.release(key_position)
        key_position = key_position.next()
        of_query = gl.sum(wide_q * for_queries, 1)
        place = wait_for(vectors_used, number, PAIRS, 1)
        vectors[0].index(place).store(of_query)
        mbarrier.arrive(vectors_written.index(place))
        batch, head, chunk = item_of(number, sizes)
        store_keys(to_q, for_queries, batch, head, chunk, sizes, SETTINGS[3], SETTINGS[4])
    if SETTINGS[4]:
        to_q.close()


@gluon.jit
def take_keys(rings, slots, own, sums, to_k, sizes, SETTINGS: gl.constexpr):
    """Compute the gradients of keys."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    wide: gl.constexpr = LAYOUTS[1]
    operand: gl.constexpr = LAYOUTS[2]
    decays, decays_written, decays_used = slots
    weights, written, used = own
    vectors, vectors_written, vectors_used = sums
    i = gl.arange(0, TILE, gl.SliceLayout(1, square))
    j = gl.arange(0, TILE, gl.SliceLayout(0, square))
    zeros = gl.zeros([TILE, TILE], gl.float32, square)
    nothing = gl.zeros([TILE], gl.float32, i.type.layout)
    none = gl.zeros([C, K], gl.float32, wide)
    key_position = keys_ring.consumer()
    position = ring.consumer()
    for number in range(groups_of(sizes)):
        of_decays = wait_for(decays_written, number, DECAYS)
        to_last = slot_of(decays, of_decays)[2].load(gl.SliceLayout(1, operand))
        mbarrier.arrive(decays_used.index(of_decays))
        for_keys = none
        of_whole = nothing
        for tile in gl.static_range(TILES):
            tiles = ring.wait(position)
            both_states = warpgroup_mma(
                tiles[2], tiles[3].permute((1, 0)), zeros, use_acc=False, is_async=True
            )
            v = tiles[1].reshape([C, TILE]).load(operand).to(gl.float32)
            taken = (v * to_last[:, None]).to(dtype)
            for_keys = warpgroup_mma(taken, tiles[3], for_keys, use_acc=tile > 0, is_async=True)
            both_states = warpgroup_mma_wait(1, deps=[both_states])
            of_whole += gl.sum(gl.where(i[:, None] == j[None, :], both_states, 0.0), 1)
            for_keys = warpgroup_mma_wait(0, deps=[for_keys])
            ring.release(position)
            position = position.next()
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        of_last = gl.sum(k.load(wide).to(gl.float32) * for_keys, 1)
        slot = wait_for(written, number, PAIRS)
        for_keys = warpgroup_mma(weights.index(slot).permute((1, 0)), q, for_keys, is_async=True)
        for_keys = warpgroup_mma_wait(0, deps=[for_keys])
        mbarrier.arrive(used.index(slot))
        of_key = gl.sum(k.load(wide).to(gl.float32) * for_keys, 1)
        keys_ring.release(key_position)
        key_position = key_position.next()
        place = wait_for(vectors_used, number, PAIRS, 1)
        vectors[1].index(place).store(of_key)
        vectors[2].index(place).store(of_last)
        vectors[3].index(place).store(of_whole)
        mbarrier.arrive(vectors_written.index(place))
        batch, head, chunk = item_of(number, sizes)
        store_keys(to_k, for_keys, batch, head, chunk, sizes, SETTINGS[3], SETTINGS[4])
    if SETTINGS[4]:
        to_k.close()


@gluon.jit
def take_values(rings, slots, writer, sizes, scale, SETTINGS: gl.constexpr):
    """Compute P and the gradients of values."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    operand: gl.constexpr = gl.DotOperandLayout(0, square, 2)
    decays, decays_written, decays_used = slots
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    key_position = keys_ring.consumer()
    position = ring.consumer()
    for number in range(groups_of(sizes)):
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K]).permute((1, 0))
        scores = warpgroup_mma(k, q, zeros, use_acc=False, is_async=True)
        of_decays = wait_for(decays_written, number, DECAYS)
        of_head = slot_of(decays, of_decays)
        kept = of_head[2].load(i.type.layout)
        ratios = ratios_of(of_head[0], i, j, False)
        mbarrier.arrive(decays_used.index(of_decays))
        scores = warpgroup_mma_wait(0, deps=[scores])
        factors = gl.convert_layout((scores * (ratios * scale)).to(dtype), operand)
        batch, head, chunk = item_of(number, sizes)
        for tile in gl.static_range(TILES):
            tiles = ring.wait(position)
            change = warpgroup_mma(k, tiles[3].permute((1, 0)), zeros, use_acc=False, is_async=True)
            change = warpgroup_mma_wait(0, deps=[change])
            if tile + 1 == TILES:
                keys_ring.release(key_position)
                key_position = key_position.next()
            change = warpgroup_mma_init(change * kept[:, None])
            grad = tiles[0].reshape([C, TILE])
            change = warpgroup_mma(factors, grad, change, is_async=True)
            change = warpgroup_mma_wait(0, deps=[change])
            ring.release(position)
            position = position.next()
            writer.store([batch, chunk * C, head, tile * TILE], change)
    writer.close()


@gluon.jit
def finish_gates(slots, sums, to_g, sizes, SETTINGS: gl.constexpr):
    """Store the gradients of gates."""
    C: gl.constexpr = SETTINGS[0]
    decays, decays_written, decays_used = slots
    vectors, written, used = sums
    heads, _, _, length, _, _ = sizes
    flat: gl.constexpr = tokens_layout(C, 1, 32)
    near = gl.arange(0, C, flat)
    for number in range(groups_of(sizes)):
        batch, head, chunk = item_of(number, sizes)
        of_decays = wait_for(decays_written, number, DECAYS)
        first = slot_of(decays, of_decays)[1].load(flat)
        place = wait_for(written, number, PAIRS)
        of_query = vectors[0].index(place).load(flat)
        of_key = vectors[1].index(place).load(flat)
        of_last = gl.sum(vectors[2].index(place).load(flat), 0)
        of_whole = gl.sum(vectors[3].index(place).load(flat), 0)
        mbarrier.arrive(used.index(place))
        mbarrier.arrive(decays_used.index(of_decays))
        whole = gl.sum(gl.where(near == C - 1, first, 0.0), 0)
        at_last = of_last + whole * of_whole
        to_decay = of_query - of_key + gl.where(near == C - 1, at_last, 0.0)
        result = gl.associative_scan(to_decay, 0, add, reverse=True)
        target = to_g + (batch.to(gl.int64) * length + chunk * C) * heads + head
        gl.store(target + near * heads, result, mask=near < length - chunk * C)


@gluon.jit
def head_gradients(
    q_desc, k_desc, v_desc, grad_desc, states_desc, changes_desc, gates, to_q, to_k, to_v_desc, to_g, length, heads, chunks, groups,
    shared, scale, TILES: gl.constexpr, EVEN: gl.constexpr, WRITTEN: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `groups`, chunks of a head, over which so many programs as there are walk: chunks first, then heads, then batches.

    Args:
        q_desc, k_desc: blocks [1, C, 1, K].
        v_desc, grad_desc, to_v_desc: blocks [1, C, 1, 64]; V is TILES times 64.
        states_desc, changes_desc: S and G, [batch, heads, chunks, V] rows of K, in blocks [64, K].
        gates: logarithms of decays, contiguous [batch, length, heads], as `to_g`, float32, is.
        to_q, to_k: [batch, length, heads, K]; WRITTEN, descriptors of it, blocks [1, C, 1, K].
        shared: heads that have the same queries and keys.
        EVEN: all chunks are full.
        KEYS, STAGES: slots for queries and keys, and for the tiles of a chunk.
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    # Those of `copy_groups`, of `fill_decays`, and of the other partitions.
    COPIES: gl.constexpr = (C, TILES)
    DECAYING: gl.constexpr = (C, TILES, False)
    SETTINGS: gl.constexpr = (C, TILES, None, EVEN, WRITTEN)
    rings = (
        tma_ring([k_desc, q_desc], KEYS, consumers=3),
        tma_ring([grad_desc, v_desc, states_desc, changes_desc], STAGES, consumers=3),
    )
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    filled = ()
    vectors = ()
    for _ in gl.static_range(4):
        filled = filled + (gl.allocate_shared_memory(gl.float32, [DECAYS, C], plain),)
        vectors = vectors + (gl.allocate_shared_memory(gl.float32, [PAIRS, C], plain),)
    slots = (filled,) + barriers_of(DECAYS, 4)
    squared: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    own = (gl.allocate_shared_memory(k_desc.dtype, [PAIRS, C, C], squared),) + barriers_of(PAIRS, 1)
    sums = (vectors,) + barriers_of(PAIRS, 1, 2)
    sizes = (heads, chunks, groups, length, 1, shared)
    sources = (gates, None, None)
    writer = tma_writer(to_v_desc)
    if WRITTEN:
        to_q = tma_writer(to_q)
        to_k = tma_writer(to_k)
    gl.warp_specialize(
        [
            (take_queries, (rings, slots, own, sums, to_q, sizes, scale, SETTINGS)),
            (take_keys, (rings, slots, own, sums, to_k, sizes, SETTINGS)),
            (take_values, (rings, slots, writer, sizes, scale, SETTINGS)),
            (fill_decays, (slots, sources, sizes, 0, DECAYING)),
            (fill_decays, (slots, sources, sizes, 1, DECAYING)),
            (finish_gates, (slots, sums, to_g, sizes, SETTINGS)),
            (copy_groups, (rings, sizes, COPIES)),
        ],
        [4, 4, 1, 1, 1, 1],
        [144, 144, 40, 40, 40, 40],
    )
