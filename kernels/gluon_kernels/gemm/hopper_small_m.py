"""GEMM of few tiles on Hopper: the programs are one for each tile and part of K, and no tile waits for another.

Where M is small, the speed at which B comes is the bound, so that nothing else may take time. Tiles come by TMA, several
steps ahead. `wgmma` takes 64 rows at least; tiles of fewer are multiplied with sides exchanged: the columns of B are its
rows, and the rows of A its columns, of which 8 are enough. Where tiles are too few for all processors, K is split:
the programs of a tile leave their sums in memory, wait for each other, and each adds up a share of the rows, in order, so
that equal inputs have equal results. The counters by which they wait only grow.
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
from gluon_kernels.gemm.epilogue import of_scaled, store_part, stored_rows
from gluon_kernels.gemm.hopper import left_of, right_of, vectors_of


@gluon.jit
def product(ring, place, first, count, BLOCKS: gl.constexpr, STAGES: gl.constexpr, TRANSPOSED: gl.constexpr):  # fmt: skip
    """Return [rows, columns] of `count` steps; with sides exchanged where the rows are 64 or fewer, and the columns no fewer."""
    matrix, row, column = place
    BLOCK_K: gl.constexpr = BLOCKS[2]
    SWAPPED: gl.constexpr = BLOCKS[0] <= 64 and BLOCKS[1] >= 64
    SHAPE: gl.constexpr = (BLOCKS[1], BLOCKS[0]) if SWAPPED else (BLOCKS[0], BLOCKS[1])
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, SHAPE[1], 256 // ring.dtype.primitive_bitwidth]
    )
    put = ring.producer()
    for i in gl.static_range(STAGES):
        fetch(ring, put, matrix, row, column, (first + i) * BLOCK_K, i < count, TRANSPOSED)
        put = put.next()
    position = ring.consumer()
    acc = warpgroup_mma_init(gl.zeros([SHAPE[0], SHAPE[1]], gl.float32, layout))
    for step in range(count):
        a_tile, b_tile = ring.wait(position)
        a = left_of(a_tile, TRANSPOSED)
        b = right_of(b_tile, TRANSPOSED)
        if SWAPPED:
            acc = warpgroup_mma(b.permute((1, 0)), a.permute((1, 0)), acc, is_async=True)
        else:
            acc = warpgroup_mma(a, b, acc, is_async=True)
        # The step before is over: its slot takes the tiles that come next.
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        over = step > 0
        ring.release(position.before(), pred=over)
        k = (first + step - 1 + STAGES) * BLOCK_K
        more = over & (step - 1 + STAGES < count)
        fetch(ring, put, matrix, row, column, k, more, TRANSPOSED)
        if over:
            put = put.next()
        position = position.next()
    result = warpgroup_mma_wait(0, deps=[acc])
    gl.barrier()  # all warps have read the slots, whose memory the store may use
    return gl.permute(result, (1, 0)) if SWAPPED else result


@gluon.jit
def fetch(ring, put, matrix, row, column, k, pred, TRANSPOSED: gl.constexpr):
    of_a = [matrix, k, row] if TRANSPOSED[0] else [matrix, row, k]
    of_b = [matrix, column, k] if TRANSPOSED[1] else [matrix, k, column]
    ring.fetch(put, [of_a, of_b], pred=pred)


@gluon.constexpr_function
def adders(splits, rows):
    """Return how many of the programs of a tile add up, a power of two of them: each a share of the rows."""
    return min(rows, 1 << (splits.bit_length() - 1))


@gluon.constexpr_function
def rounded_up(splits):
    return 1 << (splits - 1).bit_length()


@gluon.jit
def arrive(counter, SPLITS: gl.constexpr):
    """Count a program of a tile, once in a launch, and return the number before. Each launch counts a power of two, so that numbers that
    overflow go on where they began: the first program counts for those that are missing."""
    ABSENT: gl.constexpr = rounded_up(SPLITS) - SPLITS
    gl.barrier()  # all of the program have stored before it counts
    count = 1 + gl.where(gl.program_id(0) == 0, ABSENT, 0)
    return gl.atomic_add(counter, count, sem="acq_rel", scope="gpu")


@gluon.jit
def wait_for_all(counter, before, SPLITS: gl.constexpr):
    """Wait until all programs of a tile have arrived; `before` is the number before one of them did."""
    last = before | (rounded_up(SPLITS) - 1)
    while before - last < 0:
        before = gl.atomic_add(counter, 0, sem="acquire", scope="gpu") - 1


@gluon.jit
def add_up(c, sums, result, place, sizes, stride, end, SPLITS: gl.constexpr, VECTOR: gl.constexpr):
    """Add up a share of the rows of `result` and of those of the other programs of the tile, which `sums` has."""
    ROWS: gl.constexpr = result.shape[0]
    COLUMNS: gl.constexpr = result.shape[1]
    SHARE: gl.constexpr = ROWS // adders(SPLITS, ROWS)
    wide: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0])
    rows = gl.program_id(0) * SHARE + gl.arange(0, SHARE, gl.SliceLayout(1, wide))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, wide))
    parts = sums + rows[:, None] * COLUMNS + columns[None, :]
    total = gl.zeros([SHARE, COLUMNS], gl.float32, wide)
    for split in gl.static_range(SPLITS):
        total += gl.load(parts + split * ROWS * COLUMNS)
    store_part(
        c, total, place[0] + gl.program_id(0) * SHARE, place[1], sizes, stride, end, False, VECTOR
    )


@gluon.jit
def share_of(steps, SPLITS: gl.constexpr):
    """Return the first step of the program's part of K, and the number of its steps."""
    if SPLITS == 1:
        return 0, steps
    else:
        first = gl.program_id(0) * steps // SPLITS
        return first, (gl.program_id(0) + 1) * steps // SPLITS - first


@gluon.jit
def store_shared(c, value, number, scratch, place, sizes, stride, end, SPLITS: gl.constexpr, VECTOR: gl.constexpr, held=None):  # fmt: skip
    """Store the sums of a tile, or add up those of all its programs, each a share of the rows.

    Args:
        number: of the tile.
        scratch: `sums` and `counters` of `gemm_split_k`.
        c, place, sizes, stride, end, held: those of `store_part`, the last one of a tile with one program.
    """
    if SPLITS == 1:
        store_part(c, value, place[0], place[1], sizes, stride, end, False, VECTOR, held=held)
    else:
        SIZE: gl.constexpr = value.shape[0] * value.shape[1]
        sums = scratch[0] + number.to(gl.int64) * (SPLITS * SIZE)
        rows = gl.arange(0, value.shape[0], gl.SliceLayout(1, value.type.layout))
        columns = gl.arange(0, value.shape[1], gl.SliceLayout(0, value.type.layout))
        mine = sums + gl.program_id(0) * SIZE
        gl.store(mine + rows[:, None] * value.shape[1] + columns[None, :], value)
        before = arrive(scratch[1] + number, SPLITS)
        if gl.program_id(0) < adders(SPLITS, value.shape[0]):
            wait_for_all(scratch[1] + number, before, SPLITS)
            add_up(c, sums, value, place, sizes, stride, end, SPLITS, VECTOR)


@gluon.jit(do_not_specialize=["M", "N", "K", "c_row", "tiles_n"])
def gemm_split_k(
    a_desc, b_desc, c, sums, counters, bias, scales, M, N, K, c_matrix, c_row, tiles_n,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr,
    TRANSPOSED: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply with few rows. The grid is [parts of K, tiles of a matrix, matrices]. `sums` is [matrices * tiles, SPLITS, BLOCK_M, BLOCK_N],
    float32; `counters` has a number for each tile, divisible by the power of two from SPLITS on before and after the launch. The SPLITS programs of a
    tile, which follow each other, must be able to run at a time. `c_matrix` and `c_row` are strides of `c`, `tiles_n`
    is the number of tiles along N; VECTOR divides N and the strides. `scales` are those of `gemm`."""
    ring = tma_ring([a_desc, b_desc], STAGES)
    wait_for_predecessor()
    tile = gl.program_id(1)
    matrix = gl.program_id(2)
    row = tile // tiles_n * BLOCK_M
    column = tile % tiles_n * BLOCK_N
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    place = (matrix, row, column)
    # Scales come while tiles do.
    EARLY: gl.constexpr = SPLITS == 1 and scales[0] is not None and scales[1] is not None
    if EARLY:
        LIKE: gl.constexpr = stored_rows(BLOCK_N, VECTOR, gl.target.warp_size(), gl.num_warps())
        end = of_scaled(M, N, bias, ACTIVATION, (None, None, scales[2]))
        held = vectors_of((scales[0], scales[1]), row, column, (M, N), BLOCK_M, BLOCK_N, LIKE)
    else:
        end = of_scaled(M, N, bias, ACTIVATION, scales)
        held = None
    result = product(ring, place, first, count, BLOCKS, STAGES, TRANSPOSED)
    c += matrix.to(gl.int64) * (c_matrix // VECTOR * VECTOR)
    number = matrix * gl.num_programs(1) + tile
    store_shared(c, result, number, (sums, counters), (row, column), (M, N), c_row, end, SPLITS, VECTOR, held)  # fmt: skip
