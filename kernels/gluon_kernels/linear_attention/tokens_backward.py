"""The gradients of chunks of the delta rule with one gate for each token on Hopper.

It computes `portable_backward.chunk_gradients` in two passes over the columns of values: what takes dO S^T and dO N^T, then the rest. Tiles come by
asynchronous copies, and strides are constants, so that addresses take no registers. If all tiles of a chunk are RESIDENT, shared memory has room for them:
a program, which has a processor of its own, asks for them at once, and those of the second pass arrive during the first.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.portable import add, product
from gluon_kernels.linear_attention.portable_backward import multiplied

__all__ = ["token_gradients"]


@gluon.jit
def copy_rows(smem, pointer, left, stride: gl.constexpr, EVEN: gl.constexpr):
    """Start copying rows to shared memory, zeros from row `left` on; EVEN, there are none."""
    layout: gl.constexpr = gl.portable.blocked_layout(smem.shape, smem.dtype)
    row = gl.arange(0, smem.shape[0], gl.SliceLayout(1, layout))[:, None]
    offsets = row * stride + gl.arange(0, smem.shape[1], gl.SliceLayout(0, layout))[None, :]
    if EVEN:
        gl.portable.async_copy(smem, pointer, offsets)
    else:
        inside = gl.broadcast(row < left, offsets)[0]
        gl.portable.async_copy(smem, pointer, offsets, inside)


@gluon.jit
def store_tile(pointer, tile, left, stride: gl.constexpr, EVEN: gl.constexpr):
    """Store the rows that there are."""
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, tile.type.layout))[:, None]
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, tile.type.layout))[None, :]
    tile = tile.to(pointer.dtype.element_ty)
    if EVEN:
        gl.store(pointer + (row * stride + column), tile)
    else:
        gl.store(pointer + (row * stride + column), tile, mask=row < left)


@gluon.jit
def copy_first(buffers, pointers, tile, left, strides: gl.constexpr, SETTINGS: gl.constexpr):
    """Start copying what the first pass takes of some columns of values, dO, N and S, to their slot."""
    K: gl.constexpr = SETTINGS[0]
    BV: gl.constexpr = SETTINGS[1]
    slot = tile % SETTINGS[3]
    start = tile * BV
    copy_rows(buffers[0].index(slot), pointers[0] + start, left, strides[3], SETTINGS[4])
    copy_rows(buffers[1].index(slot), pointers[1] + start, left, strides[5], SETTINGS[4])
    copy_rows(buffers[4].index(slot), pointers[4] + start * K, BV, K, True)


@gluon.jit
def copy_second(buffers, pointers, tile, left, strides: gl.constexpr, SETTINGS: gl.constexpr):
    """Start copying what the second pass takes alone, V, dY and G."""
    K: gl.constexpr = SETTINGS[0]
    BV: gl.constexpr = SETTINGS[1]
    slot = tile % SETTINGS[3]
    start = tile * BV
    copy_rows(buffers[2].index(slot), pointers[2] + start, left, strides[2], SETTINGS[4])
    copy_rows(buffers[3].index(slot), pointers[3] + start, left, strides[5], SETTINGS[4])
    copy_rows(buffers[5].index(slot), pointers[5] + start * K, BV, K, True)


@gluon.jit
def over_results(buffers, pointers, left, strides: gl.constexpr, SETTINGS: gl.constexpr):
    """Return the sums dO S^T and dO N^T over the columns of values."""
    K: gl.constexpr = SETTINGS[0]
    BV: gl.constexpr = SETTINGS[1]
    RESIDENT: gl.constexpr = SETTINGS[3] == SETTINGS[2]
    dtype: gl.constexpr = buffers[0].dtype
    C: gl.constexpr = buffers[0].shape[1]
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, BV, dtype, dtype, operands="shared")
    narrow: gl.constexpr = gl.portable.mma_layouts(
        C, C, BV, dtype, dtype, operands="shared", b_transposed=True
    )
    from_out = gl.zeros([C, K], gl.float32, wide.accumulator)
    to_weights = gl.zeros([C, C], gl.float32, narrow.accumulator)
    if RESIDENT:
        gl.portable.wait(1)
        gl.portable.fence()
    for tile in range(SETTINGS[2]):
        if not RESIDENT:
            copy_first(buffers, pointers, tile, left, strides, SETTINGS)
            gl.portable.commit()
            gl.portable.wait(0)
            gl.portable.fence()
        slot = tile % SETTINGS[3]
        grad_smem = buffers[0].index(slot)
        acc = gl.portable.accumulator(wide, from_out)
        by_out = multiplied(grad_smem, buffers[4].index(slot), acc)
        acc = gl.portable.accumulator(narrow, to_weights)
        by_weights = multiplied(grad_smem, buffers[1].index(slot).permute((1, 0)), acc)
        from_out = gl.portable.read(by_out)
        to_weights = gl.portable.read(by_weights)
    return from_out, to_weights


@gluon.jit
def over_changes(buffers, pointers, to_v, rates, left, strides: gl.constexpr, SETTINGS: gl.constexpr):  # fmt: skip
    """Return the sums N G^T, dY S^T, dY N^T, that of dY and V of each row, and that of S and G; store the gradients of values."""
    K: gl.constexpr = SETTINGS[0]
    BV: gl.constexpr = SETTINGS[1]
    RESIDENT: gl.constexpr = SETTINGS[3] == SETTINGS[2]
    dtype: gl.constexpr = buffers[0].dtype
    C: gl.constexpr = buffers[0].shape[1]
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, BV, dtype, dtype, operands="shared")
    narrow: gl.constexpr = gl.portable.mma_layouts(
        C, C, BV, dtype, dtype, operands="shared", b_transposed=True
    )
    rows: gl.constexpr = gl.portable.blocked_layout([C, BV], dtype)
    part: gl.constexpr = gl.portable.blocked_layout([16, K], dtype)
    by_row: gl.constexpr = gl.SliceLayout(1, rows)
    to_rate = gl.zeros([C], gl.float32, by_row)
    of_whole = gl.zeros([16, K], gl.float32, part)
    from_news = gl.zeros([C, K], gl.float32, wide.accumulator)
    from_change = gl.zeros([C, K], gl.float32, wide.accumulator)
    to_lower = gl.zeros([C, C], gl.float32, narrow.accumulator)
    if RESIDENT:
        gl.portable.wait(0)
        gl.portable.fence()
    for tile in range(SETTINGS[2]):
        if not RESIDENT:
            copy_first(buffers, pointers, tile, left, strides, SETTINGS)
            copy_second(buffers, pointers, tile, left, strides, SETTINGS)
            gl.portable.commit()
            gl.portable.wait(0)
            gl.portable.fence()
        slot = tile % SETTINGS[3]
        news_smem = buffers[1].index(slot)
        change_smem = buffers[3].index(slot)
        state_smem = buffers[4].index(slot)
        to_state_smem = buffers[5].index(slot)
        acc = gl.portable.accumulator(wide, from_news)
        by_news = multiplied(news_smem, to_state_smem, acc)
        acc = gl.portable.accumulator(wide, from_change)
        by_change = multiplied(change_smem, state_smem, acc)
        acc = gl.portable.accumulator(narrow, to_lower)
        by_lower = multiplied(change_smem, news_smem.permute((1, 0)), acc)
        change = change_smem.load(rows).to(gl.float32)
        to_rate += gl.sum(change * buffers[2].index(slot).load(rows).to(gl.float32), 1)
        rate = gl.load(rates + gl.arange(0, C, by_row))[:, None]
        store_tile(to_v + tile * BV, change * rate, left, strides[5], SETTINGS[4])
        from_change = gl.portable.read(by_change)
        to_lower = gl.portable.read(by_lower)
        for row in gl.static_range(0, BV, 16):
            state = state_smem.slice(row, 16, dim=0).load(part).to(gl.float32)
            of_whole += state * to_state_smem.slice(row, 16, dim=0).load(part).to(gl.float32)
        from_news = gl.portable.read(by_news)
    return from_news, from_change, to_lower, to_rate, gl.sum(gl.sum(of_whole, 0), 0)


@gluon.jit
def ratios(logs, layout: gl.constexpr, C: gl.constexpr):
    """Return the decays between tokens of a chunk, from columns to rows, zeros above the diagonal."""
    i = gl.arange(0, C, gl.SliceLayout(1, layout))
    j = gl.arange(0, C, gl.SliceLayout(0, layout))
    away = gl.load(logs + i)[:, None] - gl.load(logs + j)[None, :]
    return gl.exp2(gl.where(i[:, None] >= j[None, :], away, -float("inf")))


@gluon.jit
def token_gradients(
    q, k, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta, batches, strides: gl.constexpr,
    length, heads, scale, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, TILES: gl.constexpr, SHARED: gl.constexpr,
    EVEN: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk as `portable_backward.chunk_gradients` does; the grid has chunks, heads and batches.

    `batches` are the strides of batches and heads of `q`, `k`, `v` and `grad`; `strides` those of rows, and of rows of gradients of keys and of values. K is the
    width of keys, TILES times BV that of values. EVEN, all chunks are full.
    """
    dtype: gl.constexpr = k.dtype.element_ty
    keys: gl.constexpr = gl.portable.mma_layouts(
        C, C, K, dtype, dtype, operands="shared", b_transposed=True
    )
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, C, dtype, dtype, operands="shared")
    layout: gl.constexpr = wide.accumulator
    square: gl.constexpr = keys.accumulator
    columns: gl.constexpr = TILES * BV
    chunk = gl.program_id(0)
    head = gl.program_id(1).to(gl.int64)
    batch = gl.program_id(2).to(gl.int64)
    of_keys = head // SHARED
    first = chunk * C
    left = length - first
    row_of_chunk = first.to(gl.int64)
    place = (batch * heads + head) * gl.num_programs(0) + chunk
    token = (batch * length + first) * heads + head
    source = decays + place * (4 * C)
    states += place * (columns * K)
    state_changes += place * (columns * K)
    q += batch * batches[0][0] + of_keys * batches[0][1] + row_of_chunk * strides[0]
    k += batch * batches[1][0] + of_keys * batches[1][1] + row_of_chunk * strides[1]
    grad += batch * batches[3][0] + head * batches[3][1] + row_of_chunk * strides[3]
    v += batch * batches[2][0] + head * batches[2][1] + row_of_chunk * strides[2]
    news += token * columns
    changes += token * columns
    to_v += token * columns
    k_smem = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared)
    q_smem = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared)
    SLOTS: gl.constexpr = TILES if RESIDENT else 1
    SETTINGS: gl.constexpr = (K, BV, TILES, SLOTS, EVEN)
    by_columns: gl.constexpr = gl.portable.mma_layouts(C, K, BV, dtype, dtype, operands="shared")
    buffers = ()
    for _ in gl.static_range(4):
        tiles = gl.allocate_shared_memory(dtype, [SLOTS, C, BV], by_columns.a_shared)
        buffers = buffers + (tiles,)
    for _ in gl.static_range(2):
        tiles = gl.allocate_shared_memory(dtype, [SLOTS, BV, K], by_columns.b_shared)
        buffers = buffers + (tiles,)
    pointers = (grad, news, v, changes, states, state_changes)
    copy_rows(k_smem, k, left, strides[1], EVEN)
    copy_rows(q_smem, q, left, strides[0], EVEN)
    if SLOTS == TILES:
        for tile in gl.static_range(TILES):
            copy_first(buffers, pointers, tile, left, strides, SETTINGS)
        gl.portable.commit()
        for tile in gl.static_range(TILES):
            copy_second(buffers, pointers, tile, left, strides, SETTINGS)
        gl.portable.commit()
    from_out, to_weights = over_results(buffers, pointers, left, strides, SETTINGS)

    from_out = gl.convert_layout(from_out, layout)
    scores = product(q_smem, k_smem.permute((1, 0)), gl.portable.accumulator(keys))
    to_scores = gl.convert_layout(to_weights, square) * ratios(source, square, C) * scale
    shares = to_scores * scores
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    row = gl.arange(0, C, rows)
    to_decay = gl.convert_layout(gl.sum(shares, 1), rows)
    to_decay -= gl.convert_layout(gl.sum(shares, 0), rows)
    p_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared, to_scores.to(dtype))
    gl.portable.fence()
    from_first = gl.load(source + C + row)
    to_decay += gl.sum(q_smem.load(layout).to(gl.float32) * from_out, 1) * from_first * scale
    acc = gl.portable.accumulator(wide, from_out * (from_first * scale)[:, None])
    for_queries = product(p_smem, k_smem, acc)
    store_tile(to_q + token * K, for_queries, left, strides[4], EVEN)

    from_news, from_change, to_lower, to_rate, of_whole = over_changes(
        buffers, pointers, to_v, source + 3 * C, left, strides, SETTINGS
    )
    from_news = gl.convert_layout(from_news, layout)
    to_last = gl.load(source + 2 * C + row)
    k_tile = k_smem.load(layout).to(gl.float32)
    of_news = gl.sum(k_tile * from_news, 1) * to_last
    at_last = gl.sum(of_news, 0) + gl.load(source + 2 * C - 1) * of_whole
    to_decay += gl.where(row == C - 1, at_last, 0.0) - of_news
    for_keys = from_news * to_last[:, None]
    from_change = gl.convert_layout(from_change, layout)
    from_first = gl.load(source + C + row)
    rate = gl.load(source + 3 * C + row)
    seen = gl.sum(k_tile * from_change, 1) * from_first
    rate_change = gl.convert_layout(to_rate, rows) - seen
    to_decay -= seen * rate
    for_keys -= from_change * (from_first * rate)[:, None]
    for_keys = product(p_smem.permute((1, 0)), q_smem, gl.portable.accumulator(wide, for_keys))
    i = gl.arange(0, C, gl.SliceLayout(1, square))
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    scores = product(k_smem, k_smem.permute((1, 0)), gl.portable.accumulator(keys))
    to_lower = gl.convert_layout(to_lower, square) * ratios(source, square, C)
    to_scores = gl.where(i[:, None] > j[None, :], -to_lower, 0.0)
    rate_change += gl.convert_layout(gl.sum(to_scores * scores, 1), rows)
    to_scores = to_scores * gl.load(source + 3 * C + i)[:, None]
    shares = to_scores * scores
    to_decay += gl.convert_layout(gl.sum(shares, 1), rows)
    to_decay -= gl.convert_layout(gl.sum(shares, 0), rows)
    a_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared, to_scores.to(dtype))
    gl.portable.fence()
    for_keys = product(a_smem, k_smem, gl.portable.accumulator(wide, for_keys))
    acc = gl.portable.accumulator(wide, for_keys)
    for_keys = product(a_smem.permute((1, 0)), k_smem, acc)
    gl.store(to_beta + token + row * heads, rate_change, mask=row < left)
    store_tile(to_k + token * K, for_keys, left, strides[4], EVEN)
    flat: gl.constexpr = gl.portable.blocked_layout([C], gl.float32)
    to_decay = gl.associative_scan(gl.convert_layout(to_decay, flat), 0, add, reverse=True)
    near = gl.arange(0, C, flat)
    gl.store(to_g + token + near * heads, to_decay, mask=near < left)
