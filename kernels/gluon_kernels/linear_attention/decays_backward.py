"""The gradients of chunks without the delta rule on Hopper, from the states before chunks and the gradients of those after them.

With S and G these, N the values times rates, e the products of decays from a chunk's first token on, and D_ij = e_i / e_j up to the diagonal,

    dN = P^T dO + (e_C / e) K G^T,                  P  = scale D * (Q K^T)
    dQ = W K + scale e dO S,                        W  = scale D * (dO N^T)
    dK = W^T Q + (e_C / e) N G

A program has a chunk of some heads that share queries and keys. Their W are added up before they are multiplied, so that of a head only
what takes its states is multiplied by itself; its tiles are copied during the head before.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.linear_attention.decays import load_gates, store_decays
from gluon_kernels.linear_attention.portable import add, tokens_layout
from gluon_kernels.linear_attention.tokens_backward import store_tile

__all__ = ["decaying_gradients"]


@gluon.jit
def fetch_columns(
    ring, position, number, place, heads, chunks, C: gl.constexpr, BV: gl.constexpr, TILES: gl.constexpr, EACH: gl.constexpr
):  # fmt: skip
    """Start copying the tiles of the n-th columns of values, if there are any: those of a head one after the other."""
    batch, first_head, chunk = place
    head = first_head + number // TILES
    column = number % TILES * BV
    values = [batch, chunk * C, head, column]
    state = [((batch * heads + head) * chunks + chunk) * (TILES * BV) + column, 0]
    ring.fetch(position, [values, values, state, state], number < EACH * TILES)


@gluon.jit
def dot_of_states(one, other, K: gl.constexpr, BV: gl.constexpr):
    """Return the sum of the products of two states' elements."""
    part: gl.constexpr = gl.portable.blocked_layout([16, K], one.dtype)
    total = gl.zeros([16, K], gl.float32, part)
    for row in gl.static_range(0, BV, 16):
        first = one.slice(row, 16, dim=0).load(part).to(gl.float32)
        total += first * other.slice(row, 16, dim=0).load(part).to(gl.float32)
    return gl.sum(gl.sum(total, 0), 0)


@gluon.jit
def ratios_of(logs, layout: gl.constexpr, C: gl.constexpr):
    """Return the decays between tokens of a chunk, from columns to rows, zeros above the diagonal."""
    i = gl.arange(0, C, gl.SliceLayout(1, layout))
    j = gl.arange(0, C, gl.SliceLayout(0, layout))
    away = logs.load(i.type.layout)[:, None] - logs.load(j.type.layout)[None, :]
    return gl.exp2(gl.where(i[:, None] >= j[None, :], away, -float("inf")))


@gluon.jit
def decaying_gradients(
    q_desc, k_desc, v_desc, grad_desc, states_desc, changes_desc, gates, slopes, bias, skip, to_q, to_k, to_v, to_g, sums, length,
    heads: gl.constexpr, scale, TILES: gl.constexpr, SHARED: gl.constexpr, EACH: gl.constexpr, SOFTPLUS: gl.constexpr,
    EVEN: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk of EACH heads; the grid has chunks, groups of heads, and batches.

    Args:
        q_desc, k_desc: blocks [1, C, 1, K].
        v_desc, grad_desc: blocks [1, C, 1, BV]; V is TILES times BV.
        states_desc, changes_desc: S and G, [batch, heads, chunks, V] rows of K, in blocks [BV, K].
        gates, slopes, bias: as `recur_decaying` takes them; `to_g` are gradients of gates or of steps.
        skip: [heads], what of `v` is added to the result, or None.
        to_q, to_k: [batch, length, heads / EACH, K].
        sums: with steps, float32 [3, batch, chunks, heads]: the gradients of slopes, of the bias and of `skip` by this chunk.
        EVEN: all chunks are full.
    """
    dtype: gl.constexpr = k_desc.dtype
    C: gl.constexpr = k_desc.block_type.shape[1]
    K: gl.constexpr = k_desc.block_type.shape[3]
    BV: gl.constexpr = v_desc.block_type.shape[3]
    STEPS: gl.constexpr = slopes is not None
    keys: gl.constexpr = gl.portable.mma_layouts(C, C, K, dtype, dtype, operands="shared")
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, C, dtype, dtype, operands="shared")
    narrow: gl.constexpr = gl.portable.mma_layouts(C, BV, K, dtype, dtype, operands="shared")
    layout: gl.constexpr = wide.accumulator
    square: gl.constexpr = keys.accumulator
    of_values: gl.constexpr = narrow.accumulator
    flat: gl.constexpr = tokens_layout(C, gl.num_warps(), gl.target.warp_size())
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    value_rows: gl.constexpr = gl.SliceLayout(1, of_values)
    columns: gl.constexpr = BV * TILES
    # Where a program has one tile, the gradients of queries leave before those of keys take registers.
    ALONE: gl.constexpr = EACH * TILES == 1
    chunk = gl.program_id(0)
    chunks = gl.num_programs(0)
    first_head = gl.program_id(1) * EACH
    batch = gl.program_id(2)
    left = length - chunk * C
    token = batch.to(gl.int64) * length + chunk * C
    key = token * (heads // EACH) + gl.program_id(1)
    to_v += token * (heads * columns) + first_head * columns

    keys_ring = tma_ring([k_desc, q_desc], 1)
    ring = tma_ring([grad_desc, v_desc, states_desc, changes_desc], 2 if EACH * TILES > 1 else 1)
    squared: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    p_smem = gl.allocate_shared_memory(dtype, [C, C], squared)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    decays = ()
    for _ in gl.static_range(4):
        decays = decays + (gl.allocate_shared_memory(gl.float32, [C], plain),)
    place = (batch, first_head, chunk)
    row = [batch, chunk * C, first_head // SHARED, 0]
    keys_ring.fetch(keys_ring.producer(), [row, row])
    ahead = ring.producer()
    position = ring.consumer()
    fetch_columns(ring, ahead, 0, place, heads, chunks, C, BV, TILES, EACH)
    gate = load_gates(gates, batch, first_head, heads, length, chunk, C)
    both = keys_ring.wait(keys_ring.consumer())
    k_smem = both[0].reshape([C, K])
    q_smem = both[1].reshape([C, K])
    no_square = gl.zeros([C, C], gl.float32, square)
    no_values = gl.zeros([C, BV], gl.float32, of_values)
    scores = warpgroup_mma(q_smem, k_smem.permute((1, 0)), no_square, use_acc=False)
    # Shared memory keeps what a step would spill.
    exact: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    scores_smem = gl.allocate_shared_memory(gl.float32, [C, C], exact, scores)
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    near = gl.arange(0, C, flat)
    for_queries = gl.zeros([C, K], gl.float32, layout)
    for_keys = gl.zeros([C, K], gl.float32, layout)
    all_scores = gl.zeros([C, C], gl.float32, square)
    for step in range(EACH):
        head = first_head + step
        now = gate
        if EACH > 1:
            following = gl.minimum(step + 1, EACH - 1)
            gate = load_gates(gates, batch, first_head + following, heads, length, chunk, C)
        slope = None
        offset = None
        if STEPS:
            slope = gl.load(slopes + head).to(gl.float32)
            if bias is not None:
                offset = gl.load(bias + head).to(gl.float32)
        store_decays(decays, now, slope, offset, left, C, SOFTPLUS)
        logs = decays[0]
        weights = scores_smem.load(square) * ratios_of(logs, square, C)
        p_smem.store((weights * scale).to(dtype))
        fence_async_shared()
        whole = gl.sum(gl.where(near == C - 1, logs.load(flat), 0.0), 0)
        to_weights = gl.zeros([C, C], gl.float32, square)
        of_news = gl.zeros([C], gl.float32, value_rows)
        of_query = gl.zeros([C], gl.float32, rows)
        of_whole = gl.to_tensor(0.0)
        for tile in range(TILES):
            if EACH * TILES > 1:
                ahead = ahead.next()
                number = step * TILES + tile + 1
                fetch_columns(ring, ahead, number, place, heads, chunks, C, BV, TILES, EACH)
            tiles = ring.wait(position)
            grad = tiles[0].reshape([C, BV])
            v = tiles[1].reshape([C, BV])
            by_state = warpgroup_mma(
                k_smem, tiles[3].permute((1, 0)), no_values, use_acc=False, is_async=True
            )
            acc = warpgroup_mma_init(to_weights)
            by_weights = warpgroup_mma(
                grad, v.permute((1, 0)), acc, use_acc=tile > 0, is_async=True
            )
            from_out = warpgroup_mma(grad, tiles[2], for_keys, use_acc=False, is_async=True)
            of_whole += dot_of_states(tiles[2], tiles[3], K, BV)
            by_state = warpgroup_mma_wait(2, deps=[by_state])
            of_news += gl.sum(by_state * v.load(of_values).to(gl.float32), 1)
            to_last = gl.exp2(whole - logs.load(value_rows))
            acc = warpgroup_mma_init(by_state * to_last[:, None])
            change = warpgroup_mma(p_smem.permute((1, 0)), grad, acc, is_async=True)
            # The tiles are dependencies: where nothing else reads them, the compiler would place sums there.
            to_weights, from_out, change, grad, v, read = warpgroup_mma_wait(
                0, deps=[by_weights, from_out, change, grad, v, tiles[2]]
            )
            if not ALONE:
                from_news = warpgroup_mma(v, tiles[3], for_keys, use_acc=False, is_async=True)
            if STEPS:
                change = change * decays[3].load(value_rows)[:, None]
            if skip is not None:
                own = gl.load(skip + head).to(gl.float32)
                change += grad.load(of_values).to(gl.float32) * own
            store_tile(to_v + (step * columns + tile * BV), change, left, heads * columns, EVEN)
            of_query += gl.sum(q_smem.load(layout).to(gl.float32) * from_out, 1)
            for_queries += from_out * (decays[1].load(rows) * scale)[:, None]
            if not ALONE:
                from_news = warpgroup_mma_wait(0, deps=[from_news])
                for_keys += from_news * decays[2].load(rows)[:, None]
                ring.release(position)
                position = position.next()
        to_scores = to_weights * ratios_of(logs, square, C) * scale
        products = to_scores * scores_smem.load(square)
        of_column = gl.convert_layout(gl.sum(products, 0), flat)
        if STEPS:
            column_rate = decays[3].load(gl.SliceLayout(0, square))[None, :]
            products = products * column_rate
            to_scores = to_scores * column_rate
        all_scores += to_scores
        of_row = gl.convert_layout(gl.sum(products, 1), flat)
        of_row += gl.convert_layout(of_query, flat) * decays[1].load(flat) * scale
        of_news = gl.convert_layout(of_news, flat)
        logs_flat = logs.load(flat)
        of_last = of_news * gl.exp2(whole - logs_flat)
        to_rate = of_last + of_column
        rated = to_rate
        if STEPS:
            rate = decays[3].load(flat)
            rated = to_rate * rate
            of_last = of_last * rate
        at_last = gl.sum(of_last, 0) + gl.exp2(whole) * of_whole
        to_decay = of_row - rated + gl.where(near == C - 1, at_last, 0.0)
        result = gl.associative_scan(to_decay, 0, add, reverse=True)
        if STEPS:
            part = (batch.to(gl.int64) * chunks + chunk) * heads + head
            size = gl.num_programs(2).to(gl.int64) * chunks * heads
            gl.store(sums + part, gl.sum(result * rate, 0))
            result = to_rate + result * slope
            if SOFTPLUS:
                before = now.to(gl.float32)
                if bias is not None:
                    before += offset
                result = result / (1.0 + gl.exp2(before * -1.4426950408889634))
            result = gl.where(near < left, result, 0.0)
            gl.store(sums + size + part, gl.sum(result, 0))
            if skip is not None:
                own_weights = gl.where(i[:, None] == j[None, :], to_weights, 0.0)
                gl.store(sums + 2 * size + part, gl.sum(gl.sum(own_weights, 1), 0))
        target = to_g + token * heads + head
        gl.store(target + near * heads, result.to(to_g.dtype.element_ty), mask=near < left)
    p_smem.store(all_scores.to(dtype))
    fence_async_shared()
    row_size: gl.constexpr = heads // EACH * K
    result = warpgroup_mma(p_smem, k_smem, warpgroup_mma_init(for_queries))
    store_tile(to_q + key * K, result, left, row_size, EVEN)
    if ALONE:
        tiles = ring.tiles(position)
        for_keys = warpgroup_mma(tiles[1].reshape([C, BV]), tiles[3], for_keys, use_acc=False)
        for_keys = for_keys * decays[2].load(rows)[:, None]
        ring.release(position)
    result = warpgroup_mma(p_smem.permute((1, 0)), q_smem, warpgroup_mma_init(for_keys))
    store_tile(to_k + key * K, result, left, row_size, EVEN)
