"""sync.race sync.tolerated: no fence between the store to shared memory and the copy out of it"""

import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def fetch(a, b, left, right, arrived, row, column, k, pred):
    mbarrier.expect(arrived, a.block_type.nbytes + b.block_type.nbytes, pred=pred)
    tma.async_copy_global_to_shared(a, [row, k], arrived, left, pred=pred)
    tma.async_copy_global_to_shared(b, [k, column], arrived, right, pred=pred)


@gluon.jit
def matmul(a, b, c, K, BLOCK: gl.constexpr, STEP: gl.constexpr, STAGES: gl.constexpr):
    unit: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    row = gl.program_id(0) * BLOCK
    column = gl.program_id(1) * BLOCK
    left = gl.allocate_shared_memory(a.dtype, [STAGES, BLOCK, STEP], a.layout)
    right = gl.allocate_shared_memory(b.dtype, [STAGES, STEP, BLOCK], b.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(arrived.index(i), count=1)
    steps = K // STEP
    # One stage stays free: the product of the step before still reads it.
    for i in gl.static_range(STAGES - 1):
        here = arrived.index(i)
        fetch(a, b, left.index(i), right.index(i), here, row, column, i * STEP, i < steps)

    acc = warpgroup_mma_init(gl.full([BLOCK, BLOCK], 0.0, gl.float32, unit))
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(arrived.index(slot), step // STAGES & 1)
        acc = warpgroup_mma(left.index(slot), right.index(slot), acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))  # all but this step's are over
        ahead = step + STAGES - 1
        free = ahead % STAGES
        k = ahead * STEP
        here = arrived.index(free)
        fetch(a, b, left.index(free), right.index(free), here, row, column, k, ahead < steps)
    result = warpgroup_mma_wait(0, deps=[acc])

    out = gl.allocate_shared_memory(c.dtype, [BLOCK, BLOCK], c.layout)
    out.store(result.to(c.dtype))
    tma.async_copy_shared_to_global(c, [row, column], out)
    tma.store_wait(0)


def describe(tensor, rows, columns):
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)
    return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)


def run(a, b, BLOCK=64, STEP=32, STAGES=3):
    a, b = a.contiguous(), b.contiguous()
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    tiles = describe(a, BLOCK, STEP), describe(b, STEP, BLOCK), describe(c, BLOCK, BLOCK)
    matmul[(M // BLOCK, N // BLOCK)](*tiles, K, BLOCK, STEP, STAGES)
    return c
