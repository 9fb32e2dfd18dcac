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
MILD = gl.constexpr(60.0)  # exponent (base 2) of a bfloat16, far from its ends


@gluon.constexpr_function
def channel_layout(C, K, warps, lanes):
    """Return a layout of [C, K] that gives many rows of one channel to a thread: sums along rows stay in its registers."""
    across = min(lanes, K)
    wide = min(warps, K // across)
    rows = max(C // (warps // wide) // (lanes // across), 1)
    return gl.BlockedLayout([rows, 1], [lanes // across, across], [warps // wide, wide], [1, 0])


@gluon.constexpr_function
def block_layout(K, warps, lanes):
    """Return a layout of [blocks, 8, K] that gives two channels of the 8 tokens of a block to a thread."""
    across = min(lanes, K // 2)
    wide = min(warps, K // 2 // across)
    return gl.BlockedLayout(
        [1, 8, 2], [lanes // across, 1, across], [warps // wide, 1, wide], [2, 1, 0]
    )


@gluon.constexpr_function
def block_rows(K, warps, lanes):
    """Return the layout of [C, K] with the elements of `block_layout`: pairs of channels are words of memory."""
    across = min(lanes, K // 2)
    wide = min(warps, K // 2 // across)
    return gl.BlockedLayout([8, 2], [lanes // across, across], [warps // wide, wide], [1, 0])


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
def copy_chunk(buffer, pointer, first, length, stride, width):
    """Start copying the rows of a chunk to shared memory, zeros past the last row and column."""
    layout: gl.constexpr = gl.portable.blocked_layout(buffer.shape, buffer.dtype)
    near = gl.arange(0, buffer.shape[0], gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, buffer.shape[1], gl.SliceLayout(0, layout))[None, :]
    inside = (near < length - first) & (column < width)
    gl.portable.async_copy(
        buffer, pointer + first.to(gl.int64) * stride, near * stride + column, inside
    )


@gluon.jit
def store_chunk(pointer, tile, first, length, stride, width):
    """Store the rows of a chunk that there are."""
    dtype: gl.constexpr = pointer.dtype.element_ty
    layout: gl.constexpr = gl.portable.blocked_layout(tile.shape, dtype)
    near = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))[:, None]
    column = gl.arange(0, tile.shape[1], gl.SliceLayout(0, layout))[None, :]
    inside = (near < length - first) & (column < width)
    pointer += first.to(gl.int64) * stride
    gl.store(
        pointer + near * stride + column, gl.convert_layout(tile.to(dtype), layout), mask=inside
    )


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
def around_blocks(total, blocks: gl.constexpr):
    """Return the logarithms of decays between a block of 8 tokens and those around it, from the sums of blocks.

    Within 16, 32 and 64 tokens: of the blocks before and of those after. Each is a sum of gates, never a difference of sums.
    """
    COUNT: gl.constexpr = total.shape[0]
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    buffer = gl.allocate_shared_memory(gl.float32, total.shape, plain, total)
    every = buffer.load(gl.SliceLayout(0, blocks))[None, :, :]
    own = gl.arange(0, COUNT, gl.SliceLayout(1, gl.SliceLayout(2, blocks)))[:, None, None]
    other = gl.arange(0, COUNT, gl.SliceLayout(0, gl.SliceLayout(2, blocks)))[None, :, None]
    number = gl.arange(0, COUNT, gl.SliceLayout(1, gl.SliceLayout(1, blocks)))[:, None]
    behind = gl.zeros([COUNT, total.shape[1]], gl.float32, gl.SliceLayout(1, blocks))
    ahead = behind
    sums = ()
    for level in gl.static_range(3):
        near = gl.sum(gl.where((own ^ other) >> level == 1, every, 0.0), 1)
        is_second = (number >> level) % 2 == 1
        behind += gl.where(is_second, near, 0.0)
        ahead += gl.where(is_second, 0.0, near)
        sums = sums + ((behind, ahead),)
    return sums


@gluon.jit
def scaled_blocks(x, factor):
    """Return x with each channel of each block of 8 tokens times its factor."""
    parts = x.reshape([factor.shape[0], 8, factor.shape[1]])
    factor = gl.convert_layout(factor, gl.SliceLayout(1, parts.type.layout))
    return gl.convert_layout((parts * factor[:, None, :]).reshape(x.shape), x.type.layout)


@gluon.jit
def past_blocks(from_first, to_last, sums, HALF: gl.constexpr):
    """Return the decay between each token and the middle of its two halves, from those within blocks of 8 and the sums around these."""
    behind, ahead = sums
    in_second = (
        gl.arange(0, behind.shape[0], gl.SliceLayout(1, behind.type.layout)) // (HALF // 8) % 2 == 1
    )
    factor = gl.exp2(gl.where(in_second[:, None], behind, ahead))
    near = gl.arange(0, from_first.shape[0], gl.SliceLayout(1, from_first.type.layout))
    own = gl.where((near // HALF % 2 == 1)[:, None], from_first, to_last)
    return scaled_blocks(own, factor)


@gluon.jit
def store_operands(q, k, behind, ahead, around, buffers):
    """Store the operands of P and A of blocks of 16 tokens, if mild, and of halves of 16 and 32 tokens; return the decays from the first
    and to the last token.

    `behind` and `ahead` are sums of gates within blocks of 8 tokens. All operands are stored at once: elements of a row depend on little else,
    so that few registers are in use.
    """
    dtype: gl.constexpr = buffers[0].dtype
    from_first = gl.exp2(behind)
    to_last = gl.exp2(ahead)
    q = q.to(gl.float32)
    k = k.to(gl.float32)
    near = gl.arange(0, behind.shape[0], gl.SliceLayout(1, behind.type.layout))
    in_second = (near // 8 % 2 == 1)[:, None]
    far = gl.exp2(-gl.where(in_second, behind, ahead))
    after = gl.where(in_second, from_first, far)
    buffers[0].store((q * after).to(dtype))
    buffers[1].store((k * after).to(dtype))
    buffers[2].store((k * gl.where(in_second, far, to_last)).to(dtype))
    for level in gl.static_range(2):
        factor = past_blocks(from_first, to_last, around[level], 16 << level)
        buffers[3 + 2 * level].store((q * factor).to(dtype))
        buffers[4 + 2 * level].store((k * factor).to(dtype))
    return scaled_blocks(from_first, gl.exp2(around[2][0])), scaled_blocks(
        to_last, gl.exp2(around[2][1])
    )


@gluon.jit
def add_products(weight, shares, left, rows, right, HALF: gl.constexpr, products: gl.constexpr):
    """Return P and A, without scale and rates, plus the products of `left` and `rows` with `right` at some pairs.

    These are pairs of a half and the one before; with a HALF of 0 those of a token and itself, without A; with None all of a block of 16
    tokens. Numbers of blocks are the same in all elements of some instructions, and so are comparisons of them.
    """
    C: gl.constexpr = weight.shape[0]
    BLOCKS: gl.constexpr = C // 16
    columns = right.permute((1, 0))
    part = product(left, columns, gl.portable.accumulator(products)).reshape(
        [BLOCKS, 16, BLOCKS, 16]
    )
    whole: gl.constexpr = part.type.layout
    of_rows: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, whole))
    of_blocks: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, whole)))
    of_columns: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, whole)))
    block_i = gl.arange(0, BLOCKS, gl.SliceLayout(1, of_rows))[:, None, None, None]
    block_j = gl.arange(0, BLOCKS, of_blocks)[None, None, :, None]
    i = gl.arange(0, 16, gl.SliceLayout(0, of_rows))[None, :, None, None]
    j = gl.arange(0, 16, of_columns)[None, None, None, :]
    near = block_i == block_j
    if HALF is None:
        pairs = i >= j
        strict = i > j
    elif HALF == 0:
        pairs = i == j
    elif HALF < 16:
        pairs = across(i, j, HALF)
        strict = pairs
    else:
        near = across(block_i, block_j, HALF // 16)
        pairs = near
        strict = near
    part = gl.where(near, gl.where(pairs, part, 0.0), 0.0).reshape([C, C])
    weight += gl.convert_layout(part, weight.type.layout)
    if HALF != 0:
        part = product(rows, columns, gl.portable.accumulator(products)).reshape(
            [BLOCKS, 16, BLOCKS, 16]
        )
        part = gl.where(near, gl.where(strict, part, 0.0), 0.0).reshape([C, C])
        shares += gl.convert_layout(part, weight.type.layout)
    return weight, shares


@gluon.jit
def add_blocks(weight, shares, q, k, own, left, right, products: gl.constexpr):
    """Return P and A plus those of blocks of 16 tokens, for any gates."""
    dtype: gl.constexpr = left.dtype
    left.store(q)
    right.store(k)
    gl.portable.fence()
    weight, shares = add_products(weight, shares, left, right, right, 0, products)
    behind = own
    ahead = gl.zeros(own.shape, gl.float32, own.type.layout)
    total = own
    for level in gl.static_range(4):
        factor = to_middle(behind, ahead, 1 << level)
        left.store((q.to(gl.float32) * factor).to(dtype))
        right.store((k.to(gl.float32) * factor).to(dtype))
        gl.portable.fence()
        weight, shares = add_products(weight, shares, left, right, right, 1 << level, products)
        behind, ahead, total = doubled(behind, ahead, total, 1 << level)
    return weight, shares


@gluon.jit
def operand_buffers(dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
    """Return a buffer for each operand of `store_operands`: a barrier would keep apart the stores to slices of one."""
    buffers = ()
    for _ in gl.static_range(7):
        buffers = buffers + (gl.allocate_shared_memory(dtype, shape, layout),)
    return buffers


@gluon.jit
def prepare_channels(
    q, k, g, beta, queries, keys, seen, decays, weights, inverses, unscaled, strides, length, heads, scale, widths,
    K: gl.constexpr, C: gl.constexpr, BK: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Store the operands of a chunk's walk, BK channels at a time; the grid has chunks, heads and batches.

    `q` and `k` are [batch, length, heads / SHARED, width], `g` [batch, length, heads, width]; `strides` are theirs of batches, rows and
    heads, `widths` those of keys, of gates and of results. `beta` is contiguous [batch, length, heads]. Results are `queries` (scale e Q), `keys`
    ((e_C / e) K) and `seen` (e K), [batch, length, heads, widths[2]]; `decays` [batch, heads, chunks, `decay_size`], float32: e_C, then
    from K on the rates; and `weights` (P), `inverses` (T) and, if not None, `unscaled` (T without b), [batch, heads, chunks, C, C].
    """
    chunk = gl.program_id(0)
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    dtype: gl.constexpr = k.dtype.element_ty
    products: gl.constexpr = gl.portable.mma_layouts(
        C, C, BK, dtype, dtype, operands="shared", b_transposed=True
    )
    layout: gl.constexpr = products.accumulator
    warps: gl.constexpr = gl.num_warps()
    lanes: gl.constexpr = gl.target.warp_size()
    rows: gl.constexpr = block_rows(BK, warps, lanes)
    blocks: gl.constexpr = block_layout(BK, warps, lanes)
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
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    q_smem = gl.allocate_shared_memory(dtype, [C, BK], plain)
    k_smem = gl.allocate_shared_memory(dtype, [C, BK], plain)
    g_smem = gl.allocate_shared_memory(g.dtype.element_ty, [C, BK], plain)
    buffers = operand_buffers(dtype, [C, BK], products.a_shared)
    weight = gl.zeros([C, C], gl.float32, layout)
    shares = weight
    for start in range(0, K, BK):
        width = widths[0] - start
        copy_chunk(q_smem, q + start, first, length, strides[0][1], width)
        copy_chunk(k_smem, k + start, first, length, strides[1][1], width)
        copy_chunk(g_smem, g + start, first, length, strides[2][1], widths[1] - start)
        gl.portable.commit()
        gl.portable.wait(0)
        q_tile = q_smem.load(rows)
        k_tile = k_smem.load(rows)
        own = g_smem.load(rows).to(gl.float32) * LOG2E
        behind = own
        ahead = gl.zeros([C, BK], gl.float32, rows)
        total = own
        for level in gl.static_range(3):
            behind, ahead, total = doubled(behind, ahead, total, 1 << level)
        around = around_blocks(total, blocks)
        from_first, to_last = store_operands(q_tile, k_tile, behind, ahead, around, buffers)
        column = start + gl.arange(0, BK, gl.SliceLayout(0, rows))
        gl.store(source + column, gl.sum(gl.where((near == C - 1)[:, None], from_first, 0.0), 0))
        target = (batch * length * heads + head) * widths[2] + start
        step = heads * widths[2]
        q_wide = q_tile.to(gl.float32)
        k_wide = k_tile.to(gl.float32)
        wide = widths[2] - start
        store_chunk(queries + target, q_wide * from_first * scale, first, length, step, wide)
        store_chunk(keys + target, k_wide * to_last, first, length, step, wide)
        store_chunk(seen + target, k_wide * from_first, first, length, step, wide)
        gl.portable.fence()
        if dtype != gl.bfloat16:
            mild = False
        else:
            mild = gl.min(gl.min(total, 0), 0) > -MILD
        if mild:
            weight, shares = add_products(
                weight, shares, buffers[0], buffers[1], buffers[2], None, products
            )
        else:
            q_tile = q_smem.load(rows)
            k_tile = k_smem.load(rows)
            own = g_smem.load(rows).to(gl.float32) * LOG2E
            weight, shares = add_blocks(
                weight, shares, q_tile, k_tile, own, buffers[0], buffers[2], products
            )
        for level in gl.static_range(2):
            left = buffers[3 + 2 * level]
            right = buffers[4 + 2 * level]
            weight, shares = add_products(weight, shares, left, right, right, 16 << level, products)
    out_layout: gl.constexpr = gl.portable.blocked_layout([C, C], dtype)
    out_row = gl.arange(0, C, gl.SliceLayout(1, out_layout))[:, None]
    out_offsets = out_row * C + gl.arange(0, C, gl.SliceLayout(0, out_layout))[None, :]
    matrix = place * (C * C)
    weight = gl.convert_layout((weight * scale).to(dtype), out_layout)
    gl.portable.store(weights + matrix, out_offsets, weight)
    store_inverses(shares * rate[:, None], rate, inverses, unscaled, matrix, out_offsets)
