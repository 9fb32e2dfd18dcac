"""Step 8: Hopper. One thread asks for a whole tile, and four warps multiply from shared memory.

New: tensor descriptors, TMA, barriers that count bytes, `wgmma`.
"""

from step05_matmul import main

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier, tma, warpgroup_mma
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def matmul(a, b, c, K, BLOCK: gl.constexpr, STEP: gl.constexpr):
    unit: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    row = gl.program_id(0) * BLOCK
    column = gl.program_id(1) * BLOCK
    left = gl.allocate_shared_memory(a.dtype, [BLOCK, STEP], a.layout)
    right = gl.allocate_shared_memory(b.dtype, [STEP, BLOCK], b.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)

    acc = gl.full([BLOCK, BLOCK], 0.0, gl.float32, unit)
    for step in range(K // STEP):
        # The barrier opens when the bytes of both tiles have landed.
        mbarrier.expect(arrived, a.block_type.nbytes + b.block_type.nbytes)
        tma.async_copy_global_to_shared(a, [row, step * STEP], arrived, left)
        tma.async_copy_global_to_shared(b, [step * STEP, column], arrived, right)
        mbarrier.wait(arrived, step & 1)  # its phase flips each time that it opens
        acc = warpgroup_mma(left, right, acc)
    mbarrier.invalidate(arrived)

    out = gl.allocate_shared_memory(c.dtype, [BLOCK, BLOCK], c.layout)
    out.store(acc.to(c.dtype))
    gl.nvidia.hopper.fence_async_shared()  # TMA sees the stores of threads only after this
    tma.async_copy_shared_to_global(c, [row, column], out)
    tma.store_wait(0)


def describe(array, rows, columns):
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)
    return TensorDescriptor.from_tensor(array, [rows, columns], layout)


def launch(a, b, c, BLOCK=128, STEP=64, **options):
    (M, K), N = a.shape, b.shape[1]
    tiles = describe(a, BLOCK, STEP), describe(b, STEP, BLOCK), describe(c, BLOCK, BLOCK)
    return matmul[(M // BLOCK, N // BLOCK)](*tiles, K, BLOCK, STEP, **options)


if __name__ == "__main__":
    main(launch, "TMA and wgmma")
