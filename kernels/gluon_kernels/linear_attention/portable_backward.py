"""The gradients of linear attention in chunks, on any device.

With the names of `portable.py`, T without b as R, Y = b (V - e K S), and G the gradient of the state after a chunk,

    dN = P^T dO + (e_C / e) K G,    dY = R^T dN,    dV = b dY
    gradient of S = e_C G + scale Q^T (e dO) - K^T (e b dY)

`recur_back` walks over the chunks from the last one on, with G transposed in registers. `chunk_gradients` computes the rest of each chunk on
its own: the gradient of A is -tril(dY N^T, -1), since the one of an inverse R is -R^T dR R^T.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.portable import add, decay_size, product, tile_rows

__all__ = ["chunk_gradients", "over_values", "recur_back", "store_rows"]


@gluon.jit
def recur_back(
    q, k, grad, decays, weights, unscaled, seen, changes, states, initial, final, strides, length, heads, chunks, per_segment,
    scale, widths, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr, DELTA: gl.constexpr,
):  # fmt: skip
    """Walk over the chunks of a segment, last one first; the grid has column tiles, heads x segments, batches.

    `grad` (dO) is [batch, length, heads, V], `strides` are those of `q`, `k` and `grad`. `changes` [batch, length, heads, V] gets dY, or dN = dV
    without the delta rule, `states` [batch, heads, chunks, V, K] G, both if not None. `initial` and `final`, float32 [batch, heads, segments, V,
    K], are G after the segment's last chunk and before its first. If `seen` is not None, `q`, `k`, `seen` and `decays` are the results of
    `prepare_channels`.
    """
    dtype: gl.constexpr = k.dtype.element_ty
    CHANNELS: gl.constexpr = seen is not None
    by_state: gl.constexpr = gl.portable.mma_layouts(BV, C, K, dtype, dtype)
    by_chunk: gl.constexpr = gl.portable.mma_layouts(BV, C, C, dtype, dtype)
    to_state: gl.constexpr = gl.portable.mma_layouts(BV, K, C, dtype, dtype)
    of_values: gl.constexpr = gl.portable.mma_layouts(BV, BV, C, dtype, dtype)
    layout: gl.constexpr = by_chunk.accumulator
    state_layout: gl.constexpr = to_state.accumulator
    column: gl.constexpr = gl.SliceLayout(0, layout)
    rows: gl.constexpr = gl.portable.blocked_layout([C, K], dtype)
    columns: gl.constexpr = gl.portable.blocked_layout([C, BV], dtype)
    square: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    first_column = gl.program_id(0) * BV
    head = gl.program_id(1) % heads
    segment = gl.program_id(1) // heads
    segments = gl.num_programs(1) // heads
    batch = gl.program_id(2).to(gl.int64)
    of_head = batch * heads + head
    place = of_head * chunks
    of_keys = (head // SHARED).to(gl.int64)
    left = widths[1] - first_column
    q += batch * strides[0][0] + of_keys * strides[0][2]
    k += batch * strides[1][0] + of_keys * strides[1][2]
    grad += batch * strides[2][0] + head.to(gl.int64) * strides[2][2] + first_column
    if CHANNELS:
        seen += batch * strides[1][0] + of_keys * strides[1][2]
    first = segment * per_segment
    last = gl.minimum(first + per_segment, chunks)

    state_row = gl.arange(0, BV, gl.SliceLayout(1, state_layout))
    state_column = gl.arange(0, K, gl.SliceLayout(0, state_layout))
    state = gl.zeros([BV, K], gl.float32, state_layout)
    in_state = (first_column + state_row < widths[1])[:, None] & (state_column < widths[0])[None, :]
    state_offsets = (first_column + state_row)[:, None] * widths[0] + state_column[None, :]
    of_segment = of_head * segments + segment
    if initial is not None:
        source = initial + of_segment * (widths[0] * widths[1])
        state = gl.load(source + state_offsets, mask=in_state, other=0.0)
    k_smem = gl.allocate_shared_memory(dtype, [C, K], to_state.b_shared)
    q_smem = gl.allocate_shared_memory(dtype, [C, K], to_state.b_shared)
    grad_smem = gl.allocate_shared_memory(dtype, [C, BV], of_values.b_shared)
    square_smem = gl.allocate_shared_memory(dtype, [C, C], by_chunk.b_shared)
    square_row = gl.arange(0, C, gl.SliceLayout(1, square))[:, None]
    square_offsets = square_row * C + gl.arange(0, C, gl.SliceLayout(0, square))[None, :]
    near = gl.arange(0, C, column)
    value_row = gl.arange(0, BV, gl.SliceLayout(1, layout))
    for step in range(last - first):
        chunk = last - 1 - step
        row = chunk * C + near
        if CHANNELS:
            source = decays + (place + chunk) * decay_size(K, C)
            whole = gl.load(source + state_column)[None, :]
            rate = gl.load(source + K + near)
        else:
            source = decays + (place + chunk) * (4 * C)
            from_first = gl.load(source + C + near)
            to_last = gl.load(source + 2 * C + near)
            whole = gl.load(source + 2 * C - 1)
        k_smem.store(tile_rows(k, chunk * C, length, strides[1][1], widths[0], rows, C, K))
        q_smem.store(tile_rows(q, chunk * C, length, strides[0][1], widths[0], rows, C, K))
        grad_smem.store(tile_rows(grad, chunk * C, length, strides[2][1], left, columns, C, BV))
        matrix = (place + chunk) * (C * C)
        square_smem.store(gl.portable.load(weights + matrix, square_offsets))
        operand = gl.convert_layout(state.to(dtype), by_state.a)
        if states is not None:
            target = states + (place + chunk) * (widths[0] * widths[1])
            gl.store(target + state_offsets, state.to(dtype), mask=in_state)
        zero = gl.zeros([BV, C], gl.float32, by_state.accumulator)
        change = gl.portable.mma(operand, k_smem.permute((1, 0)).load(by_state.b), zero)
        change = gl.convert_layout(change, layout)
        if not CHANNELS:
            change = change * to_last[None, :]
        out = grad_smem.permute((1, 0)).load(layout)
        change = gl.portable.mma(
            gl.convert_layout(out, by_chunk.a), square_smem.load(by_chunk.b), change
        )
        if DELTA:
            square_smem.store(gl.portable.load(unscaled + matrix, square_offsets))
            zero_change = gl.zeros([BV, C], gl.float32, layout)
            operand = gl.convert_layout(change.to(dtype), by_chunk.a)
            change = gl.portable.mma(operand, square_smem.load(by_chunk.b), zero_change)
        inside = (row < length)[None, :] & (value_row < left)[:, None]
        if changes is not None:
            target = changes + (batch * length * heads + head) * widths[1] + first_column
            offsets = row.to(gl.int64)[None, :] * (heads * widths[1]) + value_row[:, None]
            gl.store(target + offsets, change.to(dtype), mask=inside)
        if not CHANNELS:
            out = (out.to(gl.float32) * (from_first * scale)[None, :]).to(dtype)
        state = gl.portable.mma(
            gl.convert_layout(out, to_state.a), q_smem.load(to_state.b), state * whole
        )
        if DELTA:
            if CHANNELS:
                k_smem.store(
                    tile_rows(seen, chunk * C, length, strides[1][1], widths[0], rows, C, K)
                )
                change = (change * -rate[None, :]).to(dtype)
            else:
                rate = gl.load(source + 3 * C + near)
                change = (change * -(from_first * rate)[None, :]).to(dtype)
            operand = gl.convert_layout(change, to_state.a)
            state = gl.portable.mma(operand, k_smem.load(to_state.b), state)
    if final is not None:
        target = final + of_segment * (widths[0] * widths[1])
        gl.store(target + state_offsets, state, mask=in_state)


@gluon.jit
def store_rows(pointer, tile, first, rows, stride, width):
    """Store the rows and columns that there are."""
    layout: gl.constexpr = tile.type.layout
    row = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    offsets = row.to(gl.int64)[:, None] * stride + column[None, :]
    inside = (row < rows)[:, None] & (column < width)[None, :]
    gl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=inside)


@gluon.jit
def multiplied(a, b, acc):
    """Return acc plus the product of operands in shared memory, which may still read them."""
    return gl.portable.mma(a, b, acc, is_async=True)


@gluon.jit
def over_values(
    v, grad, news, changes, states, state_changes, to_v, rates, dense, steps, first, length, heads, place, widths,
    K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, DELTA: gl.constexpr, channel=0,
):  # fmt: skip
    """Store the gradients of a chunk's values with the delta rule, and return the sums over the columns of values that the others take.

    They are dO S^T, dY S^T, N G^T, dO N^T, dY N^T, those of dY and V of each row, and of S and G of each key channel. `v` and `grad` are those
    of the head, with `steps` from row to row; `dense` is the place of the head in `news`, `changes` and `to_v`. States have K channels from `channel` on.
    """
    dtype: gl.constexpr = v.dtype.element_ty
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, BV, dtype, dtype, operands="shared")
    narrow: gl.constexpr = gl.portable.mma_layouts(
        C, C, BV, dtype, dtype, operands="shared", b_transposed=True
    )
    layout: gl.constexpr = wide.accumulator
    square: gl.constexpr = narrow.accumulator
    columns: gl.constexpr = gl.portable.blocked_layout([C, BV], dtype)
    of_state: gl.constexpr = gl.portable.blocked_layout([BV, K], dtype)
    row_step = heads * widths[1]
    by_row: gl.constexpr = gl.SliceLayout(1, columns)
    near = gl.arange(0, C, by_row)
    rate = gl.load(rates + near)
    to_rate = gl.zeros([C], gl.float32, by_row)
    of_whole = gl.zeros([K], gl.float32, gl.SliceLayout(0, of_state))  # S and G, along values
    from_out = gl.zeros([C, K], gl.float32, layout)  # dO S^T
    from_change = gl.zeros([C, K], gl.float32, layout)  # dY S^T
    from_news = gl.zeros([C, K], gl.float32, layout)  # N G^T
    to_weights = gl.zeros([C, C], gl.float32, square)  # dO N^T
    to_lower = gl.zeros([C, C], gl.float32, square)  # dY N^T
    grad_smem = gl.allocate_shared_memory(dtype, [C, BV], wide.a_shared)
    news_smem = gl.allocate_shared_memory(dtype, [C, BV], wide.a_shared)
    state_smem = gl.allocate_shared_memory(dtype, [BV, K], wide.b_shared)
    to_state_smem = gl.allocate_shared_memory(dtype, [BV, K], wide.b_shared)
    change_smem = grad_smem
    if DELTA:
        change_smem = gl.allocate_shared_memory(dtype, [C, BV], wide.a_shared)
    news += dense
    for start in range(0, widths[1], BV):
        # All loads first: each waits for memory as long as the products take.
        left = widths[1] - start
        of_out = tile_rows(grad + start, first, length, steps[1], left, columns, C, BV)
        new = tile_rows(news + start, first, length, row_step, left, columns, C, BV)
        state_row = start + gl.arange(0, BV, gl.SliceLayout(1, of_state))
        state_column = channel + gl.arange(0, K, gl.SliceLayout(0, of_state))
        in_state = (state_row < widths[1])[:, None] & (state_column < widths[0])[None, :]
        offsets = state_row[:, None] * widths[0] + state_column[None, :]
        size = place * (widths[0] * widths[1])
        state = gl.portable.load(states + size, offsets, in_state)
        to_state = gl.portable.load(state_changes + size, offsets, in_state)
        if DELTA:
            change = tile_rows(
                changes + dense + start, first, length, row_step, left, columns, C, BV
            )
            value = tile_rows(v + start, first, length, steps[0], left, columns, C, BV)
            change_smem.store(change)
        grad_smem.store(of_out)
        news_smem.store(new)
        state_smem.store(state)
        to_state_smem.store(to_state)
        gl.portable.fence()
        by_out = multiplied(grad_smem, state_smem, gl.portable.accumulator(wide, from_out))
        acc = gl.portable.accumulator(narrow, to_weights)
        by_weights = multiplied(grad_smem, news_smem.permute((1, 0)), acc)
        by_news = multiplied(news_smem, to_state_smem, gl.portable.accumulator(wide, from_news))
        if DELTA:
            acc = gl.portable.accumulator(wide, from_change)
            by_change = multiplied(change_smem, state_smem, acc)
            acc = gl.portable.accumulator(narrow, to_lower)
            by_lower = multiplied(change_smem, news_smem.permute((1, 0)), acc)
            change = change.to(gl.float32)
            to_rate += gl.sum(change * value.to(gl.float32), 1)
            store_rows(to_v + dense + start, change * rate[:, None], first, length, row_step, left)
            from_change = gl.portable.read(by_change)
            to_lower = gl.portable.read(by_lower)
        of_whole += gl.sum(state.to(gl.float32) * to_state.to(gl.float32), 0)
        from_out = gl.portable.read(by_out)
        to_weights = gl.portable.read(by_weights)
        from_news = gl.portable.read(by_news)
    return from_out, from_change, from_news, to_weights, to_lower, to_rate, of_whole


@gluon.jit
def chunk_gradients(
    q, k, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta, strides, length, heads,
    scale, widths, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr, DELTA: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk; the grid has chunks, heads and batches.

    `strides` are those of `q`, `k`, `v` and `grad`. `news` (N) and `changes` (dY) are [batch, length, heads, V], `states` (S) and `state_changes`
    (G) [batch, heads, chunks, V, K]. Results are contiguous [batch, length, heads, K] of queries and keys, those of each head of
    values, [batch, length, heads, V] of values, and float32 [batch, length, heads] of the logarithms of decays and of rates. Without the
    delta rule `to_v` and `to_beta` are None.
    """
    dtype: gl.constexpr = k.dtype.element_ty
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, BV, dtype, dtype, operands="shared")
    narrow: gl.constexpr = gl.portable.mma_layouts(
        C, C, BV, dtype, dtype, operands="shared", b_transposed=True
    )
    keys: gl.constexpr = gl.portable.mma_layouts(
        C, C, K, dtype, dtype, operands="shared", b_transposed=True
    )
    last: gl.constexpr = gl.portable.mma_layouts(C, K, C, dtype, dtype, operands="shared")
    layout: gl.constexpr = wide.accumulator
    square: gl.constexpr = narrow.accumulator
    rows: gl.constexpr = gl.portable.blocked_layout([C, K], dtype)
    chunk = gl.program_id(0)
    chunks = gl.num_programs(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    first = chunk * C
    place = (batch * heads + head) * chunks + chunk
    of_keys = (head // SHARED).to(gl.int64)
    of_head = head.to(gl.int64)
    q += batch * strides[0][0] + of_keys * strides[0][2]
    k += batch * strides[1][0] + of_keys * strides[1][2]
    v += batch * strides[2][0] + of_head * strides[2][2]
    grad += batch * strides[3][0] + of_head * strides[3][2]
    dense = (batch * length * heads + head) * widths[1]
    source = decays + place * (4 * C)

    sums = over_values(
        v, grad, news, changes, states, state_changes, to_v, source + 3 * C, dense, (strides[2][1], strides[3][1]),
        first, length, heads, place, widths, K, C, BV, DELTA,
    )  # fmt: skip
    from_out, from_change, from_news, to_weights, to_lower, to_rate, of_whole = sums
    k_smem = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared)
    q_smem = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared)
    k_smem.store(tile_rows(k, first, length, strides[1][1], widths[0], rows, C, K))
    q_smem.store(tile_rows(q, first, length, strides[0][1], widths[0], rows, C, K))
    gl.portable.fence()
    out_row: gl.constexpr = gl.SliceLayout(1, layout)
    row = gl.arange(0, C, out_row)
    from_first = gl.load(source + C + row)
    to_last = gl.load(source + 2 * C + row)
    whole = gl.load(source + 2 * C - 1)
    k_tile = k_smem.load(layout).to(gl.float32)
    of_news = gl.sum(k_tile * from_news, 1) * to_last
    of_out = gl.sum(q_smem.load(layout).to(gl.float32) * from_out, 1) * from_first * scale
    to_decay = of_out - of_news
    at_last = gl.sum(of_news, 0) + whole * gl.sum(of_whole, 0)
    to_decay += gl.where(row == C - 1, at_last, 0.0)
    for_keys = from_news * to_last[:, None]
    for_queries = from_out * (from_first * scale)[:, None]
    row_rate = gl.load(source + 3 * C + row)
    rate_change = gl.convert_layout(to_rate, out_row)
    if DELTA:
        seen = gl.sum(k_tile * from_change, 1) * from_first
        rate_change -= seen
        to_decay -= seen * row_rate
        for_keys -= from_change * (from_first * row_rate)[:, None]

    square_row: gl.constexpr = gl.SliceLayout(1, square)
    i = gl.arange(0, C, square_row)
    j = gl.arange(0, C, gl.SliceLayout(0, square))
    logs = gl.load(source + i)[:, None] - gl.load(source + j)[None, :]
    ratio = gl.exp2(gl.where(i[:, None] >= j[None, :], logs, -float("inf")))
    square_smem = gl.allocate_shared_memory(dtype, [C, C], last.a_shared)
    acc = gl.portable.accumulator(keys)
    scores = gl.convert_layout(product(q_smem, k_smem.permute((1, 0)), acc), square)
    to_scores = to_weights * ratio * scale
    shares = to_scores * scores
    in_rows = gl.sum(shares, 1)
    in_columns = gl.sum(shares, 0)
    square_smem.store(to_scores.to(dtype))
    gl.portable.fence()
    acc = gl.portable.accumulator(last, gl.convert_layout(for_queries, last.accumulator))
    for_queries = product(square_smem, k_smem, acc)
    acc = gl.portable.accumulator(last, gl.convert_layout(for_keys, last.accumulator))
    for_keys = product(square_smem.permute((1, 0)), q_smem, acc)
    if DELTA:
        acc = gl.portable.accumulator(keys)
        scores = gl.convert_layout(product(k_smem, k_smem.permute((1, 0)), acc), square)
        to_scores = gl.where(i[:, None] > j[None, :], -to_lower * ratio, 0.0)
        rates = gl.load(source + 3 * C + i)[:, None]
        rate_change += gl.convert_layout(gl.sum(to_scores * scores, 1), out_row)
        to_scores = to_scores * rates
        shares = to_scores * scores
        in_rows += gl.sum(shares, 1)
        in_columns += gl.sum(shares, 0)
        square_smem.store(to_scores.to(dtype))
        gl.portable.fence()
        acc = gl.portable.accumulator(last, for_keys)
        for_keys = product(square_smem, k_smem, acc)
        acc = gl.portable.accumulator(last, for_keys)
        for_keys = product(square_smem.permute((1, 0)), k_smem, acc)
    to_decay += gl.convert_layout(in_rows, out_row) - gl.convert_layout(in_columns, out_row)

    target = (batch * length * heads + head) * widths[0]
    store_rows(to_q + target, for_queries, first, length, heads * widths[0], widths[0])
    store_rows(to_k + target, for_keys, first, length, heads * widths[0], widths[0])
    offsets = (batch * length + first + row) * heads + head
    if DELTA:
        gl.store(to_beta + offsets, rate_change, mask=first + row < length)
    flat: gl.constexpr = gl.portable.blocked_layout([C], gl.float32)
    to_decay = gl.associative_scan(gl.convert_layout(to_decay, flat), 0, add, reverse=True)
    row = first + gl.arange(0, C, flat)
    gl.store(to_g + (batch * length + row) * heads + head, to_decay, mask=row < length)
