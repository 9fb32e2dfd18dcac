"""GEMM of 8-bit floats on Hopper whose sums are float32: each step of K is promoted to accumulators of its own.

`wgmma` adds up products of 8-bit floats with about 14 bits. After 128 elements of K the sum of a step is scaled and added
to one in float32 (promoted), as in DeepSeek-V3 (arXiv:2412.19437, 3.3.2): by the scales of 128 elements of a row of A and of a
block of 128 x 128 of B, or by nothing where scales belong to rows and columns. Two groups of four warps have half a tile
each, and one promotes while the other multiplies. With few rows the transposed product is computed, of which 8 columns are enough.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma, warpgroup_mma_wait
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_scaled
from gluon_kernels.gemm.hopper import (
    close,
    left_of,
    right_of,
    store,
    writers_for,
)
from gluon_kernels.gemm.hopper_small_m import share_of, store_shared
from gluon_kernels.gemm.places import place_of

DEPTH = gl.constexpr(128)  # elements of K that share a scale
WALK = gl.constexpr(8)  # rows of tiles that are walked together, where rows are few


@gluon.jit
def block_scales(scales, N, K, column, COUNT: gl.constexpr):
    """Return pointers to the first step's scales of COUNT blocks of B from a column on, of the last block behind it."""
    last = gl.cdiv(N, DEPTH) - 1
    pointers = ()
    for i in gl.static_range(COUNT):
        block = gl.minimum(column // DEPTH + i, last)
        pointers = pointers + (scales[0] + block.to(gl.int64) * scales[2],)
    return pointers


@gluon.jit
def copy_steps(ring, tiles, walk, batch, K, SHAPES: gl.constexpr, BY_BLOCK: gl.constexpr, SPLITS: gl.constexpr):  # fmt: skip
    """Fetch the tiles of each step, and the scales of its rows where steps have some."""
    first, count = share_of(gl.cdiv(K, DEPTH), SPLITS)
    position = ring.producer()
    for tile in range(gl.program_id(1), tiles.count() * batch, gl.num_programs(1)):
        matrix, row, column = place_of(tile, tiles, walk, SHAPES[3])
        for step in range(first, first + count):
            k = step * DEPTH
            places = ()
            top = row
            for i in gl.static_range(len(SHAPES[0])):
                places = places + ([matrix, top, k],)
                top += SHAPES[0][i]
            side = column
            for i in gl.static_range(len(SHAPES[1])):
                places = places + ([matrix, side, k],)
                side += SHAPES[1][i]
            if BY_BLOCK:
                places = places + ([step, row],)
            ring.fetch(position, places)
            position = position.next()


@gluon.jit
def product(a, b, layout: gl.constexpr):
    """Return the product of a step."""
    nothing = gl.zeros([a.shape[0], b.shape[1]], gl.float32, layout)
    part = warpgroup_mma(a, b, nothing, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=[part])


@gluon.jit
def promoted(total, part, by):
    if by is None:
        total += part
    else:
        total += part * by[:, None]
    # The next product begins behind this sum, so that it may use the registers of `part`.
    return warpgroup_mma_wait(0, deps=[total])


@gluon.jit
def multiply_promoted(
    ring, tiles, walk, batch, outs, scratch, scales, sizes, group: gl.constexpr, SHAPES: gl.constexpr,
    FORM: gl.constexpr, VECTOR: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Multiply a group's rows of each tile: the columns of one tile of B or of two, one after the other, with registers for the product of one."""
    M, N, K = sizes
    ROWS: gl.constexpr = SHAPES[0][0]
    TWO: gl.constexpr = len(SHAPES[1]) == 2
    BY_BLOCK: gl.constexpr = scales is not None
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHAPES[1][0], 32])
    first, count = share_of(gl.cdiv(K, DEPTH), SPLITS)
    position = ring.consumer()
    for tile in range(gl.program_id(1), tiles.count() * batch, gl.num_programs(1)):
        matrix, row, column = place_of(tile, tiles, walk, SHAPES[3])
        row += group * ROWS
        left = gl.zeros([ROWS, SHAPES[1][0]], gl.float32, layout)
        right = left
        if BY_BLOCK:
            of_blocks = block_scales(scales, N, K, column, len(SHAPES[1]))
        for step in range(first, first + count):
            if BY_BLOCK:
                of_left = gl.load(of_blocks[0] + step * scales[1])
                of_right = gl.load(of_blocks[len(SHAPES[1]) - 1] + step * scales[1])
                slot = ring.wait(position)
                flat = slot[len(SHAPES[0]) + len(SHAPES[1])].reshape([ROWS * 2])
                by_row = flat.slice(group * ROWS, ROWS).load(gl.SliceLayout(1, layout))
                by_left = by_row * of_left
                by_right = by_row * of_right
            else:
                slot = ring.wait(position)
                by_left, by_right = None, None
            a = left_of(slot[group], (False, True))
            part = product(a, right_of(slot[2], (False, True)), layout)
            if TWO:
                left = promoted(left, part, by_left)
                ring.wait(position)  # a branch: ptxas moves nothing across one
                part = product(a, right_of(slot[3], (False, True)), layout)
                ring.release(position)
                right = promoted(right, part, by_right)
            else:
                ring.release(position)
                left = promoted(left, part, by_left)
            position = position.next()
        if SPLITS > 1:
            gl.static_assert(FORM == "rows", "the sums of several programs are stored as rows")
            number = (tile * 2 + group) * len(SHAPES[1])
            store_shared(outs[1], left, number, scratch, (row, column), (M, N), outs[2][1], outs[4], SPLITS, VECTOR)  # fmt: skip
            if TWO:
                side = column + SHAPES[1][0]
                store_shared(outs[1], right, number + 1, scratch, (row, side), (M, N), outs[2][1], outs[4], SPLITS, VECTOR)  # fmt: skip
        elif TWO:
            store(outs, (left, right), matrix, row, column, FORM, VECTOR)
        else:
            store(outs, (left,), matrix, row, column, FORM, VECTOR)
    close(outs, FORM)


@gluon.jit(do_not_specialize=["batch", "M", "N", "K", "c_row", "of_matrix", "of_group", "of_last", "shifts"])  # fmt: skip
def gemm_promoted(
    a_desc, b_descs, scales_desc, c, c_descs, c_matrix, c_row, by_rows, scales, sums, counters, batch, M, N, K,
    of_matrix, of_group, of_last, shifts,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    FORM: gl.constexpr, VECTOR: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Multiply [batch, M, K] by [batch, N, K], 8-bit floats; `a_desc` is of half the rows of a tile, `b_descs` of 64 or 128 columns each. The grid is
    [parts of K, programs]; with SPLITS > 1 there is a program for each part of each tile.

    `by_rows` are the scales of `of_scaled`. `scales_desc` is None, or of the scales of steps of rows [K / 128, M], and `scales` has
    those of blocks with the strides of steps and of blocks. `sums` and `counters` are those of `gemm_split_k`, of 64 rows and the columns of a tile of B each. The other
    arguments are those of `gemm`.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    WIDTHS: gl.constexpr = (b_descs[0].block_type.shape[1],) * len(b_descs)
    COLUMNS: gl.constexpr = WIDTHS[0] * len(b_descs)
    SHAPES: gl.constexpr = ((BLOCK_M // 2,) * 2, WIDTHS, DEPTH, GROUP)
    BY_BLOCK: gl.constexpr = scales_desc is not None
    if BY_BLOCK:
        ring = tma_ring((a_desc,) * 2 + b_descs + (scales_desc,), STAGES, consumers=2)
    else:
        ring = tma_ring((a_desc,) * 2 + b_descs, STAGES, consumers=2)
    wait_for_predecessor()
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, COLUMNS], GROUP)
    walk = (gl.cdiv(M, BLOCK_M), gl.cdiv(N, COLUMNS), of_matrix, of_group, of_last, shifts)
    end = of_scaled(M, N, None, None, by_rows)
    PLAIN: gl.constexpr = by_rows[0] is None and by_rows[1] is None and len(by_rows[2]) == 0
    rest = (c, (c_matrix, c_row), (M, N), end)
    first = (writers_for(c_descs, end, WIDTHS, PLAIN),) + rest
    second = (writers_for(c_descs, end, WIDTHS, PLAIN),) + rest
    sizes = (M, N, K)
    scratch = (sums, counters)
    gl.warp_specialize(
        [
            (
                multiply_promoted,
                (
                    ring,
                    tiles,
                    walk,
                    batch,
                    first,
                    scratch,
                    scales,
                    sizes,
                    0,
                    SHAPES,
                    FORM,
                    VECTOR,
                    SPLITS,
                ),
            ),
            (
                multiply_promoted,
                (
                    ring,
                    tiles,
                    walk,
                    batch,
                    second,
                    scratch,
                    scales,
                    sizes,
                    1,
                    SHAPES,
                    FORM,
                    VECTOR,
                    SPLITS,
                ),
            ),
            (copy_steps, (ring, tiles, walk, batch, K, SHAPES, BY_BLOCK, SPLITS)),
        ],
        [4, 1],
        [232, 40],
    )


# -- few rows -------------------------------------------------------------------------------------


@gluon.jit
def started(ring, position, of_block, nothing):
    """Return the transposed product of a step, under way, and a tuple of the scales of its columns where it has some."""
    ROWS: gl.constexpr = nothing.shape[1]
    if len(of_block) == 0:
        slot = ring.wait(position)
        by = ()
    else:
        scale = gl.load(of_block[0])
        slot = ring.wait(position)
        flat = slot[2].reshape([slot[2].shape[1]]).slice(0, ROWS)
        by = (flat.load(gl.SliceLayout(0, nothing.type.layout)) * scale,)
    a = left_of(slot[0], (False, True)).permute((1, 0))
    b = right_of(slot[1], (False, True)).permute((1, 0))
    return warpgroup_mma(b, a, nothing, use_acc=False, is_async=True), by


@gluon.jit
def added(total, part, by):
    if len(by) == 0:
        total += part
    else:
        total += part * by[0][None, :]
    return total


@gluon.jit
def scale_of(scales, N, K, column, step):
    """Return a tuple of a pointer to the scale of a block and step, of none where scales belong to rows and columns."""
    if scales is None:
        return ()
    else:
        return (block_scales(scales, N, K, column, 1)[0] + step * scales[1],)


@gluon.jit
def multiply_few(ring, tiles, walk, c, c_row, end, scratch, scales, sizes, VECTOR: gl.constexpr, SPLITS: gl.constexpr):  # fmt: skip
    """Scale one of two steps while the other is multiplied."""
    M, N, K = sizes
    ROWS: gl.constexpr = tiles.block[0]
    COLUMNS: gl.constexpr = tiles.block[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 32])
    nothing = gl.zeros([COLUMNS, ROWS], gl.float32, layout)
    first, count = share_of(gl.cdiv(K, DEPTH), SPLITS)
    position = ring.consumer()
    for tile in range(gl.program_id(1), tiles.count(), gl.num_programs(1)):
        _, row, column = place_of(tile, tiles, walk, WALK)
        total = nothing
        for pair in range(count // 2):
            of_even = scale_of(scales, N, K, column, first + 2 * pair)
            even, by_even = started(ring, position, of_even, nothing)
            behind, position = position, position.next()
            of_odd = scale_of(scales, N, K, column, first + 2 * pair + 1)
            odd, by_odd = started(ring, position, of_odd, nothing)
            part = warpgroup_mma_wait(1, deps=[even])
            ring.release(behind)
            total = warpgroup_mma_wait(1, deps=[added(total, part, by_even)])
            ring.wait(position)  # a branch: ptxas moves nothing across one
            part = warpgroup_mma_wait(0, deps=[odd])
            ring.release(position)
            position = position.next()
            total = added(total, part, by_odd)
        if count % 2 == 1:
            last, by = started(
                ring, position, scale_of(scales, N, K, column, first + count - 1), nothing
            )
            part = warpgroup_mma_wait(0, deps=[last])
            ring.release(position)
            position = position.next()
            total = added(total, part, by)
        result = gl.permute(total, (1, 0))
        store_shared(c, result, tile, scratch, (row, column), (M, N), c_row, end, SPLITS, VECTOR)


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row", "of_matrix", "of_group", "of_last", "shifts"])
def gemm_promoted_few(
    a_desc, b_desc, scales_desc, c, c_row, by_rows, scales, sums, counters, M, N, K,
    of_matrix, of_group, of_last, shifts,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, VECTOR: gl.constexpr,
    SPLITS: gl.constexpr,
):  # fmt: skip
    """Multiply [M, K] by [N, K] with few rows; the arguments are those of `gemm_promoted`."""
    gl.static_assert(128 % BLOCK_N == 0, "a tile has the scales of one block")
    SHAPES: gl.constexpr = ((BLOCK_M,), (BLOCK_N,), DEPTH, WALK)
    BY_BLOCK: gl.constexpr = scales_desc is not None
    if BY_BLOCK:
        ring = tma_ring((a_desc, b_desc, scales_desc), STAGES)
    else:
        ring = tma_ring((a_desc, b_desc), STAGES)
    wait_for_predecessor()
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], WALK)
    walk = (gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N), of_matrix, of_group, of_last, shifts)
    end = of_scaled(M, N, None, None, by_rows)
    gl.warp_specialize(
        [
            (
                multiply_few,
                (
                    ring,
                    tiles,
                    walk,
                    c,
                    c_row,
                    end,
                    (sums, counters),
                    scales,
                    (M, N, K),
                    VECTOR,
                    SPLITS,
                ),
            ),
            (copy_steps, (ring, tiles, walk, 1, K, SHAPES, BY_BLOCK, SPLITS)),
        ],
        [1],
        [24],
    )
