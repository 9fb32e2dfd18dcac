"""Kernels in the style of serving libraries: locks, quantized products, pages."""

import torch
import triton
import triton.language as tl

# -- stream-K: programs that share a tile add up under a lock -------------------------------------------


@triton.jit
def swizzle_tile(
    tile_id,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    grid_m = tl.cdiv(M, BLOCK_M)
    grid_n = tl.cdiv(N, BLOCK_N)
    width = GROUP_M * grid_n
    group_id = tile_id // width
    group_size = tl.minimum(grid_m - group_id * GROUP_M, GROUP_M)
    pid_m = group_id * GROUP_M + (tile_id % group_size)
    pid_n = (tile_id % width) // group_size
    return pid_m, pid_n


@triton.jit
def mac_loop(
    A,
    B,
    C,
    M,
    N,
    K,
    locks,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    iters_per_tile,
    start_iter,
    end_iter,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    tile_id = start_iter // iters_per_tile
    pid_m, pid_n = swizzle_tile(tile_id, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    A = (
        A
        + (rm[:, None] * stride_am + rk[None, :] * stride_ak)
        + BLOCK_K * stride_ak * (start_iter % iters_per_tile)
    )
    B = (
        B
        + (rk[:, None] * stride_bk + rn[None, :] * stride_bn)
        + BLOCK_K * stride_bk * (start_iter % iters_per_tile)
    )
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC_TYPE)
    for current_iter in range(start_iter, end_iter):
        a = tl.load(A, mask=rm[:, None] < M, other=0.0)
        b = tl.load(B, mask=rn[None, :] < N, other=0.0)
        acc += tl.dot(a, b)
        A += BLOCK_K * stride_ak
        B += BLOCK_K * stride_bk
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    C_ = C + (rm[:, None] * stride_cm + rn[None, :] * stride_cn)
    if end_iter % iters_per_tile == 0:
        tl.store(C_, acc, mask=mask)
        if start_iter % iters_per_tile != 0:
            tl.debug_barrier()
            tl.atomic_xchg(locks + tile_id, 1)
    else:
        while tl.atomic_cas(locks + tile_id, 1, 1) != 1:
            pass
        tl.atomic_add(C_, acc, mask=mask)


@triton.jit()
def first_wave(
    A,
    B,
    C,
    M,
    N,
    K,
    locks,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    total_full_tiles_streamk,
    total_partial_tiles_streamk,
    iters_per_tile,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACC_TYPE: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    pid = tl.num_programs(0) - 1 - tl.program_id(0)
    start_iter = pid * total_full_tiles_streamk + tl.minimum(pid, total_partial_tiles_streamk)
    last_iter = (pid + 1) * total_full_tiles_streamk + tl.minimum(
        pid + 1, total_partial_tiles_streamk
    )
    while start_iter < last_iter:
        end_iter = tl.minimum(
            start_iter + (iters_per_tile - start_iter % iters_per_tile), last_iter
        )
        mac_loop(
            A,
            B,
            C,
            M,
            N,
            K,
            locks,
            stride_am,
            stride_ak,
            stride_bk,
            stride_bn,
            stride_cm,
            stride_cn,
            iters_per_tile,
            start_iter,
            end_iter,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            ACC_TYPE,
            GROUP_M,
        )
        start_iter = end_iter


# -- int8 products with a scale for each row and column -------------------------------------------------


@triton.heuristics(
    {
        "EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0,
        "HAS_BIAS": lambda args: args["bias_ptr"] is not None,
    }
)
@triton.jit
def w8a8_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    x_scale_ptr,
    w_scale_ptr,
    bias_ptr,
    M,
    N,
    K,
    stride_xm,
    stride_wn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    offs_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + offs_m[:, None] * stride_xm + offs_k[None, :]
    w_ptrs = w_ptr + offs_n[None, :] * stride_wn + offs_k[:, None]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN_K:
            x = tl.load(x_ptrs)
            w = tl.load(w_ptrs)
        else:
            k_remaining = K - k * BLOCK_K
            x = tl.load(x_ptrs, mask=offs_k[None, :] < k_remaining, other=0)
            w = tl.load(w_ptrs, mask=offs_k[:, None] < k_remaining, other=0)
        accumulator = tl.dot(x, w, accumulator, out_dtype=tl.int32)
        x_ptrs += BLOCK_K
        w_ptrs += BLOCK_K
    x_scale = tl.load(x_scale_ptr + offs_m)
    w_scale = tl.load(w_scale_ptr + offs_n)
    result = accumulator.to(tl.float32) * x_scale[:, None] * w_scale[None, :]
    if HAS_BIAS:
        result += tl.load(bias_ptr + offs_n)[None, :]
    offs_om = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_on = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    out_ptrs = out_ptr + N * offs_om[:, None] + offs_on[None, :]
    tl.store(
        out_ptrs,
        result.to(out_ptr.dtype.element_ty),
        mask=(offs_om[:, None] < M) & (offs_on[None, :] < N),
    )


# -- decode over pages, split, with a second stage ------------------------------------------------------


@triton.jit
def paged_split_kernel(
    Q,
    K_cache,
    V_cache,
    block_tables,
    seq_lens,
    alibi_slopes,
    part_out,
    part_lse,
    sm_scale,
    k_scale,
    v_scale,
    stride_table,
    stride_page,
    stride_slot,
    stride_head,
    HQ,
    G: tl.constexpr,
    G_PAD: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    USE_ALIBI: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    b, hk, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    seq_len = tl.load(seq_lens + b)
    pages = tl.cdiv(seq_len, PAGE)
    per_split = tl.cdiv(pages, SPLITS)
    first, last = split * per_split, tl.minimum((split + 1) * per_split, pages)
    if first >= last:
        return
    offs_g, offs_d = tl.arange(0, G_PAD), tl.arange(0, D_PAD)
    heads = hk * G + offs_g
    d_mask = offs_d < D
    q_mask = (offs_g < G)[:, None] & d_mask[None, :]
    q = tl.load(Q + (b * HQ + heads)[:, None] * D + offs_d[None, :], mask=q_mask, other=0.0)
    if USE_ALIBI:
        slopes = tl.load(alibi_slopes + heads, mask=offs_g < G, other=0.0)
    m_i = tl.full([G_PAD], float("-inf"), dtype=tl.float32)
    l_i = tl.full([G_PAD], 0.0, dtype=tl.float32)
    acc = tl.zeros([G_PAD, D_PAD], dtype=tl.float32)
    for page in range(first, last):
        physical = tl.load(block_tables + b * stride_table + page).to(tl.int64)
        offs_t = tl.arange(0, PAGE)
        token = page * PAGE + offs_t
        base = physical * stride_page + offs_t * stride_slot + hk * stride_head
        k = tl.load(
            K_cache + base[None, :] + offs_d[:, None],
            mask=d_mask[:, None] & (token < seq_len)[None, :],
            other=0.0,
        )
        k = (k.to(tl.float32) * k_scale).to(q.dtype)
        s = tl.dot(q, k) * sm_scale
        if SOFTCAP > 0:
            e = tl.exp(2 * s / SOFTCAP)
            s = SOFTCAP * (e - 1) / (e + 1)
        if USE_ALIBI:
            s += slopes[:, None] * (token - seq_len + 1)[None, :]
        s = tl.where((token < seq_len)[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        v = tl.load(
            V_cache + base[:, None] + offs_d[None, :],
            mask=(token < seq_len)[:, None] & d_mask[None, :],
            other=0.0,
        )
        v = (v.to(tl.float32) * v_scale).to(q.dtype)
        acc = acc * alpha[:, None]
        acc += tl.dot(p.to(q.dtype), v)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        m_i = m_new
    place = (b * HQ + heads) * SPLITS + split
    tl.store(part_out + place[:, None] * D + offs_d[None, :], acc / l_i[:, None], mask=q_mask)
    tl.store(part_lse + place, m_i + tl.log(l_i), mask=offs_g < G)


@triton.jit
def reduce_splits(
    part_out,
    part_lse,
    seq_lens,
    Out,
    HQ,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    b, h = tl.program_id(0), tl.program_id(1)
    pages = tl.cdiv(tl.load(seq_lens + b), PAGE)
    per_split = tl.cdiv(pages, SPLITS)
    offs_d = tl.arange(0, D_PAD)
    acc = tl.zeros([D_PAD], dtype=tl.float32)
    e_sum, e_max = 0.0, -float("inf")
    for split in range(0, SPLITS):
        if split * per_split < pages:
            lse = tl.load(part_lse + (b * HQ + h) * SPLITS + split)
            v = tl.load(
                part_out + ((b * HQ + h) * SPLITS + split) * D + offs_d, mask=offs_d < D, other=0.0
            )
            n_e_max = tl.maximum(lse, e_max)
            old_scale = tl.exp(e_max - n_e_max)
            acc *= old_scale
            exp_logic = tl.exp(lse - n_e_max)
            acc += exp_logic * v
            e_sum = e_sum * old_scale + exp_logic
            e_max = n_e_max
    tl.store(
        Out + (b * HQ + h) * D + offs_d, (acc / e_sum).to(Out.dtype.element_ty), mask=offs_d < D
    )


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stream_k():
    M, N, K, BM, BN, BK, programs = 48, 40, 64, 16, 16, 16, 5
    a, b = normal(M, K).half(), normal(K, N, seed=1).half()
    c = torch.empty(M, N)
    tiles, per_tile = triton.cdiv(M, BM) * triton.cdiv(N, BN), K // BK
    total = tiles * per_tile
    locks = torch.zeros(tiles, dtype=torch.int32)
    first_wave[(programs,)](
        a,
        b,
        c,
        M,
        N,
        K,
        locks,
        *a.stride(),
        *b.stride(),
        *c.stride(),
        total // programs,
        total % programs,
        per_tile,
        BLOCK_M=BM,
        BLOCK_N=BN,
        BLOCK_K=BK,
        ACC_TYPE=tl.float32,
        GROUP_M=2,
    )
    return c, a.float() @ b.float()


def w8a8(k=80, with_bias=True):
    M, N = 40, 72
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-128, 128, (M, k), dtype=torch.int8, generator=g)
    w = torch.randint(-128, 128, (N, k), dtype=torch.int8, generator=g)
    xs, ws, bias = normal(M).abs() / 100, normal(N, seed=1).abs() / 100, normal(N, seed=2)
    out = torch.empty(M, N)
    w8a8_kernel[lambda META: (triton.cdiv(M, META["BLOCK_M"]) * triton.cdiv(N, META["BLOCK_N"]),)](
        x,
        w,
        out,
        xs,
        ws,
        bias if with_bias else None,
        M,
        N,
        k,
        x.stride(0),
        w.stride(0),
        BLOCK_M=32,
        BLOCK_N=32,
        BLOCK_K=32,
        GROUP_M=2,
    )
    wanted = (x.float() @ w.float().T) * xs[:, None] * ws[None, :]
    return out, wanted + bias if with_bias else wanted


def w8a8_even():
    return w8a8(64, False)


def paged_split():
    B, HK, G, D, PAGE, SPLITS, pages = 2, 2, 5, 24, 16, 3, 12
    lens = [70, 9]
    q = normal(B, HK * G, D).half()
    kc, vc = (normal(pages, PAGE, HK, D, seed=s).half() for s in (1, 2))
    table = torch.tensor([[3, 7, 1, 11, 5], [2, 0, 0, 0, 0]], dtype=torch.int32)
    slopes = -normal(HK * G, seed=3).abs() / 8
    parts, lse = torch.zeros(B, HK * G, SPLITS, D), torch.zeros(B, HK * G, SPLITS)
    out, seq = torch.empty_like(q), torch.tensor(lens, dtype=torch.int32)
    paged_split_kernel[(B, HK, SPLITS)](
        q,
        kc,
        vc,
        table,
        seq,
        slopes,
        parts,
        lse,
        D**-0.5,
        0.9,
        1.1,
        table.stride(0),
        *kc.stride()[:3],
        HK * G,
        G=G,
        G_PAD=16,
        D=D,
        D_PAD=32,
        PAGE=PAGE,
        SPLITS=SPLITS,
        USE_ALIBI=True,
        SOFTCAP=20.0,
        num_warps=4,
        num_stages=2,
    )
    reduce_splits[(B, HK * G)](
        parts, lse, seq, out, HK * G, D=D, D_PAD=32, PAGE=PAGE, SPLITS=SPLITS
    )
    rows = []
    for b, n in enumerate(lens):
        k, v = (
            x[table[b].long()].flatten(0, 1)[:n].float().repeat_interleave(G, 1) for x in (kc, vc)
        )
        s = torch.einsum("hd,nhd->hn", q[b].float(), k * 0.9) * D**-0.5
        s = 20 * torch.tanh(s / 20) + slopes[:, None] * (torch.arange(n) - n + 1)
        rows.append(torch.einsum("hn,nhd->hd", s.softmax(-1), v * 1.1))
    return out, torch.stack(rows)


CASES = [stream_k, w8a8, w8a8_even, paged_split]
