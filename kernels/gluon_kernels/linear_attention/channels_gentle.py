"""The preparation of chunks with gentle gates of channels, most of those that models learn, on Hopper.

All decays of a chunk are anchored in its middle, as `channels.of_gentle_gates` does: two products make A and P. Nothing branches on
the gates, and strides are constants, so that three programs share a processor. A flag says where the gates were too strong; such chunks
are prepared again by `channels.prepare_flagged`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.channels import GENTLE
from gluon_kernels.linear_attention.portable import add, decay_size, store_inverses

__all__ = ["BLOCKS", "block_layout", "exponents_of", "prepare_gentle", "rows_at", "sums_layout"]

BLOCKS = gl.constexpr(8)  # of tokens, one for each warp


@gluon.constexpr_function
def block_layout(C):
    """Return a layout of [C, 64] that gives the rows of a block, and two adjacent channels, to a thread."""
    return gl.BlockedLayout([C // 8, 2], [1, 32], [8, 1], [1, 0])


@gluon.constexpr_function
def sums_layout():
    """Return a layout of [BLOCKS, 64] that gives all blocks of two channels to the threads that have them in `block_layout`."""
    return gl.BlockedLayout([8, 2], [1, 32], [1, 8], [1, 0])


@gluon.jit
def exponents_of(own, C: gl.constexpr):
    """Return the sums of gates from the middle of the chunk to each token, [C, 64], and those to the middle and from there to the last one, [64]."""
    rows: gl.constexpr = own.type.layout
    few: gl.constexpr = sums_layout()
    parts = own.reshape([BLOCKS, C // BLOCKS, own.shape[1]])
    layout: gl.constexpr = parts.type.layout
    near = gl.associative_scan(parts, 1, add)
    totals = gl.convert_layout(gl.sum(parts, 1), few)
    ends = gl.associative_scan(totals, 0, add)
    number = gl.arange(0, BLOCKS, gl.SliceLayout(1, few))[:, None]
    middle = gl.sum(gl.where(number == BLOCKS // 2 - 1, ends, 0.0), 0)
    whole = gl.sum(gl.where(number == BLOCKS - 1, ends, 0.0), 0)
    start = gl.convert_layout(ends - totals - middle[None, :], gl.SliceLayout(1, layout))
    exponent = (near + start[:, None, :]).reshape(own.shape)
    return gl.convert_layout(exponent, rows), middle, whole - middle


@gluon.jit
def rows_at(pointer, left, stride: gl.constexpr, layout: gl.constexpr, C: gl.constexpr, BK: gl.constexpr, EVEN: gl.constexpr):  # fmt: skip
    """Load [C, BK] in native precision, zeros from row `left` on; EVEN, there are none."""
    row = gl.arange(0, C, gl.SliceLayout(1, layout))[:, None]
    offsets = row * stride + gl.arange(0, BK, gl.SliceLayout(0, layout))[None, :]
    if EVEN:
        return gl.load(pointer + offsets)
    else:
        return gl.load(pointer + offsets, mask=row < left, other=0)


@gluon.jit
def store_rows_at(pointer, tile, left, stride: gl.constexpr, EVEN: gl.constexpr):
    """Store [C, BK], rows before `left` only; EVEN, all."""
    layout: gl.constexpr = tile.type.layout
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))[:, None]
    offsets = row * stride + gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))[None, :]
    if EVEN:
        gl.store(pointer + offsets, tile)
    else:
        gl.store(pointer + offsets, tile, mask=row < left)


@gluon.jit
def scale_part(
    pointers, targets, left, operands, scale, strides: gl.constexpr, C: gl.constexpr, BK: gl.constexpr, EVEN: gl.constexpr
):  # fmt: skip
    """Store the walk's operands of BK channels, and those of the products to shared memory; return 1 if gates are strong."""
    q, k, g = pointers
    queries, keys, seen, decays = targets
    q_smem, row_smem, column_smem = operands
    dtype: gl.constexpr = q.dtype.element_ty
    rows: gl.constexpr = block_layout(C)
    few: gl.constexpr = sums_layout()
    own = rows_at(g, left, strides[2], rows, C, BK, EVEN).to(gl.float32) * 1.4426950408889634
    q_tile = rows_at(q, left, strides[0], rows, C, BK, EVEN)
    k_tile = rows_at(k, left, strides[1], rows, C, BK, EVEN)
    exponent, middle, last = exponents_of(own, C)
    channel: gl.constexpr = gl.SliceLayout(0, rows)
    after = gl.exp2(exponent)
    from_first = gl.convert_layout(gl.exp2(middle), channel)[None, :]
    to_last = gl.convert_layout(gl.exp2(last), channel)[None, :]
    q_rows = q_tile.to(gl.float32) * after
    q_smem.store(q_rows.to(dtype))
    store_rows_at(queries, (q_rows * (from_first * scale)).to(dtype), left, strides[3], EVEN)
    k_wide = k_tile.to(gl.float32)
    k_rows = k_wide * after
    row_smem.store(k_rows.to(dtype))
    store_rows_at(seen, (k_rows * from_first).to(dtype), left, strides[3], EVEN)
    k_columns = k_wide * gl.exp2(-exponent)
    column_smem.store(k_columns.to(dtype))
    store_rows_at(keys, (k_columns * to_last).to(dtype), left, strides[3], EVEN)
    column = gl.arange(0, BK, gl.SliceLayout(0, few))
    gl.store(decays + column, gl.exp2(middle + last))
    strong = (middle <= -GENTLE) | (last <= -GENTLE)
    return gl.max(strong.to(gl.int32), 0)


@gluon.jit
def prepare_gentle(
    q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled, flags, strides: gl.constexpr, length, heads, scale,
    K: gl.constexpr, C: gl.constexpr, SHARED: gl.constexpr, EVEN: gl.constexpr,
):  # fmt: skip
    """Store the operands of a chunk's walk as `channels.prepare_channels` does; the grid has chunks, heads and batches.

    K is the width of keys, a multiple of 64; `strides` are those of batches, rows and heads of `q`, `k` and `g`, and of rows of results. `flags`
    [batch, heads, chunks] get 1 where gates are not gentle and results are not right, else 0. EVEN, all chunks are full.
    """
    chunk = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    dtype: gl.constexpr = k.dtype.element_ty
    BK: gl.constexpr = 64
    PARTS: gl.constexpr = K // BK
    products: gl.constexpr = gl.portable.mma_layouts(
        C, C, BK, dtype, dtype, operands="shared", b_transposed=True
    )
    layout: gl.constexpr = products.accumulator
    first = chunk.to(gl.int64) * C
    left = length - chunk * C
    place = ((batch * heads + head) * gl.num_programs(0) + chunk).to(gl.int64)
    of_keys = (head // SHARED).to(gl.int64)
    q += batch * strides[0][0] + first * strides[0][1] + of_keys * strides[0][2]
    k += batch * strides[1][0] + first * strides[1][1] + of_keys * strides[1][2]
    g += batch * strides[2][0] + first * strides[2][1] + head.to(gl.int64) * strides[2][2]
    steps: gl.constexpr = (strides[0][1], strides[1][1], strides[2][1], strides[3])
    target = (batch * length + first) * strides[3] + head * K
    source = decays + place * decay_size(K, C)
    near_row = gl.arange(0, C, gl.SliceLayout(1, layout))
    offset = (batch * length + first + near_row) * heads + head
    rate = gl.load(beta + offset, mask=near_row < left, other=0.0).to(gl.float32)
    q_smem = gl.allocate_shared_memory(dtype, [PARTS, C, BK], products.a_shared)
    row_smem = gl.allocate_shared_memory(dtype, [PARTS, C, BK], products.a_shared)
    column_smem = gl.allocate_shared_memory(dtype, [PARTS, C, BK], products.b_shared)
    strong = gl.to_tensor(0)
    for part in gl.static_range(PARTS):
        start = part * BK
        pointers = (q + start, k + start, g + start)
        targets = (queries + target + start, keys + target + start, seen + target + start, source + start)  # fmt: skip
        operands = (q_smem.index(part), row_smem.index(part), column_smem.index(part))
        if EVEN or left >= C:
            own = scale_part(pointers, targets, left, operands, scale, steps, C, BK, True)
        else:  # the last chunk: with a mask the registers do not last
            own = scale_part(pointers, targets, left, operands, scale, steps, C, BK, False)
        strong = gl.maximum(strong, own)
    gl.portable.fence()
    weight_sum = gl.portable.accumulator(products)
    share_sum = gl.portable.accumulator(products)
    for part in gl.static_range(PARTS):
        columns = column_smem.index(part).permute((1, 0))
        weight_sum = gl.portable.mma(q_smem.index(part), columns, weight_sum, is_async=True)
        share_sum = gl.portable.mma(row_smem.index(part), columns, share_sum, is_async=True)
    gl.store(source + K + near_row, rate)
    gl.store(flags + place, strong)
    weight = gl.portable.read(weight_sum)
    shares = gl.portable.read(share_sum)
    i = near_row[:, None]
    j = gl.arange(0, C, gl.SliceLayout(0, layout))[None, :]
    out_layout: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    out_row = gl.arange(0, C, gl.SliceLayout(1, out_layout))[:, None]
    out_offsets = out_row * C + gl.arange(0, C, gl.SliceLayout(0, out_layout))[None, :]
    matrix = place * (C * C)
    weight = gl.where(i >= j, weight * scale, 0.0).to(dtype)
    gl.portable.store(weights + matrix, out_offsets, gl.convert_layout(weight, out_layout))
    shares = gl.where(i > j, shares * rate[:, None], 0.0)
    store_inverses(shares, rate, inverses, unscaled, matrix, out_offsets)
