"""Kernels of plain Triton with products of matrices. Each case returns results and what torch computes."""

import math

import torch
import triton
import triton.language as tl
from torch.nn import functional

SCALE = tl.constexpr(1.4426950408889634)


@triton.jit
def bmm_kernel(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(2)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a = a_ptr + batch * M * K + rm[:, None] * K + rk[None, :]
    b = b_ptr + batch * K * N + rk[:, None] * N + rn[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + k, mask=(rm[:, None] < M) & (rk[None, :] + k < K), other=0.0)
        y = tl.load(b + k * N, mask=(rk[:, None] + k < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc, allow_tf32=False)
    c = c_ptr + batch * M * N + rm[:, None] * N + rn[None, :]
    tl.store(c, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def split_k_kernel(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):  # fmt: skip
    part = tl.program_id(0)
    rm, rn = tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), dtype=tl.float32)
    for k in range(part * BK, K, BK * SPLIT):
        rk = k + tl.arange(0, BK)
        x = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        y = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
        acc += tl.dot(x, y, out_dtype=tl.float32)
    tl.atomic_add(c_ptr + rm[:, None] * N + rn[None, :], acc, sem="relaxed")


@triton.jit
def int8_kernel(a_ptr, b_ptr, sa_ptr, sb_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    rm, rn, rk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros((M, N), dtype=tl.int32)
    for k in range(0, K, BK):
        x = tl.load(a_ptr + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b_ptr + rn[None, :] * K + (k + rk)[:, None])
        acc = tl.dot(x, y, acc, out_dtype=tl.int32)
    scale = tl.load(sa_ptr + rm)[:, None] * tl.load(sb_ptr + rn)[None, :]
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float32) * scale)


@triton.jit
def gelu(x):
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + (2 * tl.sigmoid(2 * inner) - 1))


@triton.jit
def linear_kernel(
    x_ptr, w_ptr, b_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(
            x_ptr + rm[:, None] * K + rk[None, :], (rm[:, None] < M) & (rk[None, :] < K), 0.0
        )
        w = tl.load(
            w_ptr + rn[:, None] * K + rk[None, :], (rn[:, None] < N) & (rk[None, :] < K), 0.0
        )
        acc += tl.dot(x, tl.trans(w))
    acc = gelu(acc + tl.load(b_ptr + rn, mask=rn < N, other=0.0)[None, :])
    out = y_ptr + rm[:, None] * N + rn[None, :]
    tl.store(out, acc.to(y_ptr.dtype.element_ty), mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def attention_inner(
    acc, l_i, m_i, q, k_ptr, v_ptr, start_m, qk_scale, N_CTX,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD: tl.constexpr, STAGE: tl.constexpr,
    offs_m, offs_n,
):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, min((start_m + 1) * BLOCK_M, N_CTX)
    else:
        lo, hi = 0, N_CTX
    offs_d = tl.arange(0, HEAD)
    for start_n in tl.range(lo, hi, BLOCK_N):
        cols = start_n + offs_n
        k = tl.load(
            k_ptr + cols[None, :] * HEAD + offs_d[:, None], mask=cols[None, :] < N_CTX, other=0.0
        )
        qk = tl.dot(q, k)
        mask = cols[None, :] < N_CTX
        if STAGE == 2:
            mask = mask & (offs_m[:, None] >= cols[None, :])
        qk = tl.where(mask, qk * qk_scale, -1.0e6)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.math.exp2(qk - m_ij[:, None])
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(
            v_ptr + cols[:, None] * HEAD + offs_d[None, :], mask=cols[:, None] < N_CTX, other=0.0
        )
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, sm_scale, N_CTX,
    HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * N_CTX * HEAD
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, HEAD)
    place = base + offs_m[:, None] * HEAD + offs_d[None, :]
    q = tl.load(q_ptr + place, mask=offs_m[:, None] < N_CTX, other=0.0)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD], dtype=tl.float32)
    if CAUSAL:
        acc, l_i, m_i = attention_inner(
            acc, l_i, m_i, q, k_ptr + base, v_ptr + base, start_m, sm_scale * SCALE, N_CTX,
            BLOCK_M, BLOCK_N, HEAD, 1, offs_m, offs_n,
        )  # fmt: skip
        acc, l_i, m_i = attention_inner(
            acc, l_i, m_i, q, k_ptr + base, v_ptr + base, start_m, sm_scale * SCALE, N_CTX,
            BLOCK_M, BLOCK_N, HEAD, 2, offs_m, offs_n,
        )  # fmt: skip
    else:
        acc, l_i, m_i = attention_inner(
            acc, l_i, m_i, q, k_ptr + base, v_ptr + base, start_m, sm_scale * SCALE, N_CTX,
            BLOCK_M, BLOCK_N, HEAD, 3, offs_m, offs_n,
        )  # fmt: skip
    acc = acc / l_i[:, None]
    tl.store(o_ptr + place, acc.to(o_ptr.dtype.element_ty), mask=offs_m[:, None] < N_CTX)


@triton.jit
def decode_kernel(q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, N, D: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr):  # fmt: skip
    head, split = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head * D + d)
    per = tl.cdiv(N, SPLITS)
    m, total = -float("inf"), 0.0
    acc = tl.zeros([D], tl.float32)
    for start in range(split * per, min(split * per + per, N), BLOCK):
        n = start + tl.arange(0, BLOCK)
        inside = n < min(split * per + per, N)
        k = tl.load(k_ptr + n[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        s = tl.where(inside, tl.sum(q[None, :] * k, 1) * scale, -float("inf"))
        m_new = tl.maximum(tl.max(s, 0), m)
        rescale = tl.exp(m - m_new)
        p = tl.exp(s - m_new)
        v = tl.load(v_ptr + n[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        acc = acc * rescale + tl.sum(p[:, None] * v, 0)
        total = total * rescale + tl.sum(p, 0)
        m = m_new
    tl.store(o_ptr + (head * SPLITS + split) * D + d, acc / total)
    tl.store(lse_ptr + head * SPLITS + split, m + tl.log(total))


@triton.jit
def merge_kernel(o_ptr, lse_ptr, out_ptr, D: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    s, d = tl.arange(0, SPLITS), tl.arange(0, D)
    lse = tl.load(lse_ptr + head * SPLITS + s)
    weights = tl.softmax(lse)
    o = tl.load(o_ptr + (head * SPLITS + s)[:, None] * D + d[None, :])
    tl.store(out_ptr + head * D + d, tl.sum(o * weights[:, None], 0))


@triton.jit
def linear_attention_kernel(q_ptr, k_ptr, v_ptr, o_ptr, T, D: tl.constexpr, C: tl.constexpr):
    base = tl.program_id(0) * T * D
    c, d = tl.arange(0, C), tl.arange(0, D)
    state = tl.zeros([D, D], dtype=tl.float32)
    causal = c[:, None] >= c[None, :]
    for t in range(0, T, C):
        place = base + (t + c)[:, None] * D + d[None, :]
        q, k, v = tl.load(q_ptr + place), tl.load(k_ptr + place), tl.load(v_ptr + place)
        scores = tl.where(causal, tl.dot(q, tl.trans(k)), 0.0)
        o = tl.dot(scores.to(v.dtype), v) + tl.dot(q, state.to(q.dtype))
        state += tl.dot(tl.trans(k), v)
        tl.store(o_ptr + place, o)


@triton.jit
def gathered_kernel(
    x_ptr, w_ptr, out_ptr, ids_ptr, experts_ptr, n, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    ids = tl.load(ids_ptr + tl.program_id(0) * BM + tl.arange(0, BM))
    expert = tl.load(experts_ptr + tl.program_id(0))
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(x_ptr + ids[:, None] * K + rk[None, :], mask=ids[:, None] < n, other=0.0)
        w = tl.load(w_ptr + expert * N * K + rk[:, None] * N + rn[None, :])
        acc += tl.dot(x, w)
    tl.store(out_ptr + ids[:, None] * N + rn[None, :], acc, mask=ids[:, None] < n)


@triton.jit
def int4_kernel(x_ptr, w_ptr, s_ptr, y_ptr, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    """Each byte holds the weights of two neighbours along K, 8 means zero."""
    rm, rn = tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(x_ptr + rm[:, None] * K + rk[None, :])
        packed = tl.load(w_ptr + (rk // 2)[:, None] * N + rn[None, :])
        shift = ((rk % 2) * 4)[:, None]
        w = ((packed >> shift) & 0xF).to(tl.float32) - 8.0
        acc += tl.dot(x, w.to(x.dtype))
    acc = acc * tl.load(s_ptr + rn)[None, :]
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def transpose_kernel(x_ptr, out_ptr, M, N, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    j = tl.program_id(1) * B + tl.arange(0, B)
    mask = (i < M)[:, None] & (j < N)[None, :]
    x = tl.load(x_ptr + i[:, None] * N + j[None, :], mask=mask)
    tl.store(out_ptr + j[:, None] * M + i[None, :], x.T, mask=(j < N)[:, None] & (i < M)[None, :])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def bmm():
    a, b = normal(3, 40, 50), normal(3, 50, 30, seed=1)
    c = torch.empty(3, 40, 30)
    bmm_kernel[(2, 1, 3)](a, b, c, 40, 30, 50, BM=32, BN=32, BK=16)
    return c, a @ b


def split_k():
    a, b = normal(32, 256).half(), normal(256, 32, seed=1).half()
    c = torch.zeros(32, 32)
    split_k_kernel[(4,)](a, b, c, 256, M=32, N=32, BK=32, SPLIT=4)
    return c, a.float() @ b.float()


def int8_matmul():
    a, b = (torch.randint(-127, 128, (32, 64), dtype=torch.int8) for _ in range(2))
    sa, sb = normal(32).abs() / 100, normal(32, seed=1).abs() / 100
    c = torch.empty(32, 32)
    int8_kernel[(1,)](a, b, sa, sb, c, 64, M=32, N=32, BK=32)
    return c, (a.float() @ b.float().T) * sa[:, None] * sb[None]


def linear():
    x, w, b = normal(40, 70).half(), normal(50, 70, seed=1).half() / 8, normal(50, seed=2).half()
    y = torch.empty(40, 50, dtype=torch.float16)
    linear_kernel[(2, 2)](x, w, b, y, 40, 50, 70, BM=32, BN=32, BK=32)
    return y, functional.gelu(
        functional.linear(x.float(), w.float(), b.float()), approximate="tanh"
    )


def attention(causal=False):
    q, k, v = (normal(2, 100, 32, seed=i).half() for i in range(3))
    o = torch.empty_like(q)
    attention_kernel[(4, 2)](
        q, k, v, o, 1 / math.sqrt(32), 100, HEAD=32, BLOCK_M=32, BLOCK_N=32, CAUSAL=causal
    )
    want = functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal
    )
    return o, want


def causal_attention():
    return attention(causal=True)


def split_decode():
    q, k, v = normal(3, 32), normal(100, 32, seed=1), normal(100, 32, seed=2)
    parts, lse, out = torch.empty(3, 4, 32), torch.empty(3, 4), torch.empty(3, 32)
    decode_kernel[(3, 4)](q, k, v, parts, lse, 0.2, 100, D=32, BLOCK=16, SPLITS=4)
    merge_kernel[(3,)](parts, lse, out, D=32, SPLITS=4)
    return out, (q @ k.T * 0.2).softmax(1) @ v


def linear_attention():
    q, k, v = (normal(2, 64, 32, seed=i).half() / 4 for i in range(3))
    o = torch.empty_like(q)
    linear_attention_kernel[(2,)](q, k, v, o, 64, D=32, C=32)
    scores = (q.float() @ k.float().transpose(1, 2)).tril()
    return o, scores @ v.float()


def gathered():
    x, w = normal(40, 64).half(), normal(2, 64, 32, seed=1).half() / 8
    experts = torch.randint(0, 2, (40,))
    ids, blocks = [], []
    for expert in range(2):
        own = (experts == expert).nonzero().flatten().tolist()
        own += [40] * (-len(own) % 16)
        ids += own
        blocks += [expert] * (len(own) // 16)
    out = torch.zeros(40, 32)
    ids = torch.tensor(ids, dtype=torch.int32)
    args = x, w, out, ids, torch.tensor(blocks, dtype=torch.int32), 40, 32, 64
    gathered_kernel[(len(blocks), 1)](*args, BM=16, BN=32, BK=32)
    return out, torch.einsum("mk,mkn->mn", x.float(), w.float()[experts])


def int4_linear():
    x, w = normal(16, 64).half() / 8, torch.randint(0, 16, (64, 32), dtype=torch.int32)
    scale = normal(32).abs()
    packed = (w[0::2] | (w[1::2] << 4)).to(torch.uint8)
    y = torch.empty(16, 32)
    int4_kernel[(1,)](x, packed, scale, y, 64, M=16, N=32, BK=32)
    return y, x.float() @ (w.float() - 8) * scale


def transpose():
    x = normal(50, 70)
    out = torch.empty(70, 50)
    transpose_kernel[(2, 3)](x, out, 50, 70, B=32)
    return out, x.T


CASES = [
    bmm, split_k, int8_matmul, linear, attention, causal_attention, split_decode, linear_attention,
    gathered, int4_linear, transpose,
]  # fmt: skip
