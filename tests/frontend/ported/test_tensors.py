"""Layouts, reductions, gathers, shared memory, control flow."""

import pytest
import torch
import triton.language as tl

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy, mbarrier

ARCH = 90
THREADS = 32


@gluon.jit
def copy_kernel(Out, In, numel, XBLOCK: gl.constexpr, layout: gl.constexpr):
    xbase = gl.program_id(0) * XBLOCK
    xoffset = xbase + gl.arange(0, XBLOCK, layout=layout)
    xmask = xoffset < numel
    data = gl.load(In + xoffset, xmask)
    gl.store(Out + xoffset, data, xmask)


@pytest.mark.parametrize(
    "layout",
    [
        gl.BlockedLayout(size_per_thread=[s], threads_per_warp=[32], warps_per_cta=[4], order=[0])
        for s in (1, 2, 4, 8)
    ]
    + [
        gl.DistributedLinearLayout(
            reg_bases=[],
            lane_bases=[[1], [2], [4], [8], [16]],
            warp_bases=[[32], [64]],
            block_bases=[],
            shape=[128],
        )
    ],
)
def test_copy(layout):
    inp = torch.randn(4 * 128 - 7)
    out = torch.empty_like(inp)
    copy_kernel[(4,)](out, inp, inp.numel(), 128, layout, num_warps=4)
    torch.testing.assert_close(inp, out)


@gluon.jit
def combine(a, b):
    return a + b


@gluon.jit
def argmax_combine(v0, i0, v1, i1):
    gt = (v0 > v1) | ((v0 == v1) & (i0 < i1))
    return gl.where(gt, v0, v1), gl.where(gt, i0, i1)


@gluon.jit
def reduce_kernel(
    x, y, z, w, M: gl.constexpr, N: gl.constexpr, src: gl.constexpr, axis: gl.constexpr
):
    m = gl.arange(0, M, gl.SliceLayout(1, src))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, src))[None, :]
    v = gl.load(x + m * N + n)
    idx = gl.zeros([M, N], gl.int32, src) + (n if axis == 1 else m)
    s = gl.reduce(v, axis, combine)
    gl.static_assert(s.type.layout == gl.SliceLayout(axis, src))
    mx, mi = gl.reduce((v, idx), axis, argmax_combine)
    L: gl.constexpr = gl.SliceLayout(axis, src)
    o = gl.arange(0, M if axis == 1 else N, L)
    gl.store(y + o, s)
    gl.store(z + o, mx)
    gl.store(w + o, mi)
    B: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    c = gl.convert_layout(gl.associative_scan(gl.convert_layout(v, B), axis, combine), src)
    gl.store(x + m * N + n, c)


@pytest.mark.parametrize(
    "src",
    [
        gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]),
        gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]),
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]),
        gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8]), 2),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce(src, axis):
    M, N = 64, 32
    x = torch.randn(M, N)
    ref = x.clone()
    k = M if axis == 1 else N
    y, z = torch.empty(k), torch.empty(k)
    w = torch.empty(k, dtype=torch.int32)
    reduce_kernel[(1,)](x, y, z, w, M, N, src, axis)
    torch.testing.assert_close(y, ref.double().sum(axis).float(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(z, ref.max(axis).values)
    torch.testing.assert_close(w, ref.argmax(axis).int())
    torch.testing.assert_close(x, ref.double().cumsum(axis).float(), atol=1e-4, rtol=1e-4)


@gluon.jit
def hist_kernel(x, y, M: gl.constexpr, B: gl.constexpr, src: gl.constexpr, dst: gl.constexpr):
    v = gl.load(x + gl.arange(0, M, layout=src))
    h = gl.histogram(v, B, layout=dst)
    gl.store(y + gl.arange(0, B, layout=dst), h)


def test_histogram():
    x = torch.randint(0, 32, (512,), dtype=torch.int32)
    y = torch.empty(32, dtype=torch.int32)
    hist_kernel[(1,)](
        x, y, 512, 32, gl.BlockedLayout([1], [32], [4], [0]), gl.BlockedLayout([1], [32], [4], [0])
    )
    torch.testing.assert_close(y, torch.histc(x.float(), 32, 0, 31).int())


@gluon.jit
def gather_kernel(src, idx, out, L: gl.constexpr, axis: gl.constexpr):
    m = gl.arange(0, 32, gl.SliceLayout(1, L))[:, None]
    n = gl.arange(0, 64, gl.SliceLayout(0, L))[None, :]
    o = m * 64 + n
    gl.store(out + o, gl.gather(gl.load(src + o), gl.load(idx + o), axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_gather(axis):
    x = torch.randn(32, 64)
    i = torch.randint(0, 32, (32, 64), dtype=torch.int32)
    y = torch.empty_like(x)
    gather_kernel[(1,)](x, i, y, gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]), axis)
    torch.testing.assert_close(y, torch.gather(x, axis, i.long()))


@gluon.jit
def misc_kernel(x, y, z, n, num_warps: gl.constexpr):
    L: gl.constexpr = gl.BlockedLayout([4], [32], [num_warps], [0])
    o = gl.arange(0, 1024, L)
    a = gl.load(x + o, mask=o < n, other=0.0)
    b, c = a.reshape([512, 2]).split()
    d = gl.join(b, c).reshape(1024)
    d = gl.convert_layout(d, L)
    e = tl.exp(a) + tl.sigmoid(d) if hasattr(gl, "nope") else gl.exp(a)
    e = gl.where(o % 2 == 0, e, -e)
    e = e.to(gl.float16).to(gl.float32)
    f = (
        gl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=f,f", [a], dtype=gl.float32, is_pure=True, pack=1
        )
        if False
        else a
    )
    gl.store(y + o, d + e * 0 + f * 0, mask=o < n)
    gl.atomic_add(z + (o & 3), 1, sem="relaxed")
    gl.atomic_max(z + 4 + (o & 1), o)
    m = gl.max(a, 0)
    gl.store(z + 6, (m > 0).to(gl.int32))
    gl.device_assert(n > 0, "n must be positive")


@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_misc(num_warps):
    x = torch.randn(1000)
    y = torch.empty_like(x)
    z = torch.zeros(7, dtype=torch.int32)
    misc_kernel[(1,)](x, y, z, 1000, num_warps=num_warps)
    torch.testing.assert_close(y, x)
    assert z.tolist() == [256] * 4 + [1022, 1023, 1] or not z.any()


@gluon.jit
def auto_kernel(x, y, BM: gl.constexpr, BN: gl.constexpr):
    m = gl.arange(0, BM, layout=gl.AutoLayout())[:, None]
    n = gl.arange(0, BN, layout=gl.AutoLayout())[None, :]
    o = gl.set_auto_layout(m * BN + n, gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]))
    v = gl.load(x + o)
    s = gl.sum(v, 1)
    k = gl.set_auto_layout(gl.arange(0, BM, layout=gl.AutoLayout()), s.type.layout)
    gl.store(y + k, s)


def test_auto():
    x = torch.randn(32, 64)
    y = torch.empty(32)
    auto_kernel[(1,)](x, y, 32, 64)
    torch.testing.assert_close(y, x.sum(1), atol=1e-4, rtol=1e-4)


@gluon.jit
def smem_kernel(x, y, S: gl.constexpr, L: gl.constexpr, M: gl.constexpr, N: gl.constexpr):
    m = gl.arange(0, M, gl.SliceLayout(1, L))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, L))[None, :]
    v = gl.load(x + m * N + n)
    s = gl.allocate_shared_memory(x.dtype.element_ty, [M, N], S, v)
    t = s.permute((1, 0))
    LT: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    w = t.load(LT)
    tm = gl.arange(0, N, gl.SliceLayout(1, LT))[:, None]
    tn = gl.arange(0, M, gl.SliceLayout(0, LT))[None, :]
    h = s.slice(0, N // 2, dim=1).load(L) + s.slice(N // 2, N // 2, dim=1).load(L)
    s.slice(N // 2, N // 2, 1).store(h)
    gl.store(y + tm * M + tn, w)
    gl.store(x + m * N + n, s.load(L))


@pytest.mark.parametrize(
    "S",
    [
        gl.SwizzledSharedLayout(1, 1, 1, [1, 0]),
        gl.SwizzledSharedLayout(4, 2, 4, [0, 1]),
        gl.NVMMASharedLayout(128, 32, 2),
        gl.PaddedSharedLayout.with_identity_for([[32, 4]], [64, 64], [1, 0]),
        gl.NVMMASharedLayout(64, 32, 2, transposed=True),
    ],
)
def test_smem(S):
    x = torch.randn(64, 64)
    y = torch.empty(64, 64)
    ref = x.clone()
    smem_kernel[(1,)](x, y, S, gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]), 64, 64)
    torch.testing.assert_close(y, ref.T)
    torch.testing.assert_close(x[:, 32:], ref[:, :32] + ref[:, 32:])


@gluon.jit
def mb_async_kernel(x, y, L: gl.constexpr):
    buf = gl.allocate_shared_memory(gl.float32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(bars.index(i), count=gl.num_warps() * 32)
    o = gl.arange(0, 128, L)
    for i in gl.static_range(2):
        async_copy.async_copy_global_to_shared(buf.index(i), x + i * 128 + o)
        async_copy.mbarrier_arrive(bars.index(i), increment_count=False)
    for i in gl.static_range(2):
        mbarrier.wait(bars.index(i), 0)
        gl.store(y + i * 128 + o, buf.index(i).load(L))
    for i in gl.static_range(2):
        mbarrier.invalidate(bars.index(i))


def test_mb_async():
    x = torch.randn(256)
    y = torch.empty(256)
    mb_async_kernel[(1,)](x, y, gl.BlockedLayout([1], [32], [4], [0]))
    torch.testing.assert_close(y, x)


@gluon.constexpr_function
def log2(x):
    return x.bit_length() - 1


@gluon.jit
def bitonic_kernel(x, y, N: gl.constexpr, L: gl.constexpr):
    o = gl.arange(0, N, L)
    v = gl.load(x + o)
    n: gl.constexpr = log2(N)
    for k in gl.static_range(n):
        for j in gl.static_range(k, -1, -1):
            p = gl.gather(v, o ^ (1 << j), 0)
            up = (o & (2 << k)) == 0
            low = (o & (1 << j)) == 0
            v = gl.where(low == up, gl.minimum(v, p), gl.maximum(v, p))
    gl.store(y + o, v)


def test_bitonic():
    x = torch.randn(256)
    y = torch.empty(256)
    bitonic_kernel[(1,)](x, y, 256, gl.BlockedLayout([2], [32], [4], [0]))
    torch.testing.assert_close(y, x.sort().values)


@gluon.jit
def clampy(a, lo, hi):
    return gl.minimum(gl.maximum(a, lo), hi)


@gluon.jit
def two(a, b):
    if a > b:
        r = a * 2
    else:
        r = b
    return r, a


@gluon.jit
def map_kernel(x, y, out, L: gl.constexpr):
    o = gl.arange(0, 256, L)
    r, a = gl.map_elementwise(two, gl.load(x + o), gl.load(y + o))
    gl.store(out + o, r + a)


def test_map_elementwise():
    x, y = torch.randint(-9, 9, (2, 256), dtype=torch.int32)
    out = torch.empty_like(x)
    map_kernel[(1,)](x, y, out, gl.BlockedLayout([2], [32], [4], [0]))
    torch.testing.assert_close(out, torch.where(x > y, 2 * x, y) + x)


@gluon.jit
def while_kernel(x, n):
    i = n
    steps = 0
    while i != 1:
        if i % 2 == 0:
            i = i // 2
        else:
            i = 3 * i + 1
        steps += 1
    gl.store(x, steps)


def test_while():
    x = torch.zeros(1, dtype=torch.int32)
    while_kernel[(1,)](x, 27)
    torch.testing.assert_close(x, torch.tensor([111], dtype=torch.int32))


@gluon.jit
def early(x, n):
    pid = gl.program_id(0)
    if pid >= n:
        return
    gl.store(x + pid, pid * 10)


def test_early():
    x = torch.zeros(4, dtype=torch.int32)
    early[(4,)](x, 2)
    torch.testing.assert_close(x, torch.tensor([0, 10, 0, 0], dtype=torch.int32))
