"""`blackwell.py` with a tile scheduler: static, or by cluster launch control.

With cluster launch control (CONTROL; Triton 3.8) the grid has a program for each tile, and running programs
cancel pending ones and take over their tiles, so a program that finishes early computes more. The static
scheduler launches as many programs as fit on the device, and each strides over the tiles. The partitions are the same.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import clc
from gluon_kernels.gemm.blackwell import begin, multiply_tile


@gluon.jit
def copy_tiles(ring, work, K, BLOCK_K: gl.constexpr):
    position = ring.producer()
    tile = work.first(0)
    while work.has(tile):
        row, column = work.at(tile)
        for k in range(0, K, BLOCK_K):
            ring.fetch(position, [[row, k], [k, column]])
            position = position.next()
        tile = work.next(tile)


@gluon.jit
def multiply_tiles(ring, sums, work, K, BLOCK_K: gl.constexpr):
    position = ring.consumer()
    to = sums.producer()
    tile = work.first(1)
    while work.has(tile):
        position = multiply_tile(ring, position, sums.take(to), K, BLOCK_K)
        sums.done(to)
        to = to.next()
        tile = work.next(tile)


@gluon.jit
def store_tiles(sums, writer, work):
    position = sums.consumer()
    tile = work.first(2)
    while work.has(tile):
        row, column = work.at(tile)
        sums.store(position, writer, [row, column])
        position = position.next()
        tile = work.next(tile)
    writer.close()


@gluon.jit
def matmul_scheduled(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, CTAS: gl.constexpr, CONTROL: gl.constexpr,
):  # fmt: skip
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N)
    ring, sums, writer, tiles = begin(a_desc, b_desc, c_desc, M, N, BLOCKS, STAGES, GROUP, CTAS)
    if CONTROL:
        work = clc.tile_scheduler(tiles, partitions=3)
    else:
        work = gl.portable.static_tile_scheduler(tiles, partitions=3)
    gl.warp_specialize(
        [
            (store_tiles, (sums, writer, work)),
            (multiply_tiles, (ring, sums, work, K, BLOCK_K)),
            (copy_tiles, (ring, work, K, BLOCK_K)),
        ],
        [1, 1],
        [48, 48],
    )
