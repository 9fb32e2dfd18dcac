"""Attention over packed sequences of any lengths, forward, on Hopper.

Heads share keys and values (GQA), a window bounds the keys that a query sees, and a cap bounds the scores. The roles are those of
`hopper.py`. A tile of queries looks at the keys from its first row's window to its last row's end, and only tiles that a
border crosses are masked.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.packed import fetch_rows, rounds, score_products, sequences, work_at
from gluon_kernels.attention.tiles import sums_of_lanes, with_sink
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def copy_tiles(
    rings, lists, heads, SHARED: gl.constexpr, MORE_VALUES: gl.constexpr, SETTINGS: gl.constexpr
):  # fmt: skip
    """Copy the queries of each tile, and keys and values from the last ones on; values have a second part from MORE_VALUES on."""
    BLOCKS: gl.constexpr = SETTINGS[0]
    queries, keys, values = rings
    packed = sequences(lists, 1, SETTINGS)
    position = keys.producer()
    query = queries[0].producer()
    for round in range(rounds(packed, heads)):
        head, first, row, _, first_key, _, _, start, stop = work_at(
            round, lists, packed, heads, SETTINGS
        )
        if head < heads:
            for i in gl.static_range(2):
                fetch_rows(queries[i], query, first + row + i * (BLOCKS[0] // 2), head, SETTINGS[4])
            query = query.next()
            for j in range(start, stop):
                key = first_key + (stop - 1 - (j - start)) * BLOCKS[1]
                fetch_rows(keys, position, key, head // SHARED, SETTINGS[4])
                fetch_rows(values, position, key, head // SHARED, MORE_VALUES)
                position = position.next()


@gluon.jit
def masked_scores(score, low, tile, length, scale, SETTINGS: gl.constexpr):
    """Return capped scores of a tile of keys times log2(e), -inf where a row does not see a key; row 0 is at key `low`."""
    BLOCK_N: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    if SETTINGS[2]:
        # cap tanh(s / cap); the first factor makes the exponent of tanh, the second is the cap
        score = scale[1] - 2 * scale[1] / (gl.exp2(score * scale[0]) + 1)
    else:
        score = score * scale[0]
    first = tile * BLOCK_N
    crossed = first + BLOCK_N > length
    if WINDOW[0] is not None:
        crossed = crossed | (first < low + score.shape[0] - 1 - WINDOW[0])
    if WINDOW[1] is not None:
        crossed = crossed | (first + BLOCK_N - 1 > low + WINDOW[1])
    if crossed:
        key = (first + gl.arange(0, BLOCK_N, gl.SliceLayout(0, score.type.layout)))[None, :]
        place = low + gl.arange(0, score.shape[0], gl.SliceLayout(1, score.type.layout))[:, None]
        inside = key < length
        if WINDOW[0] is not None:
            inside = inside & (key >= place - WINDOW[0])
        if WINDOW[1] is not None:
            inside = inside & (key <= place + WINDOW[1])
        score = gl.where(inside, score, float("-inf"))
    return score


@gluon.jit
def attend(rings, outputs, lists, heads, scale, half: gl.constexpr, SETTINGS: gl.constexpr):
    """Compute the result of half of the rows of each tile."""
    queries, keys, values = rings
    writer, out, logsums, sinks, width = outputs
    BLOCKS: gl.constexpr = SETTINGS[0]
    dtype: gl.constexpr = values.dtype
    ROWS: gl.constexpr = BLOCKS[0] // 2
    D: gl.constexpr = values.block_shape[2]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS[1], 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    out_row: gl.constexpr = gl.SliceLayout(1, out_layout)
    zeros = gl.zeros([ROWS, BLOCKS[1]], gl.float32, score_layout)
    packed = sequences(lists, 4, SETTINGS)
    position = keys.consumer()
    query = queries.consumer()
    for round in range(rounds(packed, heads)):
        head, first, row, end, _, length, shift, start, stop = work_at(
            round, lists, packed, heads, SETTINGS
        )
        if head < heads:
            row += half * ROWS
            low = row + shift
            q_tile = queries.wait(query)
            pending = score_products(q_tile, keys.wait(position), zeros, SETTINGS[4])
            score = warpgroup_mma_wait(0, deps=[pending])
            keys.release(position)
            score = masked_scores(score, low, stop - 1, length, scale, SETTINGS)
            top = gl.maximum(gl.max(score, 1), -1e30)  # finite even where a row sees no key yet
            p = gl.exp2(score - top[:, None])
            total = sums_of_lanes(p)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            p_tile = gl.convert_layout(p.to(dtype), p_layout)
            acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
            previous, position = position, position.next()

            for j in range(start + 1, stop):
                pending = score_products(q_tile, keys.wait(position), zeros, SETTINGS[4])
                v_tile = values.wait(previous).reshape([BLOCKS[1], D])
                acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
                score = warpgroup_mma_wait(1, deps=[pending])
                keys.release(position)
                score = masked_scores(score, low, start + stop - 1 - j, length, scale, SETTINGS)
                higher = gl.maximum(top, gl.max(score, 1))
                decay = gl.exp2(top - higher)
                p = gl.exp2(score - higher[:, None])
                fresh = sums_of_lanes(p)
                total = total * gl.convert_layout(decay, lanes)[:, None] + fresh
                top = higher
                if D <= 64:
                    queries.wait(query)  # came long ago; see `hopper.attend`
                done = warpgroup_mma_wait(0, deps=[acc])
                values.release(previous)
                acc = warpgroup_mma_init(done * gl.convert_layout(decay, out_row)[:, None])
                p_tile = gl.convert_layout(p.to(dtype), p_layout)
                previous, position = position, position.next()

            queries.release(query)
            query = query.next()
            v_tile = values.wait(previous).reshape([BLOCKS[1], D])
            acc = warpgroup_mma(p_tile, v_tile, acc, is_async=True)
            total = gl.convert_layout(gl.sum(total, 1), row_layout)
            kept = 1.0
            if sinks is not None:
                top, total, kept = with_sink(gl.load(sinks + head), top, total)
            seen = total > 0
            factor = gl.where(seen, kept / gl.where(seen, total, 1.0), 0.0)
            if logsums is not None:
                rows = row + gl.arange(0, ROWS, row_layout)
                logsum = gl.where(seen, top + gl.log2(gl.where(seen, total, 1.0)), float("-inf"))
                row_position = (first + rows).to(gl.int64) * heads + head
                gl.store(logsums + row_position, logsum, mask=rows < end - first)
            result = warpgroup_mma_wait(0, deps=[acc])
            values.release(previous)
            result = result * gl.convert_layout(factor, out_row)[:, None]
            if first + row + ROWS <= end:
                writer.store([first + row, head, 0], result)
            else:
                # Rows past the sequence's last belong to the next one.
                lines = first + row + gl.arange(0, ROWS, out_row)
                columns = gl.arange(0, D, gl.SliceLayout(0, out_layout))
                to = out + (lines.to(gl.int64) * heads + head)[:, None] * width + columns[None, :]
                inside = (lines < end)[:, None] & (columns < width)[None, :]
                gl.store(to, result.to(dtype), mask=inside)
    writer.close()


@gluon.jit
def attention_varlen(
    q_desc, k_desc, v_desc, out_desc, out, logsums, sinks, of_queries, of_keys, count, heads, width,
    scale, cap, SHARED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
    MORE: gl.constexpr, ORDER: gl.constexpr,
):  # fmt: skip
    """Store softmax(scores) V of packed sequences.

    Q and the result are [tokens, heads, D], K and V [tokens, heads / SHARED, D]; the pointer `out` has `width` columns. `of_queries`
    and `of_keys` hold the first tokens of the `count` sequences, at most MOST, and the token past the last. With queries at the end of
    their sequence's keys, one at place i sees keys from i - WINDOW[0] to i + WINDOW[1]; None is no bound. `scale` is that of the scores
    times log2(e), or, if CAPPED, times 2 log2(e) over the cap; `cap`, times log2(e), bounds the scores. `logsums` is [tokens, heads],
    logarithms of base 2, or None; `sinks` scores without values, one for each head, or None. Queries and keys wider than values come as pairs of descriptors, the second one's blocks behind MORE
    elements; MORE is 0 otherwise. ORDER is a code of `order.py`. Values of other sequences are multiplied by zeros: they must be finite.
    """
    SETTINGS: gl.constexpr = ((BLOCK_M, BLOCK_N), WINDOW, CAPPED, MOST, MORE, ORDER)
    wait_for_predecessor()
    upper = tma_ring(q_desc, 1)
    lower = tma_ring(q_desc, 1)
    keys = tma_ring(k_desc, STAGES, consumers=2)
    values = tma_ring(v_desc, STAGES, consumers=2)
    lists = (of_queries, of_keys, count)
    PARTS: gl.constexpr = v_desc.block_type.shape[2] // out_desc.block_type.shape[2]
    first = (tma_writer(out_desc, PARTS, 1), out, logsums, sinks, width)
    second = (tma_writer(out_desc, PARTS, 1), out, logsums, sinks, width)
    scales = (scale, cap)
    gl.warp_specialize(
        [
            (attend, ((upper, keys, values), first, lists, heads, scales, 0, SETTINGS)),
            (attend, ((lower, keys, values), second, lists, heads, scales, 1, SETTINGS)),
            (copy_tiles, (((upper, lower), keys, values), lists, heads, SHARED, 0, SETTINGS)),
        ],
        [4, 1],
        [232, 40],
    )
