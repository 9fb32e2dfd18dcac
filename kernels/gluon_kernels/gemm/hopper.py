"""GEMM on Hopper: TMA feeds `wgmma` through a ring of slots; warps have roles and programs walk over many tiles.

One warp issues the copies, two groups of four warps multiply. Under the cooperative schedule both groups multiply a half
of the rows of the same tile. Under the ping-pong schedule each group has a tile of its own and multiplies in its turn, so
that one stores while the other has the matrix unit to itself: the shorter K, the more a store weighs.

A tile of 192 columns is two accumulators side by side, of 128 and of 64, since widths of tensors are powers of two.
Operands may be stored transposed: `wgmma` reads 16-bit tiles of either orientation. Matrices of a batch are one more
dimension of the descriptors, of which a tile covers one.

With two blocks to a cluster (`num_ctas=2`, from Triton 3.8 on) a tile of the ping-pong schedule has twice the rows, and each
block half of them: one copies the columns of B for both by multicast, so that the L2 cache gives them once.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    ordered_barrier,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.gemm.epilogue import of_columns

DTYPES = {
    "float32": gl.float32,
    "float16": gl.float16,
    "bfloat16": gl.bfloat16,
    "float8_e4m3fn": gl.float8e4nv,
}


@gluon.constexpr_function
def widths(columns):
    """Return the powers of two that a tile's columns are the sum of, from left to right."""
    return (128, 64) if columns == 192 else (columns,)


@gluon.constexpr_function
def split(ctas, dim):
    """Return `cga_layout` of tiles of which each block of a cluster has half along `dim`; with None, all."""
    return [[0, int(dim == 0), int(dim == 1)]] if ctas == 2 else []


@gluon.constexpr_function
def rows_of(ctas):
    return [[1, 0]] if ctas == 2 else []


@gluon.jit
def place_of(tile, tiles):
    """Return the matrix, the row and the column at which a tile begins."""
    row, column = tiles.at(tile % tiles.count())
    return tile // tiles.count(), row, column


@gluon.jit
def copy_tiles(
    ring, tiles, batch, K, BLOCK_K: gl.constexpr, WIDTHS: gl.constexpr, TRANSPOSED: gl.constexpr
):
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count() * batch, gl.num_programs(0)):
        matrix, row, column = place_of(tile, tiles)
        for k in range(0, K, BLOCK_K):
            places = ([matrix, k, row] if TRANSPOSED[0] else [matrix, row, k],)
            for i in gl.static_range(len(WIDTHS)):
                left = column + (WIDTHS[0] if i else 0)
                places = places + ([matrix, left, k] if TRANSPOSED[1] else [matrix, k, left],)
            ring.fetch(at, places)
            at = at.next()


@gluon.jit
def left_of(tile, TRANSPOSED: gl.constexpr):
    """Return a tile of A as [rows, K]."""
    flat = tile.reshape([tile.shape[1], tile.shape[2]])
    return flat.permute((1, 0)) if TRANSPOSED[0] else flat


@gluon.jit
def right_of(tile, TRANSPOSED: gl.constexpr):
    """Return a tile of B as [K, columns]."""
    flat = tile.reshape([tile.shape[1], tile.shape[2]])
    return flat.permute((1, 0)) if TRANSPOSED[1] else flat


@gluon.jit
def zeros(ROWS: gl.constexpr, WIDTH: gl.constexpr, BITS: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [4, 1], [16, WIDTH, 256 // BITS], cga_layout=rows_of(gl.num_ctas())
    )
    return warpgroup_mma_init(gl.zeros([ROWS, WIDTH], gl.float32, layout))


@gluon.jit
def cleared(ROWS: gl.constexpr, WIDTHS: gl.constexpr, BITS: gl.constexpr):
    """Return accumulators side by side."""
    sums = ()
    for i in gl.static_range(len(WIDTHS)):
        sums = sums + (zeros(ROWS, WIDTHS[i], BITS),)
    return sums


@gluon.jit
def multiplied(a, tiles, sums, TRANSPOSED: gl.constexpr):
    """Start a step of each accumulator, and wait until the step before is over."""
    first = warpgroup_mma(a, right_of(tiles[1], TRANSPOSED), sums[0], is_async=True)
    if len(sums) == 2:
        second = warpgroup_mma(a, right_of(tiles[2], TRANSPOSED), sums[1], is_async=True)
        first, second = warpgroup_mma_wait(2, deps=[first, second])
        return warpgroup_mma_init(first), warpgroup_mma_init(second)
    else:
        return (warpgroup_mma_init(warpgroup_mma_wait(1, deps=[first])),)


@gluon.jit
def finished(sums):
    if len(sums) == 2:
        return warpgroup_mma_wait(0, deps=[sums[0], sums[1]])
    else:
        return (warpgroup_mma_wait(0, deps=[sums[0]]),)


@gluon.jit
def store(writers, sums, matrix, row, column):
    for i in gl.static_range(len(sums)):
        writers[i].store([matrix, row, column], sums[i])
        column += sums[i].shape[1]


@gluon.jit
def multiply_own_tiles(
    ring, tiles, batch, order, writers, K, partition: gl.constexpr,
    BLOCK_K: gl.constexpr, WIDTHS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Multiply every other tile of the program: the ping-pong schedule."""
    steps = gl.cdiv(K, BLOCK_K)
    at = ring.consumer().next(partition * steps)
    turn = order.first(partition)
    first = gl.program_id(0) + partition * gl.num_programs(0)
    for tile in range(first, tiles.count() * batch, 2 * gl.num_programs(0)):
        sums = cleared(tiles.block[0], WIDTHS, ring.dtype.primitive_bitwidth)
        order.wait(turn)
        for step in range(steps):
            slot = ring.wait(at)
            sums = multiplied(left_of(slot[0], TRANSPOSED), slot, sums, TRANSPOSED)
            # The step before is over: its slot takes the tiles that come next.
            ring.release(at.before(), pred=step > 0)
            at = at.next()
        order.arrive(turn)
        turn = turn.next()
        sums = finished(sums)
        ring.release(at.before(), pred=steps > 0)
        at = at.next(steps)
        matrix, row, column = place_of(tile, tiles)
        store(writers, sums, matrix, row, column)
    writers[0].close()


@gluon.jit
def multiply_halves(
    ring, tiles, batch, writers, K, half: gl.constexpr,
    BLOCK_K: gl.constexpr, WIDTHS: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """Multiply half of the rows of each tile of the program: the cooperative schedule."""
    ROWS: gl.constexpr = tiles.block[0] // 2
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count() * batch, gl.num_programs(0)):
        sums = cleared(ROWS, WIDTHS, ring.dtype.primitive_bitwidth)
        for k in range(0, K, BLOCK_K):
            slot = ring.wait(at)
            mine = left_of(slot[0], TRANSPOSED).slice(half * ROWS, ROWS, dim=0)
            sums = multiplied(mine, slot, sums, TRANSPOSED)
            ring.release(at.before(), pred=k > 0)
            at = at.next()
        sums = finished(sums)
        ring.release(at.before(), pred=K > 0)
        matrix, row, column = place_of(tile, tiles)
        store(writers, sums, matrix, row + half * ROWS, column)
    writers[0].close()


@gluon.jit
def writers_for(c_desc, end, WIDTHS: gl.constexpr, BUFFERS: gl.constexpr):
    """Return a writer for each accumulator of a group."""
    BOX: gl.constexpr = c_desc.block_type.shape[2]
    writers = ()
    for i in gl.static_range(len(WIDTHS)):
        writers = writers + (tma_writer(c_desc, WIDTHS[i] // BOX, BUFFERS, end),)
    return writers


@gluon.jit(do_not_specialize=["batch", "M", "N", "K"])
def gemm(
    a_desc, b_descs, c_desc, bias, batch, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, BUFFERS: gl.constexpr,
    PINGPONG: gl.constexpr, TRANSPOSED: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """`b_descs` are of the columns of a tile, BLOCK_N in all, from left to right: one, or two. TRANSPOSED says of A and of
    B whether the descriptors are of [K, M] and [N, K]."""
    gl.static_assert(gl.num_warps() == 4, "a group of four warps multiplies")
    WIDTHS: gl.constexpr = widths(BLOCK_N)
    CTAS: gl.constexpr = gl.num_ctas()
    ring = tma_ring(
        (a_desc,) + b_descs, STAGES, consumers=1 if PINGPONG else 2, multicast=CTAS == 2
    )
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    if bias is None and ACTIVATION is None:  # a tile is converted whole
        first = writers_for(c_desc, None, WIDTHS, BUFFERS)
        second = writers_for(c_desc, None, WIDTHS, BUFFERS)
    else:
        end = of_columns(M, N, bias, ACTIVATION)
        first = writers_for(c_desc, end, WIDTHS, BUFFERS)
        second = writers_for(c_desc, end, WIDTHS, BUFFERS)
    if PINGPONG:
        order = ordered_barrier(2)
        gl.warp_specialize(
            [
                (multiply_own_tiles, (ring, tiles, batch, order, first, K, 0, BLOCK_K, WIDTHS, TRANSPOSED)),
                (multiply_own_tiles, (ring, tiles, batch, order, second, K, 1, BLOCK_K, WIDTHS, TRANSPOSED)),
                (copy_tiles, (ring, tiles, batch, K, BLOCK_K, WIDTHS, TRANSPOSED)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply_halves, (ring, tiles, batch, first, K, 0, BLOCK_K, WIDTHS, TRANSPOSED)),
                (multiply_halves, (ring, tiles, batch, second, K, 1, BLOCK_K, WIDTHS, TRANSPOSED)),
                (copy_tiles, (ring, tiles, batch, K, BLOCK_K, WIDTHS, TRANSPOSED)),
            ],
            [4, 1],
            [232, 24],
        )
    if CTAS == 2:
        gl.barrier(cluster=True)  # neither block is gone while the other uses its barriers


# -- descriptors ----------------------------------------------------------------------------------


def describe(matrices, block, ctas=1, dim=None):
    """Return the descriptor of [batch, rows, columns] for tiles of `block`, its last two sides."""
    dtype = DTYPES[str(matrices.dtype).rpartition(".")[2]]
    layout = gl.NVMMASharedLayout.get_default_for([1, *block], dtype, cga_layout=split(ctas, dim))
    return TensorDescriptor(
        matrices, list(matrices.shape), list(matrices.stride()), [1, *block], layout
    )
