"""Linear attention with decay, and with the delta rule, in chunks of 64 tokens, on any device.

A head's state S [K, V] decays and takes in one key and value at each token. The gated delta rule (Yang et al., arXiv:2412.06464) is

    S_t = a_t (S_{t-1} - b_t k_t (k_t^T S_{t-1})) + b_t k_t v_t^T,    o_t = scale * q_t^T S_t

and without the delta rule, S_t = a_t S_{t-1} + k_t v_t^T, it is Mamba-2's state space duality (Dao and Gu, arXiv:2405.21060).
Within a chunk, with e the products of the decays from its first token on, D_ij = e_i / e_j and the chunk's first state S,

    A = tril(b_i D_ij k_i^T k_j, -1),  T = (I + A)^-1 diag(b),  P = scale * tril(D_ij q_i^T k_j)
    N = T (V - e K S),    O = scale e Q S + P N,    S' = e_C S + K^T (e_C / e) N

N = V without the delta rule. `prepare` computes T and P of all chunks at a time; `recur` walks over the chunks with S transposed in
registers.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import allow_successor

__all__ = ["prepare", "recur"]


@gluon.jit
def add(a, b):
    """Return the sum, for scans."""
    return a + b


@gluon.constexpr_function
def column_layout(warps, lanes):
    """Return a layout of [4, 4, 16], four rows of blocks, in which a thread has a column: each of four warps a block, where there are as many."""
    blocks = max(min(lanes // 16, 4 // warps), 1)
    return gl.BlockedLayout(
        [1, 4, 1], [blocks, 1, lanes // blocks], [min(warps, 4 // blocks), 1, max(warps * blocks // 4, 1)], [2, 1, 0]
    )  # fmt: skip


@gluon.constexpr_function
def factor_layout(warps, lanes):
    """Return the layout of four rows of each block's column, [1, 4, 4], that `column_layout` broadcasts."""
    blocks = max(min(lanes // 16, 4 // warps), 1)
    whole = gl.BlockedLayout(
        [1, 1, 4, 1], [1, blocks, 1, lanes // blocks], [1, min(warps, 4 // blocks), 1, max(warps * blocks // 4, 1)],
        [3, 2, 1, 0],
    )  # fmt: skip
    return gl.SliceLayout(3, whole)


@gluon.constexpr_function
def tokens_layout(C, warps, lanes):
    """Return a layout of [C] of which each warp has all."""
    return gl.BlockedLayout([max(C // lanes, 1)], [lanes], [warps], [0])


@gluon.jit
def product(a, b, acc, PRECISION: gl.constexpr = None):
    """Return acc plus the product of operands in shared memory."""
    return gl.portable.read(gl.portable.mma(a, b, acc, input_precision=PRECISION))


@gluon.jit
def tile_rows(
    pointer, first, rows, stride, width, layout: gl.constexpr, C: gl.constexpr, D: gl.constexpr
):
    """Load rows from `first` on, zeros past the last row and column."""
    row = first + gl.arange(0, C, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    offsets = row.to(gl.int64)[:, None] * stride + column[None, :]
    return gl.portable.load(pointer, offsets, (row < rows)[:, None] & (column < width)[None, :])


@gluon.jit
def columns_of(
    pointer, first, rows, stride, width, layout: gl.constexpr, C: gl.constexpr, D: gl.constexpr
):
    """Load `tile_rows` transposed, [D, C]."""
    row = first + gl.arange(0, C, gl.SliceLayout(0, layout))
    column = gl.arange(0, D, gl.SliceLayout(1, layout))
    offsets = row.to(gl.int64)[None, :] * stride + column[:, None]
    return gl.load(pointer + offsets, mask=(row < rows)[None, :] & (column < width)[:, None], other=0)  # fmt: skip


@gluon.constexpr_function
def decay_size(K, C):
    """Return how many float32 a chunk has for the decays of its channels and its rates, a power of two."""
    return 1 << (K + C - 1).bit_length()


@gluon.jit
def identity_rows(group: gl.constexpr):
    """Return four rows of four identities of 16 x 16."""
    columns: gl.constexpr = column_layout(gl.num_warps(), gl.target.warp_size())
    i = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, columns)))[None, :, None]
    j = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(1, columns)))[None, None, :]
    ones = gl.full([4, 4, 16], 1.0, gl.float32, columns)
    return gl.where(i + 4 * group == j, ones, 0.0)


@gluon.jit
def eliminate(x, solved, steps, step: gl.constexpr, group: gl.constexpr):
    """Subtract the solved row from four rows, by the factors of a step."""
    layout: gl.constexpr = x.type.layout
    factors = steps.slice(step, 1, dim=0).slice(4 * group, 4, dim=2)
    factors = factors.load(factor_layout(gl.num_warps(), gl.target.warp_size())).reshape([4, 4])
    factors = gl.convert_layout(factors, gl.SliceLayout(2, layout))
    return x - factors[:, :, None] * solved[:, None, :]


@gluon.jit
def solve(x, below, steps, group: gl.constexpr):
    """Solve four rows, and subtract them from those below, a tuple of groups of four."""
    i = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, x.type.layout)))[None, :, None]
    for row in gl.static_range(4):
        # A register: sums with -0.0 are no instructions.
        solved = gl.sum(gl.where(i == row, x, -0.0), 1)
        if row < 3:
            x = eliminate(x, solved, steps, 4 * group + row, group)
        for place in gl.static_range(len(below)):
            rows = eliminate(below[place], solved, steps, 4 * group + row, group + 1 + place)
            below = below[:place] + (rows,) + below[place + 1 :]
    return x, below


@gluon.jit
def inverse_blocks(lower):
    """Return (I + L)^-1 of the 16 x 16 blocks L on the diagonal of a strictly lower triangle, [4, 16, 16] in shared memory.

    A thread substitutes a column in its registers, and reads the factors of each step from shared memory, those of the rows below only.
    """
    parts = lower.reshape([4, 16, 4, 16])
    diagonal = gl.sum(gl.where(on_diagonal(parts.type.layout), parts, 0.0), 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    steps = gl.allocate_shared_memory(gl.float32, [16, 4, 16], plain)
    steps.permute((1, 2, 0)).store(diagonal)
    blocks = gl.allocate_shared_memory(gl.float32, [4, 16, 16], plain)
    rows = identity_rows(0)
    below = (identity_rows(1), identity_rows(2), identity_rows(3))
    for group in gl.static_range(4):
        rows, below = solve(rows, below, steps, group)
        blocks.slice(4 * group, 4, dim=1).store(rows)
        if group < 3:
            rows = below[0]
            below = below[1:]
    return blocks


@gluon.jit
def on_diagonal(layout: gl.constexpr):
    """Return True for the blocks on the diagonal of [4, 16, 4, 16], as [4, 1, 4, 1]."""
    inner: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, layout)))
    outer: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, layout)))
    first = gl.arange(0, 4, inner)[:, None, None, None]
    return first == gl.arange(0, 4, outer)[None, None, :, None]


@gluon.jit
def block_of(matrix, row: gl.constexpr, column: gl.constexpr, SIZE: gl.constexpr):
    """Return a view of a block, counted in blocks."""
    return matrix.slice(row * SIZE, SIZE, dim=0).slice(column * SIZE, SIZE, dim=1)


@gluon.jit
def join_operands(matrix, first: gl.constexpr, SIZE: gl.constexpr, products: gl.constexpr):
    """Return C, B and A of blocks [[A, 0], [B, C]], as operands of C B A."""
    c = block_of(matrix, first + 1, first + 1, SIZE).load(products.a)
    b = block_of(matrix, first + 1, first, SIZE).load(products.b)
    return c, b, block_of(matrix, first, first, SIZE).load(products.b)


@gluon.jit
def join_blocks(matrix, SIZE: gl.constexpr):
    """Replace the block B of each [[A, 0], [B, C]] on the diagonal, whose A and C are inverses, by -C B A: the inverse of the whole."""
    products: gl.constexpr = gl.portable.mma_layouts(
        SIZE, SIZE, SIZE, gl.float32, gl.float32, input_precision="tf32"
    )
    zeros = gl.zeros([SIZE, SIZE], gl.float32, products.accumulator)
    PAIRS: gl.constexpr = matrix.shape[0] // (2 * SIZE)
    c, b, a = join_operands(matrix, 0, SIZE, products)
    part = gl.portable.mma(c, b, zeros, input_precision="tf32")
    if PAIRS == 2:
        c, b, second_a = join_operands(matrix, 2, SIZE, products)
        second = gl.portable.mma(c, b, zeros, input_precision="tf32")
        second = gl.convert_layout(second, products.a)
    part = gl.convert_layout(part, products.a)
    block_of(matrix, 1, 0, SIZE).store(
        0.0 - gl.portable.mma(part, a, zeros, input_precision="tf32")
    )
    if PAIRS == 2:
        second = gl.portable.mma(second, second_a, zeros, input_precision="tf32")
        block_of(matrix, 3, 2, SIZE).store(0.0 - second)


@gluon.jit
def unit_lower_inverse(lower):
    """Return (I + lower)^-1 of a strictly lower triangle of 64 x 64, float32, in shared memory.

    Four blocks on the diagonal are inverted by substitution, and joined in pairs. Products of 16 and 32 rows have operands in registers.
    """
    blocks = inverse_blocks(lower)
    parts = lower.reshape([4, 16, 4, 16])
    layout: gl.constexpr = parts.type.layout
    inverses = blocks.load(gl.SliceLayout(2, layout))[:, :, None, :]
    parts = gl.where(on_diagonal(layout), inverses, parts).reshape([64, 64])
    spread: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    matrix = gl.allocate_shared_memory(gl.float32, [64, 64], spread, parts)
    join_blocks(matrix, 16)
    join_blocks(matrix, 32)
    return matrix


@gluon.jit
def store_inverses(shares, rate, inverses, unscaled, matrix, offsets):
    """Store T, and T without b if `unscaled` is not None, of a chunk with the strict lower triangle A."""
    dtype: gl.constexpr = inverses.dtype.element_ty
    layout: gl.constexpr = offsets.type.layout
    inverse = unit_lower_inverse(shares).load(layout)
    if gl.target.has("nvidia.tma"):  # as have all targets with dependent launches
        allow_successor()
    if unscaled is not None:
        gl.portable.store(unscaled + matrix, offsets, inverse.to(dtype))
    column_rate = gl.convert_layout(rate, gl.SliceLayout(0, layout))[None, :]
    gl.portable.store(inverses + matrix, offsets, (inverse * column_rate).to(dtype))


@gluon.jit
def prepare(
    q, k, g, beta, decays, weights, inverses, unscaled, strides, length, heads, scale, K: gl.constexpr, C: gl.constexpr,
    SHARED: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Store decays, P and T of a chunk; the grid has chunks, heads and batches.

    `q` and `k` are [batch, length, heads / SHARED, WIDTH], covered by K columns; `strides` are theirs of batches, rows and heads. `g`, the
    natural logarithms of decays, and `beta` are contiguous [batch, length, heads]. Results are `decays` [batch, heads, chunks, 4, C],
    float32: the logarithms (base 2) of e, then e, e_C / e and b; and `weights` (P), `inverses` (T) and, if not None, `unscaled`
    (T without b), [batch, heads, chunks, C, C]. Without `beta` there is no T; without `q` no P.
    """
    chunk = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    dtype: gl.constexpr = k.dtype.element_ty
    products: gl.constexpr = gl.portable.mma_layouts(
        C, C, K, dtype, dtype, operands="shared", b_transposed=True
    )
    rows: gl.constexpr = gl.portable.blocked_layout([C, K], dtype)
    layout: gl.constexpr = products.accumulator
    first = chunk * C
    place = ((batch * heads + head) * gl.num_programs(0) + chunk).to(gl.int64)

    # All loads first: each waits for memory as long as the rest of the program takes.
    near_row = gl.arange(0, C, gl.SliceLayout(1, layout))
    near_column = gl.arange(0, C, gl.SliceLayout(0, layout))
    of_keys = (head // SHARED).to(gl.int64)
    flat: gl.constexpr = tokens_layout(C, gl.num_warps(), gl.target.warp_size())
    row = first + gl.arange(0, C, flat)
    decay = gl.load(g + (batch * length + row) * heads + head, mask=row < length, other=0.0)
    k += batch * strides[1][0] + of_keys * strides[1][2]
    k_tile = tile_rows(k, first, length, strides[1][1], WIDTH, rows, C, K)
    if q is not None:
        q += batch * strides[0][0] + of_keys * strides[0][2]
        q_tile = tile_rows(q, first, length, strides[0][1], WIDTH, rows, C, K)
    if beta is not None:
        offset = (batch * length + first + near_row) * heads + head
        rate = gl.load(beta + offset, mask=first + near_row < length, other=0.0).to(gl.float32)
    k_smem = gl.allocate_shared_memory(dtype, [C, K], products.b_shared, k_tile)
    k_columns = k_smem.permute((1, 0))
    decay = gl.associative_scan(decay.to(gl.float32) * 1.4426950408889634, 0, add)
    near = gl.arange(0, C, flat)
    whole = gl.sum(gl.where(near == C - 1, decay, 0.0), 0)
    gl.store(decays + place * (4 * C) + near, decay)
    gl.store(decays + place * (4 * C) + C + near, gl.exp2(decay))
    gl.store(decays + place * (4 * C) + 2 * C + near, gl.exp2(whole - decay))
    decay = gl.convert_layout(decay, gl.SliceLayout(1, layout))
    from_first = gl.convert_layout(decay, gl.SliceLayout(0, layout))
    away = decay[:, None] - from_first[None, :]
    lower = near_row[:, None] >= near_column[None, :]
    ratio = gl.exp2(gl.where(lower, away, -float("inf")))

    matrix = place * (C * C)
    out_layout: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    out_row = gl.arange(0, C, gl.SliceLayout(1, out_layout))[:, None]
    out_offsets = out_row * C + gl.arange(0, C, gl.SliceLayout(0, out_layout))[None, :]
    if q is not None:
        q_smem = gl.allocate_shared_memory(dtype, [C, K], products.a_shared, q_tile)
        gl.portable.fence()
        weight = product(q_smem, k_columns, gl.portable.accumulator(products)) * ratio * scale
        weight = gl.convert_layout(weight.to(dtype), out_layout)
        gl.portable.store(weights + matrix, out_offsets, weight)
    if beta is not None:
        gl.portable.fence()
        shares = product(k_smem, k_columns, gl.portable.accumulator(products))
        gl.store(decays + place * (4 * C) + 3 * C + near_row, rate)
        below = near_row[:, None] > near_column[None, :]
        shares = gl.where(below, shares * ratio * rate[:, None], 0.0)
        store_inverses(shares, rate, inverses, unscaled, matrix, out_offsets)


@gluon.jit
def fetch(buffers, pointers, chunk, place, length, strides, widths, SETTINGS: gl.constexpr):
    """Start copying the tiles of a chunk to its slot."""
    q, k, v, weights, inverses, seen = pointers
    C: gl.constexpr = SETTINGS[0]
    dtype: gl.constexpr = buffers[1].dtype
    K: gl.constexpr = buffers[1].shape[2]
    BV: gl.constexpr = buffers[2].shape[2]
    rows: gl.constexpr = gl.portable.blocked_layout([C, K], dtype)
    columns: gl.constexpr = gl.portable.blocked_layout([C, BV], dtype)
    square: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    slot = chunk % SETTINGS[3]
    row = chunk * C + gl.arange(0, C, gl.SliceLayout(1, rows))
    column = gl.arange(0, K, gl.SliceLayout(0, rows))
    inside = (row < length)[:, None] & (column < widths[0])[None, :]
    offsets = row.to(gl.int64)[:, None] * strides[1][1] + column[None, :]
    gl.portable.async_copy(buffers[1].index(slot), k, offsets, inside)
    if SETTINGS[4] and SETTINGS[3] > 1:
        gl.portable.async_copy(buffers[5].index(slot), seen, offsets, inside)
    if SETTINGS[2]:
        offsets = row.to(gl.int64)[:, None] * strides[0][1] + column[None, :]
        gl.portable.async_copy(buffers[0].index(slot), q, offsets, inside)
    row = chunk * C + gl.arange(0, C, gl.SliceLayout(1, columns))
    column = gl.arange(0, BV, gl.SliceLayout(0, columns))
    inside = (row < length)[:, None] & (column < widths[1])[None, :]
    offsets = row.to(gl.int64)[:, None] * strides[2][1] + column[None, :]
    gl.portable.async_copy(buffers[2].index(slot), v, offsets, inside)
    row = gl.arange(0, C, gl.SliceLayout(1, square))[:, None]
    offsets = row * C + gl.arange(0, C, gl.SliceLayout(0, square))[None, :]
    matrix = (place + chunk) * (C * C)
    if SETTINGS[2]:
        gl.portable.async_copy(buffers[3].index(slot), weights + matrix, offsets)
    if SETTINGS[1]:
        gl.portable.async_copy(buffers[4].index(slot), inverses + matrix, offsets)
    gl.portable.commit()


@gluon.jit
def recur(
    q, k, v, decays, weights, inverses, seen, out, news, states, initial, final, strides, length, heads, chunks,
    per_segment, scale, widths, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr, SHARED: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Walk over the chunks of a segment with the state of some columns; the grid has column tiles, heads x segments, batches.

    Operands are those of `prepare`; `v` and `out` are [batch, length, heads, V], `strides` those of `q`, `k`, `v` and `out`, `widths` K and V
    without padding. If `seen` is not None, `q`, `k`, `seen` and `decays` are the results of `prepare_channels`. `initial` and `final`, float32 [batch, heads, segments, V, K], are the states of segments, transposed, or None; `news`
    [batch, length, heads, V] (N) and `states` [batch, heads, chunks, V, K] (before each chunk) are kept for gradients, or None. Column tiles past
    those of V, if the grid has them, begin with rows of the identity and take in no values: their final states are columns of
    the map that the segment applies to its first state.
    """
    dtype: gl.constexpr = k.dtype.element_ty
    DELTA: gl.constexpr = inverses is not None
    OUTPUT: gl.constexpr = out is not None
    CHANNELS: gl.constexpr = seen is not None
    SETTINGS: gl.constexpr = (C, DELTA, OUTPUT, STAGES, CHANNELS)
    by_state: gl.constexpr = gl.portable.mma_layouts(BV, C, K, dtype, dtype)
    by_chunk: gl.constexpr = gl.portable.mma_layouts(BV, C, C, dtype, dtype)
    to_state: gl.constexpr = gl.portable.mma_layouts(BV, K, C, dtype, dtype)
    of_values: gl.constexpr = gl.portable.mma_layouts(BV, BV, C, dtype, dtype)
    layout: gl.constexpr = by_chunk.accumulator
    state_layout: gl.constexpr = to_state.accumulator
    column: gl.constexpr = gl.SliceLayout(0, layout)
    tile = gl.program_id(0)
    head = gl.program_id(1) % heads
    segment = gl.program_id(1) // heads
    segments = gl.num_programs(1) // heads
    batch = gl.program_id(2)
    of_head = (batch * heads + head).to(gl.int64)
    place = of_head * chunks
    of_keys = (head // SHARED).to(gl.int64)
    value_tiles = gl.cdiv(widths[1], BV)
    mapped = tile >= value_tiles  # columns of the map
    first_column = tile * BV
    left = gl.where(mapped, 0, widths[1] - first_column)
    k += batch.to(gl.int64) * strides[1][0] + of_keys * strides[1][2]
    v += batch.to(gl.int64) * strides[2][0] + head.to(gl.int64) * strides[2][2] + first_column
    if OUTPUT:
        q += batch.to(gl.int64) * strides[0][0] + of_keys * strides[0][2]
        out += batch.to(gl.int64) * strides[3][0] + head.to(gl.int64) * strides[3][2] + first_column
    if CHANNELS:
        seen += batch.to(gl.int64) * strides[1][0] + of_keys * strides[1][2]
    k_buffers = gl.allocate_shared_memory(dtype, [STAGES, C, K], to_state.b_shared)
    v_buffers = gl.allocate_shared_memory(dtype, [STAGES, C, BV], of_values.b_shared)
    q_buffers = k_buffers
    weight_buffers = k_buffers
    inverse_buffers = k_buffers
    if OUTPUT:
        q_buffers = gl.allocate_shared_memory(dtype, [STAGES, C, K], to_state.b_shared)
        weight_buffers = gl.allocate_shared_memory(dtype, [STAGES, C, C], by_chunk.b_shared)
    if DELTA:
        inverse_buffers = gl.allocate_shared_memory(dtype, [STAGES, C, C], by_chunk.b_shared)
    seen_buffers = k_buffers
    if CHANNELS and STAGES > 1:  # else there is no room
        seen_buffers = gl.allocate_shared_memory(dtype, [STAGES, C, K], to_state.b_shared)
    buffers = (q_buffers, k_buffers, v_buffers, weight_buffers, inverse_buffers, seen_buffers)
    pointers = (q, k, v, weights, inverses, seen)
    sizes = (widths[0], left)
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
    if mapped:
        unit = (tile - value_tiles) * BV + state_row
        state = gl.where(unit[:, None] == state_column[None, :], 1.0, 0.0)
    if STAGES == 2 and first < last:
        fetch(buffers, pointers, first, place, length, strides, sizes, SETTINGS)
    near = gl.arange(0, C, column)
    value_row = gl.arange(0, BV, gl.SliceLayout(1, layout))
    for chunk in range(first, last):
        slot = chunk % STAGES
        row = chunk * C + near
        if STAGES == 1:
            fetch(buffers, pointers, chunk, place, length, strides, sizes, SETTINGS)
        if CHANNELS:
            whole = gl.load(decays + (place + chunk) * decay_size(K, C) + state_column)[None, :]
        else:
            from_first = gl.load(decays + (place + chunk) * (4 * C) + C + near)
            to_last = gl.load(decays + (place + chunk) * (4 * C) + 2 * C + near)
            whole = gl.load(decays + (place + chunk) * (4 * C) + 2 * C - 1)
        gl.portable.wait(0)
        if STAGES == 2 and chunk + 1 < last:
            fetch(buffers, pointers, chunk + 1, place, length, strides, sizes, SETTINGS)
        k_tile = buffers[1].index(slot)
        zero = gl.zeros([BV, C], gl.float32, by_state.accumulator)
        operand = gl.convert_layout(state.to(dtype), by_state.a)
        if states is not None:
            target = states + (place + chunk) * (widths[0] * widths[1])
            gl.store(target + state_offsets, state.to(dtype), mask=in_state)
        value = buffers[2].index(slot).permute((1, 0)).load(layout).to(gl.float32)
        if DELTA:
            if not CHANNELS:
                seen_tile = k_tile.permute((1, 0)).load(by_state.b)
            elif STAGES > 1:
                seen_tile = buffers[5].index(slot).permute((1, 0)).load(by_state.b)
            else:
                seen_tile = columns_of(
                    seen, chunk * C, length, strides[1][1], widths[0], by_state.b, C, K
                )
            known = gl.convert_layout(gl.portable.mma(operand, seen_tile, zero), layout)
            if not CHANNELS:
                known = from_first[None, :] * known
            value = value - known
            inverse = buffers[4].index(slot).permute((1, 0)).load(by_chunk.b)
            zero_value = gl.zeros([BV, C], gl.float32, layout)
            value = gl.portable.mma(
                gl.convert_layout(value.to(dtype), by_chunk.a), inverse, zero_value
            )
        offsets = row.to(gl.int64)[None, :]
        inside = (row < length)[None, :] & (value_row < left)[:, None]
        if news is not None:
            target = news + (batch.to(gl.int64) * length * heads + head) * widths[1] + first_column
            gl.store(
                target + offsets * (heads * widths[1]) + value_row[:, None],
                value.to(dtype),
                mask=inside,
            )
        if OUTPUT:
            q_tile = buffers[0].index(slot).permute((1, 0)).load(by_state.b)
            result = gl.convert_layout(gl.portable.mma(operand, q_tile, zero), layout)
            if not CHANNELS:
                result = result * (from_first * scale)[None, :]
            weight = buffers[3].index(slot).permute((1, 0)).load(by_chunk.b)
            result = gl.portable.mma(gl.convert_layout(value.to(dtype), by_chunk.a), weight, result)
            gl.store(
                out + offsets * strides[3][1] + value_row[:, None], result.to(dtype), mask=inside
            )
        if not CHANNELS:
            value = value * to_last[None, :]
        operand = gl.convert_layout(value.to(dtype), to_state.a)
        state = gl.portable.mma(operand, k_tile.load(to_state.b), state * whole)
    gl.portable.wait(0)
    if final is not None:
        rows = widths[1] + widths[0] * (gl.num_programs(0) > value_tiles).to(gl.int32)
        target = final + of_segment * (widths[0] * rows)
        place_row = (
            gl.where(mapped, widths[1] + (tile - value_tiles) * BV, first_column) + state_row
        )
        limit = gl.where(mapped, rows, widths[1])
        target_offsets = place_row[:, None] * widths[0] + state_column[None, :]
        in_final = (place_row < limit)[:, None] & (state_column < widths[0])[None, :]
        gl.store(target + target_offsets, state, mask=in_final)
