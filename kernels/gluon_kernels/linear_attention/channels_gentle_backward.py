"""The gradients of chunks with gentle gates of channels on Hopper.

With all decays anchored in the middle of the chunk, as `channels_gentle` does, let a be the decays of tokens after the middle and 1 / a those before
it, e_m the decay from the first token to the middle and e_l from there to the last one. With the names of `portable_backward`

    dQ = a (dP (K / a) + scale e_m dO S^T),    R = a (dA (K / a) - e_m dY S^T),
    dK = b R + (dP^T (a Q) + (b dA)^T (a K) + e_l N G^T) / a

where R are the gradients of keys as rows of A without rates b. No halves of blocks are needed, and nothing branches on the gates.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.channels_gentle import (
    BLOCKS,
    block_layout,
    exponents_of,
    rows_at,
    sums_layout,
)
from gluon_kernels.linear_attention.portable import add, decay_size
from gluon_kernels.linear_attention.portable_backward import over_values

__all__ = ["gentle_gradients"]


@gluon.jit
def later_sums(x, C: gl.constexpr):
    """Return the sums of rows from each one on, [C, 64] in `block_layout`."""
    rows: gl.constexpr = x.type.layout
    few: gl.constexpr = sums_layout()
    parts = x.reshape([BLOCKS, C // BLOCKS, x.shape[1]])
    layout: gl.constexpr = parts.type.layout
    near = gl.associative_scan(parts, 1, add, reverse=True)
    totals = gl.convert_layout(gl.sum(parts, 1), few)
    later = gl.associative_scan(totals, 0, add, reverse=True) - totals
    later = gl.convert_layout(later, gl.SliceLayout(1, layout))
    return gl.convert_layout((near + later[:, None, :]).reshape(x.shape), rows)


@gluon.jit
def load_part(
    q, k, g, left, buffers, start: gl.constexpr, strides: gl.constexpr, C: gl.constexpr, EVEN: gl.constexpr
):  # fmt: skip
    """Store 64 channels of queries and keys, of those times their decays, and of exponents to shared memory, and exponents to the middle and to the last token."""
    q_smem, k_smem, after_q, after_k, before_k, exponents, ends = buffers
    dtype: gl.constexpr = q.dtype.element_ty
    rows: gl.constexpr = block_layout(C)
    own = rows_at(g + start, left, strides[2], rows, C, 64, EVEN).to(gl.float32)
    q_tile = rows_at(q + start, left, strides[0], rows, C, 64, EVEN)
    k_tile = rows_at(k + start, left, strides[1], rows, C, 64, EVEN)
    q_smem.slice(start, 64, dim=1).store(q_tile)
    k_smem.slice(start, 64, dim=1).store(k_tile)
    exponent, middle, last = exponents_of(own * 1.4426950408889634, C)
    exponents.slice(start, 64, dim=1).store(exponent)
    ends.index(0).slice(start, 64).store(middle)
    ends.index(1).slice(start, 64).store(last)
    after = gl.exp2(exponent)
    after_q.slice(start, 64, dim=1).store((q_tile.to(gl.float32) * after).to(dtype))
    after_k.slice(start, 64, dim=1).store((k_tile.to(gl.float32) * after).to(dtype))
    before_k.slice(start, 64, dim=1).store((k_tile.to(gl.float32) * gl.exp2(-exponent)).to(dtype))


@gluon.jit
def store_part(to_gates, pointer, left, start: gl.constexpr, stride: gl.constexpr, C: gl.constexpr, EVEN: gl.constexpr):  # fmt: skip
    """Store the gradients of 64 channels of gates: sums of those of exponents."""
    rows: gl.constexpr = block_layout(C)
    sums = later_sums(to_gates.slice(start, 64, dim=1).load(rows), C)
    row = gl.arange(0, C, gl.SliceLayout(1, rows))[:, None]
    offsets = row * stride + gl.arange(0, 64, gl.SliceLayout(0, rows))[None, :]
    if EVEN:
        gl.store(pointer + start + offsets, sums)
    else:
        gl.store(pointer + start + offsets, sums, mask=row < left)


@gluon.jit
def gentle_gradients(
    q, k, g, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta, strides: gl.constexpr, length,
    heads, scale, columns, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk as `channels_backward.channel_gradients` does; the grid has chunks, heads and batches.

    K is the width of keys, a multiple of 64, `columns` that of values; `strides` are those of batches, rows and heads of `q`, `k`, `v`, `grad` and `g`, and of
    rows of gradients of keys. EVEN, all chunks are full.
    """
    dtype: gl.constexpr = k.dtype.element_ty
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, C, dtype, dtype, operands="shared")
    layout: gl.constexpr = wide.accumulator
    chunk = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    first = chunk * C
    left = length - first
    place = (batch * heads + head) * gl.num_programs(0) + chunk
    of_keys = (head // SHARED).to(gl.int64)
    of_head = head.to(gl.int64)
    row_of_chunk = first.to(gl.int64)
    q += batch * strides[0][0] + of_keys * strides[0][2] + row_of_chunk * strides[0][1]
    k += batch * strides[1][0] + of_keys * strides[1][2] + row_of_chunk * strides[1][1]
    g += batch * strides[4][0] + of_head * strides[4][2] + row_of_chunk * strides[4][1]
    v += batch * strides[2][0] + of_head * strides[2][2]
    grad += batch * strides[3][0] + of_head * strides[3][2]
    dense = (batch * length * heads + head) * columns
    source = decays + place * decay_size(K, C)
    sums = over_values(
        v, grad, news, changes, states, state_changes, to_v, source + K, dense, (strides[2][1], strides[3][1]),
        first, length, heads, place, (K, columns), K, C, BV, True,
    )  # fmt: skip
    from_out, from_change, from_news, to_weights, to_lower, to_rate, of_whole = sums

    square: gl.constexpr = to_weights.type.layout
    of_square: gl.constexpr = gl.SliceLayout(1, square)
    i = gl.arange(0, C, of_square)
    j = gl.arange(0, C, gl.SliceLayout(0, square))[None, :]
    s_rate = gl.load(source + K + i)[:, None]
    weights = gl.where(i[:, None] >= j, to_weights * scale, 0.0)
    lower = gl.where(i[:, None] > j, -to_lower, 0.0)
    p_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared, weights.to(dtype))
    a_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared, lower.to(dtype))
    rated = (lower * s_rate).to(dtype)
    rated_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared, rated)
    q_smem = gl.allocate_shared_memory(dtype, [C, K], wide.b_shared)
    k_smem = gl.allocate_shared_memory(dtype, [C, K], wide.b_shared)
    after_q = gl.allocate_shared_memory(dtype, [C, K], wide.b_shared)
    after_k = gl.allocate_shared_memory(dtype, [C, K], wide.b_shared)
    before_k = gl.allocate_shared_memory(dtype, [C, K], wide.b_shared)
    spread: gl.constexpr = gl.SwizzledSharedLayout(2, 1, 16, [1, 0])
    exponents = gl.allocate_shared_memory(gl.float32, [C, K], spread)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ends = gl.allocate_shared_memory(gl.float32, [2, K], plain)
    buffers = (q_smem, k_smem, after_q, after_k, before_k, exponents, ends)
    steps: gl.constexpr = (strides[0][1], strides[1][1], strides[4][1])
    for part in gl.static_range(K // 64):
        load_part(q, k, g, left, buffers, part * 64, steps, C, EVEN)
    gl.portable.fence()
    of_column: gl.constexpr = gl.SliceLayout(0, layout)
    to_middle = gl.exp2(ends.index(0).load(of_column))
    from_middle = gl.exp2(ends.index(1).load(of_column))
    # Conversions first: their memory may be that of operands which nothing names any more.
    for_queries = gl.convert_layout(from_out, layout) * (to_middle * scale)[None, :]
    for_rows = gl.convert_layout(from_change, layout) * (-to_middle)[None, :]
    taken = gl.convert_layout(from_news, layout) * from_middle[None, :]
    of_whole = gl.convert_layout(of_whole, of_column)
    before = gl.exp2(-exponents.load(layout))
    at_last = gl.sum(k_smem.load(layout).to(gl.float32) * taken * before, 0)
    at_last += to_middle * from_middle * of_whole
    query_sum = gl.portable.accumulator(wide, for_queries)
    query_sum = gl.portable.mma(p_smem, before_k, query_sum, is_async=True)
    row_sum = gl.portable.accumulator(wide, for_rows)
    row_sum = gl.portable.mma(a_smem, before_k, row_sum, is_async=True)
    key_sum = gl.portable.accumulator(wide, taken)
    key_sum = gl.portable.mma(p_smem.permute((1, 0)), after_q, key_sum, is_async=True)
    key_sum = gl.portable.mma(rated_smem.permute((1, 0)), after_k, key_sum, is_async=True)
    for_queries = gl.portable.read(query_sum)
    for_rows = gl.portable.read(row_sum)
    for_keys = gl.portable.read(key_sum)

    exponent = exponents.load(layout)
    after = gl.exp2(exponent)
    k_wide = k_smem.load(layout).to(gl.float32)
    row: gl.constexpr = gl.SliceLayout(1, layout)
    near = gl.arange(0, C, row)
    exists = near < left
    rate = gl.load(source + K + near)[:, None]
    for_queries = for_queries * after
    for_rows = for_rows * after
    for_keys = for_keys * gl.exp2(-exponent)
    offsets = (batch * length + first + near) * heads + head
    rate_change = gl.convert_layout(to_rate, row) + gl.sum(k_wide * for_rows, 1)
    gl.store(to_beta + offsets, rate_change, mask=exists)
    for_rows = for_rows * rate
    to_gates = q_smem.load(layout).to(gl.float32) * for_queries + k_wide * (for_rows - for_keys)
    to_gates += gl.where((near == C - 1)[:, None], at_last[None, :], 0.0)
    exponents.store(to_gates)
    target = (batch * length * heads + head) * K + row_of_chunk * strides[5]
    near_offsets = near[:, None] * strides[5] + gl.arange(0, K, of_column)[None, :]
    gl.store(to_q + target + near_offsets, for_queries.to(to_q.dtype.element_ty), mask=exists[:, None])  # fmt: skip
    for_keys = (for_rows + for_keys).to(to_k.dtype.element_ty)
    gl.store(to_k + target + near_offsets, for_keys, mask=exists[:, None])
    for part in gl.static_range(K // 64):
        store_part(exponents, to_g + target, left, part * 64, strides[5], C, EVEN)
