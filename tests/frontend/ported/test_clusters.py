"""Kernels of several blocks each."""

import pytest
import torch
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    mbarrier,
    tma,
)
from gluon_core.nvidia.hopper import TensorDescriptor

ARCH = 90


@gluon.jit
def mcast_kernel(a_desc, out, MULTI: gl.constexpr, L: gl.constexpr):
    smem = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_shape, a_desc.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    if MULTI:
        if hasattr_sync:
            mbarrier.sync_cluster_init()
    mbarrier.expect(bar, a_desc.nbytes_per_cta)
    tma.async_copy_global_to_shared(a_desc, [0, 0], bar, smem, multicast=MULTI)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    o = (
        gl.arange(0, 64, gl.SliceLayout(1, L))[:, None] * 64
        + gl.arange(0, 64, gl.SliceLayout(0, L))[None, :]
    )
    gl.store(out + o, smem.load(L))


hasattr_sync = gl.constexpr(triton.__version__.startswith("3.7"))


@pytest.mark.parametrize("MULTI, cga", [(False, [[1, 0]]), (True, [[0, 0]])])
def test_mcast(MULTI, cga):
    x = torch.randn(64, 64).half()
    y = torch.zeros_like(x)
    lay = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16, cga_layout=cga)
    mcast_kernel[(1,)](
        TensorDescriptor.from_tensor(x, [64, 64], lay),
        y,
        MULTI,
        gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0], cga_layout=cga),
        num_ctas=2,
    )
    torch.testing.assert_close(y, x)


@gluon.jit
def softmax_cluster(x, y, N: gl.constexpr, L: gl.constexpr):
    o = gl.arange(0, N, L)
    v = gl.load(x + gl.program_id(0) * N + o)
    m = gl.max(v, 0)
    e = gl.exp(v - m)
    gl.store(y + gl.program_id(0) * N + o, e / gl.sum(e, 0))


@pytest.mark.parametrize("ctas", [1, 2, 4])
def test_softmax(ctas):
    x = torch.randn(3, 2048)
    y = torch.empty_like(x)
    cga = {1: [], 2: [[1]], 4: [[1], [2]]}[ctas]
    softmax_cluster[(3,)](
        x, y, 2048, gl.BlockedLayout([4], [32], [4], [0], cga_layout=cga), num_ctas=ctas
    )
    torch.testing.assert_close(y, x.softmax(1))
