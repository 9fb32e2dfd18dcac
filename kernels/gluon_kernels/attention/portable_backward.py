"""The gradients of attention on any device, with equal bits each time: one kernel for keys and values, one for queries.

Both compute the weights again from the logarithms of the rows' sums. Operands are those of `portable_forward.attend`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.portable_forward import capped, load_rows, sequence_tile, visible

__all__ = ["key_gradients", "query_gradients"]


@gluon.jit
def weights_and_slopes(score, logsums, inside, scale, cap, CAPPED: gl.constexpr):
    """Return the weights of products of queries and keys, and the derivatives of scores by these products."""
    score = score * scale
    slope = gl.full_like(score, 1.0)
    if CAPPED:
        score, slope = capped(score, cap)
    return gl.where(inside, gl.exp2(score - logsums), 0.0), slope


@gluon.jit
def key_gradients(
    q, k, v, grad, logsums, deltas, to_k, to_v, lists, strides, widths, scale, window, cap,
    DEPTH: gl.constexpr, D: gl.constexpr, SHARED: gl.constexpr, BOUNDED: gl.constexpr, AT_END: gl.constexpr,
    CAPPED: gl.constexpr, MOST: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a tile of keys and values; the grid has tiles, heads of keys and batches.

    `lists` have the keys first; `strides` are those of `q`, `k`, `v`, `grad`, `logsums` (and `deltas`, the sums of `out * grad`), `to_k` and
    `to_v`; `scale` is a pair, of scores and times log2(e).
    """
    dtype: gl.constexpr = q.dtype.element_ty
    scores: gl.constexpr = gl.portable.mma_layouts(BLOCK_N, BLOCK_M, DEPTH, dtype, dtype)
    changes: gl.constexpr = gl.portable.mma_layouts(BLOCK_N, BLOCK_M, D, dtype, dtype)
    of_keys: gl.constexpr = gl.portable.mma_layouts(BLOCK_N, DEPTH, BLOCK_M, dtype, dtype)
    of_values: gl.constexpr = gl.portable.mma_layouts(BLOCK_N, D, BLOCK_M, dtype, dtype)
    k_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, DEPTH], dtype)
    v_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, D], dtype)
    q_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, DEPTH], dtype)
    grad_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, D], dtype)
    head = gl.program_id(1)
    batch, start_key, first_key, keys, first, rows = sequence_tile(lists, BLOCK_N, MOST)
    shift = gl.to_tensor(0)
    if AT_END:
        shift = keys - rows
    batch = batch.to(gl.int64)
    of_head = head.to(gl.int64)
    k += batch * strides[1][0] + first_key.to(gl.int64) * strides[1][1] + of_head * strides[1][2]
    v += batch * strides[2][0] + first_key.to(gl.int64) * strides[2][1] + of_head * strides[2][2]
    q += batch * strides[0][0] + first.to(gl.int64) * strides[0][1]
    grad += batch * strides[3][0] + first.to(gl.int64) * strides[3][1]
    statistics = batch * strides[4][0] + first.to(gl.int64) * strides[4][1]

    near = start_key + gl.arange(0, BLOCK_N, gl.SliceLayout(1, k_rows))
    tile = load_rows(k, near, keys, strides[1][1], widths[0], k_rows, DEPTH)
    k_tile = gl.allocate_shared_memory(dtype, [BLOCK_N, DEPTH], scores.a_shared, tile)
    near = start_key + gl.arange(0, BLOCK_N, gl.SliceLayout(1, v_rows))
    tile = load_rows(v, near, keys, strides[2][1], widths[1], v_rows, D)
    v_tile = gl.allocate_shared_memory(dtype, [BLOCK_N, D], changes.a_shared, tile)
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_M, DEPTH], of_keys.b_shared)
    grad_tile = gl.allocate_shared_memory(dtype, [BLOCK_M, D], of_values.b_shared)

    start = gl.to_tensor(0)
    end = rows
    if BOUNDED[1]:
        start = gl.maximum(start_key - shift - window[1], 0) // BLOCK_M
    if BOUNDED[0]:
        end = gl.minimum(rows, start_key + BLOCK_N - shift + window[0])
    count = gl.maximum(gl.cdiv(end, BLOCK_M) - start, 0)
    if MOST > 0:
        count = gl.where(start_key < keys, count, 0)
    key = start_key + gl.arange(0, BLOCK_N, gl.SliceLayout(1, scores.accumulator))[:, None]
    near_row = gl.arange(0, BLOCK_M, gl.SliceLayout(0, scores.accumulator))
    for_keys = gl.zeros([BLOCK_N, DEPTH], gl.float32, of_keys.accumulator)
    for_values = gl.zeros([BLOCK_N, D], gl.float32, of_values.accumulator)
    for step in range(count * SHARED):
        query_head = (head * SHARED + step // gl.maximum(count, 1)).to(gl.int64)
        row = (start + step % gl.maximum(count, 1)) * BLOCK_M
        q_row = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, q_rows))
        q_next = load_rows(
            q + query_head * strides[0][2], q_row, rows, strides[0][1], widths[0], q_rows, DEPTH
        )
        grad_row = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, grad_rows))
        grad_next = load_rows(
            grad + query_head * strides[3][2],
            grad_row,
            rows,
            strides[3][1],
            widths[1],
            grad_rows,
            D,
        )
        q_tile.store(q_next)
        grad_tile.store(grad_next)
        rows_near = row + near_row
        offsets = statistics + query_head * strides[4][2] + rows_near.to(gl.int64) * strides[4][1]
        logsum = gl.load(logsums + offsets, mask=rows_near < rows, other=float("inf"))[None, :]
        delta = gl.load(deltas + offsets, mask=rows_near < rows, other=0.0)[None, :]
        zero = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, scores.accumulator)
        score = gl.portable.mma(k_tile.load(scores.a), q_tile.permute((1, 0)).load(scores.b), zero)
        inside = visible(rows_near[None, :], key, (rows, keys, shift), window, BOUNDED)
        p, slope = weights_and_slopes(score, logsum, inside, scale[1], cap, CAPPED)
        for_values = gl.portable.mma(
            gl.convert_layout(p.to(dtype), of_values.a), grad_tile.load(of_values.b), for_values
        )
        zero = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, changes.accumulator)
        change = gl.portable.mma(
            v_tile.load(changes.a), grad_tile.permute((1, 0)).load(changes.b), zero
        )
        change = p * slope * (gl.convert_layout(change, scores.accumulator) - delta)
        for_keys = gl.portable.mma(
            gl.convert_layout(change.to(dtype), of_keys.a), q_tile.load(of_keys.b), for_keys
        )
    place = batch * strides[5][0] + first_key.to(gl.int64) * strides[5][1] + of_head * strides[5][2]
    store_tile(to_k + place, for_keys * scale[0], start_key, keys, strides[5][1], widths[0])
    place = batch * strides[6][0] + first_key.to(gl.int64) * strides[6][1] + of_head * strides[6][2]
    store_tile(to_v + place, for_values, start_key, keys, strides[6][1], widths[1])


@gluon.jit
def store_tile(pointer, tile, first, rows, stride, width):
    """Store the rows and columns of a tile that a head has."""
    layout: gl.constexpr = tile.type.layout
    row = first + gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))
    offsets = row.to(gl.int64)[:, None] * stride + column[None, :]
    inside = (row < rows)[:, None] & (column < width)[None, :]
    gl.store(pointer + offsets, tile.to(pointer.dtype.element_ty), mask=inside)


@gluon.jit
def query_gradients(
    q, k, v, grad, logsums, deltas, to_q, lists, strides, widths, scale, window, cap,
    DEPTH: gl.constexpr, D: gl.constexpr, SHARED: gl.constexpr, BOUNDED: gl.constexpr, AT_END: gl.constexpr,
    CAPPED: gl.constexpr, MOST: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Store the gradients of a tile of queries; the grid has tiles, heads of queries and batches.

    `lists` have the queries first; `strides` are those of `q`, `k`, `v`, `grad`, `logsums` and `to_q`.
    """
    dtype: gl.constexpr = q.dtype.element_ty
    scores: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, DEPTH, dtype, dtype)
    changes: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, D, dtype, dtype)
    by_keys: gl.constexpr = gl.portable.mma_layouts(BLOCK_N, BLOCK_M, D, dtype, dtype)
    of_queries: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, DEPTH, BLOCK_N, dtype, dtype)
    k_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, DEPTH], dtype)
    v_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, D], dtype)
    q_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, DEPTH], dtype)
    grad_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, D], dtype)
    head = gl.program_id(1)
    batch, row, first, rows, first_key, keys = sequence_tile(lists, BLOCK_M, MOST)
    shift = gl.to_tensor(0)
    if AT_END:
        shift = keys - rows
    batch = batch.to(gl.int64)
    of_keys = (head // SHARED).to(gl.int64)
    of_head = head.to(gl.int64)
    k += batch * strides[1][0] + first_key.to(gl.int64) * strides[1][1] + of_keys * strides[1][2]
    v += batch * strides[2][0] + first_key.to(gl.int64) * strides[2][1] + of_keys * strides[2][2]
    q += batch * strides[0][0] + first.to(gl.int64) * strides[0][1] + of_head * strides[0][2]
    grad += batch * strides[3][0] + first.to(gl.int64) * strides[3][1] + of_head * strides[3][2]
    statistics = (
        batch * strides[4][0] + first.to(gl.int64) * strides[4][1] + of_head * strides[4][2]
    )

    near = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, q_rows))
    tile = load_rows(q, near, rows, strides[0][1], widths[0], q_rows, DEPTH)
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_M, DEPTH], scores.a_shared, tile)
    near = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, grad_rows))
    tile = load_rows(grad, near, rows, strides[3][1], widths[1], grad_rows, D)
    grad_tile = gl.allocate_shared_memory(dtype, [BLOCK_M, D], changes.a_shared, tile)
    k_tile = gl.allocate_shared_memory(dtype, [BLOCK_N, DEPTH], of_queries.b_shared)
    v_tile = gl.allocate_shared_memory(dtype, [BLOCK_N, D], by_keys.a_shared)

    start = gl.to_tensor(0)
    end = keys
    if BOUNDED[0]:
        start = gl.maximum(row + shift - window[0], 0) // BLOCK_N
    if BOUNDED[1]:
        end = gl.minimum(keys, row + BLOCK_M + shift + window[1])
    count = gl.maximum(gl.cdiv(end, BLOCK_N) - start, 0)
    if MOST > 0:
        count = gl.where(row < rows, count, 0)
    near = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, scores.accumulator))
    offsets = statistics + near.to(gl.int64) * strides[4][1]
    logsum = gl.load(logsums + offsets, mask=near < rows, other=float("inf"))[:, None]
    delta = gl.load(deltas + offsets, mask=near < rows, other=0.0)[:, None]
    near_key = gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores.accumulator))[None, :]
    for_queries = gl.zeros([BLOCK_M, DEPTH], gl.float32, of_queries.accumulator)
    for step in range(count):
        start_key = (start + step) * BLOCK_N
        key = start_key + gl.arange(0, BLOCK_N, gl.SliceLayout(1, k_rows))
        k_next = load_rows(k, key, keys, strides[1][1], widths[0], k_rows, DEPTH)
        key = start_key + gl.arange(0, BLOCK_N, gl.SliceLayout(1, v_rows))
        v_next = load_rows(v, key, keys, strides[2][1], widths[1], v_rows, D)
        k_tile.store(k_next)
        v_tile.store(v_next)
        zero = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, scores.accumulator)
        score = gl.portable.mma(q_tile.load(scores.a), k_tile.permute((1, 0)).load(scores.b), zero)
        inside = visible(near[:, None], start_key + near_key, (rows, keys, shift), window, BOUNDED)
        p, slope = weights_and_slopes(score, logsum, inside, scale[1], cap, CAPPED)
        zero = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, changes.accumulator)
        change = gl.portable.mma(
            grad_tile.load(changes.a), v_tile.permute((1, 0)).load(changes.b), zero
        )
        change = p * slope * (gl.convert_layout(change, scores.accumulator) - delta)
        for_queries = gl.portable.mma(
            gl.convert_layout(change.to(dtype), of_queries.a),
            k_tile.load(of_queries.b),
            for_queries,
        )
    place = batch * strides[5][0] + first.to(gl.int64) * strides[5][1] + of_head * strides[5][2]
    store_tile(to_q + place, for_queries * scale[0], row, rows, strides[5][1], widths[0])
