"""Attention over packed sequences of heads of 129 to 256 columns of values, forward, on Hopper.

Tiles, masks and the producer are those of `hopper_varlen.py`, the two parts of heads and the overlap those of `hopper_wide.py`.
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
from gluon_kernels.attention.hopper_varlen import copy_tiles, masked_scores
from gluon_kernels.attention.packed import rounds, score_products, sequences, work_at
from gluon_kernels.attention.tiles import sums_of_lanes, with_sink
from gluon_kernels.dependent import wait_for_predecessor

FIRST = gl.constexpr(128)  # columns of the first part


@gluon.jit
def add_values(left, right, p, values, LAYOUTS: gl.constexpr):
    """Start to add the weighted sum of a tile of values, of both parts."""
    KEYS: gl.constexpr = p.shape[1]
    p_left = gl.convert_layout(p, gl.DotOperandLayout(0, LAYOUTS[0], 2))
    p_right = gl.convert_layout(p, gl.DotOperandLayout(0, LAYOUTS[1], 2))
    first = values[0].reshape([KEYS, FIRST])
    second = values[1].reshape([KEYS, values[1].shape[2]])
    left = warpgroup_mma(p_left, first, left, is_async=True)
    return left, warpgroup_mma(p_right, second, right, is_async=True)


@gluon.jit
def store_rows(out, result, column, lines, end, width, heads, head):
    """Store the rows before the token `end`, from a column on."""
    columns = column + gl.arange(0, result.shape[1], gl.SliceLayout(0, result.type.layout))
    to = out + (lines.to(gl.int64) * heads + head)[:, None] * width + columns[None, :]
    inside = (lines < end)[:, None] & (columns < width)[None, :]
    gl.store(to, result.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def attend(
    rings, outputs, lists, heads, scale, half: gl.constexpr, SECOND: gl.constexpr, SETTINGS: gl.constexpr
):  # fmt: skip
    """Compute the result of half of the rows of each tile."""
    queries, keys, values = rings
    writers, out, logsums, sinks, width = outputs
    BLOCKS: gl.constexpr = SETTINGS[0]
    dtype: gl.constexpr = values.dtype
    ROWS: gl.constexpr = BLOCKS[0] // 2
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS[1], 16])
    left_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    right_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SECOND, 16])
    LAYOUTS: gl.constexpr = (left_layout, right_layout)
    left_row: gl.constexpr = gl.SliceLayout(1, left_layout)
    right_row: gl.constexpr = gl.SliceLayout(1, right_layout)
    row_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
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
            q_tiles = queries.wait(query)
            pending = score_products(q_tiles, keys.wait(position), zeros, FIRST)
            score = warpgroup_mma_wait(0, deps=[pending])
            keys.release(position)
            score = masked_scores(score, low, stop - 1, length, scale, SETTINGS)
            top = gl.maximum(gl.max(score, 1), -1e30)  # finite even where a row sees no key yet
            p = gl.exp2(score - top[:, None])
            total = sums_of_lanes(p)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            p = p.to(dtype)
            left = warpgroup_mma_init(gl.zeros([ROWS, FIRST], gl.float32, left_layout))
            right = warpgroup_mma_init(gl.zeros([ROWS, SECOND], gl.float32, right_layout))
            behind, position = position, position.next()

            for j in range(start + 1, stop):
                pending = score_products(q_tiles, keys.wait(position), zeros, FIRST)
                left, right = add_values(left, right, p, values.wait(behind), LAYOUTS)
                score = warpgroup_mma_wait(2, deps=[pending])
                keys.release(position)
                score = masked_scores(score, low, start + stop - 1 - j, length, scale, SETTINGS)
                higher = gl.maximum(top, gl.max(score, 1))
                kept = gl.exp2(top - higher)
                p = gl.exp2(score - higher[:, None])
                fresh = sums_of_lanes(p)
                total = total * gl.convert_layout(kept, lanes)[:, None] + fresh
                top = higher
                p = p.to(dtype)
                queries.wait(query)  # came long ago; see `hopper.attend`
                done, other = warpgroup_mma_wait(0, deps=[left, right])
                values.release(behind)
                left = warpgroup_mma_init(done * gl.convert_layout(kept, left_row)[:, None])
                right = warpgroup_mma_init(other * gl.convert_layout(kept, right_row)[:, None])
                behind, position = position, position.next()

            queries.release(query)
            query = query.next()
            left, right = add_values(left, right, p, values.wait(behind), LAYOUTS)
            whole = gl.convert_layout(gl.sum(total, 1), row_layout)
            kept = 1.0
            if sinks is not None:
                top, whole, kept = with_sink(gl.load(sinks + head), top, whole)
            seen = whole > 0
            factor = gl.where(seen, kept / gl.where(seen, whole, 1.0), 0.0)
            if logsums is not None:
                rows = row + gl.arange(0, ROWS, row_layout)
                logsum = gl.where(seen, top + gl.log2(gl.where(seen, whole, 1.0)), float("-inf"))
                row_position = (first + rows).to(gl.int64) * heads + head
                gl.store(logsums + row_position, logsum, mask=rows < end - first)
            done, other = warpgroup_mma_wait(0, deps=[left, right])
            values.release(behind)
            done = done * gl.convert_layout(factor, left_row)[:, None]
            other = other * gl.convert_layout(factor, right_row)[:, None]
            line = first + row
            if line + ROWS <= end:
                writers[0].store([line, head, 0], done)
                writers[1].store([line, head, FIRST], other)
            else:
                # Rows past the sequence's last belong to the next one.
                lines = line + gl.arange(0, ROWS, left_row)
                store_rows(out, done, 0, lines, end, width, heads, head)
                lines = line + gl.arange(0, ROWS, right_row)
                store_rows(out, other, FIRST, lines, end, width, heads, head)
    writers[0].close()
    writers[1].close()


@gluon.jit
def attention_varlen_wide(
    q_desc, k_desc, v_desc, out_desc, out, logsums, sinks, of_queries, of_keys, count, heads, width,
    scale, cap, SHARED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
    ORDER: gl.constexpr,
):  # fmt: skip
    """Store softmax(scores) V of packed sequences.

    Arguments are those of `hopper_varlen.attention_varlen`; descriptors of operands are pairs, of 128 columns and of the 64 or 128
    behind, and blocks of the result have 64.
    """
    SECOND: gl.constexpr = v_desc[1].block_type.shape[2]
    SETTINGS: gl.constexpr = ((BLOCK_M, BLOCK_N), WINDOW, CAPPED, MOST, FIRST, ORDER)
    wait_for_predecessor()
    upper = tma_ring(q_desc, 1)
    lower = tma_ring(q_desc, 1)
    keys = tma_ring(k_desc, STAGES, consumers=2)
    values = tma_ring(v_desc, STAGES, consumers=2)
    lists = (of_queries, of_keys, count)
    writers = (tma_writer(out_desc, 2, 1), tma_writer(out_desc, SECOND // 64, 1))
    first = (writers, out, logsums, sinks, width)
    writers = (tma_writer(out_desc, 2, 1), tma_writer(out_desc, SECOND // 64, 1))
    second = (writers, out, logsums, sinks, width)
    scales = (scale, cap)
    gl.warp_specialize(
        [
            (attend, ((upper, keys, values), first, lists, heads, scales, 0, SECOND, SETTINGS)),
            (attend, ((lower, keys, values), second, lists, heads, scales, 1, SECOND, SETTINGS)),
            (copy_tiles, (((upper, lower), keys, values), lists, heads, SHARED, FIRST, SETTINGS)),
        ],
        [4, 1],
        [232, 40],
    )
