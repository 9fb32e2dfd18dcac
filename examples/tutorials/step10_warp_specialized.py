"""Step 10: warps that only copy, and warps that only multiply.

New: `gl.warp_specialize`, a barrier for each direction, registers that move to where they are needed.
"""

from step05_matmul import main
from step08_tma_wgmma import describe

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)


@gluon.jit
def copies(
    a, b, left, right, full, empty, row, column, K, STEP: gl.constexpr, STAGES: gl.constexpr
):
    for step in range(K // STEP):
        slot = step % STAGES
        # The first round finds every stage free: waiting for the phase before passes at once.
        mbarrier.wait(empty.index(slot), step // STAGES & 1 ^ 1)
        mbarrier.expect(full.index(slot), a.block_type.nbytes + b.block_type.nbytes)
        k = step * STEP
        tma.async_copy_global_to_shared(a, [row, k], full.index(slot), left.index(slot))
        tma.async_copy_global_to_shared(b, [k, column], full.index(slot), right.index(slot))


@gluon.jit
def products(c, left, right, full, empty, row, column, K, STEP: gl.constexpr, STAGES: gl.constexpr):
    BLOCK: gl.constexpr = c.block_type.shape[0]
    WARPS: gl.constexpr = gl.num_warps()
    unit: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, BLOCK, 16])
    acc = warpgroup_mma_init(gl.full([BLOCK, BLOCK], 0.0, gl.float32, unit))
    for step in range(K // STEP):
        slot = step % STAGES
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        acc = warpgroup_mma(left.index(slot), right.index(slot), acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        # The reads of the step before are done: its stage may be filled again.
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
    result = warpgroup_mma_wait(0, deps=[acc])
    out = gl.allocate_shared_memory(c.dtype, c.block_type.shape, c.layout)
    out.store(result.to(c.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c, [row, column], out)
    tma.store_wait(0)


@gluon.jit
def matmul(a, b, c, K, BLOCK: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr):
    row = gl.program_id(0) * BLOCK
    column = gl.program_id(1) * BLOCK
    left = gl.allocate_shared_memory(a.dtype, [STAGES, BLOCK, STEP], a.layout)
    right = gl.allocate_shared_memory(b.dtype, [STAGES, STEP, BLOCK], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (products, (c, left, right, full, empty, row, column, K, STEP, STAGES)),
            (copies, (a, b, left, right, full, empty, row, column, K, STEP, STAGES)),
        ],
        [1],  # one warp copies; the launch's own warps multiply
        [24],  # and needs few registers, so that the others have more
    )


def launch(a, b, c, BLOCK=128, STEP=64, STAGES=4, num_warps=8, **options):
    (M, K), N = a.shape, b.shape[1]
    tiles = describe(a, BLOCK, STEP), describe(b, STEP, BLOCK), describe(c, BLOCK, BLOCK)
    grid = M // BLOCK, N // BLOCK
    return matmul[grid](*tiles, K, BLOCK, STEP, STAGES, num_warps=num_warps, **options)


if __name__ == "__main__":
    main(launch, "warp-specialized")
