"""Attention of one new token each against keys and values in pages, split over programs, on any device.

Every sequence has its keys and values in pages of a common store, and a table that says which pages.
A program takes one head of keys, the queries that share it (GQA), and a part of the sequence. Memory
is read once and is the bound: copies of later keys are under way while these are
multiplied. A second kernel puts the parts of a sequence together, weighted by their sums.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def rows_of(table, tile, end, layout: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr):
    """Return where the keys of a tile are in the cache, and which exist."""
    key = tile * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    there = key < end
    page = gl.load(table + key // PAGE, mask=there, other=0)
    return page * PAGE + key % PAGE, there


@gluon.jit
def fetch(smem, cache, rows, there, row_stride, layout: gl.constexpr):
    """Start copying keys or values to a slot."""
    column = gl.arange(0, smem.shape[1], gl.SliceLayout(0, layout))
    offsets = (rows.to(gl.int64) * row_stride)[:, None] + column[None, :]
    gl.portable.async_copy(smem, cache, offsets, there[:, None])


@gluon.jit
def paged_attention(
    q, k_cache, v_cache, table, lengths, parts, logsums, heads, table_stride, scale,
    SHARED: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Attend to a part of the keys of each sequence.

    `q` is [sequences, heads * SHARED, D], a cache [pages, PAGE, heads, D], the table [sequences, pages of the longest]; the
    result of each part goes to `parts` [sequences, heads * SHARED, SPLITS, D], float32, the logarithm (base 2) of its
    sum to `logsums`. `scale` includes log2(e).
    """
    dtype: gl.constexpr = q.dtype.element_ty
    M: gl.constexpr = 16  # rows of the matrix units; SHARED of them are queries
    scores: gl.constexpr = gl.portable.mma_layouts(M, BLOCK, D, dtype, dtype)
    values: gl.constexpr = gl.portable.mma_layouts(M, D, BLOCK, dtype, dtype)
    tile_layout: gl.constexpr = gl.portable.blocked_layout([BLOCK, D], dtype)
    q_layout: gl.constexpr = gl.portable.blocked_layout([M, D], dtype)
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], values.b_shared)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], values.b_shared)

    head = gl.program_id(0)
    sequence = gl.program_id(1)
    split = gl.program_id(2)
    length = gl.load(lengths + sequence)
    tiles = gl.cdiv(length, BLOCK)
    share = gl.cdiv(tiles, SPLITS)
    first = split * share
    last = gl.minimum(first + share, tiles)
    end = gl.minimum(last * BLOCK, length)
    table += sequence * table_stride
    k_cache += head * D
    v_cache += head * D
    row_stride = heads * D
    for i in gl.static_range(STAGES - 1):
        rows, there = rows_of(table, first + i, end, tile_layout, PAGE, BLOCK)
        slot = (first + i) % STAGES
        fetch(k_smem.index(slot), k_cache, rows, there, row_stride, tile_layout)
        fetch(v_smem.index(slot), v_cache, rows, there, row_stride, tile_layout)
        gl.portable.commit()

    q_row = gl.arange(0, M, gl.SliceLayout(1, q_layout))
    q_column = gl.arange(0, D, gl.SliceLayout(0, q_layout))
    first_query = (sequence * heads + head) * SHARED
    q_at = (first_query + q_row)[:, None] * D + q_column[None, :]
    q_tile = gl.load(q + q_at, mask=(q_row < SHARED)[:, None], other=0.0)
    q_tile = gl.convert_layout(q_tile, scores.a)
    key = gl.arange(0, BLOCK, gl.SliceLayout(0, scores.accumulator))
    largest = gl.full([M], -1e30, gl.float32, by_row)
    total = gl.zeros([M], gl.float32, by_row)
    acc = gl.zeros([M, D], gl.float32, values.accumulator)
    for tile in range(first, last):
        rows, there = rows_of(table, tile + STAGES - 1, end, tile_layout, PAGE, BLOCK)
        gl.portable.wait(STAGES - 2)
        k_tile = k_smem.index(tile % STAGES).permute((1, 0)).load(scores.b)
        zero = gl.zeros([M, BLOCK], gl.float32, scores.accumulator)
        score = gl.portable.mma(q_tile, k_tile, zero) * scale
        score = gl.where((tile * BLOCK + key < end)[None, :], score, -float("inf"))
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        p = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(p, axis=1)
        largest = higher
        acc = acc * gl.convert_layout(kept, out_row)[:, None]
        p_tile = gl.convert_layout(p.to(dtype), values.a)
        acc = gl.portable.mma(p_tile, v_smem.index(tile % STAGES).load(values.b), acc)
        slot = (tile + STAGES - 1) % STAGES
        fetch(k_smem.index(slot), k_cache, rows, there, row_stride, tile_layout)
        fetch(v_smem.index(slot), v_cache, rows, there, row_stride, tile_layout)
        gl.portable.commit()
    gl.portable.wait(0)

    # A part without keys has the sum 0, whose logarithm weighs nothing.
    out_total = gl.convert_layout(total, out_row)
    acc = acc / gl.where(out_total > 0, out_total, 1.0)[:, None]
    row = gl.arange(0, M, out_row)
    column = gl.arange(0, D, gl.SliceLayout(0, values.accumulator))
    offsets = ((first_query + row) * SPLITS + split)[:, None] * D + column[None, :]
    gl.store(parts + offsets, acc, mask=(row < SHARED)[:, None])
    score_row = gl.arange(0, M, by_row)
    logsum = largest + gl.log2(total)
    where = (first_query + score_row) * SPLITS + split
    gl.store(logsums + where, logsum, mask=score_row < SHARED)


@gluon.jit
def joined(parts, logsums, D: gl.constexpr, COUNT: gl.constexpr, SPLITS: gl.constexpr):
    """Return the result of a query and the logarithm of its sum from those of COUNT parts, SPLITS at most."""
    layout: gl.constexpr = gl.portable.blocked_layout([SPLITS, D], gl.float32)
    split = gl.arange(0, SPLITS, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    valid = split < COUNT
    logsum = gl.load(logsums + split, mask=valid, other=-float("inf"))
    largest = gl.maximum(gl.max(logsum, axis=0), -1e30)
    weight = gl.exp2(logsum - largest)
    total = gl.sum(weight, axis=0)
    part = gl.load(parts + split[:, None] * D + column[None, :], mask=valid[:, None], other=0.0)
    result = gl.sum(part * weight[:, None], axis=0) / gl.where(total > 0, total, 1.0)
    return column, result, largest + gl.log2(total)


@gluon.jit
def combine(parts, logsums, out, D: gl.constexpr, SPLITS: gl.constexpr):
    """Put the parts of a query's result together."""
    query = gl.program_id(0).to(gl.int64)
    place = query * SPLITS
    column, result, _ = joined(parts + place * D, logsums + place, D, SPLITS, SPLITS)
    gl.store(out + query * D + column, result)


@gluon.jit
def join(
    parts, logsums, out, totals, strides, of_sequence, width, D: gl.constexpr, COUNT: gl.constexpr, SPLITS: gl.constexpr
):  # fmt: skip
    """Put COUNT parts of each row's result together; the grid has rows and heads.

    `parts` are [heads, length, COUNT, D], `logsums` [heads, length, COUNT]; `out` has the `strides` of batches, heads and rows, `of_sequence` heads
    in a batch, and `width` columns. The logarithms of whole sums go to `totals`, [heads, length], if that is not None.
    """
    row = gl.program_id(0).to(gl.int64)
    head = gl.program_id(1)
    query = head * gl.num_programs(0) + row
    place = query * COUNT
    column, result, logsum = joined(parts + place * D, logsums + place, D, COUNT, SPLITS)
    batch = (head // of_sequence).to(gl.int64)
    out += batch * strides[0] + (head % of_sequence).to(gl.int64) * strides[1] + row * strides[2]
    gl.store(out + column, result, mask=column < width)
    if totals is not None:
        gl.store(totals + query, logsum)
