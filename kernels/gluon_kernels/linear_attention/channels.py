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
Where the gates of 8 tokens sum up to a number that bfloat16 raises either way, blocks of 16 tokens are one product with that anchor.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.portable import decay_size, product, store_inverses

__all__ = [
    "across",
    "around_middle",
    "channel_layout",
    "chunk_tile",
    "doubled",
    "gates_of",
    "is_mild",
    "prepare_channels",
    "sums_of",
    "to_middle",
]

LEVELS = gl.constexpr(6)  # halves of 1 to 32 tokens, for chunks of 64
LOG2E = gl.constexpr(1.4426950408889634)
CHANNELS = gl.constexpr(128)  # that a program has in registers
MILD = gl.constexpr(60.0)  # exponent (base 2) of a bfloat16, far from its ends


@gluon.constexpr_function
def channel_layout(C, K, warps, lanes):
    """Return a layout of [C, K] that gives many rows of one channel to a thread: sums along rows stay in its registers."""
    across = min(lanes, K)
    wide = min(warps, K // across)
    rows = max(C // (warps // wide) // (lanes // across), 1)
    return gl.BlockedLayout([rows, 1], [lanes // across, across], [warps // wide, wide], [1, 0])


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
def store_chunk(pointer, tile, first, length, stride, width):
    """Store the rows of a chunk that there are."""
    layout: gl.constexpr = tile.type.layout
    near = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))[None, :]
    inside = (near < length - first) & (column < width)
    pointer += first.to(gl.int64) * stride
    gl.store(pointer + near * stride + column, tile.to(pointer.dtype.element_ty), mask=inside)


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
def sums_of(x):
    """Return the sums of rows, to each one from the first, inclusive, and after each to the last."""
    behind = x
    ahead = gl.zeros(x.shape, gl.float32, x.type.layout)
    total = x
    for level in gl.static_range(LEVELS):
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
def is_mild(behind, ahead):
    """Return True if the sums within blocks, negative, have exponents that can be negated."""
    least = gl.minimum(behind, ahead)
    return gl.min(gl.min(least, 0), 0) > -MILD


@gluon.jit
def around_middle(behind, ahead):
    """Return the decays of the tokens of 16 after their middle, and their inverses, from sums within blocks of 8."""
    near = gl.arange(0, behind.shape[0], gl.SliceLayout(1, behind.type.layout))
    exponent = gl.where((near // 8 % 2 == 1)[:, None], behind, -ahead)
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
def of_mild_blocks(q, k, behind, ahead, left, right, i, j, products: gl.constexpr):
    """Return P and A of blocks of 16 tokens from sums within blocks of 8, where `is_mild`."""
    dtype: gl.constexpr = left.dtype
    after, inverse = around_middle(behind, ahead)
    rows = gl.allocate_shared_memory(dtype, left.shape, products.a_shared)
    left.store((q.to(gl.float32) * after).to(dtype))
    rows.store((k.to(gl.float32) * after).to(dtype))
    right.store((k.to(gl.float32) * inverse).to(dtype))
    gl.portable.fence()
    same = i // 16 == j // 16
    weight = product(left, right.permute((1, 0)), gl.portable.accumulator(products))
    shares = product(rows, right.permute((1, 0)), gl.portable.accumulator(products))
    return gl.where(same & (i >= j), weight, 0.0), gl.where(same & (i > j), shares, 0.0)


@gluon.jit
def prepare_channels(
    q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled, strides, length, heads, scale, widths,
    K: gl.constexpr, C: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Store the operands of a chunk's walk; the grid has chunks, heads and batches.

    `q` and `k` are [batch, length, heads / SHARED, width], `g` [batch, length, heads, width]; `strides` are theirs of batches, rows and
    heads, `widths` those of keys, of gates and of results. `beta` is contiguous [batch, length, heads]. Results are `queries` (scale e Q), `keys`
    ((e_C / e) K) and `seen` (e K), [batch, length, heads, widths[2]]; `decays` [batch, heads, chunks, `decay_size`], float32: e_C, then
    from K on the rates; and `weights` (P), `inverses` (T) and, if not None, `unscaled` (T without b), [batch, heads, chunks, C, C].
    """
    chunk = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    dtype: gl.constexpr = k.dtype.element_ty
    BK: gl.constexpr = min(K, CHANNELS)
    products: gl.constexpr = gl.portable.mma_layouts(
        C, C, BK, dtype, dtype, operands="shared", b_transposed=True
    )
    layout: gl.constexpr = products.accumulator
    rows: gl.constexpr = channel_layout(C, BK, gl.num_warps(), gl.target.warp_size())
    first = chunk * C
    place = ((batch * heads + head) * gl.num_programs(0) + chunk).to(gl.int64)
    of_keys = (head // SHARED).to(gl.int64)
    near = gl.arange(0, C, gl.SliceLayout(1, rows))
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
    i = near_row[:, None]
    j = gl.arange(0, C, gl.SliceLayout(0, layout))[None, :]
    weight = gl.zeros([C, C], gl.float32, layout)
    shares = weight
    for start in range(0, K, BK):
        width = widths[0] - start
        q_tile = chunk_tile(q + start, first, length, strides[0][1], width, rows, C, BK)
        k_tile = chunk_tile(k + start, first, length, strides[1][1], width, rows, C, BK)
        own = gates_of(g + start, first, length, strides[2][1], widths[1] - start, rows, C, BK)
        behind = own
        ahead = gl.zeros([C, BK], gl.float32, rows)
        total = own
        for level in gl.static_range(3):
            behind, ahead, total = doubled(behind, ahead, total, 1 << level)
        if dtype != gl.bfloat16:
            own_weight, own_shares = of_blocks(q_tile, k_tile, own, left, right, i, j, products)
        else:
            own_weight = gl.zeros([C, C], gl.float32, layout)
            own_shares = own_weight
            if is_mild(behind, ahead):
                own_weight, own_shares = of_mild_blocks(
                    q_tile, k_tile, behind, ahead, left, right, i, j, products
                )
            else:
                own_weight, own_shares = of_blocks(q_tile, k_tile, own, left, right, i, j, products)
        weight += own_weight
        shares += own_shares
        behind, ahead, total = doubled(behind, ahead, total, 8)
        for level in gl.static_range(4, LEVELS):
            weight, shares = of_halves(
                q_tile,
                k_tile,
                behind,
                ahead,
                left,
                right,
                weight,
                shares,
                i,
                j,
                1 << level,
                products,
            )
            behind, ahead, total = doubled(behind, ahead, total, 1 << level)

        from_first = gl.exp2(behind)
        to_last = gl.exp2(ahead)
        column = start + gl.arange(0, BK, gl.SliceLayout(0, rows))
        gl.store(source + column, gl.sum(gl.where((near == C - 1)[:, None], from_first, 0.0), 0))
        target = (batch * length * heads + head) * widths[2] + start
        step = heads * widths[2]
        q_wide = q_tile.to(gl.float32)
        k_wide = k_tile.to(gl.float32)
        width = widths[2] - start
        store_chunk(queries + target, q_wide * from_first * scale, first, length, step, width)
        store_chunk(keys + target, k_wide * to_last, first, length, step, width)
        store_chunk(seen + target, k_wide * from_first, first, length, step, width)
    out_layout: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    out_row = gl.arange(0, C, gl.SliceLayout(1, out_layout))[:, None]
    out_offsets = out_row * C + gl.arange(0, C, gl.SliceLayout(0, out_layout))[None, :]
    matrix = place * (C * C)
    weight = gl.convert_layout((weight * scale).to(dtype), out_layout)
    gl.portable.store(weights + matrix, out_offsets, weight)
    store_inverses(shares * rate[:, None], rate, inverses, unscaled, matrix, out_offsets)
