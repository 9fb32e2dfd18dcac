"""Grouped GEMM on Hopper: rows of groups that lie one behind the other, each group with a matrix of its own.

Roles, rings and accumulators are those of `gemm/hopper.py` under the cooperative schedule. Where groups end are numbers in
memory, known only when the kernel runs: each role finds its tiles by itself, from sums of the numbers of tiles. A tile that ends
with its group's last row is stored by pointers, since the rows behind are another's.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_columns, store_part
from gluon_kernels.gemm.hopper import boxes, cleared, finished, multiplied, widths
from gluon_kernels.moe.groups import in_each_warp, place_of, tiles_of


@gluon.jit
def copy_tiles(
    ring, ends, groups, N, K, SHAPES: gl.constexpr, SETTINGS: gl.constexpr, TRANSPOSED: gl.constexpr
):
    HEIGHTS: gl.constexpr = SHAPES[0]
    WIDTHS: gl.constexpr = SHAPES[1]
    BLOCK_K: gl.constexpr = SHAPES[2]
    layout: gl.constexpr = in_each_warp(SETTINGS[1], 1)
    listed = tiles_of(ends, groups, N, layout, SHAPES[3], SETTINGS[1])
    position = ring.producer()
    for tile in range(gl.program_id(0), gl.max(listed[2], 0), gl.num_programs(0)):
        group, row, column, _ = place_of(tile, listed, N, SHAPES[3], SETTINGS[0])
        for k in range(0, K, BLOCK_K):
            places = ()
            top = row
            for i in gl.static_range(len(HEIGHTS)):
                places = places + ([0, top, k],)
                top += HEIGHTS[i]
            left = column
            for i in gl.static_range(len(WIDTHS)):
                places = places + ([group, left, k] if TRANSPOSED[1] else [group, k, left],)
                left += WIDTHS[i]
            ring.fetch(position, places)
            position = position.next()


@gluon.jit
def store(outs, sums, row, column, last, ROWS: gl.constexpr, VECTOR: gl.constexpr):
    writers, c, stride, N, end = outs
    if row + ROWS <= last:
        left = column
        for i in gl.static_range(len(sums)):
            writers[i].store([0, row, left], sums[i])
            left += sums[i].shape[1]
    elif row < last:  # what comes behind the group's last row is another's
        left = column
        for i in gl.static_range(len(sums)):
            store_part(c, sums[i], row, left, (last, N), stride, end, False, VECTOR)
            left += sums[i].shape[1]


@gluon.jit
def multiply_share(
    ring, outs, ends, groups, N, K, share: gl.constexpr, SHAPES: gl.constexpr,
    SETTINGS: gl.constexpr, TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    ROWS: gl.constexpr = SHAPES[0][0]
    layout: gl.constexpr = in_each_warp(SETTINGS[1], 4)
    listed = tiles_of(ends, groups, N, layout, SHAPES[3], SETTINGS[1])
    position = ring.consumer()
    for tile in range(gl.program_id(0), gl.max(listed[2], 0), gl.num_programs(0)):
        _, row, column, last = place_of(tile, listed, N, SHAPES[3], SETTINGS[0])
        sums = cleared(ROWS, SHAPES[4], ring.dtype.primitive_bitwidth)
        for k in range(0, K, SHAPES[2]):
            sums = multiplied(
                ring.wait(position), sums, share, len(SHAPES[0]), TRANSPOSED, SHAPES[4]
            )
            ring.release(position.before(), pred=k > 0)
            position = position.next()
        sums = finished(sums)
        ring.release(position.before(), pred=K > 0)
        store(outs, sums, row + share * ROWS, column, last, ROWS, VECTOR)
    outs[0][0].close()


@gluon.jit
def writers_for(c_descs, WIDTHS: gl.constexpr):
    writers = ()
    for i in gl.static_range(len(c_descs)):
        writers = writers + (
            tma_writer(c_descs[i], WIDTHS[i] // c_descs[i].block_type.shape[2], 1),
        )
    return writers


@gluon.jit(do_not_specialize=["groups", "rows", "N", "K", "c_row"])
def grouped_gemm(
    a_desc, b_descs, c, c_descs, c_row, ends, groups, rows, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, WALK: gl.constexpr, MOST: gl.constexpr,
    TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply each group of rows with its matrix.

    `a` and `c` are [1, rows, K] and [1, rows, N], `b` [groups, K, N], or [groups, N, K] where TRANSPOSED[1]; group i has the
    rows from ends[i - 1] to ends[i], int32, of up to MOST groups. Rows behind the last are not written.
    """
    SHAPES: gl.constexpr = (
        (BLOCK_M // 2, BLOCK_M // 2), widths(BLOCK_N), BLOCK_K, (BLOCK_M, BLOCK_N), boxes(BLOCK_N)
    )  # fmt: skip
    SETTINGS: gl.constexpr = (WALK, MOST)
    ring = tma_ring((a_desc, a_desc) + b_descs, STAGES, consumers=2)
    wait_for_predecessor()
    end = of_columns(rows, N, None, None)
    rest = (c, c_row, N, end)
    upper = (writers_for(c_descs, SHAPES[1]),) + rest
    lower = (writers_for(c_descs, SHAPES[1]),) + rest
    gl.warp_specialize(
        [
            (multiply_share, (ring, upper, ends, groups, N, K, 0, SHAPES, SETTINGS, TRANSPOSED, VECTOR)),
            (multiply_share, (ring, lower, ends, groups, N, K, 1, SHAPES, SETTINGS, TRANSPOSED, VECTOR)),
            (copy_tiles, (ring, ends, groups, N, K, SHAPES, SETTINGS, TRANSPOSED)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip
