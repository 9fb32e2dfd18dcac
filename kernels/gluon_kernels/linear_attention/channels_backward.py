"""The gradients of chunks whose decays differ from channel to channel, on any device.

`portable_backward` derives those of the walk's operands; here they become those of queries, keys, gates and rates. With the
names of `channels.py`, each level multiplies dP and dA of its pairs of halves with the same operands as forward: the factors of a
row and of a column are those of the token, by its half. A gate is part of all exponents that end at its token or later:
its gradient is the sum over these of `q dq`, and of `k dk` where k is a row, less `k dk` where k is a column.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.channels import (
    GENTLE,
    LEVELS,
    across,
    around_middle,
    channel_layout,
    chunk_tile,
    doubled,
    gates_of,
    is_mild,
    over_flagged,
    sums_of,
    to_middle,
)
from gluon_kernels.linear_attention.portable import decay_size, product
from gluon_kernels.linear_attention.portable_backward import over_values, store_rows

__all__ = ["channel_gradients", "gradients_flagged"]


@gluon.jit
def read_tiles(tiles, layout: gl.constexpr, AMPLE: gl.constexpr):
    """Return queries and keys, from shared memory or from registers."""
    q, k = tiles
    if AMPLE:
        return q.load(layout), k.load(layout)
    else:
        return gl.convert_layout(q, layout), gl.convert_layout(k, layout)


@gluon.jit
def add_pairs(grads, operands, buffers, squares, pairs, factors, wide: gl.constexpr):
    """Add the gradients of queries, and of keys as rows and as columns, by some pairs of tokens.

    `operands` are queries as rows, keys as rows and keys as columns in shared memory, with the `factors` of rows and of columns; `squares` dP
    and dA, without and with rates, and `buffers` memory for those at `pairs` of P and of A.
    """
    for_queries, for_rows, for_keys = grads
    queries, rows, columns = operands
    p_smem, a_smem, rated_smem = buffers
    dtype: gl.constexpr = queries.dtype
    p_smem.store(gl.where(pairs[0], squares[0], 0.0).to(dtype))
    a_smem.store(gl.where(pairs[1], squares[1], 0.0).to(dtype))
    rated_smem.store(gl.where(pairs[1], squares[2], 0.0).to(dtype))
    gl.portable.fence()
    of_row = gl.convert_layout(factors[0], wide.accumulator)
    for_queries += product(p_smem, columns, gl.portable.accumulator(wide)) * of_row
    for_rows += product(a_smem, columns, gl.portable.accumulator(wide)) * of_row
    part = product(p_smem.permute((1, 0)), queries, gl.portable.accumulator(wide))
    acc = gl.portable.accumulator(wide, part)
    of_column = gl.convert_layout(factors[1], wide.accumulator)
    for_keys += product(rated_smem.permute((1, 0)), rows, acc) * of_column
    return for_queries, for_rows, for_keys


@gluon.jit
def places_of(square):
    """Return the rows and the columns of a square of tokens."""
    layout: gl.constexpr = square.type.layout
    i = gl.arange(0, square.shape[0], gl.SliceLayout(1, layout))[:, None]
    return i, gl.arange(0, square.shape[1], gl.SliceLayout(0, layout))[None, :]


@gluon.jit
def add_halves(
    grads, tiles, operands, buffers, squares, behind, ahead, HALF: gl.constexpr, wide: gl.constexpr, AMPLE: gl.constexpr
):  # fmt: skip
    """Add the gradients by the pairs of a half and the one before; `tiles` are queries and keys, in shared memory or registers."""
    left, right = operands
    dtype: gl.constexpr = left.dtype
    q, k = read_tiles(tiles, behind.type.layout, AMPLE)
    factor = to_middle(behind, ahead, HALF)
    left.store((q.to(gl.float32) * factor).to(dtype))
    right.store((k.to(gl.float32) * factor).to(dtype))
    i, j = places_of(squares[0])
    pairs = across(i, j, HALF)
    operands = (left, right, right)
    return add_pairs(grads, operands, buffers, squares, (pairs, pairs), (factor, factor), wide)


@gluon.jit
def add_blocks(grads, tiles, operands, buffers, squares, own, wide: gl.constexpr, AMPLE: gl.constexpr):  # fmt: skip
    """Add the gradients by the pairs of each block of 16 tokens, for any gates."""
    for_queries, for_rows, for_keys = grads
    layout: gl.constexpr = wide.accumulator
    i, j = places_of(squares[0])
    diagonal = gl.sum(gl.where(i == j, squares[0], 0.0), 1)
    diagonal = gl.convert_layout(diagonal, gl.SliceLayout(1, layout))[:, None]
    q, k = read_tiles(tiles, layout, AMPLE)
    grads = (
        for_queries + diagonal * k.to(gl.float32),
        for_rows,
        for_keys + diagonal * q.to(gl.float32),
    )
    behind = own
    ahead = gl.zeros(own.shape, gl.float32, own.type.layout)
    total = own
    for level in gl.static_range(4):
        grads = add_halves(
            grads, tiles, operands, buffers, squares, behind, ahead, 1 << level, wide, AMPLE
        )
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)
    return grads


@gluon.jit
def add_joined(grads, tiles, operands, buffers, squares, own, wide: gl.constexpr, AMPLE: gl.constexpr):  # fmt: skip
    """Add the gradients by the pairs across blocks of 16 tokens."""
    for level in gl.static_range(4, LEVELS):
        behind, ahead = sums_of(own, level)
        grads = add_halves(
            grads, tiles, operands, buffers, squares, behind, ahead, 1 << level, wide, AMPLE
        )
    return grads


@gluon.jit
def add_mild_blocks(
    grads, tiles, operands, buffers, squares, behind, ahead, HALF: gl.constexpr, keys: gl.constexpr, wide: gl.constexpr
):  # fmt: skip
    """Add the gradients by the pairs of each block of two halves from sums within halves, where `is_mild`."""
    left, right = operands
    dtype: gl.constexpr = left.dtype
    q, k = read_tiles(tiles, behind.type.layout, True)
    after, inverse = around_middle(behind, ahead, HALF)
    rows = gl.allocate_shared_memory(dtype, left.shape, keys.a_shared)
    left.store((q.to(gl.float32) * after).to(dtype))
    rows.store((k.to(gl.float32) * after).to(dtype))
    right.store((k.to(gl.float32) * inverse).to(dtype))
    i, j = places_of(squares[0])
    same = i // (2 * HALF) == j // (2 * HALF)
    pairs = (same & (i >= j), same & (i > j))
    operands = (left, rows, right)
    return add_pairs(grads, operands, buffers, squares, pairs, (after, inverse), wide)


@gluon.jit
def gradients_of_chunk(
    tensors, place_of_chunk, strides, length, heads, scale, widths, SETTINGS: gl.constexpr
):
    """Store the gradients of a chunk; with TRY its gates may be gentle."""
    K: gl.constexpr = SETTINGS[0]
    C: gl.constexpr = SETTINGS[1]
    BV: gl.constexpr = SETTINGS[2]
    SHARED: gl.constexpr = SETTINGS[3]
    AMPLE: gl.constexpr = SETTINGS[4]
    TRY: gl.constexpr = SETTINGS[5]
    (
        q,
        k,
        g,
        v,
        grad,
        news,
        changes,
        states,
        state_changes,
        decays,
        to_q,
        to_k,
        to_v,
        to_g,
        to_beta,
    ) = tensors
    chunk, chunks, head, batch = place_of_chunk
    dtype: gl.constexpr = k.dtype.element_ty
    BK: gl.constexpr = K if AMPLE else min(K, 64)
    keys: gl.constexpr = gl.portable.mma_layouts(
        C, C, BK, dtype, dtype, operands="shared", b_transposed=True
    )
    wide: gl.constexpr = gl.portable.mma_layouts(C, BK, C, dtype, dtype, operands="shared")
    layout: gl.constexpr = wide.accumulator
    of_column: gl.constexpr = gl.SliceLayout(0, layout)
    of_row: gl.constexpr = gl.SliceLayout(1, layout)
    rows: gl.constexpr = channel_layout(C, BK, gl.num_warps(), gl.target.warp_size())
    first = chunk * C
    place = (batch * heads + head) * chunks + chunk
    of_keys = (head // SHARED).to(gl.int64)
    of_head = head.to(gl.int64)
    q += batch * strides[0][0] + of_keys * strides[0][2]
    k += batch * strides[1][0] + of_keys * strides[1][2]
    v += batch * strides[2][0] + of_head * strides[2][2]
    grad += batch * strides[3][0] + of_head * strides[3][2]
    g += batch * strides[4][0] + of_head * strides[4][2]
    dense = (batch * length * heads + head) * widths[1]
    source = decays + place * decay_size(K, C)
    rate_change = gl.zeros([C], gl.float32, of_row)
    for start in range(0, K, BK):
        width = widths[2] - start
        of_gates = widths[3] - start
        sums = over_values(
            v, grad, news, changes, states, state_changes, to_v, source + K, dense, (strides[2][1], strides[3][1]),
            first, length, heads, place, widths, BK, C, BV, True, start,
        )  # fmt: skip
        from_out, from_change, from_news, to_weights, to_lower, to_rate, of_whole = sums

        q_tile = chunk_tile(q + start, first, length, strides[0][1], width, rows, C, BK)
        k_tile = chunk_tile(k + start, first, length, strides[1][1], width, rows, C, BK)
        if AMPLE:
            q_smem = gl.allocate_shared_memory(dtype, [C, BK], keys.a_shared, q_tile)
            k_smem = gl.allocate_shared_memory(dtype, [C, BK], keys.a_shared, k_tile)
            tiles = (q_smem, k_smem)
        else:
            tiles = (q_tile, k_tile)
        left = gl.allocate_shared_memory(dtype, [C, BK], keys.a_shared)
        right = gl.allocate_shared_memory(dtype, [C, BK], keys.a_shared)

        own = gates_of(g + start, first, length, strides[4][1], of_gates, rows, C, BK)
        to_first, to_end = sums_of(own)
        from_first = gl.convert_layout(gl.exp2(to_first), layout)
        to_last = gl.convert_layout(gl.exp2(to_end), layout)
        i = gl.arange(0, C, of_row)
        whole = gl.load(source + start + gl.arange(0, BK, of_column))
        rate = gl.load(source + K + i)[:, None]
        for_queries = gl.convert_layout(from_out, layout) * from_first * scale
        for_rows = (
            -gl.convert_layout(from_change, layout) * from_first
        )  # of keys as rows of A, without rates
        for_keys = gl.convert_layout(from_news, layout) * to_last  # of keys as columns
        k_wide = read_tiles(tiles, layout, AMPLE)[1].to(gl.float32)
        at_last = gl.sum(k_wide * for_keys, 0) + whole * gl.convert_layout(of_whole, of_column)
        square: gl.constexpr = to_weights.type.layout
        s_rate = gl.load(source + K + gl.arange(0, C, gl.SliceLayout(1, square)))[:, None]
        to_lower = -to_lower
        squares = (to_weights * scale, to_lower, to_lower * s_rate)
        p_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared)
        a_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared)
        rated_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared)
        operands = (left, right)
        buffers = (p_smem, a_smem, rated_smem)
        grads = (for_queries, for_rows, for_keys)
        behind, ahead = sums_of(own, 5)
        if dtype != gl.bfloat16 or not AMPLE:
            grads = add_blocks(grads, tiles, operands, buffers, squares, own, wide, AMPLE)
            grads = add_joined(grads, tiles, operands, buffers, squares, own, wide, AMPLE)
        elif TRY and is_mild(behind, ahead, GENTLE):
            grads = add_mild_blocks(
                grads, tiles, operands, buffers, squares, behind, ahead, 32, keys, wide
            )
        else:
            near_behind, near_ahead = sums_of(own, 3)
            if is_mild(near_behind, near_ahead):
                grads = add_mild_blocks(
                    grads, tiles, operands, buffers, squares, near_behind, near_ahead, 8, keys, wide
                )
            else:
                grads = add_blocks(grads, tiles, operands, buffers, squares, own, wide, AMPLE)
            grads = add_joined(grads, tiles, operands, buffers, squares, own, wide, AMPLE)
        for_queries, for_rows, for_keys = grads

        q_wide, k_wide = read_tiles(tiles, layout, AMPLE)
        q_wide = q_wide.to(gl.float32)
        k_wide = k_wide.to(gl.float32)
        rate_change += gl.sum(k_wide * for_rows, 1)
        if start == 0:
            rate_change += gl.convert_layout(to_rate, of_row)
        if start + BK == K:
            offsets = (batch * length + first + i) * heads + head
            gl.store(to_beta + offsets, rate_change, mask=first + i < length)
        for_rows = for_rows * rate
        to_gates = q_wide * for_queries + k_wide * (for_rows - for_keys)
        to_gates += gl.where((i == C - 1)[:, None], at_last[None, :], 0.0)
        target = (batch * length * heads + head) * widths[0] + start
        row_step = heads * widths[0]
        store_rows(to_q + target, for_queries, first, length, row_step, widths[0] - start)
        store_rows(to_k + target, for_rows + for_keys, first, length, row_step, widths[0] - start)
        to_gates = gl.convert_layout(to_gates, rows)
        _, later = sums_of(to_gates)
        target = (batch * length * heads + head) * widths[3] + start
        store_rows(to_g + target, to_gates + later, first, length, heads * widths[3], of_gates)


@gluon.jit
def channel_gradients(
    q, k, g, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta, strides, length, heads,
    scale, widths, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr, AMPLE: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk; the grid has chunks, heads and batches.

    `strides` are those of `q`, `k`, `v`, `grad` and `g`, `widths` those of the walk's keys and values, of keys and of gates. The others are those of
    `portable_backward.chunk_gradients`; `to_g` is contiguous float32 [batch, length, heads, widths[3]], `to_q` and `to_k` are [batch, length, heads,
    widths[0]]. With AMPLE shared memory queries and keys stay there, else in registers, and 64 channels are taken at a time.
    """
    tensors = (
        q, k, g, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta
    )  # fmt: skip
    batch = gl.program_id(2).to(gl.int64)
    place = (gl.program_id(0), gl.num_programs(0), gl.program_id(1), batch)
    SETTINGS: gl.constexpr = (K, C, BV, SHARED, AMPLE, True)
    gradients_of_chunk(tensors, place, strides, length, heads, scale, widths, SETTINGS)


@gluon.jit
def gradients_flagged(
    q, k, g, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta, flags, strides, length, heads,
    chunks, scale, widths, total, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr,
    AMPLE: gl.constexpr, EACH: gl.constexpr,
):  # fmt: skip
    """Store the gradients of those of EACH chunks whose flag is set; the grid has groups of all `total` chunks of all heads and batches."""
    tensors = (
        q, k, g, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta
    )  # fmt: skip
    SETTINGS: gl.constexpr = (K, C, BV, SHARED, AMPLE, False)
    over_flagged(
        gradients_of_chunk, tensors, flags, strides, length, heads, chunks, scale, widths, total, SETTINGS, EACH
    )  # fmt: skip
