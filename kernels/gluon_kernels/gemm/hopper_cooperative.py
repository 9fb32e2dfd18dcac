"""Matrix multiplication on Hopper: TMA feeds `wgmma`, each program walks over many tiles.

Each part of the work has its own warps. One warp issues the copies; two groups of four warps each
multiply half of a tile and store it. They wait for nobody but the copies: while one stores, the
other keeps the matrix unit busy. Between them is a ring of slots.

`b` is [K, N], or [N, K] with TRANSPOSED, which 8-bit types need: `wgmma` reads them along K only.
`matmul.py` becomes the same units in one stream of instructions.
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


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr, TRANSPOSED: gl.constexpr):
    position = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            with gl.scope("copy A and B"):
                if TRANSPOSED:
                    ring.fetch(position, [[row, k], [column, k]])
                else:
                    ring.fetch(position, [[row, k], [k, column]])
            position = position.next()


@gluon.jit
def multiply_tile(
    ring,
    position,
    K,
    half: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):
    """Half of a tile, and the position after its last step. BLOCK is its columns, and a step of K."""
    instruction_k: gl.constexpr = 256 // ring.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK[0], instruction_k])
    acc = warpgroup_mma_init(gl.zeros([ROWS, BLOCK[0]], gl.float32, layout))
    for k in range(0, K, BLOCK[1]):
        with gl.scope("wait for A and B"):
            a_tile, b_tile = ring.wait(position)
        a_tile = a_tile.slice(half * ROWS, ROWS, dim=0)
        if TRANSPOSED:
            b_tile = b_tile.permute((1, 0))
        acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        # The step before is over: give its slot back.
        with gl.scope("wait for the product"):
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        ring.release(position.before(), pred=k > 0)
        position = position.next()
    result = warpgroup_mma_wait(0, deps=[acc])
    ring.release(position.before())
    return result, position


@gluon.jit
def multiply_tiles(
    ring, tiles, writer, K, half: gl.constexpr, BLOCK_K: gl.constexpr, TRANSPOSED: gl.constexpr
):
    ROWS: gl.constexpr = tiles.block[0] // 2
    COLUMNS: gl.constexpr = tiles.block[1]
    position = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        result, position = multiply_tile(
            ring, position, K, half, ROWS, (COLUMNS, BLOCK_K), TRANSPOSED
        )
        with gl.scope("store"):
            writer.store([row + half * ROWS, column], result)
    writer.close()


@gluon.jit
def matmul_cooperative(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    TRANSPOSED: gl.constexpr,
    num_warps: gl.constexpr,
):
    gl.static_assert(num_warps == 4, "each half of a tile is multiplied by four warps")
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    first = tma_writer(c_desc, parts=4)
    second = tma_writer(c_desc, parts=4)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, tiles, first, K, 0, BLOCK_K, TRANSPOSED)),
            (multiply_tiles, (ring, tiles, second, K, 1, BLOCK_K, TRANSPOSED)),
            (copy_tiles, (ring, tiles, K, BLOCK_K, TRANSPOSED)),
        ],
        [4, 1],
        [232, 24],
    )
