"""Kernels of plain Triton over sequences: groups by addresses, gradients of attention, windows, adapters, inverses."""

import torch
import triton
import triton.language as tl


@triton.jit
def grouped_kernel(
    a_ptrs,
    b_ptrs,
    c_ptrs,
    sizes,
    lds,
    groups,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    NUM: tl.constexpr,
):
    """Pointers of pointers: a tile counter walks over all problems."""
    tile = tl.program_id(0)
    last = 0
    for g in range(groups):
        m = tl.load(sizes + g * 3)
        n = tl.load(sizes + g * 3 + 1)
        k = tl.load(sizes + g * 3 + 2)
        tm = tl.cdiv(m, BM)
        tn = tl.cdiv(n, BN)
        count = tm * tn
        while tile >= last and tile < last + count:
            lda = tl.load(lds + g * 3)
            ldb = tl.load(lds + g * 3 + 1)
            ldc = tl.load(lds + g * 3 + 2)
            a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            inside = tile - last
            rm = (inside // tn) * BM + tl.arange(0, BM)
            rn = (inside % tn) * BN + tl.arange(0, BN)
            rk = tl.arange(0, BK)
            acc = tl.zeros((BM, BN), tl.float32)
            for kk in range(0, tl.cdiv(k, BK)):
                x = tl.load(
                    a + rm[:, None] * lda + (kk * BK + rk)[None, :],
                    mask=(rm[:, None] < m) & ((kk * BK + rk)[None, :] < k),
                    other=0.0,
                )
                y = tl.load(
                    b + (kk * BK + rk)[:, None] * ldb + rn[None, :],
                    mask=((kk * BK + rk)[:, None] < k) & (rn[None, :] < n),
                    other=0.0,
                )
                acc += tl.dot(x, y)
            tl.store(
                c + rm[:, None] * ldc + rn[None, :],
                acc.to(tl.float16),
                mask=(rm[:, None] < m) & (rn[None, :] < n),
            )
            tile += NUM
        last += count


@triton.jit
def bwd_dkdv_inner(dk, dv, Q, k, v, DO, M, D, stride, start_n, start_m, num_steps, scale,
                   BM: tl.constexpr, BN: tl.constexpr, HD: tl.constexpr, MASK: tl.constexpr):  # fmt: skip
    offs_m = start_m + tl.arange(0, BM)
    offs_n = start_n + tl.arange(0, BN)
    offs_k = tl.arange(0, HD)
    qT_ptrs = Q + offs_m[None, :] * stride + offs_k[:, None]
    do_ptrs = DO + offs_m[:, None] * stride + offs_k[None, :]
    curr_m = start_m
    for blk in range(num_steps):
        qT = tl.load(qT_ptrs)
        offs_m = curr_m + tl.arange(0, BM)
        m = tl.load(M + offs_m)
        qkT = tl.dot(k, qT)
        pT = tl.math.exp2(qkT - m[None, :])
        if MASK:
            pT = tl.where(offs_m[None, :] >= offs_n[:, None], pT, 0.0)
        do = tl.load(do_ptrs)
        ppT = pT.to(tl.float16)
        dv += tl.dot(ppT, do)
        Di = tl.load(D + offs_m)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = (pT * (dpT - Di[None, :])).to(tl.float16)
        dk += tl.dot(dsT, tl.trans(qT))
        curr_m += BM
        qT_ptrs += BM * stride
        do_ptrs += BM * stride
    return dk, dv


@triton.jit
def attn_bwd_kernel(Q, K, V, DO, DK, DV, M, D, stride, N_CTX, scale,
                    BM: tl.constexpr, BN: tl.constexpr, HD: tl.constexpr):  # fmt: skip
    LN2: tl.constexpr = 0.6931471824645996
    bh = tl.program_id(1)
    off = (bh * N_CTX * HD).to(tl.int64)
    Q += off
    K += off
    V += off
    DO += off
    DK += off
    DV += off
    M += bh * N_CTX
    D += bh * N_CTX
    start_n = tl.program_id(0) * BN
    offs_n = start_n + tl.arange(0, BN)
    offs_k = tl.arange(0, HD)
    k = tl.load(K + offs_n[:, None] * stride + offs_k[None, :])
    v = tl.load(V + offs_n[:, None] * stride + offs_k[None, :])
    dk = tl.zeros([BN, HD], dtype=tl.float32)
    dv = tl.zeros([BN, HD], dtype=tl.float32)
    dk, dv = bwd_dkdv_inner(
        dk, dv, Q, k, v, DO, M, D, stride, start_n, start_n, BN // BM, scale, BM, BN, HD, True
    )
    start_m = start_n + BN
    dk, dv = bwd_dkdv_inner(
        dk,
        dv,
        Q,
        k,
        v,
        DO,
        M,
        D,
        stride,
        start_n,
        start_m,
        (N_CTX - start_m) // BM,
        scale,
        BM,
        BN,
        HD,
        False,
    )
    tl.store(DV + offs_n[:, None] * stride + offs_k[None, :], dv.to(tl.float16))
    tl.store(DK + offs_n[:, None] * stride + offs_k[None, :], (dk * LN2).to(tl.float16))


@triton.jit
def window_kernel(q_ptr, k_ptr, v_ptr, o_ptr, slopes_ptr, N, scale, WINDOW: tl.constexpr, CAP: tl.constexpr,
                  BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """Sliding window, softcap and ALiBi; the loop's bounds depend on the program."""
    start, h = tl.program_id(0) * BM, tl.program_id(1)
    q_ptr += h * N * D
    k_ptr += h * N * D
    v_ptr += h * N * D
    o_ptr += h * N * D
    slope = tl.load(slopes_ptr + h)
    rows, cols, d = start + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(q_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] < N, other=0.0)
    q = (q * scale).to(tl.float16)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    lo = tl.maximum(0, (start - WINDOW) // BN * BN)
    hi = tl.minimum(N, start + BM)
    for j in tl.range(lo, hi, BN, num_stages=2):
        c = j + cols
        k = tl.load(k_ptr + c[None, :] * D + d[:, None], mask=c[None, :] < N, other=0.0)
        s = tl.dot(q, k)
        s = CAP * (2 * tl.sigmoid(2 * s / CAP) - 1)
        s += slope * (c[None, :] - rows[:, None]).to(tl.float32)
        ok = (
            (c[None, :] <= rows[:, None]) & (rows[:, None] - c[None, :] < WINDOW) & (c[None, :] < N)
        )
        s = tl.where(ok, s, float("-inf"))
        new = tl.maximum(m, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(s - safe[:, None])
        alpha = tl.exp(m - safe)
        l = l * alpha + tl.sum(p, 1)
        acc *= alpha[:, None]
        v = tl.load(v_ptr + c[:, None] * D + d[None, :], mask=c[:, None] < N, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m = new
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    tl.store(
        o_ptr + rows[:, None] * D + d[None, :],
        acc.to(o_ptr.dtype.element_ty),
        mask=rows[:, None] < N,
    )


@triton.jit
def lora_shrink_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    idx_ptr,
    lens_ptr,
    starts_ptr,
    K,
    R: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    SPLIT: tl.constexpr,
    scale,
):
    """One sequence each, an adapter by index, -1 for none; split along K."""
    seq, pk, pm = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    lora = tl.load(idx_ptr + seq)
    if lora == -1:
        return
    length = tl.load(lens_ptr + seq)
    if pm * BM >= length:
        return
    start = tl.load(starts_ptr + seq)
    rm = pm * BM + tl.arange(0, BM)
    rm = rm % length
    rn = tl.arange(0, R)
    rk = pk * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, R), tl.float32)
    for k in range(0, tl.cdiv(K, BK * SPLIT)):
        left = K - k * BK * SPLIT
        a = tl.load(
            x_ptr + (start + rm)[:, None] * K + rk[None, :],
            mask=tl.arange(0, BK)[None, :] + pk * BK < left,
            other=0.0,
        )
        b = tl.load(
            w_ptr + lora * R * K + rn[None, :] * K + rk[:, None],
            mask=tl.arange(0, BK)[:, None] + pk * BK < left,
            other=0.0,
        )
        acc += tl.dot(a, b)
        rk += BK * SPLIT
    acc *= scale
    cm = pm * BM + tl.arange(0, BM)
    ptr = y_ptr + (start + cm)[:, None] * R + rn[None, :]
    mask = cm[:, None] < length
    if SPLIT == 1:
        tl.store(ptr, acc, mask=mask)
    else:
        tl.atomic_add(ptr, acc, mask=mask)


@triton.jit
def solve_tril_kernel(a_ptr, out_ptr, T, BT: tl.constexpr):
    """The inverse of a unit lower triangular block, row by row."""
    i = tl.program_id(0)
    r = tl.arange(0, BT)
    a = tl.load(a_ptr + i * BT * BT + r[:, None] * BT + r[None, :])
    inv = -tl.where(r[:, None] > r[None, :], a, 0.0)
    for k in range(1, BT):
        row = tl.sum(tl.where(r[:, None] == k, inv, 0.0), 0)
        row = row + tl.sum(row[:, None] * inv, 0)
        inv = tl.where((r == k)[:, None], row[None, :], inv)
    inv += (r[:, None] == r[None, :]).to(tl.float32)
    tl.store(out_ptr + i * BT * BT + r[:, None] * BT + r[None, :], inv)


@triton.jit
def fp8_block_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    as_ptr,
    bs_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Scales for 1 x BK of A and BK x BN of B."""
    pm, pn = tl.program_id(0), tl.program_id(1)
    rm, rn, rk = (
        (pm * BM + tl.arange(0, BM)) % M,
        (pn * BN + tl.arange(0, BN)) % N,
        tl.arange(0, BK),
    )
    a_ptrs = a_ptr + rm[:, None] * K + rk[None, :]
    b_ptrs = b_ptr + rn[None, :] * K + rk[:, None]
    k_blocks = tl.cdiv(K, BK)
    as_ptrs = as_ptr + rm * k_blocks
    bs_ptrs = bs_ptr + (rn // BK) * k_blocks
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(k_blocks):
        a = tl.load(a_ptrs, mask=rk[None, :] < K - i * BK, other=0.0)
        b = tl.load(b_ptrs, mask=rk[:, None] < K - i * BK, other=0.0)
        sa, sb = tl.load(as_ptrs), tl.load(bs_ptrs)
        acc += tl.dot(a, b) * sa[:, None] * sb[None, :]
        a_ptrs += BK
        b_ptrs += BK
        as_ptrs += 1
        bs_ptrs += 1
    if c_ptr.dtype.element_ty == tl.bfloat16:
        c = acc.to(tl.bfloat16)
    elif c_ptr.dtype.element_ty == tl.float16:
        c = acc.to(tl.float16)
    else:
        c = acc.to(tl.float32)
    cm, cn = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
    tl.store(c_ptr + cm[:, None] * N + cn[None, :], c, mask=(cm[:, None] < M) & (cn[None, :] < N))


def normal(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def grouped():
    shapes = [(40, 24, 32), (16, 50, 20), (33, 17, 48)]
    A = [normal(m, k, seed=m).half() for m, n, k in shapes]
    B = [normal(k, n, seed=n).half() for m, n, k in shapes]
    C = [torch.zeros(m, n, dtype=torch.float16) for m, n, k in shapes]
    addresses = lambda ts: torch.tensor([t.data_ptr() for t in ts], dtype=torch.int64)
    sizes = torch.tensor(shapes, dtype=torch.int32)
    lds = torch.tensor([(k, n, n) for m, n, k in shapes], dtype=torch.int32)
    grouped_kernel[(4,)](
        addresses(A), addresses(B), addresses(C), sizes, lds, 3, BM=16, BN=16, BK=16, NUM=4
    )
    flat = lambda ts: torch.cat([t.float().view(-1) for t in ts])
    return flat(C), flat([a.float() @ b.float() for a, b in zip(A, B)])


def attn_bwd():
    H, N, D, s = 2, 64, 32, 0.2
    q, k, v, do = (normal(H, N, D, seed=i).half() for i in range(4))
    qf, kf, vf = (x.float().requires_grad_() for x in (q, k, v))
    p = (qf @ kf.transpose(1, 2) * s).masked_fill(torch.ones(N, N).tril() == 0, float("-inf"))
    o = p.softmax(-1) @ vf
    o.backward(do.float())
    M = torch.logsumexp(p.detach(), -1) * 1.4426950408889634
    Dl = (o.detach() * do.float()).sum(-1)
    kk = (k.float() * s * 1.4426950408889634).half()
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    attn_bwd_kernel[(2, H)](q, kk, v, do, dk, dv, M, Dl, D, N, s, BM=16, BN=32, HD=D)
    return torch.cat([dk.float() * s * 1.4426950408889634, dv.float()]), torch.cat(
        [kf.grad, vf.grad]
    )


def window():
    H, N, D = 2, 50, 32
    q, k, v = (normal(H, N, D, seed=i).half() for i in range(3))
    o, slopes = torch.empty_like(q), torch.tensor([0.1, 0.3])
    window_kernel[(2, H)](q, k, v, o, slopes, N, 0.2, WINDOW=20, CAP=5.0, BM=32, BN=16, D=D)
    i = torch.arange(N)
    s = 5 * torch.tanh((q.float() * 0.2) @ k.float().transpose(1, 2) / 5)
    s = s + slopes[:, None, None] * (i[None] - i[:, None])
    ok = (i[None] <= i[:, None]) & (i[:, None] - i[None] < 20)
    return o, s.masked_fill(~ok, float("-inf")).softmax(-1) @ v.float()


def lora():
    K, R = 80, 16
    lens, idx = (
        torch.tensor([5, 20, 3], dtype=torch.int32),
        torch.tensor([1, 0, -1], dtype=torch.int32),
    )
    starts = torch.tensor([0, 5, 25], dtype=torch.int32)
    x, w, y = normal(28, K).half(), normal(2, R, K, seed=1).half(), torch.zeros(28, R)
    lora_shrink_kernel[(3, 2, 2)](
        x, w, y, idx, lens, starts, K, R=R, BM=16, BK=16, SPLIT=2, scale=0.5
    )
    out = torch.zeros(28, R)
    for s in (0, 1):
        rows = slice(int(starts[s]), int(starts[s] + lens[s]))
        out[rows] = x[rows].float() @ w[idx[s]].float().T * 0.5
    return y, out


def solve_tril():
    a, out = normal(3, 16, 16) * 0.3, torch.empty(3, 16, 16)
    solve_tril_kernel[(3,)](a, out, 48, BT=16)
    return out, torch.linalg.inv(torch.eye(16) + a.tril(-1))


def fp8_block():
    M, N, K = 20, 40, 96
    a, b = (normal(n, K, seed=n).to(torch.float8_e4m3fn) for n in (M, N))
    sa, sb = normal(M, 3).abs(), normal(2, 3, seed=1).abs()
    c = torch.empty(M, N, dtype=torch.bfloat16)
    fp8_block_kernel[(2, 2)](a, b, c, sa, sb, M, N, K, BM=16, BN=32, BK=32)
    A = a.float() * sa.repeat_interleave(32, 1)
    B = b.float() * sb.repeat_interleave(32, 1).repeat_interleave(32, 0)[:N]
    return c, A @ B.T


CASES = [grouped, attn_bwd, window, lora, solve_tril, fp8_block]
