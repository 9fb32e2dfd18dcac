"""Chunks of linear attention whose decays differ from channel to channel of the keys (Kimi Delta Attention), on any device.

With a decay for each key channel (Kimi Team, arXiv:2510.26692) the rule of `portable.py` reads

    S_t = (I - b_t k_t k_t^T) diag(a_t) S_{t-1} + b_t k_t v_t^T,    o_t = scale * S_t^T q_t

Let e be the products of decays from the chunk's first token on, a vector for each token. Then A and P sum over channels c

    A_ij = b_i sum_c k_ic k_jc e_ic / e_jc,    P_ij = scale sum_c q_ic k_jc e_ic / e_jc

and the walk over chunks is the one of `portable.recur` with `e K` where values are seen, `(e_C / e) K` where they are taken in,
`scale e Q` as queries, and e_C as the decay of the state.

Blocks of two adjacent halves anchor their exponents in the middle: for i in the
second half and j in the first, both e_i / e_m and e_m / e_j are at most one. Halves of 32, 16, 8, 4, 2 and 1 tokens cover all pairs.
The exponents are sums of gates between a token and the middle, never differences of sums, so that any gate is safe, minus infinity too.
Where the gates of 8 tokens sum up to a number that bfloat16 raises either way, each token is anchored in the middle of its block of 16
instead, once for all pairs: e_i / e_j is (e_i / e_m) (e_m / e_n) (e_n / e_j), and the decay between the middles m and n is at most one.
Where those of 32 tokens do, as most gates that models learn, all tokens are anchored in the middle of the chunk: two products make A and P.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.portable import add, decay_size, product, store_inverses

__all__ = [
    "across",
    "around_middle",
    "channel_layout",
    "chunk_tile",
    "doubled",
    "gates_of",
    "is_mild",
    "over_flagged",
    "prepare_channels",
    "prepare_flagged",
    "sums_of",
    "to_middle",
]

LEVELS = gl.constexpr(6)  # halves of 1 to 32 tokens, for chunks of 64
LOG2E = gl.constexpr(1.4426950408889634)
# An exponent (base 2): two factors of it and the decay between their middles are bfloat16, or their product is negligible.
MILD = gl.constexpr(50.0)
# One for a factor of each token alone, whose product with a query or key is bfloat16.
GENTLE = gl.constexpr(100.0)


@gluon.constexpr_function
def channel_layout(C, K, warps, lanes):
    """Return a layout of [C, K] that gives many rows of one channel to a thread: sums along rows stay in its registers."""
    across = min(lanes, K)
    wide = min(warps, K // across)
    rows = max(C // (warps // wide) // (lanes // across), 1)
    return gl.BlockedLayout([rows, 1], [lanes // across, across], [warps // wide, wide], [1, 0])


@gluon.constexpr_function
def pair_layout(C, K, warps, lanes):
    """Return a layout of [C, K] that gives 16 rows of two adjacent channels to a thread, or of one where there are more threads."""
    pair = 2 if K >= 2 * lanes and C * K >= 32 * warps * lanes else 1
    across = min(lanes, K // pair)
    blocks = C // 16
    down = max(min(warps, blocks // (lanes // across)), 1)
    return gl.BlockedLayout([16, pair], [lanes // across, across], [down, warps // down], [1, 0])


@gluon.constexpr_function
def blocks_layout(rows):
    """Return the layout of [4, K] that gives all rows of the channels of `pair_layout` to a thread."""
    pair = rows.size_per_thread[1]
    return gl.BlockedLayout([4, pair], rows.threads_per_warp, rows.warps_per_cta, [1, 0])


@gluon.jit
def gates_of(g, first, length, stride, width, layout: gl.constexpr, C: gl.constexpr, K: gl.constexpr):  # fmt: skip
    """Return the logarithms (base 2) of the decays of a chunk's tokens, [C, K], zeros past the last one."""
    own = chunk_tile(g, first, length, stride, width, layout, C, K)
    return own.to(gl.float32) * LOG2E


@gluon.jit
def chunk_tile(pointer, first, length, stride, width, layout: gl.constexpr, C: gl.constexpr, K: gl.constexpr):  # fmt: skip
    """Load the rows of a chunk, zeros past the last row and column; 64 strides are within 32 bits, which saves registers."""
    near = gl.arange(0, C, gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    inside = (near < length - first) & (column < width)
    pointer += first.to(gl.int64) * stride
    return gl.load(pointer + near * stride + column, mask=inside, other=0)


@gluon.jit
def chunk_places(
    layout: gl.constexpr, C: gl.constexpr, K: gl.constexpr, first, length, stride, width
):
    """Return the offsets of a chunk's elements from its first row on, and if they are inside."""
    near = gl.arange(0, C, gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    return near * stride + column, (near < length - first) & (column < width)


@gluon.jit
def doubled(behind, ahead, total, HALF: gl.constexpr):
    """Return the sums of gates within blocks of 2 HALF tokens from those within blocks of HALF: to a token from the first one, inclusive,
    after a token to the last one, and of blocks."""
    C: gl.constexpr = behind.shape[0]
    K: gl.constexpr = behind.shape[1]
    BLOCKS: gl.constexpr = C // HALF
    pairs = total.reshape([BLOCKS // 2, 2, K])
    of_pair: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, pairs.type.layout))
    is_first = gl.arange(0, 2, of_pair)[None, :, None] == 0
    left = gl.sum(gl.where(is_first, pairs, 0.0), 1)
    right = gl.sum(gl.where(is_first, 0.0, pairs), 1)
    other = gl.where(is_first, right[:, None, :], left[:, None, :]).reshape([BLOCKS, K])
    parts = behind.reshape([BLOCKS, HALF, K])
    whole: gl.constexpr = parts.type.layout
    other = gl.convert_layout(other, gl.SliceLayout(1, whole))[:, None, :]
    number = gl.arange(0, BLOCKS, gl.SliceLayout(1, gl.SliceLayout(2, whole)))
    is_second = (number % 2 == 1)[:, None, None]
    behind_parts = parts + gl.where(is_second, other, 0.0)
    ahead_parts = ahead.reshape([BLOCKS, HALF, K]) + gl.where(is_second, 0.0, other)
    layout: gl.constexpr = behind.type.layout
    return (
        gl.convert_layout(behind_parts.reshape([C, K]), layout),
        gl.convert_layout(ahead_parts.reshape([C, K]), layout),
        left + right,
    )


@gluon.jit
def sums_of(x, LEVEL: gl.constexpr = LEVELS):
    """Return the sums of rows within blocks of 2^LEVEL: to each one from the first, inclusive, and after each to the last."""
    behind = x
    ahead = gl.zeros(x.shape, gl.float32, x.type.layout)
    total = x
    for level in gl.static_range(LEVEL):
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)
    return behind, ahead


@gluon.jit
def to_middle(behind, ahead, HALF: gl.constexpr):
    """Return the decay between each token and the middle of its block of two halves."""
    near = gl.arange(0, behind.shape[0], gl.SliceLayout(1, behind.type.layout))
    return gl.exp2(gl.where((near // HALF % 2 == 1)[:, None], behind, ahead))


@gluon.jit
def across(i, j, HALF: gl.constexpr):
    """Return True for rows in the second and columns in the first half of a block."""
    return (i // HALF % 2 == 1) & (j // HALF == i // HALF - 1)


@gluon.jit
def is_mild(behind, ahead, LIMIT: gl.constexpr = MILD):
    """Return True if sums of halves of blocks, negative, have exponents that can be negated."""
    least = gl.minimum(behind, ahead)
    return gl.min(gl.min(least, 0), 0) > -LIMIT


@gluon.jit
def around_middle(behind, ahead, HALF: gl.constexpr):
    """Return the decays of tokens after the middle of their block of two halves, and their inverses, from sums within halves."""
    near = gl.arange(0, behind.shape[0], gl.SliceLayout(1, behind.type.layout))
    exponent = gl.where((near // HALF % 2 == 1)[:, None], behind, -ahead)
    return gl.exp2(exponent), gl.exp2(-exponent)


@gluon.jit
def of_halves(q, k, behind, ahead, left, right, weight, shares, i, j, HALF: gl.constexpr, products: gl.constexpr):  # fmt: skip
    """Return P and A, without scale and rates, with those of a half and the one before added."""
    dtype: gl.constexpr = left.dtype
    factor = to_middle(behind, ahead, HALF)
    left.store((q.to(gl.float32) * factor).to(dtype))
    right.store((k.to(gl.float32) * factor).to(dtype))
    gl.portable.fence()
    pairs = across(i, j, HALF)
    part = product(left, right.permute((1, 0)), gl.portable.accumulator(products))
    weight += gl.where(pairs, part, 0.0)
    part = product(right, right.permute((1, 0)), gl.portable.accumulator(products))
    return weight, shares + gl.where(pairs, part, 0.0)


@gluon.jit
def of_blocks(q, k, own, left, right, i, j, products: gl.constexpr):
    """Return P and A of blocks of 16 tokens, for any gates."""
    left.store(q)
    right.store(k)
    gl.portable.fence()
    weight = product(left, right.permute((1, 0)), gl.portable.accumulator(products))
    weight = gl.where(i == j, weight, 0.0)
    shares = gl.zeros(weight.shape, gl.float32, weight.type.layout)
    behind = own
    ahead = gl.zeros(own.shape, gl.float32, own.type.layout)
    total = own
    for level in gl.static_range(4):
        weight, shares = of_halves(
            q, k, behind, ahead, left, right, weight, shares, i, j, 1 << level, products
        )
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)
    return weight, shares


@gluon.jit
def rows_of_block(x, ROWS: gl.constexpr):
    """Return the sums of the first and of the second half of each ROWS rows, [blocks, K]."""
    parts = x.reshape([x.shape[0] // ROWS, ROWS, x.shape[1]])
    near = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, parts.type.layout)))
    is_first = (near < ROWS // 2)[None, :, None]
    return gl.sum(gl.where(is_first, parts, 0.0), 1), gl.sum(gl.where(is_first, 0.0, parts), 1)


@gluon.jit
def block_row(x, number: gl.constexpr, layout: gl.constexpr):
    """Return a row of [4, K] as [1, 1, K] of a layout of [4, 16, K]."""
    i = gl.arange(0, 4, gl.SliceLayout(1, x.type.layout))[:, None]
    row = gl.sum(gl.where(i == number, x, 0.0), 0)
    return gl.convert_layout(row, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]


@gluon.jit
def middles_of(halves, few: gl.constexpr):
    """Return the sums of gates from the first token to the middles of the 4 blocks, [4, K], and to the last one, [K]."""
    first = gl.convert_layout(halves[0], few)
    second = gl.convert_layout(halves[1], few)
    ends = gl.associative_scan(first + second, 0, add)
    i = gl.arange(0, 4, gl.SliceLayout(1, few))[:, None]
    return ends - second, gl.sum(gl.where(i == 3, ends, 0.0), 0)


@gluon.jit
def add_pairs(weight, shares, operands, right, pairs, products: gl.constexpr):
    """Return P and A with the products of the pairs of one kind, which they lack."""
    part = product(operands[0], right.permute((1, 0)), gl.portable.accumulator(products))
    weight = gl.where(pairs, part, weight)
    part = product(operands[1], right.permute((1, 0)), gl.portable.accumulator(products))
    return weight, gl.where(pairs, part, shares)


@gluon.jit
def store_operands(q_parts, row_parts, column_parts, factors, q, targets, places, dtype: gl.constexpr):  # fmt: skip
    """Store the walk's operands from queries and keys as rows, and keys as columns, by their anchors.

    `factors` are the decays from the first token to the anchor, with the scale and without, and from the anchor to the last token.
    """
    queries, keys, seen = targets
    first, length, step, width = places
    offsets, inside = chunk_places(q.type.layout, q.shape[0], q.shape[1], first, length, step, width)  # fmt: skip
    gl.store(queries + offsets, tile_of(q_parts * factors[0], q, dtype), mask=inside)
    gl.store(seen + offsets, tile_of(row_parts * factors[1], q, dtype), mask=inside)
    gl.store(keys + offsets, tile_of(column_parts * factors[2], q, dtype), mask=inside)


@gluon.jit
def of_gentle_gates(q, k, own, totals, left, right, targets, places, scale, i, j, products: gl.constexpr):  # fmt: skip
    """Return P and A, and store the walk's operands, where the gates of 32 tokens sum up to little.

    Both factors of a pair are anchored in the middle of the chunk. `totals` are the sums of blocks of 16 tokens, [4, K].
    """
    dtype: gl.constexpr = right.dtype
    parts = own.reshape([4, q.shape[0] // 4, q.shape[1]])
    layout: gl.constexpr = parts.type.layout
    t0 = block_row(totals, 0, layout)
    t1 = block_row(totals, 1, layout)
    t2 = block_row(totals, 2, layout)
    t3 = block_row(totals, 3, layout)
    block = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    start = gl.where(block < 2, gl.where(block == 0, -(t0 + t1), -t1), gl.where(block == 2, 0.0, t2))  # fmt: skip
    exponent = gl.associative_scan(parts, 1, add) + start
    after = gl.exp2(exponent)
    q_parts = q.reshape(parts.shape).to(gl.float32) * after
    k_parts = k.reshape(parts.shape).to(gl.float32)
    row_parts = k_parts * after
    column_parts = k_parts * gl.exp2(-exponent)
    left.store(tile_of(q_parts, q, dtype))
    right.store(tile_of(column_parts, q, dtype))
    rows = gl.allocate_shared_memory(dtype, q.shape, products.a_shared, tile_of(row_parts, q, dtype))  # fmt: skip
    from_first = gl.exp2(t0 + t1)
    factors = (from_first * scale, from_first, gl.exp2(t2 + t3))
    store_operands(q_parts, row_parts, column_parts, factors, q, targets[:3], places[:4], dtype)
    column = places[4]
    whole = gl.sum(totals, 0)
    gl.store(targets[3] + column, gl.convert_layout(gl.exp2(whole), column.type.layout))
    gl.portable.fence()
    columns = right.permute((1, 0))
    weight = product(left, columns, gl.portable.accumulator(products))
    shares = product(rows, columns, gl.portable.accumulator(products))
    return gl.where(i >= j, weight, 0.0), gl.where(i > j, shares, 0.0)


@gluon.jit
def of_mild_gates(q, k, own, halves, left, rights, targets, places, scale, i, j, few: gl.constexpr, products: gl.constexpr):  # fmt: skip
    """Return P and A, and store the walk's operands, where the gates of 8 tokens sum up to little.

    Both factors of a pair are anchored in the middles of their blocks of 16 tokens; the decay between the two middles, at most one, joins
    the one of the column. That gives a kind of columns for each distance: for rows of the same block, of the next one where
    that is the second of a pair of blocks, and of the third and the fourth block. There may be a buffer for each kind, or one for all.
    """
    dtype: gl.constexpr = rights[0].dtype
    AMPLE: gl.constexpr = len(rights) == 4
    C: gl.constexpr = q.shape[0]
    K: gl.constexpr = q.shape[1]
    parts = own.reshape([4, C // 4, K])
    layout: gl.constexpr = parts.type.layout
    middles, whole = middles_of(halves, few)
    m0 = block_row(middles, 0, layout)
    m1 = block_row(middles, 1, layout)
    m2 = block_row(middles, 2, layout)
    m3 = block_row(middles, 3, layout)
    last: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, layout))
    end = gl.convert_layout(whole, last)[None, None, :]
    block = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    middle = gl.where(block < 2, gl.where(block == 0, m0, m1), gl.where(block == 2, m2, m3))
    exponent = gl.associative_scan(parts, 1, add) - halves[0][:, None, :]
    after = gl.exp2(exponent)
    q_parts = q.reshape(parts.shape).to(gl.float32) * after
    k_parts = k.reshape(parts.shape).to(gl.float32)
    row_parts = k_parts * after
    column_parts = k_parts * gl.exp2(-exponent)
    left.store(tile_of(q_parts, q, dtype))
    rows = gl.allocate_shared_memory(dtype, [C, K], products.a_shared, tile_of(row_parts, q, dtype))
    from_first = gl.exp2(middle)
    factors = (from_first * scale, from_first, gl.exp2(end - middle))
    store_operands(q_parts, row_parts, column_parts, factors, q, targets[:3], places[:4], dtype)
    column = places[4]
    gl.store(targets[3] + column, gl.convert_layout(gl.exp2(whole), column.type.layout))

    to_next = gl.exp2(
        gl.where(block % 2 == 0, gl.where(block == 0, m1 - m0, m3 - m2), float("-inf"))
    )
    to_third = gl.exp2(gl.where(block < 2, m2 - middle, float("-inf")))
    to_fourth = gl.exp2(gl.where(block < 2, m3 - middle, float("-inf")))
    rights[0].store(tile_of(column_parts, q, dtype))
    if AMPLE:
        rights[1].store(tile_of(column_parts * to_next, q, dtype))
        rights[2].store(tile_of(column_parts * to_third, q, dtype))
        rights[3].store(tile_of(column_parts * to_fourth, q, dtype))
    gl.portable.fence()
    operands = (left, rows)
    right = rights[0].permute((1, 0))
    same = i // 16 == j // 16
    weight = product(left, right, gl.portable.accumulator(products))
    weight = gl.where(same & (i >= j), weight, 0.0)
    shares = product(rows, right, gl.portable.accumulator(products))
    shares = gl.where(same & (i > j), shares, 0.0)
    if not AMPLE:
        rights[0].store(tile_of(column_parts * to_next, q, dtype))
        gl.portable.fence()
    pairs = across(i, j, 16)
    weight, shares = add_pairs(weight, shares, operands, rights[1 if AMPLE else 0], pairs, products)
    if not AMPLE:
        rights[0].store(tile_of(column_parts * to_third, q, dtype))
        gl.portable.fence()
    pairs = (i // 16 == 2) & (j < 32)
    weight, shares = add_pairs(weight, shares, operands, rights[2 if AMPLE else 0], pairs, products)
    if not AMPLE:
        rights[0].store(tile_of(column_parts * to_fourth, q, dtype))
        gl.portable.fence()
    pairs = (i // 16 == 3) & (j < 32)
    return add_pairs(weight, shares, operands, rights[3 if AMPLE else 0], pairs, products)


@gluon.jit
def tile_of(parts, like, dtype: gl.constexpr):
    """Return [blocks, rows, K] in the shape and layout of a tile."""
    return gl.convert_layout(parts.to(dtype).reshape(like.shape), like.type.layout)


@gluon.jit
def of_strong_gates(q, k, own, left, right, targets, places, scale, i, j, products: gl.constexpr):
    """Return P and A, and store the walk's operands, for any gates."""
    weight, shares = of_blocks(q, k, own, left, right, i, j, products)
    behind = own
    ahead = gl.zeros(own.shape, gl.float32, own.type.layout)
    total = own
    for level in gl.static_range(4):
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)
    for level in gl.static_range(4, LEVELS):
        weight, shares = of_halves(
            q, k, behind, ahead, left, right, weight, shares, i, j, 1 << level, products
        )
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)
    from_first = gl.exp2(behind)
    queries, keys, seen, decays = targets
    first, length, step, width, column = places
    near = gl.arange(0, q.shape[0], gl.SliceLayout(1, own.type.layout))[:, None]
    whole = gl.sum(gl.where(near == q.shape[0] - 1, from_first, 0.0), 0)
    gl.store(decays + column, whole)
    q_wide = q.to(gl.float32)
    k_wide = k.to(gl.float32)
    dtype: gl.constexpr = left.dtype
    layout: gl.constexpr = own.type.layout
    offsets, inside = chunk_places(layout, own.shape[0], own.shape[1], first, length, step, width)
    gl.store(queries + offsets, (q_wide * from_first * scale).to(dtype), mask=inside)
    gl.store(keys + offsets, (k_wide * gl.exp2(ahead)).to(dtype), mask=inside)
    gl.store(seen + offsets, (k_wide * from_first).to(dtype), mask=inside)
    return weight, shares


@gluon.jit
def prepare_chunk(
    tensors, place_of_chunk, strides, length, heads, scale, widths, SETTINGS: gl.constexpr
):
    """Store the operands of the walk of a chunk; with TRY its gates may be gentle."""
    K: gl.constexpr = SETTINGS[0]
    C: gl.constexpr = SETTINGS[1]
    SHARED: gl.constexpr = SETTINGS[2]
    AMPLE: gl.constexpr = SETTINGS[3]
    BK: gl.constexpr = SETTINGS[4]
    TRY: gl.constexpr = SETTINGS[5]
    q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled = tensors
    chunk, chunks, head, batch = place_of_chunk
    dtype: gl.constexpr = k.dtype.element_ty
    products: gl.constexpr = gl.portable.mma_layouts(
        C, C, BK, dtype, dtype, operands="shared", b_transposed=True
    )
    layout: gl.constexpr = products.accumulator
    rows: gl.constexpr = pair_layout(C, BK, gl.num_warps(), gl.target.warp_size())
    few: gl.constexpr = blocks_layout(rows)
    first = chunk * C
    place = ((batch * heads + head) * chunks + chunk).to(gl.int64)
    of_keys = (head // SHARED).to(gl.int64)
    q += batch * strides[0][0] + of_keys * strides[0][2]
    k += batch * strides[1][0] + of_keys * strides[1][2]
    g += batch * strides[2][0] + head.to(gl.int64) * strides[2][2]
    near_row = gl.arange(0, C, gl.SliceLayout(1, layout))
    offset = (batch * length + first + near_row) * heads + head
    rate = gl.load(beta + offset, mask=first + near_row < length, other=0.0).to(gl.float32)
    source = decays + place * decay_size(K, C)
    gl.store(source + K + near_row, rate)
    left = gl.allocate_shared_memory(dtype, [C, BK], products.a_shared)
    right = gl.allocate_shared_memory(dtype, [C, BK], products.b_shared)
    rights = (right,)
    if AMPLE:
        second = gl.allocate_shared_memory(dtype, [C, BK], products.b_shared)
        third = gl.allocate_shared_memory(dtype, [C, BK], products.b_shared)
        fourth = gl.allocate_shared_memory(dtype, [C, BK], products.b_shared)
        rights = (right, second, third, fourth)
    i = near_row[:, None]
    j = gl.arange(0, C, gl.SliceLayout(0, layout))[None, :]
    weight = gl.zeros([C, C], gl.float32, layout)
    shares = weight
    target = (batch * length * heads + head + first.to(gl.int64) * heads) * widths[2]
    for start in range(0, K, BK):
        width = widths[0] - start
        q_tile = chunk_tile(q + start, first, length, strides[0][1], width, rows, C, BK)
        k_tile = chunk_tile(k + start, first, length, strides[1][1], width, rows, C, BK)
        own = gates_of(g + start, first, length, strides[2][1], widths[1] - start, rows, C, BK)
        targets = (
            queries + target + start,
            keys + target + start,
            seen + target + start,
            source + start,
        )
        column = gl.arange(0, BK, gl.SliceLayout(0, rows))
        places = (first, length, heads * widths[2], widths[2] - start, column)
        own_weight = gl.zeros([C, C], gl.float32, layout)
        own_shares = own_weight
        halves = rows_of_block(own, 16)
        totals = gl.convert_layout(halves[0] + halves[1], few)
        of_halves_of_chunk = rows_of_block(totals, 4)
        if dtype != gl.bfloat16:
            own_weight, own_shares = of_strong_gates(
                q_tile, k_tile, own, left, right, targets, places, scale, i, j, products
            )
        elif TRY and is_mild(of_halves_of_chunk[0], of_halves_of_chunk[1], GENTLE):
            own_weight, own_shares = of_gentle_gates(
                q_tile, k_tile, own, totals, left, right, targets, places, scale, i, j, products
            )
        elif is_mild(halves[0], halves[1]):
            own_weight, own_shares = of_mild_gates(
                q_tile,
                k_tile,
                own,
                halves,
                left,
                rights,
                targets,
                places,
                scale,
                i,
                j,
                few,
                products,
            )
        else:
            own_weight, own_shares = of_strong_gates(
                q_tile, k_tile, own, left, right, targets, places, scale, i, j, products
            )
        weight += own_weight
        shares += own_shares
    out_layout: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    out_row = gl.arange(0, C, gl.SliceLayout(1, out_layout))[:, None]
    out_offsets = out_row * C + gl.arange(0, C, gl.SliceLayout(0, out_layout))[None, :]
    matrix = place * (C * C)
    weight = gl.convert_layout((weight * scale).to(dtype), out_layout)
    gl.portable.store(weights + matrix, out_offsets, weight)
    store_inverses(shares * rate[:, None], rate, inverses, unscaled, matrix, out_offsets)


@gluon.jit
def prepare_channels(
    q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled, strides, length, heads, scale, widths,
    K: gl.constexpr, C: gl.constexpr, SHARED: gl.constexpr, AMPLE: gl.constexpr, BK: gl.constexpr,
):  # fmt: skip
    """Store the operands of a chunk's walk; the grid has chunks, heads and batches.

    `q` and `k` are [batch, length, heads / SHARED, width], `g` [batch, length, heads, width]; `strides` are theirs of batches, rows and
    heads, `widths` those of keys, of gates and of results. `beta` is contiguous [batch, length, heads]. Results are `queries` (scale e Q), `keys`
    ((e_C / e) K) and `seen` (e K), [batch, length, heads, widths[2]]; `decays` [batch, heads, chunks, `decay_size`], float32: e_C, then
    from K on the rates; and `weights` (P), `inverses` (T) and, if not None, `unscaled` (T without b), [batch, heads, chunks, C, C]. With AMPLE
    shared memory each kind of columns has a buffer. BK channels are taken at a time.
    """
    tensors = (q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled)
    batch = gl.program_id(2).to(gl.int64)
    place = (gl.program_id(0), gl.num_programs(0), gl.program_id(1), batch)
    SETTINGS: gl.constexpr = (K, C, SHARED, AMPLE, BK, True)
    prepare_chunk(tensors, place, strides, length, heads, scale, widths, SETTINGS)


@gluon.jit
def moved(numbers, by):
    """Return numbers, or groups of them, plus another."""
    result = ()
    for i in gl.static_range(len(numbers)):
        if isinstance(numbers[i], gl.tuple):
            result = result + (moved(numbers[i], by),)
        else:
            result = result + (numbers[i] + by,)
    return result


@gluon.jit
def over_flagged(
    of_chunk: gl.constexpr, tensors, flags, strides, length, heads, chunks, scale, widths, total, SETTINGS: gl.constexpr,
    EACH: gl.constexpr,
):  # fmt: skip
    """Call `of_chunk` for those of EACH chunks whose flag is set."""
    first = gl.program_id(0) * EACH
    flat: gl.constexpr = gl.portable.blocked_layout([EACH], gl.int32)
    numbers = first + gl.arange(0, EACH, flat)
    flagged = gl.load(flags + numbers, mask=numbers < total, other=0)
    if gl.max(flagged, 0) > 0:
        for number in range(first, gl.minimum(first + EACH, total)):
            flag = gl.load(flags + number)
            if flag > 0:
                # Zero, which the compiler does not know: it would compute all offsets ahead of the loop, and spill them.
                zero = flag >> 30
                of_head = number // chunks
                batch = (of_head // heads).to(gl.int64)
                place = (number % chunks, chunks, of_head % heads, batch)
                steps = moved(strides, zero)
                sizes = moved(widths, zero)
                of_chunk(tensors, place, steps, length, heads, scale, sizes, SETTINGS)


@gluon.jit
def prepare_flagged(
    q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled, flags, strides, length, heads, chunks, scale, widths,
    total, K: gl.constexpr, C: gl.constexpr, SHARED: gl.constexpr, AMPLE: gl.constexpr, BK: gl.constexpr,
    EACH: gl.constexpr,
):  # fmt: skip
    """Store the operands of those of EACH chunks whose flag is set; the grid has groups of all `total` chunks of all heads and batches."""
    tensors = (q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled)
    SETTINGS: gl.constexpr = (K, C, SHARED, AMPLE, BK, False)
    over_flagged(
        prepare_chunk, tensors, flags, strides, length, heads, chunks, scale, widths, total, SETTINGS, EACH
    )  # fmt: skip
