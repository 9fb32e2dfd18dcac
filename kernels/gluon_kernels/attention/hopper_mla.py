"""Multi-head latent attention of one new token each on Hopper, absorbed: 64 heads against tiles of 64 tokens of a page.

Sums of 64 heads by 512 elements take the registers of two groups of four warps, each of which has half of the elements. The first group
multiplies queries by tokens and computes the softmax; it passes the weights, and the factors of older sums, through shared memory to
the other one, and starts the products of the next tile before its own sums are there. One warp copies tokens, which are keys and
values at once, by TMA. The parts of a sequence, their results and the kernel that combines them are those of `portable_mla.py`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

TOKENS = gl.constexpr(64)  # of a tile
HEADS = gl.constexpr(64)  # of a program


@gluon.jit
def tiles_of(part, length, CHUNK: gl.constexpr):
    """Return the first tile of a part of a sequence, and the one past its last."""
    end = gl.minimum((part + 1) * CHUNK, length)
    return part * (CHUNK // TOKENS), gl.cdiv(end, TOKENS)


@gluon.jit
def copy_tokens(queries, tokens, table, work, PAGE: gl.constexpr, CHUNK: gl.constexpr):
    """Copy the queries, then the tokens of each part."""
    row, length = work
    LATENT: gl.constexpr = tokens.block_shape[1]
    queries.fetch(queries.producer(), [[row, 0], [row, LATENT]])
    position = tokens.producer()
    for part in range(gl.program_id(2), gl.cdiv(length, CHUNK), gl.num_programs(2)):
        first, last = tiles_of(part, length, CHUNK)
        for tile in range(first, last):
            token = tile * TOKENS
            line = gl.load(table + token // PAGE) * PAGE + token % PAGE
            tokens.fetch(position, [[line, 0], [line, LATENT]])
            position = position.next()


@gluon.jit
def products(query, latent, rotated, zeros):
    """Start to multiply queries by a tile of tokens."""
    score = warpgroup_mma(query[0], latent.permute((1, 0)), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(query[1], rotated.permute((1, 0)), score, is_async=True)


@gluon.jit
def clear_rows(buffer, valid):
    """Store zeros behind the first `valid` rows: memory behind a sequence's last token may hold anything, and a weight of 0 hides no infinity."""
    COLUMNS: gl.constexpr = 64
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = gl.arange(0, buffer.shape[0], gl.SliceLayout(1, layout))
    for i in gl.static_range(buffer.shape[1] // COLUMNS):
        part = buffer.slice(i * COLUMNS, COLUMNS, dim=1)
        part.store(gl.where((row < valid)[:, None], part.load(layout), 0.0))


@gluon.jit
def weigh(score, top, total, exchange, latent, tile, length, nth, scale):
    """Pass the weights of a tile, and the factor of older sums, to the other group; return them, and the new maximum and sum of each row."""
    weights, factors, written, used = exchange
    key = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(0, score.type.layout))
    score = gl.where((key < length)[None, :], score * scale, float("-inf"))
    higher = gl.maximum(top, gl.max(score, 1))
    kept = gl.exp2(top - higher)
    p = gl.exp2(score - higher[:, None])
    total = total * kept + gl.sum(p, 1)
    p = p.to(weights.dtype)
    mbarrier.wait(used, (nth & 1) ^ 1)
    weights.store(p)
    factors.store(kept)
    if (tile + 1) * TOKENS > length:
        clear_rows(latent, length - tile * TOKENS)
    fence_async_shared()
    mbarrier.arrive(written)
    return p, kept, higher, total


@gluon.jit
def attend_first(rings, exchange, outs, work, scale, CHUNK: gl.constexpr):
    """Compute the weights, and the first half of the elements of each result."""
    queries, tokens = rings
    parts, logsums, most, valid = outs
    _, factors, written, used = exchange
    _, length = work
    LATENT: gl.constexpr = tokens.block_shape[1]
    HALF: gl.constexpr = LATENT // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    out_row: gl.constexpr = gl.SliceLayout(1, out_layout)
    zeros = gl.zeros([HEADS, TOKENS], gl.float32, layout)
    row = gl.arange(0, HEADS, out_row)
    column = gl.arange(0, HALF, gl.SliceLayout(0, out_layout))
    query = queries.wait(queries.consumer())
    position = tokens.consumer()
    nth = 0
    for part in range(gl.program_id(2), gl.cdiv(length, CHUNK), gl.num_programs(2)):
        first, last = tiles_of(part, length, CHUNK)
        latent, rotated = tokens.wait(position)
        score = warpgroup_mma_wait(0, deps=[products(query, latent, rotated, zeros)])
        top = gl.full([HEADS], -1e30, gl.float32, by_row)
        total = gl.zeros([HEADS], gl.float32, by_row)
        acc = gl.zeros([HEADS, HALF], gl.float32, out_layout)
        for tile in range(first, last - 1):
            latent, rotated = tokens.wait(position)
            p, kept, top, total = weigh(score, top, total, exchange, latent, tile, length, nth, scale)  # fmt: skip
            sums = warpgroup_mma_init(acc * gl.convert_layout(kept, out_row)[:, None])
            p = gl.convert_layout(p, operand)
            sums = warpgroup_mma(p, latent.slice(0, HALF, dim=1), sums, is_async=True)
            behind, position = position, position.next()
            latent, rotated = tokens.wait(position)
            coming = products(query, latent, rotated, zeros)
            acc = warpgroup_mma_wait(1, deps=[sums])
            tokens.release(behind)
            score = warpgroup_mma_wait(0, deps=[coming])
            nth += 1
        latent, rotated = tokens.wait(position)
        p, kept, top, total = weigh(score, top, total, exchange, latent, last - 1, length, nth, scale)  # fmt: skip
        sums = warpgroup_mma_init(acc * gl.convert_layout(kept, out_row)[:, None])
        p = gl.convert_layout(p, operand)
        sums = warpgroup_mma(p, latent.slice(0, HALF, dim=1), sums, is_async=True)
        result = warpgroup_mma_wait(0, deps=[sums])
        tokens.release(position)
        position = position.next()
        nth += 1

        # A part has tokens, and the sums of all rows are positive.
        mbarrier.wait(used, (nth & 1) ^ 1)
        factors.store(1 / total)
        mbarrier.arrive(written)
        nth += 1
        result = result * gl.convert_layout(1 / total, out_row)[:, None]
        offsets = (row.to(gl.int64) * most + part)[:, None] * LATENT + column[None, :]
        gl.store(parts + offsets, result, mask=(row < valid)[:, None])
        near = gl.arange(0, HEADS, by_row)
        offsets = near.to(gl.int64) * most + part
        gl.store(logsums + offsets, top + gl.log2(total), mask=near < valid)


@gluon.jit
def attend_second(tokens, exchange, outs, work, CHUNK: gl.constexpr):
    """Compute the second half of the elements of each result."""
    parts, _, most, valid = outs
    weights, factors, written, used = exchange
    _, length = work
    LATENT: gl.constexpr = tokens.block_shape[1]
    HALF: gl.constexpr = LATENT // 2
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    out_row: gl.constexpr = gl.SliceLayout(1, out_layout)
    row = gl.arange(0, HEADS, out_row)
    column = HALF + gl.arange(0, HALF, gl.SliceLayout(0, out_layout))
    position = tokens.consumer()
    nth = 0
    for part in range(gl.program_id(2), gl.cdiv(length, CHUNK), gl.num_programs(2)):
        first, last = tiles_of(part, length, CHUNK)
        acc = gl.zeros([HEADS, HALF], gl.float32, out_layout)
        for _ in range(first, last):
            latent, rotated = tokens.wait(position)
            mbarrier.wait(written, nth & 1)
            sums = warpgroup_mma_init(acc * factors.load(out_row)[:, None])
            sums = warpgroup_mma(weights, latent.slice(HALF, HALF, dim=1), sums, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[sums])
            mbarrier.arrive(used)
            tokens.release(position)
            position = position.next()
            nth += 1
        mbarrier.wait(written, nth & 1)
        result = acc * factors.load(out_row)[:, None]
        mbarrier.arrive(used)
        nth += 1
        offsets = (row.to(gl.int64) * most + part)[:, None] * LATENT + column[None, :]
        gl.store(parts + offsets, result, mask=(row < valid)[:, None])


@gluon.jit
def mla_decode_hopper(
    q_latent, q_rotated, latent, rotated, table, lengths, parts, logsums, heads, most, table_stride, scale,
    PAGE: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Attend to the parts of each sequence; the grid has tiles of 64 heads, sequences, and programs that share a sequence.

    Descriptors are those of the latent and of the rotated elements of queries, [sequences * heads, elements], and of tokens, [pages * PAGE,
    elements], in blocks of 64 rows; 64 divides PAGE and CHUNK. The other arguments are those of
    `portable_mla.mla_decode`.
    """
    gl.static_assert(
        PAGE % TOKENS == 0 and CHUNK % TOKENS == 0, "a tile is within a page and a part"
    )
    dtype: gl.constexpr = q_latent.dtype
    queries = tma_ring([q_latent, q_rotated], 1)
    tokens = tma_ring([latent, rotated], STAGES, consumers=2)
    weights = gl.allocate_shared_memory(
        dtype, [HEADS, TOKENS], gl.NVMMASharedLayout(128, 16, rank=2)
    )
    factors = gl.allocate_shared_memory(gl.float32, [HEADS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    written = mbarrier.allocate_mbarrier()
    used = mbarrier.allocate_mbarrier()
    mbarrier.init(written, 1)
    mbarrier.init(used, 1)
    exchange = (weights, factors, written, used)
    head = gl.program_id(0) * HEADS
    row = gl.program_id(1) * heads + head
    work = (row, gl.load(lengths + gl.program_id(1)))
    table += gl.program_id(1).to(gl.int64) * table_stride
    LATENT: gl.constexpr = latent.block_type.shape[1]
    parts += row.to(gl.int64) * most * LATENT
    logsums += row.to(gl.int64) * most
    outs = (parts, logsums, most, heads - head)
    gl.warp_specialize(
        [
            (attend_first, ((queries, tokens), exchange, outs, work, scale, CHUNK)),
            (attend_second, (tokens, exchange, outs, work, CHUNK)),
            (copy_tokens, (queries, tokens, table, work, PAGE, CHUNK)),
        ],
        [4, 1],
        [216, 24],
    )
