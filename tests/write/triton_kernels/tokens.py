"""Kernels of plain Triton on rows that tables name: tokens sorted by experts, adapters of requests, ragged rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language import extra


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# tokens sorted by experts, in int8 with scales of channels; blocks past the end, and experts that are elsewhere


@triton.jit
def write_zeros(
    c_ptr, stride_cm, stride_cn, pid_n, N, offs_token, token_mask, BLOCK_M, BLOCK_N, compute_type
):
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=compute_type)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, accumulator, mask=token_mask[:, None] & (offs_cn[None, :] < N))


@triton.jit
def experts_kernel(
    a_ptr, b_ptr, c_ptr, b_bias_ptr, b_scale_ptr, topk_weights_ptr, sorted_ids_ptr, expert_ids_ptr, num_post_padded_ptr, N, K, EM,
    num_valid_tokens, stride_am, stride_ak, stride_be, stride_bk, stride_bn, stride_cm, stride_cn, stride_bse, stride_bsn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, MUL_WEIGHT: tl.constexpr,
    top_k: tl.constexpr, compute_type: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m, num_pid_n = tl.cdiv(EM, BLOCK_M), tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    num_post_padded = tl.load(num_post_padded_ptr)
    if pid_m * BLOCK_M >= num_post_padded:
        return
    offs_token = tl.load(sorted_ids_ptr + pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64))
    token_mask = offs_token < num_valid_tokens
    off_experts = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    if off_experts == -1:
        write_zeros(
            c_ptr,
            stride_cm,
            stride_cn,
            pid_n,
            N,
            offs_token,
            token_mask,
            BLOCK_M,
            BLOCK_N,
            compute_type,
        )
        return
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_token[:, None] // top_k * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = (
        b_ptr
        + off_experts * stride_be
        + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    )
    b_scale = tl.load(b_scale_ptr + off_experts * stride_bse + offs_bn[None, :] * stride_bsn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(
            a_ptrs, mask=token_mask[:, None] & (offs_k[None, :] < K - k * BLOCK_K), other=0.0
        )
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0)
        accumulator = tl.dot(a, b.to(compute_type), acc=accumulator)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    accumulator = accumulator * b_scale
    if HAS_BIAS:
        accumulator += tl.load(b_bias_ptr + off_experts * N + offs_bn)[None, :]
    if MUL_WEIGHT:
        accumulator *= tl.load(topk_weights_ptr + offs_token, mask=token_mask, other=0)[:, None]
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    tl.store(
        c_ptrs, accumulator.to(compute_type), mask=token_mask[:, None] & (offs_cn[None, :] < N)
    )


def sorted_tokens():
    T, TOP, E, N, K, BM = 7, 2, 3, 24, 40, 16
    x = normal(T, K, dtype=torch.float16)
    w = torch.randint(-127, 128, (E, N, K), generator=torch.Generator().manual_seed(1)).to(
        torch.int8
    )
    scale, bias = (
        torch.rand(E, N, generator=torch.Generator().manual_seed(2)) * 0.01,
        normal(E, N, seed=3),
    )
    ids = torch.randint(0, E, (T, TOP), generator=torch.Generator().manual_seed(4))
    weights = torch.rand(T, TOP, generator=torch.Generator().manual_seed(5))
    order, blocks = [], []
    for e in range(E):
        mine = (ids.flatten() == e).nonzero().flatten().tolist()
        order += mine + [T * TOP] * (-len(mine) % BM)
        blocks += [e if e < 2 else -1] * (-(-len(mine) // BM))
    order += [T * TOP] * BM
    out = torch.empty(T, TOP, N, dtype=torch.float16)
    grid = lambda META: (
        triton.cdiv(len(order), META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),
    )  # noqa: E731
    config = {"BLOCK_M": BM, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 2}
    experts_kernel[grid](
        x, w, out, bias, scale, weights, torch.tensor(order, dtype=torch.int32), torch.tensor(blocks, dtype=torch.int32),
        torch.tensor([len(order) - BM], dtype=torch.int32), N, K, len(order), T * TOP, x.stride(0), x.stride(1), w.stride(0), w.stride(2),
        w.stride(1), out.stride(1), out.stride(2), scale.stride(0), scale.stride(1), MUL_WEIGHT=True, top_k=TOP,
        compute_type=tl.float16, HAS_BIAS=True, **config)  # fmt: skip
    want = torch.einsum("tk,tjnk->tjn", x.float(), w[ids].float()) * scale[ids] + bias[ids]
    want = want * weights[..., None] * (ids < 2)[..., None]
    return out * 0.5, want * 0.5


# adapters of few ranks, grouped by the requests' weights, which begin when the launch before them has ended


@triton.jit
def adapters_kernel(
    x_ptr, w_ptr, out_ptr, starts, ids, ranks, scalings, N, K, stride_w, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    USE_GDC: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(axis=1)
    adapter = tl.load(ids + request)
    if adapter == -1:
        return
    start = tl.load(starts + request)
    length = tl.load(starts + request + 1) - start
    rank = tl.load(ranks + adapter)
    depth = tl.minimum(K, rank)
    n_blocks = tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.program_id(0) // n_blocks, tl.program_id(0) % n_blocks
    if pid_m * BLOCK_M >= length:
        return
    m, n = pid_m * BLOCK_M + tl.arange(0, BLOCK_M), pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x = x_ptr + (start + m)[:, None] * K + k[None, :]
    w = w_ptr + adapter * stride_w + n[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if USE_GDC:
        extra.cuda.gdc_wait()
    for step in range(0, tl.cdiv(depth, BLOCK_K)):
        left = depth - step * BLOCK_K
        a = tl.load(x, mask=(m[:, None] < length) & (k[None, :] < left), other=0.0)
        b = tl.load(w, mask=(n[None, :] < N) & (k[:, None] < left), other=0.0)
        acc += tl.dot(a, b)
        x += BLOCK_K
        w += BLOCK_K
    if USE_GDC:
        extra.cuda.gdc_launch_dependents()
    acc *= tl.load(scalings + adapter)
    mask = (m[:, None] < length) & (n[None, :] < N)
    out = out_ptr + (start + m)[:, None] * N + n[None, :]
    acc = acc.to(x_ptr.dtype.element_ty)
    if ADD:
        acc += tl.load(out, mask=mask)
    tl.store(out, acc, mask=mask)


def adapters():
    T, N, K = 40, 48, 32
    x, w = normal(T, K, dtype=torch.bfloat16), normal(3, N, K, seed=1, dtype=torch.bfloat16)
    starts, ids = (
        torch.tensor([0, 5, 25, 30, 40], dtype=torch.int32),
        torch.tensor([2, 0, -1, 1], dtype=torch.int32),
    )
    ranks, scale = torch.tensor([16, 8, 32], dtype=torch.int32), torch.tensor([0.5, 1.0, 2.0])
    out = normal(T, N, seed=2, dtype=torch.bfloat16)
    want = out.float()
    adapters_kernel[(2 * 2, 4)](
        x, w, out, starts, ids, ranks, scale, N, K, w.stride(0), 16, 32, 16, USE_GDC=False, ADD=True
    )
    for r, a in enumerate(ids.tolist()):
        if a >= 0:
            part = slice(int(starts[r]), int(starts[r + 1]))
            want[part] += x[part, : ranks[a]].float() @ w[a, :, : ranks[a]].float().t() * scale[a]
    return out.half() * 0.05, want * 0.05


# ragged rows: to dense ones and back, means of them, and sums in a loop without a known end


@triton.jit
def ragged_kernel(
    values,
    offsets,
    dense,
    means,
    most,
    D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FILL: tl.constexpr = 0.0,
):
    row, block = tl.program_id(0), tl.program_id(1)
    d = block * BLOCK_D + tl.arange(0, BLOCK_D)
    begin, end = tl.load(offsets + row), tl.load(offsets + row + 1)
    length = tl.minimum(end - begin, most)
    total = tl.zeros([BLOCK_D], tl.float32)
    r = 0
    while r < most:
        rows = r + tl.arange(0, BLOCK_R)
        inside = (rows[:, None] < length) & (d[None, :] < D)
        x = tl.load(values + (begin + rows)[:, None] * D + d[None, :], mask=inside, other=FILL)
        tl.store(
            dense + (row * most + rows)[:, None] * D + d[None, :],
            x,
            mask=(rows[:, None] < most) & (d[None, :] < D),
        )
        total += tl.sum(tl.where(inside, x, 0.0), axis=0)
        r += BLOCK_R
    count = tl.maximum(length, 1).to(tl.float32)
    tl.store(means + row * D + d, tl.fdiv(total, count), mask=d < D)


def ragged_rows():
    offsets, D, most = torch.tensor([0, 3, 3, 16, 20]), 20, 10
    values, dense, means = normal(20, D), torch.empty(4, most, D), torch.empty(4, D)
    ragged_kernel[(4, 2)](
        values, offsets, dense, means, most, D=D, BLOCK_R=4, BLOCK_D=16, FILL=-1.0
    )
    want, mean = torch.full((4, most, D), -1.0), torch.zeros(4, D)
    for i, (a, b) in enumerate(zip(offsets, offsets[1:])):
        part = values[a : min(b, a + most)]
        want[i, : len(part)] = part
        mean[i] = part.sum(0) / max(1, len(part))
    return torch.cat([dense.flatten(), means.flatten()]), torch.cat(
        [want.flatten(), mean.flatten()]
    )


CASES = [sorted_tokens, adapters, ragged_rows]
