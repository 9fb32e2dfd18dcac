"""Attention of few queries against many keys and values, in place or in pages, split over programs, on any device.

Every sequence has its keys and values in a row, or in pages of a common store and a table that says which pages.
A program takes one head of keys, the queries that share it (GQA), and a part of the sequence. Memory
is read once and is the bound: copies of later keys are under way while these are
multiplied. The last program of a sequence puts its parts together, weighted by their sums.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.parts import sum_of_parts
from gluon_kernels.attention.portable_forward import capped
from gluon_kernels.attention.thirds import converted, product_of_thirds, thirds
from gluon_kernels.attention.tiles import power_of_two, with_sink
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def rows_of(
    table, tile, bounds, most, layout: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr
):
    """Return where the keys of a tile are in the cache, and which are within `bounds`. Pages are loaded up to `most` keys, so that they do not wait for these."""
    key = tile * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
    page = gl.load(table + key // PAGE, mask=key < most, other=0)
    return page * PAGE + key % PAGE, is_within(key, bounds)


@gluon.jit
def is_within(key, bounds):
    """Return True for keys from `bounds[0]` on, if that is not None, and before `bounds[1]`."""
    inside = key < bounds[1]
    if bounds[0] is not None:
        inside = inside & (key >= bounds[0])
    return inside


@gluon.jit
def fetch(smem, cache, rows, there, row_stride, layout: gl.constexpr):
    """Start copying keys or values to a slot."""
    column = gl.arange(0, smem.shape[1], gl.SliceLayout(0, layout))
    offsets = (rows.to(gl.int64) * row_stride)[:, None] + column[None, :]
    gl.portable.async_copy(smem, cache, offsets, there[:, None])


@gluon.jit
def places_of(
    table, tile, bounds, most, layout: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr
):
    """Return where the keys of a tile are, in pages or, if PAGE is 0, in a row, and which are within `bounds`."""
    if PAGE:
        rows, there = rows_of(table, tile, bounds, most, layout, PAGE, BLOCK)
    else:
        rows = tile * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, layout))
        there = is_within(rows, bounds)
    return rows, there


@gluon.jit
def fetch_both(buffers, caches, slot, places, row_strides, layout: gl.constexpr):
    """Start copying keys and their values to a slot."""
    for i in gl.static_range(2):
        fetch(buffers[i].index(slot), caches[i], places[0], places[1], row_strides[i], layout)
    gl.portable.commit()


@gluon.jit
def paged_attention(
    q, k_cache, v_cache, table, lengths, out, parts, counters, totals, sinks, heads, length, table_stride, strides,
    scale, window, cap, ROWS: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    SPLITS: gl.constexpr, CAPPED: gl.constexpr, JOINED: gl.constexpr,
):  # fmt: skip
    """Attend to the keys of each sequence; the grid has heads of keys, sequences and SPLITS parts.

    Each head of keys has ROWS rows of queries, `q` and `out` are [sequences, heads, ROWS, D]. Caches are [pages, PAGE, heads, D] with a table
    [sequences, pages of the longest] of `table_stride`, or, where PAGE is 0, [sequences, length, heads, D]. `strides` are those of `q` and `out`:
    from sequence to sequence, head to head and row to row; and of the caches: from sequence to sequence (0 in pages), row to row and head
    to head. `lengths` are those of the sequences; None where all have `length`. `scale` includes log2(e). Rows
    see the last `window` keys; None is no bound. If CAPPED, `cap` bounds scores.

    With more than one part, the results of each go to `parts` [sequences, heads, ROWS, SPLITS, D], float32, and the logarithms (base 2) of their
    sums behind these, [sequences, heads, ROWS, SPLITS]. If JOINED, programs count in `counters` [sequences, heads], zeros before and after, and the
    last one puts the parts together; else that is left to `join`. The logarithms of
    whole sums go to `totals` [sequences, heads, ROWS], if that is not None. `sinks`, if not None, are scores without values, one for each head of
    queries, which has TOKENS rows. Numbers of float32 are multiplied by thirds (`thirds.py`).
    """
    dtype: gl.constexpr = q.dtype.element_ty
    FULL: gl.constexpr = dtype == gl.float32
    operand: gl.constexpr = gl.bfloat16 if FULL else dtype
    M: gl.constexpr = 16  # rows of the matrix units
    scores: gl.constexpr = gl.portable.mma_layouts(M, BLOCK, D, operand, operand)
    values: gl.constexpr = gl.portable.mma_layouts(M, D, BLOCK, operand, operand)
    tile_layout: gl.constexpr = gl.portable.blocked_layout([BLOCK, D], dtype)
    q_layout: gl.constexpr = gl.portable.blocked_layout([M, D], dtype)
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], values.b_shared)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, D], values.b_shared)

    if gl.target.has("nvidia.tma"):  # as have all targets with dependent launches
        wait_for_predecessor()
    head = gl.program_id(0)
    sequence = gl.program_id(1)
    split = gl.program_id(2)
    of_sequence = sequence.to(gl.int64)
    of_keys = head.to(gl.int64)
    most = length
    if lengths is not None:
        length = gl.load(lengths + sequence)
    tiles = gl.cdiv(length, BLOCK)
    low = gl.to_tensor(0)
    if window is not None:
        low = gl.maximum(length - window, 0)
    start = low // BLOCK
    share = gl.cdiv(tiles - start, SPLITS)
    first = start
    if SPLITS > 1:
        first += split * share
    last = gl.minimum(first + share, tiles)
    end = gl.minimum(last * BLOCK, length)
    bounds = (None if window is None else low, end)
    if PAGE:
        table += of_sequence * table_stride
    k_cache += of_sequence * strides[2][0] + of_keys * strides[2][2]
    v_cache += of_sequence * strides[3][0] + of_keys * strides[3][2]
    buffers = (k_smem, v_smem)
    caches = (k_cache, v_cache)
    row_strides = (strides[2][1], strides[3][1])
    for i in gl.static_range(STAGES - 1):
        places = places_of(table, first + i, bounds, most, tile_layout, PAGE, BLOCK)
        fetch_both(buffers, caches, (first + i) % STAGES, places, row_strides, tile_layout)
    # A page is known a step before it is copied, as the table is in memory, too.
    places = places_of(table, first + STAGES - 1, bounds, most, tile_layout, PAGE, BLOCK)

    q_row = gl.arange(0, M, gl.SliceLayout(1, q_layout))
    q_column = gl.arange(0, D, gl.SliceLayout(0, q_layout))
    q += of_sequence * strides[0][0] + of_keys * strides[0][1]
    offsets = q_row[:, None] * strides[0][2] + q_column[None, :]
    q_tile = gl.load(q + offsets, mask=(q_row < ROWS)[:, None], other=0.0)
    if FULL:
        q_tile = converted(thirds(q_tile), scores.a)
    else:
        q_tile = gl.convert_layout(q_tile, scores.a)
    key = gl.arange(0, BLOCK, gl.SliceLayout(0, scores.accumulator))
    largest = gl.full([M], -1e30, gl.float32, by_row)
    total = gl.zeros([M], gl.float32, by_row)
    acc = gl.zeros([M, D], gl.float32, values.accumulator)
    for tile in range(first, last):
        coming = places_of(table, tile + STAGES, bounds, most, tile_layout, PAGE, BLOCK)
        gl.portable.wait(STAGES - 2)
        k_tile = k_smem.index(tile % STAGES).permute((1, 0)).load(scores.b)
        zero = gl.zeros([M, BLOCK], gl.float32, scores.accumulator)
        if FULL:
            score = product_of_thirds(q_tile, thirds(k_tile), zero) * scale
        else:
            score = gl.portable.mma(q_tile, k_tile, zero) * scale
        if CAPPED:
            score, _ = capped(score, cap)
        inside = is_within(tile * BLOCK + key, bounds)
        score = gl.where(inside[None, :], score, -float("inf"))
        higher = gl.maximum(largest, gl.max(score, axis=1))
        kept = gl.exp2(largest - higher)
        p = gl.exp2(score - higher[:, None])
        total = total * kept + gl.sum(p, axis=1)
        largest = higher
        acc = acc * gl.convert_layout(kept, out_row)[:, None]
        v_tile = v_smem.index(tile % STAGES).load(values.b)
        if FULL:
            # A sum that begins at zero: matrix units cut off bits of long ones.
            zeros = gl.zeros([M, D], gl.float32, values.accumulator)
            acc += product_of_thirds(converted(thirds(p), values.a), thirds(v_tile), zeros)
        else:
            acc = gl.portable.mma(gl.convert_layout(p.to(dtype), values.a), v_tile, acc)
        slot = (tile + STAGES - 1) % STAGES
        fetch_both(buffers, caches, slot, places, row_strides, tile_layout)
        places = coming
    gl.portable.wait(0)

    score_row = gl.arange(0, M, by_row)
    if sinks is not None:
        sinks += head * (ROWS // TOKENS)
        if SPLITS == 1:
            sink = gl.load(sinks + score_row // TOKENS, mask=score_row < ROWS, other=0.0)
            largest, total, kept = with_sink(sink, largest, total)
            acc = acc * gl.convert_layout(kept, out_row)[:, None]
    # A part without keys has the sum 0, whose logarithm weighs nothing.
    out_total = gl.convert_layout(total, out_row)
    acc = acc / gl.where(out_total > 0, out_total, 1.0)[:, None]
    row = gl.arange(0, M, out_row)
    column = gl.arange(0, D, gl.SliceLayout(0, values.accumulator))
    logsum = largest + gl.log2(total)
    rows = (of_sequence, heads, head, of_keys, row, column, score_row)
    buffers = (out, parts, counters, totals, sinks)
    store_results(rows, buffers, acc, logsum, split, SPLITS, strides[1], ROWS, TOKENS, D, power_of_two(SPLITS), JOINED)  # fmt: skip


@gluon.jit
def store_results(
    rows, buffers, acc, logsum, split, splits, strides, ROWS: gl.constexpr, TOKENS: gl.constexpr,
    D: gl.constexpr, MOST: gl.constexpr, JOINED: gl.constexpr,
):  # fmt: skip
    """Store the rows of a program, the results where MOST, the most parts, is 1; if JOINED, the last program of them puts the parts together."""
    of_sequence, heads, head, of_keys, row, column, score_row = rows
    out, parts, counters, totals, sinks = buffers
    of_head = of_sequence * heads + head
    out += of_sequence * strides[0] + of_keys * strides[1]
    if MOST == 1:
        offsets = row[:, None] * strides[2] + column[None, :]
        gl.store(out + offsets, acc.to(out.dtype.element_ty), mask=(row < ROWS)[:, None])
        if totals is not None:
            gl.store(totals + of_head * ROWS + score_row, logsum, mask=score_row < ROWS)
    else:
        count = gl.num_programs(1).to(gl.int64) * heads * splits * ROWS
        logsums = parts + count * D + of_head * splits * ROWS
        parts += of_head * splits * (ROWS * D)
        offsets = (row * splits + split)[:, None] * D + column[None, :]
        gl.store(parts + offsets, acc, mask=(row < ROWS)[:, None])
        gl.store(logsums + score_row * splits + split, logsum, mask=score_row < ROWS)
        if JOINED:
            gl.barrier()  # all of the program have stored before it counts
            before = gl.atomic_add(counters + of_head, 1, sem="acq_rel", scope="gpu")
            if before == splits - 1:
                gl.store(counters + of_head, 0)  # for the next launch
                if totals is not None:
                    totals += of_head * ROWS
                place = (parts, logsums, sinks, out, strides[2], totals)
                join_rows(place, splits, ROWS, TOKENS, D, MOST)


@gluon.jit
def join_rows(
    place, splits, ROWS: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr, MOST: gl.constexpr
):
    """Put the parts of some rows together, MOST at most.

    `place` has the parts [ROWS, splits, D], their logarithms [ROWS, splits], sinks or None, the result and its stride, and where the logarithms of
    whole sums go, or None.
    """
    parts, logsums, sinks, out, stride, totals = place
    M: gl.constexpr = power_of_two(ROWS)
    TOGETHER: gl.constexpr = MOST if MOST < 8 else 8
    layout: gl.constexpr = gl.portable.blocked_layout([M, D], gl.float32)
    query = gl.arange(0, M, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))[None, :]
    there = query < ROWS
    acc, largest, total = sum_of_parts(
        parts, logsums, query * splits, 1, splits, there, D, layout, TOGETHER
    )
    kept = 1.0
    if sinks is not None:
        sink = gl.load(sinks + query // TOKENS, mask=there, other=0.0)
        largest, total, kept = with_sink(sink, largest, total)
    acc = acc * (kept / gl.where(total > 0, total, 1.0))[:, None]
    offsets = query[:, None] * stride + column
    gl.store(out + offsets, acc.to(out.dtype.element_ty), mask=there[:, None])
    if totals is not None:
        gl.store(totals + query, largest + gl.log2(total), mask=there)


@gluon.jit
def joined(parts, logsums, sink, D: gl.constexpr, COUNT: gl.constexpr, SPLITS: gl.constexpr):
    """Return the result of a query and the logarithm of its sum from those of COUNT parts, SPLITS at most, and a score without a value at `sink`,
    if that is not None."""
    layout: gl.constexpr = gl.portable.blocked_layout([SPLITS, D], gl.float32)
    split = gl.arange(0, SPLITS, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    valid = split < COUNT
    logsum = gl.load(logsums + split, mask=valid, other=-float("inf"))
    largest = gl.maximum(gl.max(logsum, axis=0), -1e30)
    weight = gl.exp2(logsum - largest)
    total = gl.sum(weight, axis=0)
    kept = 1.0
    if sink is not None:
        largest, total, kept = with_sink(gl.load(sink), largest, total)
    part = gl.load(parts + split[:, None] * D + column[None, :], mask=valid[:, None], other=0.0)
    result = gl.sum(part * weight[:, None], axis=0) * (kept / gl.where(total > 0, total, 1.0))
    return column, result, largest + gl.log2(total)


@gluon.jit
def join(
    parts, logsums, out, totals, sinks, strides, of_sequence, tokens, width, D: gl.constexpr, COUNT: gl.constexpr,
    SPLITS: gl.constexpr,
):  # fmt: skip
    """Put COUNT parts of each row's result together; the grid has heads and rows.

    `parts` are [heads, length, COUNT, D], `logsums` [heads, length, COUNT], behind `parts` if None; `out` has the `strides` of batches, heads and rows,
    `of_sequence` heads in a batch, and `width` columns. The logarithms of whole sums go to `totals`, [heads, length], if that is not None;
    `sinks`, if not None, are scores without values, one for each `tokens` rows of a batch.
    """
    row = gl.program_id(1).to(gl.int64)
    head = gl.program_id(0)
    rows = gl.num_programs(1)
    query = head * rows + row
    place = query * COUNT
    if logsums is None:
        logsums = parts + gl.num_programs(0).to(gl.int64) * rows * COUNT * D
    sink = None
    if sinks is not None:
        sink = sinks + (head % of_sequence * rows + row) // tokens
    column, result, logsum = joined(parts + place * D, logsums + place, sink, D, COUNT, SPLITS)
    batch = (head // of_sequence).to(gl.int64)
    out += batch * strides[0] + (head % of_sequence).to(gl.int64) * strides[1] + row * strides[2]
    gl.store(out + column, result, mask=column < width)
    if totals is not None:
        gl.store(totals + query, logsum)
