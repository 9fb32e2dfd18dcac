"""Attention over blocks of keys that a table lists, with a function of scores; the fused attention of a tutorial."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def relative_bias(score, b, h, q_idx, kv_idx, SLOPE: tl.constexpr):
    return score - SLOPE * tl.abs(q_idx - kv_idx).to(tl.float32)


@triton.jit
def causal_window(b, h, q_idx, kv_idx, WINDOW: tl.constexpr):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


@triton.jit
def forward_block_mn(
    acc,
    l_i,
    m_i,
    q,
    K,
    V,
    offs_m,
    offs_n,
    offs_d,
    stride_kn,
    stride_vn,
    kv_len,
    off_z,
    off_h,
    MATMUL_PRECISION,
    SM_SCALE: tl.constexpr,
    WINDOW: tl.constexpr,
    SLOPE: tl.constexpr,
    IS_FULL: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    MASK_MOD: tl.constexpr,
):
    RCP_LN2: tl.constexpr = 1.44269504
    k = tl.load(
        K + offs_n[None, :] * stride_kn + offs_d[:, None], mask=offs_n[None, :] < kv_len, other=0.0
    )
    qk = tl.dot(q, k)
    qk *= SM_SCALE
    m = offs_m[:, None]
    n = offs_n[None, :]
    post_mod = SCORE_MOD(qk, off_z, off_h, m, n, SLOPE)
    post_mod = tl.where(n < kv_len, post_mod, float("-inf"))
    if not IS_FULL:
        mask_mod_output = MASK_MOD(off_z, off_h, m, n, WINDOW)
        post_mod = tl.where(mask_mod_output, post_mod, float("-inf"))
    post_mod *= RCP_LN2
    m_ij = tl.maximum(m_i, tl.max(post_mod, 1))
    masked_out_rows = m_ij == float("-inf")
    m_ij_masked = tl.where(masked_out_rows, 0, m_ij)
    alpha = tl.math.exp2(m_i - m_ij_masked)
    p = tl.math.exp2(post_mod - m_ij_masked[:, None])
    l_i = l_i * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    v = tl.load(
        V + offs_n[:, None] * stride_vn + offs_d[None, :], mask=offs_n[:, None] < kv_len, other=0.0
    )
    acc = tl.dot(p.to(MATMUL_PRECISION), v, acc)
    return acc, l_i, m_ij


@triton.jit
def flex_kernel(
    Q,
    K,
    V,
    KV_NUM_BLKS,
    KV_IDX,
    FULL_KV_NUM_BLKS,
    FULL_KV_IDX,
    Out,
    LSE,
    stride_qz,
    stride_qh,
    stride_qm,
    stride_kz,
    stride_kh,
    stride_kn,
    stride_vz,
    stride_vh,
    stride_vn,
    Q_LEN,
    KV_LEN,
    HQ,
    SM_SCALE: tl.constexpr,
    GQA: tl.constexpr,
    WINDOW: tl.constexpr,
    SLOPE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPARSE_KV: tl.constexpr,
    NBLK: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    MASK_MOD: tl.constexpr,
):
    tl.static_assert(SPARSE_KV % BLOCK_N == 0)
    q_start = tl.program_id(0)
    off_z = tl.program_id(1) // HQ
    off_hq = tl.program_id(1) % HQ
    off_hkv = off_hq // GQA
    Q = Q + off_z * stride_qz + off_hq * stride_qh
    K = K + off_z * stride_kz + off_hkv * stride_kh
    V = V + off_z * stride_vz + off_hkv * stride_vh
    MATMUL_PRECISION = Q.dtype.element_ty
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    offs_m = q_start * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    q = tl.load(
        Q + offs_m[:, None] * stride_qm + offs_d[None, :], mask=offs_m[:, None] < Q_LEN, other=0.0
    )
    for kind in tl.static_range(2):
        if kind == 0:
            num = tl.load(KV_NUM_BLKS + q_start)
            indices = KV_IDX + q_start * NBLK
        else:
            num = tl.load(FULL_KV_NUM_BLKS + q_start)
            indices = FULL_KV_IDX + q_start * NBLK
        for i in range(0, num * (SPARSE_KV // BLOCK_N)):
            block = tl.load(indices + i // (SPARSE_KV // BLOCK_N), eviction_policy="evict_last")
            offs_n = (
                block * SPARSE_KV + (i % (SPARSE_KV // BLOCK_N)) * BLOCK_N + tl.arange(0, BLOCK_N)
            )
            acc, l_i, m_i = forward_block_mn(
                acc,
                l_i,
                m_i,
                q,
                K,
                V,
                offs_m,
                offs_n,
                offs_d,
                stride_kn,
                stride_vn,
                KV_LEN,
                off_z,
                off_hq,
                MATMUL_PRECISION,
                SM_SCALE,
                WINDOW,
                SLOPE,
                IS_FULL=(kind == 1),
                SCORE_MOD=SCORE_MOD,
                MASK_MOD=MASK_MOD,
            )
    l_i = tl.where(l_i == 0.0, 1, l_i)
    acc = acc / l_i[:, None]
    mask = offs_m < Q_LEN
    out = Out + off_z * stride_qz + off_hq * stride_qh
    tl.store(
        out + offs_m[:, None] * stride_qm + offs_d[None, :],
        acc.to(Out.dtype.element_ty),
        mask=mask[:, None],
    )
    tl.store(LSE + tl.program_id(1) * Q_LEN + offs_m, m_i + tl.math.log2(l_i), mask=mask)


@triton.jit
def _maybe_make_tensor_desc(desc_or_ptr, shape, strides, block_shape):
    if isinstance(desc_or_ptr, tl.tensor_descriptor):
        return desc_or_ptr
    else:
        return tl.make_tensor_descriptor(desc_or_ptr, shape, strides, block_shape)


@triton.jit
def _attn_fwd_inner(
    acc,
    l_i,
    m_i,
    q,
    desc_k,
    desc_v,
    offset_y,
    dtype: tl.constexpr,
    start_m,
    qk_scale,
    BLOCK_M: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGE: tl.constexpr,
    offs_m: tl.constexpr,
    offs_n: tl.constexpr,
    N_CTX: tl.constexpr,
    warp_specialize: tl.constexpr,
    IS_HOPPER: tl.constexpr,
):
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    offsetk_y = offset_y + lo
    offsetv_y = offset_y + lo
    for start_n in tl.range(lo, hi, BLOCK_N, warp_specialize=warp_specialize):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = desc_k.load([offsetk_y, 0]).T
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        if not IS_HOPPER and warp_specialize and BLOCK_M == 128 and HEAD_DIM == 128:
            BM: tl.constexpr = acc.shape[0]
            BN: tl.constexpr = acc.shape[1]
            acc0, acc1 = acc.reshape([BM, 2, BN // 2]).permute(0, 2, 1).split()
            acc0 = acc0 * alpha[:, None]
            acc1 = acc1 * alpha[:, None]
            acc = tl.join(acc0, acc1).permute(0, 2, 1).reshape([BM, BN])
        else:
            acc = acc * alpha[:, None]
        v = desc_v.load([offsetv_y, 0])
        p = p.to(dtype)
        acc = tl.dot(p, v, acc)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
        offsetk_y += BLOCK_N
        offsetv_y += BLOCK_N
    return acc, l_i, m_i


@triton.jit
def tutorial_attn_fwd(
    sm_scale,
    M,
    Z,
    H,
    desc_q,
    desc_k,
    desc_v,
    desc_o,
    N_CTX,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    FP8_OUTPUT: tl.constexpr,
    STAGE: tl.constexpr,
    warp_specialize: tl.constexpr,
    IS_HOPPER: tl.constexpr,
):
    dtype = tl.float8e5 if FP8_OUTPUT else tl.float16
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    y_dim = Z * H * N_CTX
    desc_q = _maybe_make_tensor_desc(
        desc_q, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_M, HEAD_DIM]
    )
    desc_v = _maybe_make_tensor_desc(
        desc_v, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_N, HEAD_DIM]
    )
    desc_k = _maybe_make_tensor_desc(
        desc_k, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_N, HEAD_DIM]
    )
    desc_o = _maybe_make_tensor_desc(
        desc_o, shape=[y_dim, HEAD_DIM], strides=[HEAD_DIM, 1], block_shape=[BLOCK_M, HEAD_DIM]
    )
    offset_y = off_z * (N_CTX * H) + off_h * N_CTX
    qo_offset_y = offset_y + start_m * BLOCK_M
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = desc_q.load([qo_offset_y, 0])
    if STAGE & 1:
        acc, l_i, m_i = _attn_fwd_inner(
            acc,
            l_i,
            m_i,
            q,
            desc_k,
            desc_v,
            offset_y,
            dtype,
            start_m,
            qk_scale,
            BLOCK_M,
            HEAD_DIM,
            BLOCK_N,
            4 - STAGE,
            offs_m,
            offs_n,
            N_CTX,
            warp_specialize,
            IS_HOPPER,
        )
    if STAGE & 2:
        acc, l_i, m_i = _attn_fwd_inner(
            acc,
            l_i,
            m_i,
            q,
            desc_k,
            desc_v,
            offset_y,
            dtype,
            start_m,
            qk_scale,
            BLOCK_M,
            HEAD_DIM,
            BLOCK_N,
            2,
            offs_m,
            offs_n,
            N_CTX,
            warp_specialize,
            IS_HOPPER,
        )
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    m_ptrs = M + off_hz * N_CTX + offs_m
    tl.store(m_ptrs, m_i)
    desc_o.store([qo_offset_y, 0], acc.to(dtype))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def flex():
    Z, HQ, HKV, N, D, W, SLOPE = 1, 4, 2, 80, 32, 40, 0.05
    q, k, v = (
        normal(Z, HQ, N, D).half(),
        normal(Z, HKV, N, D, seed=1).half(),
        normal(Z, HKV, N, D, seed=2).half(),
    )
    out, lse = torch.empty_like(q), torch.empty(Z, HQ, N)
    BM, S = 16, 32
    i, j = torch.arange(N)[:, None], torch.arange(N)[None, :]
    seen = (i >= j) & (i - j < W)
    rows, cols = -(-N // BM), -(-N // S)
    part, full = (
        torch.zeros(rows, cols, dtype=torch.int32),
        torch.zeros(rows, cols, dtype=torch.int32),
    )
    n_part, n_full = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    for r in range(rows):
        for c in range(cols):
            block = seen[r * BM : (r + 1) * BM, c * S : (c + 1) * S]
            if block.all() and block.shape == (BM, S):
                full[r, n_full[r]] = c
                n_full[r] += 1
            elif block.any():
                part[r, n_part[r]] = c
                n_part[r] += 1
    flex_kernel[(rows, Z * HQ)](
        q,
        k,
        v,
        n_part,
        part,
        n_full,
        full,
        out,
        lse,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        N,
        N,
        HQ,
        SM_SCALE=D**-0.5,
        GQA=HQ // HKV,
        WINDOW=W,
        SLOPE=SLOPE,
        D=D,
        BLOCK_M=BM,
        BLOCK_N=16,
        SPARSE_KV=S,
        NBLK=cols,
        SCORE_MOD=relative_bias,
        MASK_MOD=causal_window,
    )
    kk, vv = (x.float().repeat_interleave(HQ // HKV, 1) for x in (k, v))
    score = q.float() @ kk.transpose(-1, -2) * D**-0.5 - SLOPE * (i - j).abs()
    return out, score.masked_fill(~seen, float("-inf")).softmax(-1) @ vv


def tutorial(stage, device=False):
    Z, H, N, D, BM, BN = 1, 2, 128, 64, 64, 32
    q, k, v = (normal(Z, H, N, D, seed=s).half() for s in range(3))
    o, m = torch.empty_like(q), torch.empty(Z, H, N)
    y = Z * H * N
    if device:
        args = q, k, v, o
    else:
        args = [
            TensorDescriptor(t, shape=[y, D], strides=[D, 1], block_shape=[b, D])
            for t, b in ((q, BM), (k, BN), (v, BN), (o, BM))
        ]
    tutorial_attn_fwd[(N // BM, Z * H, 1)](
        0.3,
        m,
        Z,
        H,
        *args,
        N_CTX=N,
        HEAD_DIM=D,
        BLOCK_M=BM,
        BLOCK_N=BN,
        FP8_OUTPUT=False,
        STAGE=stage,
        warp_specialize=False,
        IS_HOPPER=True,
    )
    score = q.float() @ k.float().transpose(-1, -2) * 0.3
    if stage == 3:
        score = score.masked_fill(torch.ones(N, N).tril() == 0, float("-inf"))
    return o, score.softmax(-1) @ v.float()


def tutorial_full():
    return tutorial(1)


def tutorial_causal():
    return tutorial(3)


def tutorial_device():
    return tutorial(3, device=True)


CASES = [flex, tutorial_full, tutorial_causal, tutorial_device]
