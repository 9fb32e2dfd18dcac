"""Kernels of plain Triton in the style of public libraries: quantized, grouped, expert and paged products."""

import torch
import triton
import triton.language as tl


@triton.jit
def block_scaled_kernel(
    A, B, C, As, Bs, M, N, K, group_n, group_k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    stride_As_m, stride_As_k, stride_Bs_k, stride_Bs_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Multiply 8-bit operands whose scales are those of blocks along K."""
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + (pid % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = A + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = B + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    As_ptrs = As + offs_am * stride_As_m
    offs_bsn = offs_bn // group_n
    Bs_ptrs = Bs + offs_bsn * stride_Bs_n
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0)
        offs_ks = k * BLOCK_K // group_k
        a_s = tl.load(As_ptrs + offs_ks * stride_As_k)
        b_s = tl.load(Bs_ptrs + offs_ks * stride_Bs_k)
        accumulator += tl.dot(a, b, out_dtype=tl.int32).to(tl.float32) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c = accumulator.to(C.dtype.element_ty)
    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = C + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


@triton.jit
def write_zeros(c_ptr, stride_cm, stride_cn, pid_n, N, offs_token, token_mask, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, compute_type: tl.constexpr):  # fmt: skip
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=compute_type)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, accumulator, mask=token_mask[:, None] & (offs_cn[None, :] < N))


@triton.jit
def fused_moe_kernel(
    a_ptr, b_ptr, c_ptr, topk_weights_ptr, sorted_token_ids_ptr, expert_ids_ptr, num_tokens_post_padded_ptr,
    N, K, EM, num_valid_tokens, stride_am, stride_ak, stride_be, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    MUL_ROUTED_WEIGHT: tl.constexpr, top_k: tl.constexpr, compute_type: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(EM, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_pid_in_group = GROUP_M * num_pid_n
    first_pid_m = (pid // num_pid_in_group) * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    num_tokens_post_padded = tl.load(num_tokens_post_padded_ptr)
    if pid_m * BLOCK_M >= num_tokens_post_padded:
        return
    offs_token_id = pid_m * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    offs_token = tl.load(sorted_token_ids_ptr + offs_token_id)
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
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(
            a_ptrs, mask=token_mask[:, None] & (offs_k[None, :] < K - k * BLOCK_K), other=0.0
        )
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        accumulator += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if MUL_ROUTED_WEIGHT:
        moe_weight = tl.load(topk_weights_ptr + offs_token, mask=token_mask, other=0)
        accumulator = accumulator * moe_weight[:, None]
    accumulator = accumulator.to(compute_type)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    tl.store(c_ptrs, accumulator, mask=token_mask[:, None] & (offs_cn[None, :] < N))


@triton.jit
def grouped_gemm_kernel(
    storage, group_a_ptrs, group_b_ptrs, group_c_ptrs, group_gemm_sizes, g_lds, group_size,
    NUM_SM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Walk over the tiles of several products of any size, whose addresses memory holds."""
    tile_idx = tl.program_id(0)
    last_problem_end = 0
    for g in range(group_size):
        gm = tl.load(group_gemm_sizes + g * 3)
        gn = tl.load(group_gemm_sizes + g * 3 + 1)
        gk = tl.load(group_gemm_sizes + g * 3 + 2)
        num_n_tiles = tl.cdiv(gn, BLOCK_N)
        num_tiles = tl.cdiv(gm, BLOCK_M) * num_n_tiles
        while tile_idx >= last_problem_end and tile_idx < last_problem_end + num_tiles:
            lda = tl.load(g_lds + g * 3)
            ldb = tl.load(g_lds + g * 3 + 1)
            ldc = tl.load(g_lds + g * 3 + 2)
            a_ptr = tl.load(group_a_ptrs + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(group_b_ptrs + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(group_c_ptrs + g).to(tl.pointer_type(tl.float16))
            tile_idx_in_gemm = tile_idx - last_problem_end
            tile_m_idx = tile_idx_in_gemm // num_n_tiles
            tile_n_idx = tile_idx_in_gemm % num_n_tiles
            offs_am = tile_m_idx * BLOCK_M + tl.arange(0, BLOCK_M)
            offs_bn = tile_n_idx * BLOCK_N + tl.arange(0, BLOCK_N)
            offs_k = tl.arange(0, BLOCK_K)
            a_ptrs = a_ptr + offs_am[:, None] * lda + offs_k[None, :]
            b_ptrs = b_ptr + offs_k[:, None] * ldb + offs_bn[None, :]
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for kk in range(0, tl.cdiv(gk, BLOCK_K)):
                tl.multiple_of(a_ptrs, [16, 16])
                tl.multiple_of(b_ptrs, [16, 16])
                k_mask = offs_k < gk - kk * BLOCK_K
                a = tl.load(a_ptrs, mask=(offs_am < gm)[:, None] & k_mask[None, :], other=0.0)
                b = tl.load(b_ptrs, mask=k_mask[:, None] & (offs_bn < gn)[None, :], other=0.0)
                accumulator += tl.dot(a, b)
                a_ptrs += BLOCK_K
                b_ptrs += BLOCK_K * ldb
            c_ptrs = c_ptr + ldc * offs_am[:, None] + offs_bn[None, :]
            tl.store(
                c_ptrs,
                accumulator.to(tl.float16),
                mask=(offs_am < gm)[:, None] & (offs_bn < gn)[None, :],
            )
            tile_idx += NUM_SM
        last_problem_end = last_problem_end + num_tiles


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def paged_decode_kernel(
    q_ptr, k_cache, v_cache, block_tables, seq_lens, out_ptr, scale, stride_qb, stride_qh,
    stride_kb, stride_kt, stride_kh, stride_bt, CAP: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
    D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Attend to pages of a cache: the queries that share a head of keys are the rows of a product."""
    b, h = tl.program_id(0), tl.program_id(1)
    length = tl.load(seq_lens + b)
    offs_h = h * GROUP + tl.arange(0, PADDED)
    offs_d = tl.arange(0, D)
    offs_t = tl.arange(0, PAGE)
    mask_h = tl.arange(0, PADDED) < GROUP
    q = tl.load(
        q_ptr + b * stride_qb + offs_h[:, None] * stride_qh + offs_d[None, :],
        mask=mask_h[:, None],
        other=0.0,
    )
    e_max = tl.zeros([PADDED], dtype=tl.float32) - float("inf")
    e_sum = tl.zeros([PADDED], dtype=tl.float32)
    acc = tl.zeros([PADDED, D], dtype=tl.float32)
    for page in range(tl.cdiv(length, PAGE)):
        number = tl.load(block_tables + b * stride_bt + page).to(tl.int64)
        base = number * stride_kb + h * stride_kh
        inside = page * PAGE + offs_t < length
        k = tl.load(
            k_cache + base + offs_t[None, :] * stride_kt + offs_d[:, None],
            mask=inside[None, :],
            other=0.0,
        )
        qk = tl.dot(q, k.to(q.dtype))
        qk *= scale
        if CAP > 0:
            qk = CAP * tanh(qk / CAP)
        qk = tl.where(mask_h[:, None] & inside[None, :], qk, float("-inf"))
        v = tl.load(
            v_cache + base + offs_t[:, None] * stride_kt + offs_d[None, :],
            mask=inside[:, None],
            other=0.0,
        )
        n_e_max = tl.maximum(tl.max(qk, 1), e_max)
        re_scale = tl.exp(e_max - n_e_max)
        p = tl.exp(qk - n_e_max[:, None])
        acc *= re_scale[:, None]
        acc += tl.dot(p.to(v.dtype), v)
        e_sum = e_sum * re_scale + tl.sum(p, 1)
        e_max = n_e_max
    tl.store(
        out_ptr + b * stride_qb + offs_h[:, None] * stride_qh + offs_d[None, :],
        acc / e_sum[:, None],
        mask=mask_h[:, None],
    )


@triton.jit
def awq_kernel(
    a_ptr, b_ptr, c_ptr, zeros_ptr, scales_ptr, M, N, K, group_size: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply by 4-bit weights, eight in a word in AWQ's order, with zero points."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    order = ((tl.arange(0, 2) * 4)[None, :] + tl.arange(0, 4)[:, None]).reshape(8)
    shifts = order * 4
    shifts = tl.broadcast_to(shifts[None, :], (BLOCK_K * (BLOCK_N // 8), 8))
    shifts = tl.reshape(shifts, (BLOCK_K, BLOCK_N))
    offs_am = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_bn = pid_n * (BLOCK_N // 8) + tl.arange(0, BLOCK_N // 8)
    offs_sn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        masks_k = offs_k < K
        a = tl.load(
            a_ptr + offs_am[:, None] * K + offs_k[None, :],
            mask=(offs_am < M)[:, None] & masks_k[None, :],
            other=0.0,
        )
        b = tl.load(
            b_ptr + offs_k[:, None] * (N // 8) + offs_bn[None, :], mask=masks_k[:, None], other=0
        )
        b = tl.interleave(b, b)
        b = tl.interleave(b, b)
        b = tl.interleave(b, b)
        rows = k * BLOCK_K // group_size + tl.arange(0, 1)
        zeros = tl.load(zeros_ptr + rows[:, None] * (N // 8) + offs_bn[None, :])
        zeros = tl.interleave(zeros, zeros)
        zeros = tl.interleave(zeros, zeros)
        zeros = tl.interleave(zeros, zeros)
        zeros = tl.broadcast_to(zeros, (BLOCK_K, BLOCK_N))
        scales = tl.load(scales_ptr + rows[:, None] * N + offs_sn[None, :])
        scales = tl.broadcast_to(scales, (BLOCK_K, BLOCK_N))
        b = (b >> shifts) & 0xF
        zeros = (zeros >> shifts) & 0xF
        b = ((b - zeros) * scales).to(c_ptr.type.element_ty)
        acc = tl.dot(a, b, acc, out_dtype=tl.float32)
        offs_k += BLOCK_K
    tl.store(
        c_ptr + offs_am[:, None] * N + offs_sn[None, :],
        acc.to(c_ptr.type.element_ty),
        mask=(offs_am < M)[:, None],
    )


@triton.jit
def scaled_dot_kernel(
    a_ptr, a_scale, b_ptr, b_scale, c_ptr, M, N, K: tl.constexpr,
    FORMAT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Multiply microscaled operands: a scale, a power of two, for each 32 elements along K."""
    PACK: tl.constexpr = 2 if FORMAT == "e2m1" else 1
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        rb = k // PACK + tl.arange(0, BK // PACK)
        rs = k // 32 + tl.arange(0, BK // 32)
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
        b = tl.load(b_ptr + rn[None, :] * (K // PACK) + rb[:, None])
        sa = tl.load(a_scale + rm[:, None] * (K // 32) + rs[None, :])
        sb = tl.load(b_scale + rn[:, None] * (K // 32) + rs[None, :])
        acc = tl.dot_scaled(a, sa, "e4m3", b, sb, FORMAT, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def chunk_state_kernel(
    k_ptr,
    v_ptr,
    g_ptr,
    o_ptr,
    T,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
):
    """Gated linear attention: a state from chunk to chunk, and products within each."""
    i_v, i_bh = tl.program_id(0), tl.program_id(1)
    b_h = tl.zeros([K, BV], dtype=tl.float32)
    o_i = tl.arange(0, BT)
    for i_t in range(tl.cdiv(T, BT)):
        p_k = tl.make_block_ptr(
            k_ptr + i_bh * T * K, (K, T), (1, K), (0, i_t * BT), (K, BT), (0, 1)
        )
        p_v = tl.make_block_ptr(
            v_ptr + i_bh * T * V, (T, V), (V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
        )
        p_o = tl.make_block_ptr(
            o_ptr + i_bh * T * V, (T, V), (V, 1), (i_t * BT, i_v * BV), (BT, BV), (1, 0)
        )
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        b_g = tl.load(g_ptr + i_bh * T + i_t * BT + o_i, mask=i_t * BT + o_i < T, other=0.0)
        b_g = tl.cumsum(b_g, axis=0)
        last = tl.sum(tl.where(o_i == BT - 1, b_g, 0.0))
        b_q = tl.trans(b_k)
        b_o = tl.dot(b_q, b_h.to(b_q.dtype)) * tl.exp(b_g)[:, None]
        b_A = tl.dot(b_q, b_k) * tl.exp(b_g[:, None] - b_g[None, :])
        b_A = tl.where(o_i[:, None] >= o_i[None, :], b_A, 0.0)
        b_o += tl.dot(b_A.to(b_v.dtype), b_v)
        tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))
        b_h *= tl.exp(last)
        b_v = (b_v * tl.exp(last - b_g)[:, None]).to(b_v.dtype)
        b_h += tl.dot(b_k, b_v)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def integers(*shape, low=-8, high=8, seed=0, dtype=torch.int8):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(dtype)


def block_scaled():
    M, N, K, G = 40, 70, 128, 64
    a, b = integers(M, K), integers(N, K, seed=1)
    sa, sb = torch.rand(M, K // G) + 0.5, torch.rand(-(-N // G), K // G) + 0.5
    c = torch.empty(M, N, dtype=torch.float16)
    block_scaled_kernel[(6,)](
        a, b, c, sa, sb, M, N, K, G, G, K, 1, 1, K, N, 1, *sa.stride(), sb.stride(1), sb.stride(0),
        BLOCK_M=32, BLOCK_N=32, BLOCK_K=64, GROUP_M=2,
    )  # fmt: skip
    wide = sb.repeat_interleave(G, 0)[:N].repeat_interleave(G, 1)
    return c, (a * sa.repeat_interleave(G, 1)) @ (b * wide).T


def fused_moe():
    T, E, top_k, N, K, BM = 10, 4, 2, 48, 64, 16
    a, b = randn(T, K), randn(E, N, K, seed=1)
    ids = integers(T, top_k, low=0, high=E - 1, dtype=torch.int32)
    weights = torch.rand(T, top_k)
    order, experts = [], []
    for e in range(E):
        mine = (ids.flatten() == e).nonzero().flatten().tolist()
        mine += [T * top_k] * (-len(mine) % BM)
        order += mine
        experts += [e if e else -1] * (len(mine) // BM)
    padded = torch.tensor([len(order)], dtype=torch.int32)
    order += [T * top_k] * BM
    c = torch.full((T * top_k, N), 7.0, dtype=torch.float16)
    fused_moe_kernel[(-(-len(order) // BM) * 2,)](
        a, b, c, weights.flatten(), torch.tensor(order, dtype=torch.int32),
        torch.tensor(experts + [0], dtype=torch.int32), padded, N, K, len(order), T * top_k,
        K, 1, N * K, 1, K, N, 1, BLOCK_M=BM, BLOCK_N=32, BLOCK_K=32, GROUP_M=2,
        MUL_ROUTED_WEIGHT=True, top_k=top_k, compute_type=tl.float16,
    )  # fmt: skip
    wanted = torch.einsum("tk,tjnk->tjn", a.float(), b[ids.long()].float()) * weights[..., None]
    return c, torch.where((ids == 0)[..., None], 0, wanted).reshape(-1, N)


def grouped_gemm():
    shapes = [(40, 32, 64), (64, 72, 40)]
    storage, used = torch.zeros(40000, dtype=torch.float16), 0  # the simulator knows what is passed
    groups = [[], [], []]
    for i, (m, n, k) in enumerate(shapes):
        for j, shape in enumerate(((m, k), (k, n), (m, n))):
            part = storage[used : used + shape[0] * shape[1]].view(shape)
            part.copy_(randn(*shape, seed=2 * i + j) if j < 2 else part)
            groups[j].append(part)
            used += -(-part.numel() // 64) * 64
    a, b, c = groups
    addresses = [torch.tensor([t.data_ptr() for t in group]) for group in groups]
    sizes = torch.tensor(shapes, dtype=torch.int32).flatten()
    lds = torch.tensor([(k, n, n) for m, n, k in shapes], dtype=torch.int32).flatten()
    grouped_gemm_kernel[(3,)](
        storage, *addresses, sizes, lds, 2, NUM_SM=3, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32
    )
    wanted = [x.float() @ y.float() for x, y in zip(a, b)]
    return torch.cat([t.flatten() for t in c]), torch.cat([t.flatten() for t in wanted])


def paged_decode():
    B, HK, G, D, PAGE = 2, 2, 5, 32, 16
    lengths = torch.tensor([20, 45], dtype=torch.int32)
    tables = torch.tensor([[3, 0, 9], [1, 4, 2]], dtype=torch.int32)
    k, v = randn(10, PAGE, HK, D), randn(10, PAGE, HK, D, seed=1)
    q, out = randn(B, HK * G, D, seed=2), torch.empty(B, HK * G, D, dtype=torch.float16)
    paged_decode_kernel[(B, HK)](
        q, k, v, tables, lengths, out, D**-0.5, *q.stride()[:2], *k.stride()[:3], 3,
        CAP=30.0, GROUP=G, PADDED=16, D=D, PAGE=PAGE,
    )  # fmt: skip
    wanted = torch.empty(B, HK * G, D)
    for i, n in enumerate(lengths.tolist()):
        keys, values = (t[tables[i].long()].flatten(0, 1)[:n].float() for t in (k, v))
        score = torch.einsum("hgd,thd->hgt", q[i].float().view(HK, G, D), keys) * D**-0.5
        score = 30 * torch.tanh(score / 30)
        wanted[i] = torch.einsum("hgt,thd->hgd", score.softmax(-1), values).flatten(0, 1)
    return out, wanted


def awq():
    M, N, K, G = 20, 64, 64, 32
    a, scales = randn(M, K), torch.rand(K // G, N).half() * 0.1
    b, zeros = (
        integers(K, N, low=0, high=16, dtype=torch.int32),
        integers(K // G, N, low=0, high=16, seed=1, dtype=torch.int32),
    )
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the columns in a word, from its low bits

    def packed(x):
        words = torch.zeros(x.shape[0], N // 8, dtype=torch.int64)
        for place, column in enumerate(order):
            words |= x.long()[:, column::8] << (4 * place)
        return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)

    c = torch.empty(M, N, dtype=torch.float16)
    awq_kernel[(1, 2)](
        a, packed(b), c, packed(zeros), scales, M, N, K, G, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32
    )
    weight = (b - zeros.repeat_interleave(G, 0)) * scales.float().repeat_interleave(G, 0)
    return c, a.float() @ weight


def scaled_dot(kind="e4m3"):
    M, N, K = 32, 64, 128
    a, b = (randn(n, K, seed=n).float().to(torch.float8_e4m3fn) for n in (M, N))
    sa, sb = (integers(n, K // 32, low=125, high=130, seed=n, dtype=torch.uint8) for n in (M, N))
    values = b.float()
    if kind == "e2m1":
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        codes = integers(N, K, low=0, high=16, seed=3, dtype=torch.uint8)
        values = table[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0)
        b = codes[:, ::2] | (codes[:, 1::2] << 4)
    c = torch.empty(M, N)
    scaled_dot_kernel[(1, 1)](a, sa, b, sb, c, M, N, K, kind, BM=32, BN=64, BK=64)
    wide = [torch.exp2(s.float() - 127).repeat_interleave(32, 1) for s in (sa, sb)]
    return c, (a.float() * wide[0]) @ (values * wide[1]).T


def scaled_dot_fp4():
    return scaled_dot("e2m1")


def chunk_state():
    BH, T, K, V = 2, 40, 32, 32
    k, v = randn(BH, T, K) * 0.3, randn(BH, T, V, seed=1)
    g = -torch.rand(BH, T)
    o = torch.empty(BH, T, V, dtype=torch.float16)
    chunk_state_kernel[(2, BH)](k, v, g, o, T, K, V, BT=16, BV=16)
    h, wanted = torch.zeros(BH, K, V), torch.empty(BH, T, V)
    for t in range(T):
        h = h * torch.exp(g[:, t])[:, None, None] + k[:, t, :, None].float() * v[:, t, None].float()
        wanted[:, t] = torch.einsum("bk,bkv->bv", k[:, t].float(), h)
    return o, wanted


CASES = [
    block_scaled, fused_moe, grouped_gemm, paged_decode, awq, scaled_dot, scaled_dot_fp4, chunk_state,
]  # fmt: skip
