"""The first product of a mixture of experts on Hopper: rows are gathered on the way, and the gates are applied before the store.

TMA of sm_90 copies boxes, no rows from anywhere. Four warps copy A with an address for each row (`cp.async`, which
arrives at a barrier when its bytes have arrived) and one of their threads the columns of gates and of values by TMA; two groups of four
warps multiply both by their half of the rows. `cp.async` writes by the generic proxy, so that a fence precedes `wgmma`. The rows
of the next tile are looked up while this one is copied.
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
from gluon_kernels.gemm.epilogue import activation, of_columns, store_part
from gluon_kernels.gemm.hopper import cleared, finished, right_of, whole
from gluon_kernels.moe.groups import in_each_warp, place_of, tiles_of


@gluon.jit
def sources(order, rows, last, choices):
    """Return the tokens of rows of the list; those behind the last are another group's."""
    return gl.load(order + rows, mask=rows < last, other=0) // choices


@gluon.jit
def copy_tiles(rings, x, lists, sizes, SETTINGS: gl.constexpr, TRANSPOSED: gl.constexpr):
    ring, slots, filled = rings
    order, choices, ends, groups = lists
    N, K = sizes
    BLOCKS: gl.constexpr = SETTINGS[0]
    flat: gl.constexpr = in_each_warp(SETTINGS[2], 4)
    layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [32 * 8 // BLOCKS[2], BLOCKS[2] // 8], [4, 1], [1, 0]
    )
    inside = gl.arange(0, BLOCKS[0], gl.SliceLayout(1, layout))
    k_of_a = gl.arange(0, BLOCKS[2], gl.SliceLayout(0, layout))
    listed = tiles_of(ends, groups, N, flat, BLOCKS, SETTINGS[2])
    position = ring.producer()
    group, row, column, last = place_of(gl.program_id(0), listed, N, BLOCKS, SETTINGS[1])
    tokens = sources(order, row + inside, last, choices)
    for tile in range(gl.program_id(0), gl.max(listed[2], 0), gl.num_programs(0)):
        own = row + inside < last
        from_row = x + (tokens.to(gl.int64) * K)[:, None] + k_of_a[None, :]
        this_group, gate = group, column
        value = N + column
        ahead = tile + gl.num_programs(0)
        group, row, column, last = place_of(ahead, listed, N, BLOCKS, SETTINGS[1])
        tokens = sources(order, row + inside, last, choices)  # none behind the last tile
        for k in range(0, K, BLOCKS[2]):
            if TRANSPOSED:
                ring.fetch(position, [[this_group, gate, k], [this_group, value, k]])
            else:
                ring.fetch(position, [[this_group, k, gate], [this_group, k, value]])
            mask = own[:, None] & (k + k_of_a < K)[None, :]
            async_load(slots.index(position.index), from_row + k, mask=mask)
            mbarrier_arrive(filled.index(position.index), increment_count=False)
            position = position.next()


@gluon.jit
def multiply_share(
    rings, out, lists, sizes, share: gl.constexpr, SETTINGS: gl.constexpr,
    TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    ring, slots, filled = rings
    order, choices, ends, groups = lists
    N, K = sizes
    BLOCKS: gl.constexpr = SETTINGS[0]
    ROWS: gl.constexpr = BLOCKS[0] // 2
    WIDTHS: gl.constexpr = (BLOCKS[1], BLOCKS[1])
    flat: gl.constexpr = in_each_warp(SETTINGS[2], 4)
    listed = tiles_of(ends, groups, N, flat, BLOCKS, SETTINGS[2])
    position = ring.consumer()
    for tile in range(gl.program_id(0), gl.max(listed[2], 0), gl.num_programs(0)):
        _, row, column, last = place_of(tile, listed, N, BLOCKS, SETTINGS[1])
        row += share * ROWS
        sums = cleared(ROWS, whole(WIDTHS), 16)
        for k in range(0, K, BLOCKS[2]):
            gates, values = ring.wait(position)
            mbarrier.wait(filled.index(position.index), position.phase)
            fence_async_shared()
            a = slots.index(position.index).slice(share * ROWS, ROWS, dim=0)
            gate = warpgroup_mma(a, right_of(gates, (False, TRANSPOSED)), sums[0], is_async=True)
            value = warpgroup_mma(a, right_of(values, (False, TRANSPOSED)), sums[1], is_async=True)
            gate, value = warpgroup_mma_wait(2, deps=(gate, value))
            sums = (warpgroup_mma_init(gate), warpgroup_mma_init(value))
            ring.release(position.before(), pred=k > 0)
            position = position.next()
        sums = finished(sums)
        ring.release(position.before())
        result = activation(ACTIVATION)(sums[0]) * sums[1]
        end = of_columns(last, N, None, None)
        if row < last:
            store_part(out, result, row, column, (last, N), N, end, False, VECTOR)


@gluon.jit(do_not_specialize=["choices", "groups", "N", "K"])
def gated_gemm(
    x, b_desc, out, order, choices, ends, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, WALK: gl.constexpr, MOST: gl.constexpr,
    TRANSPOSED: gl.constexpr, VECTOR: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store `activation(x @ gates) * (x @ values)` of each group's rows.

    Row i of `out` [rows, N] is of row order[i] // choices of `x` [tokens, K]. `b_desc` is of [groups, K, 2 * N], or [groups, 2 * N, K] where
    TRANSPOSED: gates, then values. Group i has the rows up to ends[i], of up to MOST groups. K and N are multiples of 8.
    """
    SETTINGS: gl.constexpr = ((BLOCK_M, BLOCK_N, BLOCK_K), WALK, MOST)
    dtype: gl.constexpr = x.dtype.element_ty
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_M, BLOCK_K], dtype)
    ring = tma_ring([b_desc, b_desc], STAGES, consumers=2)
    slots = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], shared)
    filled = mbarrier.allocate_mbarrier(batch=STAGES)
    for i in gl.static_range(STAGES):
        mbarrier.init(filled.index(i), 128)  # each thread that copies
    rings = (ring, slots, filled)
    sizes = (N // 8 * 8, K // 8 * 8)  # 16 bytes at once: the compiler sees the multiples
    lists = (order, choices, ends, groups)
    gl.warp_specialize(
        [
            (
                multiply_share,
                (rings, out, lists, sizes, 0, SETTINGS, TRANSPOSED, VECTOR, ACTIVATION),
            ),
            (
                multiply_share,
                (rings, out, lists, sizes, 1, SETTINGS, TRANSPOSED, VECTOR, ACTIVATION),
            ),
            (copy_tiles, (rings, x, lists, sizes, SETTINGS, TRANSPOSED)),
        ],
        [4, 4],
        [208, 88],
    )
