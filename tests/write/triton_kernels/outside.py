"""Kernels in the forms of public libraries: names from branches of other files, streams that mix."""

import torch
import triton
import triton.language as tl
from shared.branched import exp2, gather, log2, make_tensor_descriptor


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


CASES = [branched, streams]
