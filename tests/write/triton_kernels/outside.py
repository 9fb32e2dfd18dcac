"""Kernels in the forms of public libraries: names from branches of other files and of torch, streams that mix."""

import torch
import triton
import triton.language as tl
from shared.branched import exp2, gather, log2, make_tensor_descriptor
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import libdevice
from torch._inductor.runtime.triton_helpers import math as tl_math


@triton.jit
def branched_kernel(x_ptr, order_ptr, out_ptr, R, C, BR: tl.constexpr, BC: tl.constexpr):
    rows = make_tensor_descriptor(x_ptr, [R, C], [C, 1], [BR, BC])
    x = rows.load([tl.program_id(0) * BR, 0])
    gl = tl.load(order_ptr + tl.arange(0, BC))
    x = gather(x, tl.broadcast_to(gl[None, :], (BR, BC)), 1)
    out = make_tensor_descriptor(out_ptr, [R, C], [C, 1], [BR, BC])
    out.store([tl.program_id(0) * BR, 0], log2(1.0 + exp2(x)))


@triton.jit
def streams_kernel(
    x_ptr,
    mix_ptr,
    f_ptr,
    weight_ptr,
    out_ptr,
    N,
    C,
    S: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """Mix S residual streams, and add a layer's result to each."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = (n[:, None] < N) & (c[None, :] < C)
    f = tl.load(f_ptr + n[:, None] * C + c[None, :], mask=inside, other=0.0)
    o = tl.arange(0, S)[:, None]
    weight = tl.load(weight_ptr + n[None, :] * S + o, mask=n[None, :] < N, other=0.0)
    acc = f[None, :, :] * weight[:, :, None]
    for i in tl.static_range(0, S):
        x = tl.load(x_ptr + n[:, None] * (S * C) + i * C + c[None, :], mask=inside, other=0.0)
        mix = tl.load(mix_ptr + n[None, :] * (S * S) + o * S + i, mask=n[None, :] < N, other=0.0)
        acc += x[None, :, :] * mix[:, :, None]
    o3, n3, c3 = tl.arange(0, S)[:, None, None], n[None, :, None], c[None, None, :]
    tl.store(out_ptr + n3 * (S * C) + o3 * C + c3, acc, mask=(n3 < N) & (c3 < C))


@triton.jit
def named_pointers_kernel(
    q, k, v, out, T, scale, H: tl.constexpr, D: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr
):
    """Attention whose steps name their pointers."""
    head, d = tl.program_id(1), tl.arange(0, D)
    o_q = tl.program_id(0) * BT + tl.arange(0, BT)
    p_q = q + head * D + o_q[:, None] * (H * D) + d[None, :]
    b_q = tl.load(p_q, mask=(o_q < T)[:, None], other=0.0)
    b_o = tl.zeros([BT, D], dtype=tl.float32)
    b_m, b_acc = tl.full([BT], float("-inf"), dtype=tl.float32), tl.zeros([BT], dtype=tl.float32)
    for i_s in range(0, T, BS):
        o_k = i_s + tl.arange(0, BS)
        m_k = o_k < T
        p_k = k + head * D + d[:, None] + o_k[None, :] * (H * D)
        p_v = v + head * D + o_k[:, None] * (H * D) + d[None, :]
        b_k = tl.load(p_k, mask=m_k[None, :], other=0.0)
        b_v = tl.load(p_v, mask=m_k[:, None], other=0.0)
        b_s = tl.where(m_k[None, :], tl.dot(b_q, b_k) * scale * 1.44269504, float("-inf"))
        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
        b_r = exp2(b_mp - b_m)
        b_p = exp2(b_s - b_m[:, None])
        b_acc = b_acc * b_r + tl.sum(b_p, 1)
        b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v)
    p_o = out + head * D + o_q[:, None] * (H * D) + d[None, :]
    tl.store(p_o, b_o / b_acc[:, None], mask=(o_q < T)[:, None])


def moments_kernel(
    in_ptr0, out_ptr0, out_ptr1, xnumel, rnumel, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr
):
    """As torch.compile writes a reduction; `triton.jit` is called, not a decorator."""
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    rbase = tl.arange(0, RBLOCK)[None, :]
    tmp2_mean = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    tmp2_m2 = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    tmp2_weight = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        tmp0 = tl.load(in_ptr0 + (rindex + rnumel * xindex), rmask & xmask, other=0.0)
        mean_next, m2_next, weight_next = triton_helpers.welford_reduce(
            tmp0, tmp2_mean, tmp2_m2, tmp2_weight, roffset == 0
        )
        tmp2_mean = tl.where(rmask & xmask, mean_next, tmp2_mean)
        tmp2_m2 = tl.where(rmask & xmask, m2_next, tmp2_m2)
        tmp2_weight = tl.where(rmask & xmask, weight_next, tmp2_weight)
    mean, m2, weight = triton_helpers.welford(tmp2_mean, tmp2_m2, tmp2_weight, 1)
    largest = triton_helpers.maximum(tl_math.abs(mean[:, None]), tl.full([1, 1], 0, tl.int32))
    tl.store(out_ptr0 + (xindex), largest, xmask)
    tl.store(out_ptr1 + (xindex), libdevice.rsqrt((m2 / weight)[:, None]), xmask)


moments_kernel = triton.jit(moments_kernel)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def branched():
    x, order = randn(24, 32), torch.arange(31, -1, -1, dtype=torch.int32)
    out = torch.empty_like(x)
    branched_kernel[(2,)](x, order, out, 24, 32, 16, 32)
    return out, (1 + x.flip(1).exp2()).log2()


def streams():
    N, C, S = 20, 40, 4
    x, mix, f, weight = (
        randn(*shape, seed=s) for s, shape in enumerate([(N, S, C), (N, S, S), (N, C), (N, S)])
    )
    out = torch.empty_like(x)
    streams_kernel[(2, 1)](x, mix, f, weight, out, N, C, S, 16, 64)
    return out, mix @ x + weight[:, :, None] * f[:, None, :]


def named_pointers():
    T, H, D = 80, 2, 32
    q, k, v = (randn(T, H, D, seed=s).half() for s in range(3))
    out = torch.zeros(T, H, D)
    named_pointers_kernel[(2, H)](q, k, v, out, T, 0.3, H, D, 64, 32)
    score = torch.einsum("ihd,jhd->hij", q.float(), k.float()) * 0.3
    return out, torch.einsum("hij,jhd->ihd", score.softmax(-1), v.float())


def moments():
    x, largest, scale = randn(5, 300), torch.zeros(5), torch.zeros(5)
    moments_kernel[(3,)](x, largest, scale, 5, 300, 2, 128)
    wanted = x.mean(1).abs(), x.var(1, unbiased=False).rsqrt()
    return torch.stack([largest, scale]), torch.stack(wanted)


CASES = [branched, streams, named_pointers, moments]
