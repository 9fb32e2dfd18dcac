"""Matrix multiplication on Blackwell: TMA feeds `tcgen05`, whose results stay in tensor memory.

Three kinds of warps work on their own: one copies tiles, one issues multiplications, four read
finished tiles from tensor memory and store them. There are two accumulators, so that one tile is
stored while the next is multiplied. Each program walks over many tiles.

With CTAS=2 (from Triton 3.8 on) the two blocks of a cluster multiply one tile: each copies and keeps
half of A's rows, B's columns and C's rows, and the even one issues for both. Barriers at which
both arrive are in the even block.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    accumulator_ring,
    tcgen05_commit,
    tcgen05_mma,
)
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr):
    position = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            ring.fetch(position, [[row, k], [k, column]])
            position = position.next()


@gluon.jit
def multiply_tile(ring, position, acc, K, BLOCK_K: gl.constexpr):
    """Start the products of a tile; the position after its last step."""
    for k in range(0, K, BLOCK_K):
        a_tile, b_tile = ring.wait(position)
        tcgen05_mma(a_tile, b_tile, acc, use_acc=k > 0)
        tcgen05_commit(ring.empty(position))  # its tiles are done with once the unit has read them
        position = position.next()
    return position


@gluon.jit
def multiply_tiles(ring, sums, tiles, K, BLOCK_K: gl.constexpr):
    position = ring.consumer()
    to = sums.producer()
    for _ in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        position = multiply_tile(ring, position, sums.take(to), K, BLOCK_K)
        sums.done(to)
        to = to.next()


@gluon.jit
def store_tiles(sums, writer, tiles):
    position = sums.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        sums.store(position, writer, [row, column])
        position = position.next()
    writer.close()


@gluon.constexpr_function
def accumulator_layout(blocks, ctas):
    """Return the layout of an accumulator in tensor memory; of two blocks each has half of the rows."""
    if ctas == 1:
        return TensorMemoryLayout([blocks[0], blocks[1]], col_stride=1)
    halves = [blocks[0] // 2, blocks[1]]
    return TensorMemoryLayout(halves, col_stride=1, cga_layout=[[1, 0]], two_ctas=True)


@gluon.jit
def begin(a_desc, b_desc, c_desc, M, N, BLOCKS: gl.constexpr, STAGES: gl.constexpr,
          GROUP: gl.constexpr, CTAS: gl.constexpr):  # fmt: skip
    """Allocate everything that the roles share: slots of tiles, accumulators, buffers of results, and the order of tiles."""
    layout: gl.constexpr = accumulator_layout(BLOCKS, CTAS)
    ring = tma_ring([a_desc, b_desc], STAGES, two_ctas=CTAS == 2)
    sums = accumulator_ring([BLOCKS[0], BLOCKS[1]], 2, layout)
    writer = tma_writer(c_desc, parts=4)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCKS[0], BLOCKS[1]], GROUP)
    return ring, sums, writer, tiles


@gluon.jit
def matmul_blackwell(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, CTAS: gl.constexpr,
):  # fmt: skip
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N)
    ring, sums, writer, tiles = begin(a_desc, b_desc, c_desc, M, N, BLOCKS, STAGES, GROUP, CTAS)
    gl.warp_specialize(
        [
            (store_tiles, (sums, writer, tiles)),
            (multiply_tiles, (ring, sums, tiles, K, BLOCK_K)),
            (copy_tiles, (ring, tiles, K, BLOCK_K)),
        ],
        [1, 1],
        [48, 48],
    )
