"""GEMM on Hopper of operands that TMA cannot read, and of small products: threads bring the tiles to shared memory.

TMA wants rows that begin at multiples of 16 bytes. Here a row may begin anywhere, and neither operand is copied first.
Where rows begin at multiples of 4 bytes, `cp.async` copies tiles several steps ahead; else threads load one step ahead to registers
and store them for `wgmma`. Few tiles are split along K as in `hopper_small_m.py`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere.async_copy import async_load, commit_group, wait_group
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.gemm.epilogue import of_columns
from gluon_kernels.gemm.hopper_small_m import share_of, store_shared


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
def places_of(x, stride, extents, place, pred, SHAPE: gl.constexpr, VECTOR: gl.constexpr):
    """Return pointers to a tile of a matrix stored as rows of `stride`, and which of them are before its `extents`.

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
    return x + rows[:, None] * stride + columns[None, :], inside


@gluon.jit
def operand_places(operand, extent, K, start, k, pred, BLOCK: gl.constexpr, DEPTH: gl.constexpr, TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr):  # fmt: skip
    """Return the places of a step's tile: `extent` rows (or columns, of B) from `start` on, and DEPTH elements of K; TRANSPOSED is stored
    with K as rows."""
    x, stride = operand
    if TRANSPOSED:
        pointers, inside = places_of(
            x, stride, (K, extent), (k, start), pred, (DEPTH, BLOCK), VECTOR
        )
    else:
        pointers, inside = places_of(
            x, stride, (extent, K), (start, k), pred, (BLOCK, DEPTH), VECTOR
        )
    return pointers, inside


@gluon.jit
def fetch(operand, slots, slot, extent, K, start, k, pred, BLOCK: gl.constexpr, DEPTH: gl.constexpr, TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr):  # fmt: skip
    """Start copying a step's tile to a slot, where `cp.async` can."""
    if VECTOR > 1:
        pointers, inside = operand_places(operand, extent, K, start, k, pred, BLOCK, DEPTH, TRANSPOSED, VECTOR)  # fmt: skip
        async_load(slots.index(slot), pointers, mask=inside)


@gluon.jit
def loaded(operand, extent, K, start, k, pred, BLOCK: gl.constexpr, DEPTH: gl.constexpr, TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr):  # fmt: skip
    """Return a tuple of a step's tile in registers, of nothing where `cp.async` copies it."""
    if VECTOR > 1:
        return ()
    else:
        pointers, inside = operand_places(operand, extent, K, start, k, pred, BLOCK, DEPTH, TRANSPOSED, VECTOR)  # fmt: skip
        return (gl.load(pointers, mask=inside, other=0.0),)


@gluon.jit
def product(operands, sizes, place, first, count, BLOCKS: gl.constexpr, STAGES: gl.constexpr, FORM: gl.constexpr):  # fmt: skip
    """Return [rows, columns] of `count` steps; computed transposed where the rows are 64 or fewer, and the columns no fewer."""
    M, N, K = sizes
    row, column = place
    a, b = operands
    BY_K: gl.constexpr = (
        FORM[0][0],
        not FORM[0][1],
    )  # rows of the stored operand are elements of K
    VECTORS: gl.constexpr = FORM[1]
    DEPTH: gl.constexpr = BLOCKS[2]
    SLOTS: gl.constexpr = STAGES if max(VECTORS[0], VECTORS[1]) > 1 else 3
    AHEAD: gl.constexpr = SLOTS - 2  # the two slots of the last steps may still be read
    dtype: gl.constexpr = a[0].dtype.element_ty
    SWAPPED: gl.constexpr = BLOCKS[0] <= 64 and BLOCKS[1] >= 64
    SHAPE: gl.constexpr = (BLOCKS[1], BLOCKS[0]) if SWAPPED else (BLOCKS[0], BLOCKS[1])
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, SHAPE[1], 16]
    )
    A_SHAPE: gl.constexpr = stored_shape(BLOCKS[0], DEPTH, BY_K[0])
    B_SHAPE: gl.constexpr = stored_shape(BLOCKS[1], DEPTH, BY_K[1])
    a_slots = gl.allocate_shared_memory(
        dtype, [SLOTS, A_SHAPE[0], A_SHAPE[1]], gl.NVMMASharedLayout.get_default_for(A_SHAPE, dtype)
    )
    b_slots = gl.allocate_shared_memory(
        dtype, [SLOTS, B_SHAPE[0], B_SHAPE[1]], gl.NVMMASharedLayout.get_default_for(B_SHAPE, dtype)
    )
    k = first * DEPTH
    for i in gl.static_range(AHEAD):
        coming = k + i * DEPTH
        fetch(a, a_slots, i, M, K, row, coming, i < count, BLOCKS[0], DEPTH, BY_K[0], VECTORS[0])
        fetch(b, b_slots, i, N, K, column, coming, i < count, BLOCKS[1], DEPTH, BY_K[1], VECTORS[1])
        commit_group()
    a_next = loaded(a, M, K, row, k, count > 0, BLOCKS[0], DEPTH, BY_K[0], VECTORS[0])
    b_next = loaded(b, N, K, column, k, count > 0, BLOCKS[1], DEPTH, BY_K[1], VECTORS[1])
    acc = warpgroup_mma_init(gl.zeros([SHAPE[0], SHAPE[1]], gl.float32, layout))
    slot = 0
    put = AHEAD
    # At least one step, of zeros: where a loop may be left out, ptxas waits after each `wgmma`.
    for step in range(gl.maximum(count, 1)):
        a_slot = a_slots.index(slot)
        b_slot = b_slots.index(slot)
        if VECTORS[0] == 1:
            a_slot.store(a_next[0])
        if VECTORS[1] == 1:
            b_slot.store(b_next[0])
        wait_group(AHEAD - 1)
        fence_async_shared()
        gl.barrier()
        a_tile = a_slot.permute((1, 0)) if BY_K[0] else a_slot
        b_tile = b_slot if BY_K[1] else b_slot.permute((1, 0))
        if SWAPPED:
            acc = warpgroup_mma(b_tile.permute((1, 0)), a_tile.permute((1, 0)), acc, is_async=True)
        else:
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        # Behind the barrier all warps have waited for the step before the last one, whose slot is filled again.
        coming = k + AHEAD * DEPTH
        more = step + AHEAD < count
        fetch(a, a_slots, put, M, K, row, coming, more, BLOCKS[0], DEPTH, BY_K[0], VECTORS[0])
        fetch(b, b_slots, put, N, K, column, coming, more, BLOCKS[1], DEPTH, BY_K[1], VECTORS[1])
        commit_group()
        k += DEPTH
        a_next = loaded(a, M, K, row, k, step + 1 < count, BLOCKS[0], DEPTH, BY_K[0], VECTORS[0])
        b_next = loaded(b, N, K, column, k, step + 1 < count, BLOCKS[1], DEPTH, BY_K[1], VECTORS[1])
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        slot = gl.where(slot == SLOTS - 1, 0, slot + 1)
        put = gl.where(put == SLOTS - 1, 0, put + 1)
    result = warpgroup_mma_wait(0, deps=[acc])
    wait_group(0)
    gl.barrier()  # all warps have read the slots, whose memory the store may use
    return gl.permute(result, (1, 0)) if SWAPPED else result


@gluon.jit(do_not_specialize=["M", "N", "K", "a_matrix", "a_row", "b_matrix", "b_row", "c_matrix", "c_row", "tiles_n"])  # fmt: skip
def gemm_direct(
    a, b, c, sums, counters, bias, M, N, K,
    a_matrix, a_row, b_matrix, b_row, c_matrix, c_row, tiles_n,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr, VECTOR: gl.constexpr, VECTORS: gl.constexpr,
    TRANSPOSED: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Multiply [batch, M, K] by [batch, K, N]. The grid is [parts of K, tiles of a matrix, matrices].

    TRANSPOSED says of A and of B whether they are stored as [K, M] and [N, K]; `a_matrix` and `a_row` are the strides of matrices and
    of stored rows, VECTORS the elements of each operand that one load takes: divisors of strides, row lengths and addresses. `sums`,
    `counters` and the strides of `c` are those of `gemm_split_k`.
    """
    wait_for_predecessor()
    tile = gl.program_id(1)
    matrix = gl.program_id(2).to(gl.int64)
    row = tile // tiles_n * BLOCK_M
    column = tile % tiles_n * BLOCK_N
    first, count = share_of(gl.cdiv(K, BLOCK_K), SPLITS)
    a += matrix * (a_matrix // VECTORS[0] * VECTORS[0])
    b += matrix * (b_matrix // VECTORS[1] * VECTORS[1])
    c += matrix * (c_matrix // VECTOR * VECTOR)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    FORM: gl.constexpr = (TRANSPOSED, VECTORS)
    operands = ((a, a_row), (b, b_row))
    result = product(operands, (M, N, K), (row, column), first, count, BLOCKS, STAGES, FORM)
    end = of_columns(M, N, bias, ACTIVATION)
    number = gl.program_id(2) * gl.num_programs(1) + tile
    store_shared(c, result, number, (sums, counters), (row, column), (M, N), c_row, end, SPLITS, VECTOR)  # fmt: skip
