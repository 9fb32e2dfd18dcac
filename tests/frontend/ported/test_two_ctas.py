"""A product of pairs of blocks."""

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_mma,
    tcgen05_mma_barrier_count,
)
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)
from gluon_core.nvidia.hopper import TensorDescriptor

ARCH = 100


@gluon.jit
def two_cta_kernel(a_desc, b_desc, c_desc, MULTICAST: gl.constexpr):
    M: gl.constexpr = c_desc.block_shape[0]
    N: gl.constexpr = c_desc.block_shape[1]
    BK: gl.constexpr = a_desc.block_shape[1]
    K = a_desc.shape[1]
    tm = gl.program_id(0) * M
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_shape, b_desc.layout)
    tl_: gl.constexpr = TensorMemoryLayout(
        [128, N], col_stride=1, cga_layout=[(1, 0)], two_ctas=True
    )
    acc = allocate_tensor_memory(gl.float32, [M, N], tl_)
    tma_bar = mbarrier.allocate_mbarrier(two_ctas=True)
    mma_bar = mbarrier.allocate_mbarrier()
    mbarrier.init(tma_bar, count=1)
    mbarrier.init(mma_bar, count=tcgen05_mma_barrier_count([a, b], MULTICAST, two_ctas=True))
    phase = 0
    use_acc = False
    for k in range(0, K, BK):
        mbarrier.expect(tma_bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        tma.async_copy_global_to_shared(a_desc, [tm, k], tma_bar, a)
        tma.async_copy_global_to_shared(b_desc, [k, 0], tma_bar, b)
        mbarrier.wait(tma_bar, phase, deps=[a, b])
        tcgen05_mma(a, b, acc, use_acc=use_acc, multicast=MULTICAST, mbarriers=[mma_bar])
        mbarrier.wait(mma_bar, phase, deps=[a, b])
        use_acc = True
        phase ^= 1
    mbarrier.invalidate(tma_bar)
    mbarrier.invalidate(mma_bar)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_shape, c_desc.layout)
    c.store(acc.load().to(c_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(c_desc, [tm, 0], c)
    tma.store_wait(pendings=0)


@pytest.mark.parametrize("N", [64, 128])
@pytest.mark.parametrize("MULTICAST", [False, True])
def test_two_cta(N, MULTICAST):
    M, K, BK = 512, 128, 64
    A, B = torch.randn(M, K).half(), torch.randn(K, N).half()
    C = torch.empty(M, N).half()
    d = lambda t, blk, cga: TensorDescriptor.from_tensor(
        t, blk, gl.NVMMASharedLayout.get_default_for(blk, gl.float16, cga_layout=cga)
    )
    two_cta_kernel[(2,)](
        d(A, [256, BK], [(1, 0)]),
        d(B, [BK, N], [(0, 1)]),
        d(C, [256, N], [(1, 0)]),
        MULTICAST,
        num_ctas=2,
    )
    torch.testing.assert_close(C, (A.double() @ B.double()).half(), rtol=1e-2, atol=1e-1)
