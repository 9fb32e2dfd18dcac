"""GEMM of 8-bit floats on Hopper whose sums are float32: each step of K is promoted to accumulators of its own.

`wgmma` adds up products of 8-bit floats with about 14 bits. After 128 elements of K the sum of a step is scaled and added
to one in float32 (promoted), as in DeepSeek-V3 (arXiv:2412.19437, 3.3.2): by the scales of 128 elements of a row of A and of a
block of 128 x 128 of B, or by nothing where scales belong to rows and columns. Two groups of four warps have half a tile
each, and one promotes while the other multiplies. With few rows the transposed product is computed, of which 8 columns are enough.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma, warpgroup_mma_wait
from gluon_kernels.gemm.epilogue import of_scaled, store_part
from gluon_kernels.gemm.hopper import (
    close,
    copy_tiles,
    left_of,
    place_of,
    right_of,
    store,
    writers_for,
)

DEPTH = gl.constexpr(128)  # elements of K that share a scale


@gluon.jit
def row_scales(scales, rows, M, K, step):
    """Return the scales of rows for a step, zeros behind the last row or step."""
    a_scales, strides = scales[0], scales[2]
    inside = (rows < M) & (step < gl.cdiv(K, DEPTH))
    at = rows.to(gl.int64) * strides[0] + step.to(gl.int64) * strides[1]
    return gl.load(a_scales + at, mask=inside, other=0.0)


@gluon.jit
def block_scale(scales, N, K, column, step):
    """Return the scale of the block of B that has a column, of the last block behind it."""
    b_scales, strides = scales[1], scales[2]
    block = gl.minimum(column // DEPTH, gl.cdiv(N, DEPTH) - 1)
    step = gl.minimum(step, gl.cdiv(K, DEPTH) - 1)
    return gl.load(b_scales + step.to(gl.int64) * strides[2] + block.to(gl.int64) * strides[3])


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
    ring, tiles, batch, outs, scales, sizes, group: gl.constexpr, SHAPES: gl.constexpr,
    FORM: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply a group's rows of each tile: 128 columns or twice as many, one after the other, with registers for the product of one."""
    M, N, K = sizes
    ROWS: gl.constexpr = SHAPES[0][0]
    TWO: gl.constexpr = len(SHAPES[1]) == 2
    BY_BLOCK: gl.constexpr = scales is not None
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHAPES[1][0], 32])
    steps = gl.cdiv(K, DEPTH)
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count() * batch, gl.num_programs(0)):
        matrix, row, column = place_of(tile, tiles)
        row += group * ROWS
        left = gl.zeros([ROWS, SHAPES[1][0]], gl.float32, layout)
        right = left
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        if BY_BLOCK:
            first = gl.to_tensor(0)
            coming = row_scales(scales, rows, M, K, first)
            left_coming = block_scale(scales, N, K, column, first)
            right_coming = block_scale(scales, N, K, column + DEPTH, first)
        for step in range(steps):
            if BY_BLOCK:  # those of the next step are under way while this one is multiplied
                by_left = coming * left_coming
                by_right = coming * right_coming
                coming = row_scales(scales, rows, M, K, step + 1)
                left_coming = block_scale(scales, N, K, column, step + 1)
                right_coming = block_scale(scales, N, K, column + DEPTH, step + 1)
            else:
                by_left, by_right = None, None
            slot = ring.wait(at)
            a = left_of(slot[group], (False, True))
            part = product(a, right_of(slot[2], (False, True)), layout)
            if TWO:
                left = promoted(left, part, by_left)
                ring.wait(at)  # a branch: ptxas moves nothing across one
                part = product(a, right_of(slot[3], (False, True)), layout)
                ring.release(at)
                right = promoted(right, part, by_right)
            else:
                ring.release(at)
                left = promoted(left, part, by_left)
            at = at.next()
        if TWO:
            store(outs, (left, right), matrix, row, column, FORM, VECTOR)
        else:
            store(outs, (left,), matrix, row, column, FORM, VECTOR)
    close(outs, FORM)


@gluon.jit(do_not_specialize=["batch", "M", "N", "K", "c_row"])
def gemm_promoted(
    a_desc, b_descs, c, c_descs, c_matrix, c_row, by_rows, scales, batch, M, N, K,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    FORM: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply [batch, M, K] by [batch, N, K], 8-bit floats; `a_desc` is of half the rows of a tile, `b_descs` of 128 columns each.

    `by_rows` are the scales of `of_scaled`. `scales` is None, or the scales of steps of rows, of blocks, and their strides:
    of rows and steps, of steps and blocks. The other arguments are those of `gemm`.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    WIDTHS: gl.constexpr = (b_descs[0].block_type.shape[1],) * len(b_descs)
    COLUMNS: gl.constexpr = WIDTHS[0] * len(b_descs)
    SHAPES: gl.constexpr = ((BLOCK_M // 2,) * 2, WIDTHS, DEPTH)
    TRANSPOSED: gl.constexpr = (False, True)
    ring = tma_ring((a_desc,) * 2 + b_descs, STAGES, consumers=2)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, COLUMNS], GROUP)
    end = of_scaled(M, N, None, None, by_rows)
    PLAIN: gl.constexpr = by_rows[0] is None and by_rows[1] is None and len(by_rows[2]) == 0
    rest = (c, (c_matrix, c_row), (M, N), end)
    first = (writers_for(c_descs, end, WIDTHS, PLAIN),) + rest
    second = (writers_for(c_descs, end, WIDTHS, PLAIN),) + rest
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (
                multiply_promoted,
                (ring, tiles, batch, first, scales, sizes, 0, SHAPES, FORM, VECTOR),
            ),
            (
                multiply_promoted,
                (ring, tiles, batch, second, scales, sizes, 1, SHAPES, FORM, VECTOR),
            ),
            (copy_tiles, (ring, tiles, batch, K, SHAPES, TRANSPOSED)),
        ],
        [4, 1],
        [232, 40],
    )


# -- few rows -------------------------------------------------------------------------------------


@gluon.jit
def started(ring, at, nothing):
    """Return the transposed product of a step, under way."""
    a, b = ring.wait(at)
    a = left_of(a, (False, True))
    b = right_of(b, (False, True))
    return warpgroup_mma(
        b.permute((1, 0)), a.permute((1, 0)), nothing, use_acc=False, is_async=True
    )


@gluon.jit
def scales_of_step(scales, rows, sizes, column, step):
    """Return a tuple of the scales of a step, of none where scales belong to rows and columns."""
    M, N, K = sizes
    if scales is None:
        return ()
    else:
        return (row_scales(scales, rows, M, K, step) * block_scale(scales, N, K, column, step),)


@gluon.jit
def added(total, part, by):
    if len(by) == 0:
        total += part
    else:
        total += part * by[0][None, :]
    return total


@gluon.jit
def multiply_few(ring, tiles, c, c_row, end, scales, sizes, VECTOR: gl.constexpr):
    """Scale one of two steps while the other is multiplied."""
    M, N, K = sizes
    ROWS: gl.constexpr = tiles.block[0]
    COLUMNS: gl.constexpr = tiles.block[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 32])
    nothing = gl.zeros([COLUMNS, ROWS], gl.float32, layout)
    steps = gl.cdiv(K, DEPTH)
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(0, layout))
        total = nothing
        for pair in range(steps // 2):
            by_even = scales_of_step(scales, rows, sizes, column, 2 * pair)
            even = started(ring, at, nothing)
            behind, at = at, at.next()
            by_odd = scales_of_step(scales, rows, sizes, column, 2 * pair + 1)
            odd = started(ring, at, nothing)
            part = warpgroup_mma_wait(1, deps=[even])
            ring.release(behind)
            total = warpgroup_mma_wait(1, deps=[added(total, part, by_even)])
            ring.wait(at)  # a branch: ptxas moves nothing across one
            part = warpgroup_mma_wait(0, deps=[odd])
            ring.release(at)
            at = at.next()
            total = added(total, part, by_odd)
        if steps % 2 == 1:
            by = scales_of_step(scales, rows, sizes, column, steps - 1)
            part = warpgroup_mma_wait(0, deps=[started(ring, at, nothing)])
            ring.release(at)
            at = at.next()
            total = added(total, part, by)
        result = gl.permute(total, (1, 0))
        store_part(c, result, row, column, (M, N), c_row, end, False, VECTOR)


@gluon.jit
def copy_few(ring, tiles, K):
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, DEPTH):
            ring.fetch(at, [[0, row, k], [0, column, k]])
            at = at.next()


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row"])
def gemm_promoted_few(
    a_desc, b_desc, c, c_row, by_rows, scales, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply [M, K] by [N, K] with few rows; the arguments are those of `gemm_promoted`."""
    gl.static_assert(128 % BLOCK_N == 0, "a tile has the scales of one block")
    ring = tma_ring([a_desc, b_desc], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], 8)
    end = of_scaled(M, N, None, None, by_rows)
    gl.warp_specialize(
        [
            (multiply_few, (ring, tiles, c, c_row, end, scales, (M, N, K), VECTOR)),
            (copy_few, (ring, tiles, K)),
        ],
        [1],
        [24],
    )
