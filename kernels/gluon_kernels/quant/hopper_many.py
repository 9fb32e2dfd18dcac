"""Products of many rows with weights of 8 or 4 bits on Hopper: groups of warps convert weights while the matrix unit multiplies.

The transposed product is computed, as in `hopper.py`: weights are the left operand, which `wgmma` reads from registers. One warp
copies bytes of weights and rows of `x` by TMA. Two groups of four warps have 64 or 128 rows of weights each; a group converts its weights of
the next step while those of this step are multiplied. Rows of `x` are twice as many bytes as weights: tiles of 256 weights' rows read them half as often. Scales of groups along K are multiplied in registers and rounded to the dtype
of `x`, as restored weights are; scales of rows are applied to the sums. Few tiles are split along K as in `gemm_split_k`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_columns
from gluon_kernels.gemm.hopper_small_m import share_of, store_shared
from gluon_kernels.quant.hopper import (
    GROUP,
    by_group,
    converted,
    left_operand,
    raw_dtype,
    raw_layout,
    scales_at,
)


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr, SPLITS: gl.constexpr):
    ROWS: gl.constexpr = tiles.block[0] // 2
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    position = ring.producer()
    for tile in range(gl.program_id(1), tiles.count(), gl.num_programs(1)):
        row, column = tiles.at(tile)
        for step in range(first, first + count):
            k = step * BLOCK_K
            ring.fetch(position, [[row, k // 2], [row + ROWS, k // 2], [column, k]])
            position = position.next()


@gluon.jit
def multiply_share(
    ring, tiles, outs, scales, strides, sizes, share: gl.constexpr, dtype: gl.constexpr,
    SIZE: gl.constexpr, BLOCK_K: gl.constexpr, FORMAT: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr,
):  # fmt: skip
    """Multiply a group's rows of weights of each tile of the program."""
    c, c_row, sums, counters, end = outs
    M, N, K = sizes
    COLUMNS: gl.constexpr = tiles.block[1]
    ROWS: gl.constexpr = tiles.block[0] // 2
    SHAPE: gl.constexpr = [ROWS, BLOCK_K]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    raw_at: gl.constexpr = raw_layout(ROWS, BLOCK_K // 2, 4)
    like = left_operand(gl.full([ROWS, BLOCK_K // 2], 0, raw_dtype(FORMAT), raw_at), dtype, FORMAT, SHAPE, operand)  # fmt: skip
    of_groups: gl.constexpr = gl.SliceLayout(2, by_group(like).type.layout)
    near = gl.arange(0, ROWS, gl.SliceLayout(1, of_groups))
    groups = gl.arange(0, BLOCK_K // GROUP, gl.SliceLayout(0, of_groups))
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    position = ring.consumer()
    for tile in range(gl.program_id(1), tiles.count(), gl.num_programs(1)):
        row, column = tiles.at(tile)
        row += share * ROWS
        scale = None
        coming = None
        k = first * BLOCK_K
        if scales is not None:
            scale = scales_at(scales, strides, row + near, groups, k, N, K, SIZE)
            coming = scales_at(scales, strides, row + near, groups, k + BLOCK_K, N, K, SIZE)
        raw = ring.wait(position)[share].load(raw_at)
        weights = converted(raw, scale, dtype, FORMAT, SHAPE, operand)
        acc = warpgroup_mma_init(gl.zeros([ROWS, COLUMNS], gl.float32, layout))
        for _ in range(1, count):
            x_tile = ring.wait(position)[2]
            acc = warpgroup_mma(weights, x_tile.permute((1, 0)), acc, is_async=True)
            following = position.next()
            raw = ring.wait(following)[share].load(raw_at)
            if scales is not None:
                scale = coming
                coming = scales_at(scales, strides, row + near, groups, k + 2 * BLOCK_K, N, K, SIZE)  # fmt: skip
                k += BLOCK_K
            after = converted(raw, scale, dtype, FORMAT, SHAPE, operand)
            ring.wait(following)  # a branch: ptxas moves no conversion behind it
            # The registers of the weights are read until the product is over.
            waited = warpgroup_mma_wait(0, deps=[acc, weights, after])
            acc = warpgroup_mma_init(waited[0])
            ring.release(position)
            position = following
            weights = waited[2]
        x_tile = ring.wait(position)[2]
        acc = warpgroup_mma(weights, x_tile.permute((1, 0)), acc, is_async=True)
        result = warpgroup_mma_wait(0, deps=[acc, weights])[0]
        ring.release(position)
        position = position.next()
        value = gl.permute(result, (1, 0))
        store_shared(c, value, tile * 2 + share, (sums, counters), (column, row), (M, N), c_row, end, SPLITS, VECTOR)  # fmt: skip


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row"])
def linear_many(
    w_desc, x_desc, c, sums, counters, bias, scales, strides, row_scales, M, N, K, c_row,
    SIZE: gl.constexpr, FORMAT: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `x @ weight.T + bias`: `x` is [M, K], `weight` [N, K] in bytes, of which `w_desc` reads pairs of weights. The grid is [parts of K, programs].

    `scales` is None, or has a scale for SIZE weights along K of each row, a multiple of 32; `row_scales` is None, or a
    vector. A tile has BLOCK_M rows of `x` and BLOCK_N, 128 or 256, of the weights. With SPLITS > 1 there is a program for each part of each tile; the other arguments
    are those of `gemm_split_k`, `sums` and `counters` of half tiles.
    """
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    ring = tma_ring([w_desc, w_desc, x_desc], STAGES, consumers=2)
    wait_for_predecessor()
    tiles = gl.portable.swizzled_tiles([N, M], [BLOCK_N, BLOCK_M], 8)
    end = of_columns(M, N, bias, ACTIVATION, None, None, row_scales)
    dtype: gl.constexpr = x_desc.dtype
    outs = (c, c_row, sums, counters, end)
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (
                multiply_share,
                (ring, tiles, outs, scales, strides, sizes, 0, dtype, SIZE, BLOCK_K, FORMAT, SPLITS, VECTOR),
            ),
            (
                multiply_share,
                (ring, tiles, outs, scales, strides, sizes, 1, dtype, SIZE, BLOCK_K, FORMAT, SPLITS, VECTOR),
            ),
            (copy_tiles, (ring, tiles, K, BLOCK_K, SPLITS)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
