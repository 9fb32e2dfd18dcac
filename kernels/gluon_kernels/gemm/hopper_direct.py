"""GEMM on Hopper of operands that TMA cannot read, and of small products: threads load tiles and store them to shared memory.

TMA wants rows that begin at multiples of 16 bytes. Here a row may begin anywhere, and neither operand is copied first.
A tile is loaded to registers one step before `wgmma` reads it from shared memory. Several programs on a processor hide
the latency of memory. Few tiles are split along K as in `hopper_small_m.py`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.gemm.epilogue import of_columns, store_part
from gluon_kernels.gemm.hopper_small_m import add_up, wait_for_all

SLOTS = gl.constexpr(3)  # of which one is stored to while the two of the last steps may be read


@gluon.constexpr_function
def stored_shape(rows, columns, transposed):
    """Return the shape of a tile as its operand is stored."""
    return (columns, rows) if transposed else (rows, columns)


@gluon.constexpr_function
def in_rows(columns, vector, warps):
    """Return a layout of which each thread holds `vector` elements of a row and a warp as much of it as fits."""
    lanes = min(columns // vector, 32)
    return gl.BlockedLayout([1, vector], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit
def load_tile(x, stride, extents, place, pred, SHAPE: gl.constexpr, VECTOR: gl.constexpr):
    """Load a tile of a matrix stored as rows of `stride`, VECTOR elements at a time; zeros behind its `extents`.

    VECTOR divides the stride, the columns and the column at which the tile begins.
    """
    layout: gl.constexpr = in_rows(SHAPE[1], VECTOR, gl.num_warps())
    stride = stride // VECTOR * VECTOR  # the compiler sees the multiples
    across = extents[1] // VECTOR * VECTOR - place[1]
    down = gl.where(pred, extents[0] - place[0], 0)
    rows = gl.arange(0, SHAPE[0], gl.SliceLayout(1, layout))
    columns = gl.arange(0, SHAPE[1], gl.SliceLayout(0, layout))
    inside = (rows < down)[:, None] & (columns < across)[None, :]
    x += place[0].to(gl.int64) * stride + place[1]
    return gl.load(x + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@gluon.jit
def load_step(operands, sizes, place, k, pred, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """Load the tiles of A and of B of a step."""
    a, a_row, b, b_row = operands
    M, N, K = sizes
    row, column = place
    TRANSPOSED: gl.constexpr = FORM[0]
    VECTORS: gl.constexpr = FORM[1]
    A_SHAPE: gl.constexpr = stored_shape(BLOCKS[0], BLOCKS[2], TRANSPOSED[0])
    B_SHAPE: gl.constexpr = stored_shape(BLOCKS[2], BLOCKS[1], TRANSPOSED[1])
    if TRANSPOSED[0]:
        a_tile = load_tile(a, a_row, (K, M), (k, row), pred, A_SHAPE, VECTORS[0])
    else:
        a_tile = load_tile(a, a_row, (M, K), (row, k), pred, A_SHAPE, VECTORS[0])
    if TRANSPOSED[1]:
        b_tile = load_tile(b, b_row, (N, K), (column, k), pred, B_SHAPE, VECTORS[1])
    else:
        b_tile = load_tile(b, b_row, (K, N), (k, column), pred, B_SHAPE, VECTORS[1])
    return a_tile, b_tile


@gluon.jit
def product(operands, sizes, place, first, count, BLOCKS: gl.constexpr, FORM: gl.constexpr):
    """Return [rows, columns] of `count` steps; computed transposed where the rows are 64 or fewer."""
    TRANSPOSED: gl.constexpr = FORM[0]
    dtype: gl.constexpr = operands[0].dtype.element_ty
    SWAPPED: gl.constexpr = BLOCKS[0] <= 64
    SHAPE: gl.constexpr = (BLOCKS[1], BLOCKS[0]) if SWAPPED else (BLOCKS[0], BLOCKS[1])
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, SHAPE[1], 16]
    )
    A_SHAPE: gl.constexpr = stored_shape(BLOCKS[0], BLOCKS[2], TRANSPOSED[0])
    B_SHAPE: gl.constexpr = stored_shape(BLOCKS[2], BLOCKS[1], TRANSPOSED[1])
    a_slots = gl.allocate_shared_memory(
        dtype, [SLOTS, A_SHAPE[0], A_SHAPE[1]], gl.NVMMASharedLayout.get_default_for(A_SHAPE, dtype)
    )
    b_slots = gl.allocate_shared_memory(
        dtype, [SLOTS, B_SHAPE[0], B_SHAPE[1]], gl.NVMMASharedLayout.get_default_for(B_SHAPE, dtype)
    )
    acc = warpgroup_mma_init(gl.zeros([SHAPE[0], SHAPE[1]], gl.float32, layout))
    k = first * BLOCKS[2]
    a_next, b_next = load_step(operands, sizes, place, k, count > 0, BLOCKS, FORM)
    slot = 0
    # At least one step, of zeros: where a loop may be left out, ptxas waits after each `wgmma`.
    for step in range(gl.maximum(count, 1)):
        a_slot = a_slots.index(slot)
        b_slot = b_slots.index(slot)
        a_slot.store(a_next)
        b_slot.store(b_next)
        fence_async_shared()
        gl.barrier()
        a_tile = a_slot.permute((1, 0)) if TRANSPOSED[0] else a_slot
        b_tile = b_slot.permute((1, 0)) if TRANSPOSED[1] else b_slot
        if SWAPPED:
            acc = warpgroup_mma(b_tile.permute((1, 0)), a_tile.permute((1, 0)), acc, is_async=True)
        else:
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        k += BLOCKS[2]
        a_next, b_next = load_step(operands, sizes, place, k, step + 1 < count, BLOCKS, FORM)
        # The step before is over in this warp, and behind the next barrier in all of them.
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        slot = gl.where(slot == SLOTS - 1, 0, slot + 1)
    result = warpgroup_mma_wait(0, deps=[acc])
    gl.barrier()  # all warps have read the slots, whose memory the store may use
    return gl.permute(result, (1, 0)) if SWAPPED else result


@gluon.jit(do_not_specialize=["M", "N", "K", "a_matrix", "a_row", "b_matrix", "b_row", "c_matrix", "c_row", "tiles_n"])  # fmt: skip
def gemm_direct(
    a, b, c, sums, counters, bias, M, N, K,
    a_matrix, a_row, b_matrix, b_row, c_matrix, c_row, tiles_n,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    SPLITS: gl.constexpr, VECTOR: gl.constexpr, VECTORS: gl.constexpr,
    TRANSPOSED: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply [batch, M, K] by [batch, K, N]. The grid is [parts of K, tiles of a matrix, matrices].

    TRANSPOSED says of A and of B whether they are stored as [K, M] and [N, K]; `a_matrix` and `a_row` are the strides of matrices and
    of stored rows, VECTORS the elements of each operand that one load takes: divisors of strides, row lengths and addresses. `sums`,
    `counters` and the strides of `c` are those of `gemm_split_k`.
    """
    split = gl.program_id(0)
    tile = gl.program_id(1)
    matrix = gl.program_id(2).to(gl.int64)
    row = tile // tiles_n * BLOCK_M
    column = tile % tiles_n * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    share = gl.cdiv(steps, SPLITS)
    first = split * share
    count = gl.minimum(share, steps - first)
    a += matrix * (a_matrix // VECTORS[0] * VECTORS[0])
    b += matrix * (b_matrix // VECTORS[1] * VECTORS[1])
    c += matrix * c_matrix
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    FORM: gl.constexpr = (TRANSPOSED, VECTORS)
    result = product((a, a_row, b, b_row), (M, N, K), (row, column), first, count, BLOCKS, FORM)
    end = of_columns(M, N, bias, ACTIVATION)
    if SPLITS == 1:
        store_part(c, result, row, column, (M, N), c_row, end, False, VECTOR)
    else:
        number = gl.program_id(2) * gl.num_programs(1) + tile
        sums += number.to(gl.int64) * SPLITS * BLOCK_M * BLOCK_N
        rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, result.type.layout))
        columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, result.type.layout))
        mine = sums + split * BLOCK_M * BLOCK_N
        gl.store(mine + rows[:, None] * BLOCK_N + columns[None, :], result)
        wait_for_all(counters + number, SPLITS)
        add_up(c, sums, result, (row, column), (M, N), c_row, end, SPLITS, VECTOR)
