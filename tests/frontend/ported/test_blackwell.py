"""Gathers, copies into tensor memory, scaled products, cluster launch control."""

import pytest
import torch
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    clc,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_scaled,
    tma,
)
from gluon_core.nvidia.blackwell import TensorDescriptor

ARCH = 100


# --- gather / scatter
@gluon.jit
def async_gather_kernel(
    tensor_desc, x_offsets_ptr, y_offset, out_ptr, BLOCK_X: gl.constexpr, BLOCK_Y: gl.constexpr
):
    coalesced: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    lane: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0])
    sl: gl.constexpr = gl.SliceLayout(0, lane)
    x_offsets = gl.load(x_offsets_ptr + gl.arange(0, BLOCK_X, sl))
    smem = gl.allocate_shared_memory(tensor_desc.dtype, [BLOCK_X, BLOCK_Y], tensor_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, BLOCK_X * tensor_desc.block_type.nbytes)
    tma.async_gather(tensor_desc, x_offsets, y_offset, bar, smem)
    mbarrier.wait(bar, phase=0)
    mbarrier.invalidate(bar)
    out = smem.load(coalesced)
    ix = gl.arange(0, BLOCK_X, gl.SliceLayout(1, coalesced))[:, None] * BLOCK_Y
    iy = gl.arange(0, BLOCK_Y, gl.SliceLayout(0, coalesced))[None, :]
    gl.store(out_ptr + ix + iy, out)


@pytest.mark.parametrize("y", [-8, 0, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gather(y, dtype):
    t = torch.randn(64, 96).to(getattr(torch, dtype))
    BX, BY = 32, 64
    off = torch.randint(-8, 80, (BX,), dtype=torch.int32)
    out = torch.empty(BX, BY, dtype=t.dtype)
    desc = TensorDescriptor.from_tensor(
        t, [1, BY], gl.NVMMASharedLayout.get_default_for([BX, BY], getattr(gl, dtype))
    )
    async_gather_kernel[(1,)](desc, off, y, out, BX, BY)
    ref = torch.zeros_like(out)
    for i, r in enumerate(off.tolist()):
        for j in range(BY):
            if 0 <= r < 64 and 0 <= y + j < 96:
                ref[i, j] = t[r, y + j]
    torch.testing.assert_close(out, ref)


@gluon.jit
def async_scatter_kernel(desc, xo, y, src, BX: gl.constexpr, BY: gl.constexpr):
    co: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    ix = gl.arange(0, BX, gl.SliceLayout(1, co))[:, None] * BY
    iy = gl.arange(0, BY, gl.SliceLayout(0, co))[None, :]
    v = gl.load(src + ix + iy)
    smem = gl.allocate_shared_memory(desc.dtype, [BX, BY], desc.layout)
    smem.store(v)
    fence_async_shared()
    sl: gl.constexpr = gl.SliceLayout(
        0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0])
    )
    tma.async_scatter(desc, gl.load(xo + gl.arange(0, BX, sl)), y, smem)
    tma.store_wait(pendings=0)


def test_scatter():
    BX, BY = 16, 32
    t = torch.zeros(64, 96)
    off = torch.randperm(64)[:BX].int()
    s = torch.randn(BX, BY)
    desc = TensorDescriptor.from_tensor(
        t, [1, BY], gl.NVMMASharedLayout.get_default_for([BX, BY], gl.float32)
    )
    async_scatter_kernel[(1,)](desc, off, 32, s, BX, BY)
    ref = torch.zeros(64, 96)
    ref[off.long(), 32:64] = s
    torch.testing.assert_close(t, ref)


# --- tcgen05_copy + mma
@gluon.jit
def copy_mma_kernel(a_desc, b_desc, c_desc, d_desc):
    M: gl.constexpr = d_desc.block_shape[0]
    N: gl.constexpr = d_desc.block_shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_shape, b_desc.layout)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_shape, c_desc.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta + c_desc.nbytes_per_cta)
    tma.async_copy_global_to_shared(a_desc, [0, 0], bar, a)
    tma.async_copy_global_to_shared(b_desc, [0, 0], bar, b)
    tma.async_copy_global_to_shared(c_desc, [0, 0], bar, c)
    mbarrier.wait(bar, phase=0, deps=[a, b, c])
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout((128, N), col_stride=1))
    tcgen05_copy(c, acc)
    tcgen05_mma(a, b, acc)
    tcgen05_commit(bar)
    mbarrier.wait(bar, phase=1)
    mbarrier.invalidate(bar)
    c.store(acc.load())
    fence_async_shared()
    tma.async_copy_shared_to_global(d_desc, [0, 0], c)
    tma.store_wait(pendings=0)


@pytest.mark.parametrize("N", [64, 128])
@pytest.mark.parametrize("sw", [32, 128])
def test_copy_mma(N, sw):
    M, K = 128, 64
    A, B, C = torch.randn(M, K).half(), torch.randn(K, N).half(), torch.randn(M, N)
    D = torch.empty_like(C)
    mk = lambda t, dt: TensorDescriptor.from_tensor(
        t, list(t.shape), gl.NVMMASharedLayout.get_default_for(list(t.shape), dt)
    )
    lc = gl.NVMMASharedLayout(sw, 32, 2)
    copy_mma_kernel[(1,)](
        mk(A, gl.float16),
        mk(B, gl.float16),
        TensorDescriptor.from_tensor(C, [M, N], lc),
        TensorDescriptor.from_tensor(D, [M, N], lc),
    )
    torch.testing.assert_close((A.double() @ B.double() + C).float(), D, rtol=1e-3, atol=1e-2)


# --- scaled, scales through registers
@gluon.jit
def simple_mma_scaled_kernel(
    a_desc,
    b_desc,
    a_scale_ptr,
    b_scale_ptr,
    out_ptr,
    M: gl.constexpr,
    N: gl.constexpr,
    K: gl.constexpr,
    A_T: gl.constexpr,
    B_T: gl.constexpr,
    V: gl.constexpr,
    num_warps: gl.constexpr,
):
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_shape, b_desc.layout)
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
    tma.async_copy_global_to_shared(a_desc, [0, 0], bar, a)
    tma.async_copy_global_to_shared(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, 0)
    SL: gl.constexpr = TensorMemoryScalesLayout()
    ast = allocate_tensor_memory(a_scale_ptr.dtype.element_ty, [M, K // V], SL)
    bst = allocate_tensor_memory(b_scale_ptr.dtype.element_ty, [N, K // V], SL)
    L: gl.constexpr = ast.get_reg_layout()
    LB: gl.constexpr = bst.get_reg_layout()
    am = gl.arange(0, M, gl.SliceLayout(1, L))[:, None]
    ak = gl.arange(0, K // V, gl.SliceLayout(0, L))[None, :]
    ast.store(gl.load(a_scale_ptr + am * (K // V) + ak))
    bn = gl.arange(0, N, gl.SliceLayout(1, LB))[:, None]
    bk = gl.arange(0, K // V, gl.SliceLayout(0, LB))[None, :]
    bst.store(gl.load(b_scale_ptr + bn * (K // V) + bk))
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([128, N], col_stride=1))
    tcgen05_mma_scaled(a, b.permute((1, 0)), acc, ast, bst, A_T, B_T, use_acc=False)
    tcgen05_commit(bar)
    mbarrier.wait(bar, 1)
    mbarrier.invalidate(bar)
    R: gl.constexpr = acc.get_reg_layout()
    o = (
        gl.arange(0, M, gl.SliceLayout(1, R))[:, None] * N
        + gl.arange(0, N, gl.SliceLayout(0, R))[None, :]
    )
    gl.store(out_ptr + o, acc.load(R))


def fp4(t):
    lut = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    return torch.stack([lut[(t & 15).long()], lut[(t >> 4).long()]], -1).reshape(t.shape[0], -1)


@pytest.mark.parametrize("at, bt", [("e5m2", "e4m3"), ("e4m3", "e2m1"), ("e2m1", "e2m1")])
def test_scaled(at, bt):
    M, N, K, V = 128, 64, 128, 32

    def mk(t, rows):
        if t == "e2m1":
            x = torch.randint(0, 256, (rows, K // 2), dtype=torch.uint8)
            return x, fp4(x).double()
        d = {"e5m2": torch.float8_e5m2, "e4m3": torch.float8_e4m3fn}[t]
        x = torch.randn(rows, K).to(d)
        return x, x.double()

    a, ar = mk(at, M)
    b, br = mk(bt, N)
    sa = torch.randint(124, 130, (M, K // V), dtype=torch.uint8)
    sb = torch.randint(124, 130, (N, K // V), dtype=torch.uint8)
    mixed = at != bt and "e2m1" in (at, bt)

    def desc(x, t):
        if t == "e2m1":
            pad = mixed
            lay = gl.NVMMASharedLayout.get_default_for(
                [x.shape[0], x.shape[1]], gl.uint8, fp4_padded=pad
            )
            return TensorDescriptor.from_tensor(x, list(x.shape), lay)
        return TensorDescriptor.from_tensor(
            x,
            list(x.shape),
            gl.NVMMASharedLayout.get_default_for(
                list(x.shape), gl.float8e5 if t == "e5m2" else gl.float8e4nv
            ),
        )

    out = torch.empty(M, N)
    simple_mma_scaled_kernel[(1,)](
        desc(a, at), desc(b, bt), sa, sb, out, M, N, K, at, bt, V, num_warps=4
    )
    f = lambda s: torch.exp2(s.double() - 127).repeat_interleave(V, 1)
    torch.testing.assert_close(out, ((ar * f(sa)) @ (br * f(sb)).T).float(), rtol=1e-3, atol=1e-2)


# --- clc persistent
_agg = getattr(gluon, "aggregate", None) or triton.language.core._aggregate


@gluon.jit
def clc_kernel(out, n):
    result = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    phase = 0
    tile = gl.program_id(0)
    has_work = True
    while has_work:
        mbarrier.expect(bar, 16)
        clc.try_cancel(result, bar)
        gl.atomic_add(out + tile, 1)
        mbarrier.wait(bar, phase)
        phase ^= 1
        r = clc.load_result(result)
        has_work = r.is_canceled()
        if has_work:
            tile = r.program_id(0)
    mbarrier.invalidate(bar)


def test_clc():
    out = torch.zeros(50, dtype=torch.int32)
    clc_kernel[(50,)](out, 50)
    torch.testing.assert_close(out, torch.ones_like(out))
