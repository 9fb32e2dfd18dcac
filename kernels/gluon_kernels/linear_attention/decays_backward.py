"""The gradients of chunks without the delta rule on Hopper, from the states before chunks and the gradients of those after them.

With S and G these, N the values times rates, e the products of decays from a chunk's first token on, and D_ij = e_i / e_j up to the diagonal,

    dN = P^T dO + (e_C / e) K G^T,                  P  = scale D * (Q K^T)
    dQ = W K + scale e dO S,                        W  = scale D * (dO N^T)
    dK = W^T Q + (e_C / e) N G

A group is a chunk of some heads that share queries and keys: their W are added up before they are multiplied, so that of a head only what takes its
states is multiplied by itself. A program walks over groups. Four warps have the queries, with D, P and W; four have the keys and values; each of
those sums products of a row within four of its threads. One warp copies tiles ahead, two compute decays, and one makes the gradients of gates of the sums of rows.
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
from gluon_kernels.linear_attention.decays import load_gates, store_decays
from gluon_kernels.linear_attention.groups import (
    groups_of,
    item_of,
    layouts_of,
    slots_of_sums,
    store_keys,
)
from gluon_kernels.linear_attention.hopper_decay import barriers_of, slot_of, wait_for
from gluon_kernels.linear_attention.portable import add, tokens_layout

__all__ = ["decaying_gradients"]

DECAYS = gl.constexpr(4)  # heads with decays in shared memory
PAIRS = gl.constexpr(2)  # slots of weights, and of sums of rows
TILE = gl.constexpr(64)  # columns of values


@gluon.jit
def copy_groups(rings, sizes, SETTINGS: gl.constexpr):
    """Copy the queries and keys of each group, then the tiles of its heads."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    keys_ring, ring = rings
    heads, chunks, _, _, each, shared = sizes
    wait_for_predecessor()  # nothing but these tiles is younger than the launch before
    key_position = keys_ring.producer()
    position = ring.producer()
    for group in range(groups_of(sizes)):
        batch, first, chunk = item_of(group * each, sizes)
        row = [batch, chunk * C, first // shared, 0]
        keys_ring.fetch(key_position, [row, row])
        key_position = key_position.next()
        for number in range(each * TILES):
            head = first + number // TILES
            column = number % TILES * TILE
            values = [batch, chunk * C, head, column]
            state = [((batch * heads + head) * chunks + chunk) * (TILES * TILE) + column, 0]
            ring.fetch(position, [values, values, state, state])
            position = position.next()


@gluon.jit
def fill_decays(slots, sources, sizes, PART: gl.constexpr, SETTINGS: gl.constexpr):
    """Compute the decays of every second head."""
    C: gl.constexpr = SETTINGS[0]
    gates, slopes, biases = sources
    decays, written, used = slots
    heads, _, _, length, each, _ = sizes
    total = groups_of(sizes) * each
    batch, head, chunk = item_of(gl.minimum(PART, total - 1), sizes)
    coming = load_gates(gates, batch, head, heads, length, chunk, C)
    for number in range(PART, total, 2):
        place = item_of(number, sizes)
        head = place[1]
        chunk = place[2]
        gate = coming
        batch, later, ahead = item_of(gl.minimum(number + 2, total - 1), sizes)
        coming = load_gates(gates, batch, later, heads, length, ahead, C)
        slope = None if slopes is None else gl.load(slopes + head).to(gl.float32)
        bias = None if biases is None else gl.load(biases + head).to(gl.float32)
        slot = wait_for(used, number, DECAYS, 1)
        store_decays(slot_of(decays, slot), gate, slope, bias, length - chunk * C, C, SETTINGS[2])
        mbarrier.arrive(written.index(slot))


@gluon.jit
def take_queries(rings, slots, own, sums, to_q, sizes, scale, SETTINGS: gl.constexpr):
    """Compute P and W of each head and the gradients of queries."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    STEPS: gl.constexpr = SETTINGS[3]
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
    heads, _, _, length, each, _ = sizes
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    key_position = keys_ring.consumer()
    position = ring.consumer()
    for group in range(groups_of(sizes)):
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        scores = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False) * scale
        for_queries = gl.zeros([C, K], gl.float32, wide)
        all_scores = zeros
        for step in range(each):
            number = group * each + step
            of_decays = wait_for(decays_written, number, DECAYS)
            of_head = slot_of(decays, of_decays)
            log = of_head[0]
            away = log.load(i.type.layout)[:, None] - log.load(j.type.layout)[None, :]
            ratios = gl.exp2(gl.where(i[:, None] >= j[None, :], away, -float("inf")))
            turn = number + group  # behind the heads of a group its W takes a slot
            slot = wait_for(used, turn, PAIRS, 1)
            weights.index(slot).store((scores * ratios).to(dtype))
            fence_async_shared()
            mbarrier.arrive(written.index(slot))
            from_first = of_head[1].load(gl.SliceLayout(1, operand)) * scale
            to_weights = zeros
            for tile in gl.static_range(TILES):
                tiles = ring.wait(position)
                grad = tiles[0].reshape([C, TILE])
                v = tiles[1].reshape([C, TILE])
                to_weights = warpgroup_mma(
                    grad, v.permute((1, 0)), to_weights, use_acc=tile > 0, is_async=True
                )
                taken = grad.load(operand).to(gl.float32) * from_first[:, None]
                for_queries = warpgroup_mma(taken.to(dtype), tiles[2], for_queries, is_async=True)
                if tile + 1 < TILES:
                    to_weights, for_queries = warpgroup_mma_wait(0, deps=[to_weights, for_queries])
                    ring.release(position)
                    position = position.next()
            to_weights = warpgroup_mma_wait(1, deps=[to_weights])
            to_scores = to_weights * ratios
            products = to_scores * scores
            of_column = gl.sum(products.reshape([4, C // 4, C]), 1)
            if STEPS:
                rates = of_head[3].load(j.type.layout)[None, :]
                products = products * rates
                to_scores = to_scores * rates
            all_scores += to_scores
            of_row = gl.sum(products, 1)
            place = wait_for(vectors_used, number, PAIRS, 1)
            vectors[0].index(place).store(of_row)
            vectors[1].index(place).store(of_column)
            mbarrier.arrive(vectors_written.index(place))
            mbarrier.arrive(decays_used.index(of_decays))
            for_queries = warpgroup_mma_wait(0, deps=[for_queries])
            ring.release(position)
            position = position.next()
        turn = (group + 1) * (each + 1) - 1
        slot = wait_for(used, turn, PAIRS, 1)
        factors = (all_scores * scale).to(dtype)
        weights.index(slot).store(factors)
        fence_async_shared()
        mbarrier.arrive(written.index(slot))
        result = warpgroup_mma(gl.convert_layout(factors, operand), k, for_queries)
        keys_ring.release(key_position)
        key_position = key_position.next()
        batch, head, chunk = item_of(group * each, sizes)
        store_keys(to_q, result, batch, head // each, chunk, sizes, SETTINGS[4], SETTINGS[5])
    if SETTINGS[5]:
        to_q.close()


@gluon.jit
def take_keys(
    rings, slots, own, sums, writer, to_k, skip, sizes, SETTINGS: gl.constexpr
):  # fmt: skip
    """Compute the gradients of values and of keys."""
    C: gl.constexpr = SETTINGS[0]
    TILES: gl.constexpr = SETTINGS[1]
    STEPS: gl.constexpr = SETTINGS[3]
    keys_ring, ring = rings
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = keys_ring.block_shape[3]
    LAYOUTS: gl.constexpr = layouts_of(C, K)
    square: gl.constexpr = LAYOUTS[0]
    wide: gl.constexpr = LAYOUTS[1]
    operand: gl.constexpr = LAYOUTS[2]
    rows: gl.constexpr = gl.SliceLayout(1, square)
    decays, decays_written, decays_used = slots
    weights, written, used = own
    vectors, vectors_written, vectors_used = sums
    heads, _, _, length, each, _ = sizes
    i = gl.arange(0, C, rows)
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    zeros = gl.zeros([C, C], gl.float32, square)
    none = gl.zeros([C], gl.float32, rows)
    key_position = keys_ring.consumer()
    position = ring.consumer()
    for group in range(groups_of(sizes)):
        batch, first_head, chunk = item_of(group * each, sizes)
        both = keys_ring.wait(key_position)
        k = both[0].reshape([C, K])
        q = both[1].reshape([C, K])
        for_keys = gl.zeros([C, K], gl.float32, wide)
        for step in range(each):
            number = group * each + step
            head = first_head + step
            weight = None if skip is None else gl.load(skip + head).to(gl.float32)
            of_decays = wait_for(decays_written, number, DECAYS)
            of_head = slot_of(decays, of_decays)
            log = of_head[0]
            to_last = of_head[2].load(gl.SliceLayout(1, operand))
            if STEPS:
                one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
                whole = gl.sum(log.slice(C - 1, 1).load(one), 0)
                kept = gl.exp2(whole - log.load(rows))
                rates = of_head[3].load(rows)[:, None]
            else:
                kept = of_head[2].load(rows)
            of_news = none
            of_query = none
            of_whole = none
            of_own = none
            turn = number + group
            slot = turn % PAIRS
            for tile in range(TILES):
                tiles = ring.wait(position)
                grad = tiles[0].reshape([C, TILE])
                to_state = tiles[3].permute((1, 0))
                state = tiles[2]
                by_query = warpgroup_mma(
                    q, state.permute((1, 0)), zeros, use_acc=False, is_async=True
                )
                by_state = warpgroup_mma(k, to_state, zeros, use_acc=False, is_async=True)
                from_out = grad.load(square).to(gl.float32)
                by_query = warpgroup_mma_wait(1, deps=[by_query])
                of_query += gl.sum(by_query * from_out, 1)
                both_states = warpgroup_mma(state, to_state, zeros, use_acc=False, is_async=True)
                v = tiles[1].reshape([C, TILE]).load(operand).to(gl.float32)
                taken = (v * to_last[:, None]).to(dtype)
                for_keys = warpgroup_mma(taken, tiles[3], for_keys, is_async=True)
                by_state = warpgroup_mma_wait(2, deps=[by_state])
                v = gl.convert_layout(v, square)
                of_news += gl.sum(by_state * v, 1)
                wait_for(written, turn, PAIRS)
                change = warpgroup_mma(
                    weights.index(slot).permute((1, 0)),
                    grad,
                    by_state * kept[:, None],
                    is_async=True,
                )
                if skip is not None:
                    of_own += gl.sum(from_out * v, 1)
                both_states = warpgroup_mma_wait(2, deps=[both_states])
                of_whole += gl.sum(gl.where(i[:, None] == j[None, :], both_states, 0.0), 1)
                for_keys, change = warpgroup_mma_wait(0, deps=[for_keys, change])
                ring.release(position)
                position = position.next()
                if STEPS:
                    change = change * rates
                if skip is not None:
                    change += from_out * weight
                writer.store([batch, chunk * C, head, tile * TILE], change)
            mbarrier.arrive(used.index(slot))
            mbarrier.arrive(decays_used.index(of_decays))
            place = wait_for(vectors_used, number, PAIRS, 1)
            vectors[2].index(place).store(of_news)
            vectors[3].index(place).store(of_query)
            vectors[4].index(place).store(of_whole)
            if skip is not None:
                vectors[5].index(place).store(of_own)
            mbarrier.arrive(vectors_written.index(place))
        turn = (group + 1) * (each + 1) - 1
        slot = wait_for(written, turn, PAIRS)
        result = warpgroup_mma(weights.index(slot).permute((1, 0)), q, for_keys)
        mbarrier.arrive(used.index(slot))
        keys_ring.release(key_position)
        key_position = key_position.next()
        part = first_head // each
        store_keys(to_k, result, batch, part, chunk, sizes, SETTINGS[4], SETTINGS[5])
    writer.close()


@gluon.jit
def finish_gates(slots, sums, sources, targets, sizes, scale, SETTINGS: gl.constexpr):
    """Store the gradients of gates, and with steps, those of slopes, of the bias and of `skip` by each chunk."""
    C: gl.constexpr = SETTINGS[0]
    STEPS: gl.constexpr = SETTINGS[3]
    gates, slopes, biases = sources
    to_g, partial, skip = targets
    decays, decays_written, decays_used = slots
    vectors, written, used = sums
    heads, chunks, groups, length, each, _ = sizes
    flat: gl.constexpr = tokens_layout(C, 1, 32)
    parts: gl.constexpr = gl.BlockedLayout([4, C // 32], [1, 32], [1, 1], [1, 0])
    near = gl.arange(0, C, flat)
    for number in range(groups_of(sizes) * each):
        batch, head, chunk = item_of(number, sizes)
        left = length - chunk * C
        gate = load_gates(gates, batch, head, heads, length, chunk, C)
        of_decays = wait_for(decays_written, number, DECAYS)
        slot = slot_of(decays, of_decays)
        log = slot[0].load(flat)
        first = slot[1].load(flat)
        rate = slot[3].load(flat) if STEPS else None
        place = wait_for(written, number, PAIRS)
        of_row = vectors[0].index(place).load(flat)
        of_column = gl.sum(vectors[1].index(place).load(parts), 0)
        of_column = gl.convert_layout(of_column, flat)
        of_news = vectors[2].index(place).load(flat)
        of_query = vectors[3].index(place).load(flat)
        of_whole = gl.sum(vectors[4].index(place).load(flat), 0)
        of_own = gl.to_tensor(0.0)
        if skip is not None:
            of_own = gl.sum(vectors[5].index(place).load(flat), 0)
        mbarrier.arrive(used.index(place))
        mbarrier.arrive(decays_used.index(of_decays))
        whole = gl.sum(gl.where(near == C - 1, log, 0.0), 0)
        of_row += of_query * first * scale
        of_last = of_news * gl.exp2(whole - log)
        to_rate = of_last + of_column
        rated = to_rate
        if STEPS:
            rated = to_rate * rate
            of_last = of_last * rate
        at_last = gl.sum(of_last, 0) + gl.exp2(whole) * of_whole
        to_decay = of_row - rated + gl.where(near == C - 1, at_last, 0.0)
        result = gl.associative_scan(to_decay, 0, add, reverse=True)
        if STEPS:
            part = (batch.to(gl.int64) * chunks + chunk) * heads + head
            size = (groups // (heads // each)).to(gl.int64) * heads
            gl.store(partial + part, gl.sum(result * rate, 0))
            slope = gl.load(slopes + head).to(gl.float32)
            result = to_rate + result * slope
            if SETTINGS[2]:
                before = gate.to(gl.float32)
                if biases is not None:
                    before += gl.load(biases + head).to(gl.float32)
                result = result / (1.0 + gl.exp2(before * -1.4426950408889634))
            result = gl.where(near < left, result, 0.0)
            gl.store(partial + size + part, gl.sum(result, 0))
            if skip is not None:
                gl.store(partial + 2 * size + part, of_own)
        target = to_g + (batch.to(gl.int64) * length + chunk * C) * heads + head
        gl.store(target + near * heads, result.to(to_g.dtype.element_ty), mask=near < left)


@gluon.jit
def decaying_gradients(
    q_desc, k_desc, v_desc, grad_desc, states_desc, changes_desc, gates, slopes, bias, skip, to_q, to_k, to_v_desc, to_g, sums, length,
    heads, chunks, groups, each, shared, scale, TILES: gl.constexpr, SOFTPLUS: gl.constexpr, EVEN: gl.constexpr,
    WRITTEN: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Store the gradients of `groups`, of a chunk and `each` heads, over which so many programs as there are walk: chunks first, then parts of heads, then batches.

    Args:
        q_desc, k_desc: blocks [1, C, 1, K].
        v_desc, grad_desc, to_v_desc: blocks [1, C, 1, 64]; V is TILES times 64.
        states_desc, changes_desc: S and G, [batch, heads, chunks, V] rows of K, in blocks [64, K].
        gates, slopes, bias: as `recur_decaying` takes them; `to_g` are gradients of gates or of steps.
        skip: [heads], what of `v` is added to the result, or None.
        to_q, to_k: [batch, length, heads / each, K]; WRITTEN, descriptors of it, blocks [1, C, 1, K].
        sums: with steps, float32 [3, batch, chunks, heads]: the gradients of slopes, of the bias and of `skip` by this chunk.
        shared: heads that have the same queries and keys, a multiple of `each`.
        EVEN: all chunks are full.
        KEYS, STAGES: slots for queries and keys, and for the tiles of a head.
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    STEPS: gl.constexpr = slopes is not None
    SETTINGS: gl.constexpr = (C, TILES, SOFTPLUS, STEPS, EVEN, WRITTEN)
    rings = (
        tma_ring([k_desc, q_desc], KEYS, consumers=2),
        tma_ring([grad_desc, v_desc, states_desc, changes_desc], STAGES, consumers=2),
    )
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    filled = ()
    for _ in gl.static_range(4):
        filled = filled + (gl.allocate_shared_memory(gl.float32, [DECAYS, C], plain),)
    slots = (filled,) + barriers_of(DECAYS, 3)
    squared: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    own = (gl.allocate_shared_memory(k_desc.dtype, [PAIRS, C, C], squared),) + barriers_of(PAIRS, 1)
    of_rows = slots_of_sums(6, PAIRS, C)
    sizes = (heads, chunks, groups, length, each, shared)
    sources = (gates, slopes, bias)
    targets = (to_g, sums, skip)
    writer = tma_writer(to_v_desc)
    if WRITTEN:
        to_q = tma_writer(to_q)
        to_k = tma_writer(to_k)
    gl.warp_specialize(
        [
            (take_queries, (rings, slots, own, of_rows, to_q, sizes, scale, SETTINGS)),
            (take_keys, (rings, slots, own, of_rows, writer, to_k, skip, sizes, SETTINGS)),
            (fill_decays, (slots, sources, sizes, 0, SETTINGS)),
            (fill_decays, (slots, sources, sizes, 1, SETTINGS)),
            (finish_gates, (slots, of_rows, sources, targets, sizes, scale, SETTINGS)),
            (copy_groups, (rings, sizes, SETTINGS)),
        ],
        [4, 1, 1, 1, 1],
        [232, 40, 40, 40, 40],
    )
