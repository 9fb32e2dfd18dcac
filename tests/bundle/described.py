"""Kernels that take descriptors, for the tests of bundles."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma


@gluon.jit
def moved(src, dst, row):
    """One box of `src`, from `row` on, to the beginning of `dst`."""
    box = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.expect(ready, src.block_type.nbytes)
    tma.async_load(src, [row, 0], ready, box)
    mbarrier.wait(ready, 0)
    fence_async_shared()
    tma.async_store(dst, [0, 0], box)
    tma.store_wait(0)


def kind(rows):
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return f"tensordesc<fp16[{rows}, 64],{layout!r}>"


@gluon.jit
def rows(desc, y):
    gl.store(y, desc.shape[0])
