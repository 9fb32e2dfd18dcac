"""`gather_scatter.py`, warp-specialized: GEMMs of a mixture of experts with gathered and scattered rows (Hopper).

TMA of sm_90 copies boxes, no lists of rows. So four warps copy A with an address for each row
(`cp.async`, which arrives at a barrier when its bytes are there) and one of their threads B by TMA; two
groups of four warps multiply. The bytes of `cp.async` are not at once visible to `wgmma`: the consumers
put a fence between the wait and the product. The places of the next tile's rows are read while this
one is copied.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere.async_copy import async_load, mbarrier_arrive
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.moe.gather_scatter import group_tile_at, groups_of, rows_at, weighted
from gluon_kernels.moe.groups import in_each_warp


@gluon.jit
def copy_tiles(rings, a, lists, sizes, SETTINGS: gl.constexpr):
    ring, slots, filled = rings
    starts, counts, sources, groups = lists
    N, K = sizes
    BLOCKS: gl.constexpr = SETTINGS[0]
    flat: gl.constexpr = in_each_warp(SETTINGS[2], 4)
    layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 * 8 // BLOCKS[2], BLOCKS[2] // 8], [4, 1], [1, 0]
    )
    inside = gl.arange(0, BLOCKS[0], gl.SliceLayout(1, layout))
    k_of_a = gl.arange(0, BLOCKS[2], gl.SliceLayout(0, layout))
    tiling = groups_of(starts, counts, groups, N, flat, BLOCKS, SETTINGS[2])
    at = ring.producer()
    group, row, column, end = group_tile_at(gl.program_id(0), tiling, N, BLOCKS, SETTINGS[1])
    rows = rows_at(row + inside, end, sources)
    for tile in range(gl.program_id(0), gl.max(tiling[2], 0), gl.num_programs(0)):
        there = row + inside < end
        from_row = a + (rows.to(gl.int64) * K)[:, None] + k_of_a[None, :]
        this_group, this_column = group, column
        ahead = tile + gl.num_programs(0)
        group, row, column, end = group_tile_at(ahead, tiling, N, BLOCKS, SETTINGS[1])
        rows = rows_at(row + inside, end, sources)  # none behind the last tile
        for k in range(0, K, BLOCKS[2]):
            ring.fetch(at, [[this_group, k, this_column]])
            mask = there[:, None] & (k + k_of_a < K)[None, :]
            async_load(slots.index(at.index), from_row + k, mask=mask)
            mbarrier_arrive(filled.index(at.index), increment_count=False)
            at = at.next()


@gluon.jit
def store_rows(result, row, column, end, c, targets, N, PARTS: gl.constexpr):
    """Store `result` to rows anywhere, its columns in parts: from registers of other threads, so that
    each writes 16 bytes."""
    if PARTS > 1:
        halves = result.reshape([result.shape[0], 2, result.shape[1] // 2]).permute((0, 2, 1))
        left, right = halves.split()
        store_rows(left, row, column, end, c, targets, N, PARTS // 2)
        store_rows(right, row, column + result.shape[1] // 2, end, c, targets, N, PARTS // 2)
    else:
        layout: gl.constexpr = gl.BlockedLayout(
            [1, 8], [32 * 8 // result.shape[1], result.shape[1] // 8], [4, 1], [1, 0]
        )
        value = gl.convert_layout(result.to(c.dtype.element_ty), layout)
        rows = row + gl.arange(0, result.shape[0], gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, result.shape[1], gl.SliceLayout(0, layout))
        to = c + (rows_at(rows, end, targets).to(gl.int64) * N)[:, None] + columns[None, :]
        gl.store(to, value, mask=(rows < end)[:, None] & (columns < N)[None, :])


@gluon.jit
def multiply_tiles(rings, outputs, lists, sizes, half: gl.constexpr, SETTINGS: gl.constexpr):
    ring, slots, filled = rings
    c, targets, weights = outputs
    starts, counts, sources, groups = lists
    N, K = sizes
    BLOCKS: gl.constexpr = SETTINGS[0]
    ROWS: gl.constexpr = BLOCKS[0] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS[1], 16])
    flat: gl.constexpr = in_each_warp(SETTINGS[2], 4)
    tiling = groups_of(starts, counts, groups, N, flat, BLOCKS, SETTINGS[2])
    at = ring.consumer()
    for tile in range(gl.program_id(0), gl.max(tiling[2], 0), gl.num_programs(0)):
        group, row, column, end = group_tile_at(tile, tiling, N, BLOCKS, SETTINGS[1])
        row += half * ROWS
        acc = warpgroup_mma_init(gl.zeros([ROWS, BLOCKS[1]], gl.float32, layout))
        for k in range(0, K, BLOCKS[2]):
            b_tile = ring.wait(at).reshape([BLOCKS[2], BLOCKS[1]])
            mbarrier.wait(filled.index(at.index), at.phase)
            fence_async_shared()
            a_tile = slots.index(at.index).slice(half * ROWS, ROWS, dim=0)
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
            ring.release(at.before(), pred=k > 0)
            at = at.next()
        result = warpgroup_mma_wait(0, deps=[acc])
        ring.release(at.before())
        result = weighted(result, row, end, weights)
        store_rows(result, row, column, end, c, targets, N, BLOCKS[1] // 64)


@gluon.jit
def matmul_gather_scatter(
    a, b_desc, c, starts, counts, sources, targets, weights, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Multiply groups of gathered rows. `a` is [any, K], `b` [groups, K, N], `c` [any, N]; N and K are multiples of 8. `starts` and `counts`
    give the groups' places in the lists, up to MOST; no two rows have the same target."""
    SETTINGS: gl.constexpr = ((BLOCK_M, BLOCK_N, BLOCK_K), GROUP, MOST)
    dtype: gl.constexpr = a.dtype.element_ty
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], dtype)
    ring = tma_ring(b_desc, STAGES, consumers=2)
    slots = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], shared)
    filled = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(filled.index(i), 128)  # each thread that copies
    rings = (ring, slots, filled)
    sizes = (N // 8 * 8, K // 8 * 8)  # what 16 bytes at once need, said to the compiler
    lists = (starts, counts, sources, groups)
    outputs = (c, targets, weights)
    gl.warp_specialize(
        [
            (multiply_tiles, (rings, outputs, lists, sizes, 0, SETTINGS)),
            (multiply_tiles, (rings, outputs, lists, sizes, 1, SETTINGS)),
            (copy_tiles, (rings, a, lists, sizes, SETTINGS)),
        ],
        [4, 4],
        [208, 88],
    )
