"""Sixteen-bit matrices multiplied by pairs of blocks, each of which holds half of every operand: tcgen05
with two blocks, copies that tell a barrier of the pair, commits that may reach both."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
)
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor
from tests.programs import Boxes, Launch


@gluon.jit
def product(left, right, out, BOTH: gl.constexpr):
    HIGH: gl.constexpr = out.block_shape[0]
    WIDE: gl.constexpr = out.block_shape[1]
    DEEP: gl.constexpr = right.block_shape[0]
    top = gl.program_id(0) * HIGH
    a = gl.allocate_shared_memory(left.dtype, left.block_shape, left.layout)
    b = gl.allocate_shared_memory(right.dtype, right.block_shape, right.layout)
    PAIR: gl.constexpr = TensorMemoryLayout(
        [HIGH // 2, WIDE], col_stride=1, cga_layout=[(1, 0)], two_ctas=True
    )
    sums = allocate_tensor_memory(gl.float32, [HIGH, WIDE], PAIR)
    there = mbarrier.allocate_mbarrier(two_ctas=True)
    read = mbarrier.allocate_mbarrier()
    mbarrier.init(there, count=1)
    mbarrier.init(read, count=tcgen05_mma_barrier_count([a, b], BOTH, two_ctas=True))
    step = 0
    for inner in range(0, left.shape[1], DEEP):
        mbarrier.expect(there, left.nbytes_per_cta + right.nbytes_per_cta)
        tma.async_load(left, [top, inner], there, a)
        tma.async_load(right, [inner, 0], there, b)
        mbarrier.wait(there, step & 1, deps=[a, b])
        tcgen05_mma(a, b, sums, use_acc=step > 0, multicast=BOTH, mbarriers=[read])
        mbarrier.wait(read, step & 1, deps=[a, b])
        step += 1
    mbarrier.invalidate(read)
    mbarrier.invalidate(there)
    result = gl.allocate_shared_memory(out.dtype, out.block_shape, out.layout)
    result.store(sums.load().to(out.dtype))
    fence_async_shared()
    tma.async_store(out, [top, 0], result)
    tma.store_wait(pendings=0)


def data(wide, rng):
    a = rng.standard_normal((512, 128)).astype(np.float16)
    b = rng.standard_normal((128, wide)).astype(np.float16)
    out = np.zeros((512, wide), np.float16)

    def boxes(array, shape, split):
        layout = gl.NVMMASharedLayout.get_default_for(shape, gl.float16, cga_layout=[split])
        return Boxes(TensorDescriptor, array, shape, layout)

    arguments = [
        boxes(a, [256, 64], (1, 0)),
        boxes(b, [64, wide], (0, 1)),
        boxes(out, [256, wide], (1, 0)),
    ]
    return arguments, {"out": a.astype(float) @ b.astype(float)}


LAUNCHES = [
    Launch(
        product,
        "sm_100",
        partial(data, wide),
        grid=(2,),
        constants={"BOTH": both, "num_ctas": 2},
        tolerance=1e-3,
        since=(3, 7) if both else (3, 6),
        oracle=(3, 8),
    )
    for wide in (64, 128)
    for both in (False, True)
]
