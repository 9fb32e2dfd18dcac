"""Descriptors in tuples and made in kernels."""

import torch
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor

ARCH = 90


# descriptors in a tuple, loops over static tuples
@gluon.jit
def tuple_kernel(descs, out_desc, bar_count: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [bar_count, 1], mbarrier.MBarrierLayout())
    smem = gl.allocate_shared_memory(
        out_desc.dtype, [bar_count] + out_desc.block_shape, out_desc.layout
    )
    for i in gl.static_range(bar_count):
        mbarrier.init(bars.index(i), count=1)
    for i in gl.static_range(bar_count):
        mbarrier.expect(bars.index(i), descs[i].block_type.nbytes)
        tma.async_copy_global_to_shared(descs[i], [0, 0], bars.index(i), smem.index(i))
    L: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    acc = gl.zeros([32, 32], gl.float32, L)
    for i in gl.static_range(bar_count):
        mbarrier.wait(bars.index(i), 0)
        acc += smem.index(i).load(L)
    smem.index(0).store(acc)
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [0, 0], smem.index(0))
    tma.store_wait(0)


def test_tuple_of_descriptors():
    xs = [torch.randn(32, 32) for _ in range(3)]
    y = torch.empty(32, 32)
    lay = gl.NVMMASharedLayout.get_default_for([32, 32], gl.float32)
    mk = lambda t: TensorDescriptor.from_tensor(t, [32, 32], lay)
    tuple_kernel[(1,)](tuple(mk(x) for x in xs), mk(y), 3)
    torch.testing.assert_close(y, sum(xs))


# device-side descriptors
@gluon.jit
def dev_desc_kernel(x, y, M, N, BM: gl.constexpr, BN: gl.constexpr, L: gl.constexpr):
    i = tma.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN], layout=L)
    o = tma.make_tensor_descriptor(y, [M, N], [N, 1], [BM, BN], L)
    smem = gl.allocate_shared_memory(x.dtype.element_ty, [BM, BN], L)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, 1)
    phase = 0
    for m in range(0, M, BM):
        for n in range(0, N, BN):
            mbarrier.expect(
                bar, i.nbytes_per_cta if hasattr(i, "nbytes_per_cta") else i.block_type.nbytes
            )
            tma.async_copy_global_to_shared(i, [m, n], bar, smem)
            mbarrier.wait(bar, phase)
            phase ^= 1
            tma.async_copy_shared_to_global(o, [m, n], smem)
            tma.store_wait(0)
    mbarrier.invalidate(bar)


def test_dev_desc():
    x = torch.randn(100, 80).half()
    y = torch.zeros_like(x)
    if hasattr(triton, "set_allocator"):
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
    dev_desc_kernel[(1,)](
        x, y, 100, 80, 64, 32, gl.NVMMASharedLayout.get_default_for([64, 32], gl.float16)
    )
    torch.testing.assert_close(y, x)
