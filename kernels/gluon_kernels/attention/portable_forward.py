"""Attention over batches or packed sequences on any device: heads of any width, a window, a soft cap, a function of scores.

The softmax is computed online (Milakov and Gimelshein, arXiv:1805.02867); `gl.portable.mma` takes the matrix unit that there is.
A width is covered by one or two blocks of powers of two, past whose last element zeros are read.
"""

import math

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.packed import add
from gluon_kernels.attention.tiles import with_sink

__all__ = ["attend", "capped", "sequence_tile", "visible"]

LOG2E = gl.constexpr(math.log2(math.e))


@gluon.jit
def sequence_tile(lists, BLOCK: gl.constexpr, MOST: gl.constexpr):
    """Return the rows that a program has.

    `lists` are the rows and the others of each batch, or, where MOST is not 0, the first tokens of the packed sequences, those of
    their others, and the number of sequences, at most MOST. The results are the batch (0 of packed sequences), the first row within
    its sequence, the sequence's first token and its rows, the first token of its others and their number.
    """
    nth = gl.program_id(0)
    if MOST > 0:
        own, others, count = lists
        layout: gl.constexpr = gl.portable.blocked_layout([MOST], gl.int32)
        index = gl.arange(0, MOST, layout)
        begin = gl.load(own + index, mask=index < count, other=0)
        end = gl.load(own + index + 1, mask=index < count, other=0)
        tiles = gl.cdiv(end - begin, BLOCK)
        above = gl.associative_scan(tiles, 0, add)
        sequence = gl.sum((above <= nth).to(gl.int32), 0)
        before = gl.sum(gl.where(index == sequence, above - tiles, 0), 0)
        valid = sequence < count
        first = gl.load(own + sequence, mask=valid, other=0)
        rows = gl.load(own + sequence + 1, mask=valid, other=0) - first
        first_other = gl.load(others + sequence, mask=valid, other=0)
        length = gl.load(others + sequence + 1, mask=valid, other=0) - first_other
        place = (gl.to_tensor(0), (nth - before) * BLOCK, first, rows, first_other, length)
    else:
        zero = gl.to_tensor(0)
        place = (gl.program_id(2), nth * BLOCK, zero, lists[0], zero, lists[1])
    return place


@gluon.jit
def visible(row, key, sizes, window, BOUNDED: gl.constexpr):
    """Return a mask of the keys that rows see.

    `sizes` are the numbers of rows and keys and the key of row 0, `window` how many keys before and after its own place a row sees;
    BOUNDED has True for each of both that counts.
    """
    rows, keys, shift = sizes
    inside = (key < keys) & (row < rows)
    if BOUNDED[0]:
        inside = inside & (key >= row + shift - window[0])
    if BOUNDED[1]:
        inside = inside & (key <= row + shift + window[1])
    return inside


@gluon.jit
def capped(score, cap):
    """Return `cap tanh(score / cap)` of scores times log2(e), and its derivative by the score."""
    tanh = 1 - 2 / (gl.exp2(score * (2 / cap)) + 1)
    return cap * LOG2E * tanh, 1 - tanh * tanh


@gluon.jit
def load_rows(pointer, row, rows, stride, width, layout: gl.constexpr, D: gl.constexpr):
    """Load rows of a head from the column that `pointer` has on, zeros past the last row and column."""
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    offsets = row.to(gl.int64)[:, None] * stride + column[None, :]
    return gl.portable.load(pointer, offsets, (row < rows)[:, None] & (column < width)[None, :])


@gluon.jit
def attend(
    q, k, v, out, logsums, sinks, lists, strides, heads, widths, scale, window, cap, extra, DEPTHS: gl.constexpr,
    D: gl.constexpr, SHARED: gl.constexpr, BOUNDED: gl.constexpr, AT_END: gl.constexpr, CAPPED: gl.constexpr,
    SCORE: gl.constexpr, MOST: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Store softmax(scores) V of a tile of rows; the grid has tiles, heads and batches.

    `strides` are those of `q`, `k`, `v`, `out` and `logsums`: from batch to batch, from row to row and from head to head. `widths` are the
    elements of queries and of values, DEPTHS and D the blocks that cover them. SHARED heads share one of keys. With AT_END the
    last row is at the last key, else row 0 at key 0. `scale` includes log2(e). SCORE, if not None, is called as
    `SCORE(score, row, key, head, extra)` for a tile of scores times log2(e). `sinks`, if not None, are scores without
    values, one for each head. See `sequence_tile` and `visible`.
    """
    dtype: gl.constexpr = q.dtype.element_ty
    scores: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, DEPTHS[0], dtype, dtype, operands="shared", b_transposed=True
    )
    values: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, D, BLOCK_N, dtype, dtype, operands="shared"
    )
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    head = gl.program_id(1)
    batch, row, first, rows, first_key, keys = sequence_tile(lists, BLOCK_M, MOST)
    shift = gl.to_tensor(0)
    if AT_END:
        shift = keys - rows
    batch = batch.to(gl.int64)
    of_keys = (head // SHARED).to(gl.int64)
    of_head = head.to(gl.int64)
    q += batch * strides[0][0] + first.to(gl.int64) * strides[0][1] + of_head * strides[0][2]
    k += batch * strides[1][0] + first_key.to(gl.int64) * strides[1][1] + of_keys * strides[1][2]
    v += batch * strides[2][0] + first_key.to(gl.int64) * strides[2][1] + of_keys * strides[2][2]
    out += batch * strides[3][0] + first.to(gl.int64) * strides[3][1] + of_head * strides[3][2]

    q_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, DEPTHS[0]], dtype)
    near = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, q_rows))
    tile = load_rows(q, near, rows, strides[0][1], widths[0], q_rows, DEPTHS[0])
    q_tile = gl.allocate_shared_memory(dtype, [BLOCK_M, DEPTHS[0]], scores.a_shared, tile)
    extent = gl.maximum(keys, 1)  # a tensor has rows; without keys none is copied
    k_tiles = gl.portable.descriptor(
        k, [extent, widths[0]], [strides[1][1], 1], [BLOCK_N, DEPTHS[0]], scores.b_shared
    )
    v_tiles = gl.portable.descriptor(
        v, [extent, widths[1]], [strides[2][1], 1], [BLOCK_N, D], values.b_shared
    )
    if DEPTHS[1] > 0:
        rest: gl.constexpr = gl.portable.mma_layouts(
            BLOCK_M, BLOCK_N, DEPTHS[1], dtype, dtype, operands="shared", b_transposed=True
        )
        more_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, DEPTHS[1]], dtype)
        near = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, more_rows))
        tile = load_rows(
            q + DEPTHS[0], near, rows, strides[0][1], widths[0] - DEPTHS[0], more_rows, DEPTHS[1]
        )
        q_more = gl.allocate_shared_memory(dtype, [BLOCK_M, DEPTHS[1]], rest.a_shared, tile)
        more_tiles = gl.portable.descriptor(
            k, [extent, widths[0]], [strides[1][1], 1], [BLOCK_N, DEPTHS[1]], rest.b_shared
        )
        ring = gl.portable.pipeline([k_tiles, v_tiles, more_tiles], STAGES)
    else:
        q_more = q_tile
        ring = gl.portable.pipeline([k_tiles, v_tiles], STAGES)
    gl.portable.fence()
    start = gl.to_tensor(0)
    end = keys
    if BOUNDED[0]:
        start = gl.maximum(row + shift - window[0], 0) // BLOCK_N
    if BOUNDED[1]:
        end = gl.minimum(keys, row + BLOCK_M + shift + window[1])
    count = gl.maximum(gl.cdiv(end, BLOCK_N) - start, 0)
    if MOST > 0:
        count = gl.where(row < rows, count, 0)
    for i in gl.static_range(STAGES - 1):
        fetch(ring, i, start, count, BLOCK_N, DEPTHS)

    weights = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK_N], values.a_shared)
    place = row + gl.arange(0, BLOCK_M, by_row)[:, None]
    near_key = gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores.accumulator))[None, :]
    largest = gl.full([BLOCK_M], -1e30, gl.float32, by_row)
    total = gl.zeros([BLOCK_M], gl.float32, by_row)
    result = gl.zeros([BLOCK_M, D], gl.float32, values.accumulator)
    for step in range(count):
        buffers = ring.wait(step)
        acc = gl.portable.accumulator(scores)
        acc = gl.portable.mma(q_tile, buffers[0].permute((1, 0)), acc, is_async=True)
        if DEPTHS[1] > 0:
            acc = gl.portable.mma(q_more, buffers[2].permute((1, 0)), acc, is_async=True)
        score = gl.portable.read(acc) * scale
        # All warps have finished the tile before: its slot is free.
        fetch(ring, step + STAGES - 1, start, count, BLOCK_N, DEPTHS)
        key = (start + step) * BLOCK_N + near_key
        if CAPPED:
            score, _ = capped(score, cap)
        if SCORE is not None:
            score = SCORE(score, place, key, head, extra)
        inside = visible(place, key, (rows, keys, shift), window, BOUNDED)
        score = gl.where(inside, score, -float("inf"))
        higher = gl.maximum(largest, gl.max(score, axis=1))
        decay = gl.exp2(largest - higher)
        p = gl.exp2(score - higher[:, None])
        total = total * decay + gl.sum(p, axis=1)
        largest = higher
        weights.store(p.to(dtype))
        gl.portable.fence()
        sums = result * gl.convert_layout(decay, out_row)[:, None]
        acc = gl.portable.accumulator(values, sums)
        result = gl.portable.read(gl.portable.mma(weights, buffers[1], acc))
    ring.close()
    kept = 1.0
    if sinks is not None:
        largest, total, kept = with_sink(gl.load(sinks + head), largest, total)
    seen = total > 0
    divisor = gl.where(seen, total, 1.0)
    if logsums is not None:
        near = row + gl.arange(0, BLOCK_M, by_row)
        logsums += (
            batch * strides[4][0] + first.to(gl.int64) * strides[4][1] + of_head * strides[4][2]
        )
        logsum = gl.where(seen, largest + gl.log2(divisor), float("-inf"))
        gl.store(logsums + near.to(gl.int64) * strides[4][1], logsum, mask=near < rows)
    result = result * gl.convert_layout(kept / divisor, out_row)[:, None]
    near = row + gl.arange(0, BLOCK_M, out_row)
    column = gl.arange(0, D, gl.SliceLayout(0, values.accumulator))
    offsets = near.to(gl.int64)[:, None] * strides[3][1] + column[None, :]
    inside = (near < rows)[:, None] & (column < widths[1])[None, :]
    gl.store(out + offsets, result.to(dtype), mask=inside)


@gluon.jit
def fetch(ring, step, start, count, BLOCK_N: gl.constexpr, DEPTHS: gl.constexpr):
    """Start copying the keys and values of a step."""
    key = (start + step) * BLOCK_N
    if DEPTHS[1] > 0:
        ring.fetch(step, [[key, 0], [key, 0], [key, DEPTHS[0]]], pred=step < count)
    else:
        ring.fetch(step, [[key, 0], [key, 0]], pred=step < count)
