"""The gradients of chunks whose decays differ from channel to channel, on any device.

`portable_backward` derives those of the walk's operands; here they become those of queries, keys, gates and rates. With the
names of `channels.py`, each level multiplies dP and dA of its pairs of halves with the same operands as forward: the factors of a
row and of a column are those of the token, by its half. A gate is part of all exponents that end at its token or later:
its gradient is the sum over these of `q dq`, and of `k dk` where k is a row, less `k dk` where k is a column.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.channels import (
    LEVELS,
    across,
    channel_layout,
    doubled,
    gates_of,
    sums_of,
    to_middle,
)
from gluon_kernels.linear_attention.portable import decay_size, product
from gluon_kernels.linear_attention.portable_backward import over_values, store_rows

__all__ = ["channel_gradients"]


@gluon.jit
def channel_gradients(
    q, k, g, v, grad, news, changes, states, state_changes, decays, to_q, to_k, to_v, to_g, to_beta, strides, length, heads,
    scale, widths, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr, AMPLE: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a chunk; the grid has chunks, heads and batches.

    `strides` are those of `q`, `k`, `v`, `grad` and `g`, `widths` those of the walk's keys and values, of keys and of gates. The others are those of
    `portable_backward.chunk_gradients`; `to_g` is contiguous float32 [batch, length, heads, widths[3]], `to_q` and `to_k` are [batch, length, heads,
    widths[0]]. With AMPLE shared memory queries and keys stay there, else in registers.
    """
    dtype: gl.constexpr = k.dtype.element_ty
    keys: gl.constexpr = gl.portable.mma_layouts(
        C, C, K, dtype, dtype, operands="shared", b_transposed=True
    )
    wide: gl.constexpr = gl.portable.mma_layouts(C, K, C, dtype, dtype, operands="shared")
    layout: gl.constexpr = wide.accumulator
    rows: gl.constexpr = channel_layout(C, K, gl.num_warps(), gl.target.warp_size())
    chunk = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    first = chunk * C
    place = (batch * heads + head) * gl.num_programs(0) + chunk
    of_keys = (head // SHARED).to(gl.int64)
    of_head = head.to(gl.int64)
    q += batch * strides[0][0] + of_keys * strides[0][2]
    k += batch * strides[1][0] + of_keys * strides[1][2]
    v += batch * strides[2][0] + of_head * strides[2][2]
    grad += batch * strides[3][0] + of_head * strides[3][2]
    g += batch * strides[4][0] + of_head * strides[4][2]
    dense = (batch * length * heads + head) * widths[1]
    source = decays + place * decay_size(K, C)
    sums = over_values(
        v, grad, news, changes, states, state_changes, to_v, source + K, dense, (strides[2][1], strides[3][1]),
        first, length, heads, place, widths, K, C, BV, True,
    )  # fmt: skip
    from_out, from_change, from_news, to_weights, to_lower, to_rate, of_whole = sums

    near = gl.arange(0, C, gl.SliceLayout(1, rows))
    column = gl.arange(0, K, gl.SliceLayout(0, rows))
    row = (first + near).to(gl.int64)[:, None]
    inside = (row < length) & (column < widths[2])[None, :]
    q_tile = gl.load(q + row * strides[0][1] + column[None, :], mask=inside, other=0)
    k_tile = gl.load(k + row * strides[1][1] + column[None, :], mask=inside, other=0)
    if AMPLE:
        q_smem = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared, q_tile)
        k_smem = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared, k_tile)
    left = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared)
    right = gl.allocate_shared_memory(dtype, [C, K], keys.a_shared)

    behind = gates_of(g, first, length, strides[4][1], widths[3], rows, C, K)
    ahead = gl.zeros([C, K], gl.float32, rows)
    total = behind
    to_first, to_end = sums_of(behind)
    from_first = gl.convert_layout(gl.exp2(to_first), layout)
    to_last = gl.convert_layout(gl.exp2(to_end), layout)
    of_column: gl.constexpr = gl.SliceLayout(0, layout)
    of_row: gl.constexpr = gl.SliceLayout(1, layout)
    i = gl.arange(0, C, of_row)
    whole = gl.load(source + gl.arange(0, K, of_column))
    rate = gl.load(source + K + i)[:, None]
    for_queries = from_out * from_first * scale
    for_rows = -from_change * from_first  # of keys as rows of A, without rates
    for_keys = from_news * to_last  # of keys as columns
    k_wide = gl.convert_layout(k_tile, layout).to(gl.float32)
    at_last = gl.sum(k_wide * for_keys, 0) + whole * gl.convert_layout(of_whole, of_column)
    square: gl.constexpr = to_weights.type.layout
    s_row = gl.arange(0, C, gl.SliceLayout(1, square))[:, None]
    s_column = gl.arange(0, C, gl.SliceLayout(0, square))[None, :]
    s_rate = gl.load(source + K + gl.arange(0, C, gl.SliceLayout(1, square)))[:, None]
    to_weights = to_weights * scale
    to_lower = -to_lower
    diagonal = gl.sum(gl.where(s_row == s_column, to_weights, 0.0), 1)
    diagonal = gl.convert_layout(diagonal, of_row)[:, None]
    for_queries += diagonal * k_wide
    for_keys += diagonal * gl.convert_layout(q_tile, layout).to(gl.float32)
    p_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared)
    a_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared)
    rated_smem = gl.allocate_shared_memory(dtype, [C, C], wide.a_shared)
    for level in gl.static_range(LEVELS):
        factor = to_middle(behind, ahead, 1 << level)
        if AMPLE:
            q_tile = q_smem.load(rows)
            k_tile = k_smem.load(rows)
        left.store((q_tile.to(gl.float32) * factor).to(dtype))
        right.store((k_tile.to(gl.float32) * factor).to(dtype))
        pairs = across(s_row, s_column, 1 << level)
        p_smem.store(gl.where(pairs, to_weights, 0.0).to(dtype))
        a_smem.store(gl.where(pairs, to_lower, 0.0).to(dtype))
        rated_smem.store(gl.where(pairs, to_lower * s_rate, 0.0).to(dtype))
        gl.portable.fence()
        factor = gl.convert_layout(factor, layout)
        for_queries += product(p_smem, right, gl.portable.accumulator(wide)) * factor
        for_rows += product(a_smem, right, gl.portable.accumulator(wide)) * factor
        part = product(p_smem.permute((1, 0)), left, gl.portable.accumulator(wide))
        acc = gl.portable.accumulator(wide, part)
        for_keys += product(rated_smem.permute((1, 0)), right, acc) * factor
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)

    q_wide = gl.convert_layout(q_tile, layout).to(gl.float32)
    k_wide = gl.convert_layout(k_tile, layout).to(gl.float32)
    offsets = (batch * length + first + i) * heads + head
    rate_change = gl.convert_layout(to_rate, of_row) + gl.sum(k_wide * for_rows, 1)
    gl.store(to_beta + offsets, rate_change, mask=first + i < length)
    for_rows = for_rows * rate
    to_gates = q_wide * for_queries + k_wide * (for_rows - for_keys)
    to_gates += gl.where((i == C - 1)[:, None], at_last[None, :], 0.0)
    target = (batch * length * heads + head) * widths[0]
    row_step = heads * widths[0]
    store_rows(to_q + target, for_queries, first, length, row_step, widths[0])
    store_rows(to_k + target, for_rows + for_keys, first, length, row_step, widths[0])
    to_gates = gl.convert_layout(to_gates, rows)
    _, later = sums_of(to_gates)
    target = (batch * length * heads + head) * widths[3]
    store_rows(to_g + target, to_gates + later, first, length, heads * widths[3], widths[3])
