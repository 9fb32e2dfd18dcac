"""Kernels of plain Triton on rows of several lengths, and attention with biases and dropout in one function."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- a list of tensors, from the last to the first
@triton.jit
def multi_tensor_kernel(ptrs, sizes, out, flags, scale, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.full((), 0.0, tl.float32)
    best = tl.zeros((1,), tl.float32)
    for t in range(COUNT - 1, -1, -1):
        p = tl.load(ptrs + t).to(tl.pointer_type(tl.float32))
        n = tl.load(sizes + t)
        i = tl.arange(0, BLOCK)
        for start in range(0, n, BLOCK):
            x = tl.load(p + start + i, mask=start + i < n, other=0.0)
            if scale is not None:
                x *= scale
            total += tl.sum(x * x)
            best = tl.maximum(best, tl.max(tl.abs(x), axis=None))
    flag = total > 10.0
    tl.store(flags, flag)
    tl.store(out, tl.sqrt(total) if flag else total)
    tl.store(out + 1 + tl.arange(0, 1), best)


def multi_tensor():
    xs = [normal(n, seed=n) for n in (10, 70, 33)]
    ptrs = torch.tensor([x.data_ptr() for x in xs])
    sizes = torch.tensor([x.numel() for x in xs], dtype=torch.int32)
    out, flags = torch.zeros(2), torch.zeros(1, dtype=torch.bool)
    multi_tensor_kernel[(1,)](ptrs, sizes, out, flags, 0.5, COUNT=3, BLOCK=32)
    total = sum((0.5 * x).square().sum() for x in xs)
    return torch.cat([out, flags.float()]), torch.stack(
        [total.sqrt(), max((0.5 * x).abs().max() for x in xs), torch.tensor(1.0)]
    )


# -- sequences that follow each other
@triton.jit
def find_seq(cu, target, n, BITS: tl.constexpr):
    low = 0
    high = n
    for _ in tl.static_range(BITS):
        mid = (low + high) // 2
        value = tl.load(cu + mid)
        if value <= target:
            low = mid
        else:
            high = mid
    return low


@triton.jit
def varlen_kernel(x, cu, y, n_seqs, D: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0)
    s = find_seq(cu, t, n_seqs, 4)
    begin, end = tl.load(cu + s), tl.load(cu + s + 1)
    local = t - begin
    d = tl.arange(0, BD)
    x0 = tl.load(x + t * D + d, mask=d < D, other=0.0)
    prev = tl.load(x + (t - 1) * D + d, mask=(d < D) & (local > 0), other=0.0)
    nxt = tl.load(x + (t + 1) * D + d, mask=(d < D) and (t + 1 < end), other=0.0)
    tl.store(y + t * D + d, x0 * 2 - prev - nxt, mask=d < D)


def varlen():
    cu = torch.tensor([0, 3, 4, 9, 15], dtype=torch.int32)
    x = normal(15, 20)
    y = torch.empty_like(x)
    varlen_kernel[(15,)](x, cu, y, 4, D=20, BD=32)
    want = 2 * x
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        want[a + 1 : b] -= x[a : b - 1]
        want[a : b - 1] -= x[a + 1 : b]
    return y, want


# -- scans and reductions of tuples
@triton.jit
def max_and_count(a, ca, b, cb):
    take = b > a
    same = a == b
    return tl.where(take, b, a), tl.where(same, ca + cb, tl.where(take, cb, ca))


@triton.jit
def scans_kernel(x, out, counts, sorted_out, total, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    v = tl.load(x + m * N + n)
    best, count = tl.associative_scan(
        (v, tl.full([M, N], 1, tl.int32)), axis=1, combine_fn=max_and_count
    )
    tl.store(out + m * N + n, best)
    tl.store(counts + m * N + n, count)
    tl.store(sorted_out + m * N + n, tl.sort(v, dim=1, descending=True))
    top, c = tl.reduce(
        (tl.reshape(v, (M * N,)), tl.full([M * N], 1, tl.int32)), None, max_and_count
    )
    tl.store(total, top)
    tl.store(total + 1, c)


def tuple_scans():
    M, N = 4, 16
    x = torch.randint(0, 5, (M, N), generator=torch.Generator().manual_seed(4)).to(torch.int32)
    out, counts, srt, total = (
        torch.empty_like(x),
        torch.empty_like(x),
        torch.empty_like(x),
        torch.empty(2, dtype=torch.int32),
    )
    scans_kernel[(1,)](x, out, counts, srt, total, M=M, N=N)
    best = x.cummax(1).values
    cnt = torch.tensor([[(x[i, : j + 1] == best[i, j]).sum() for j in range(N)] for i in range(M)])
    return torch.cat([out.flatten(), counts.flatten(), srt.flatten(), total]).float(), torch.cat(
        [
            best.flatten(),
            cnt.flatten(),
            x.sort(1, descending=True).values.flatten(),
            torch.tensor([x.max(), (x == x.max()).sum()]),
        ]
    ).float()


# -- a persistent product of bytes
@triton.jit
def swizzled(tile, num_m, num_n, GROUP: tl.constexpr):
    group = tile // (GROUP * num_n)
    first = group * GROUP
    size = tl.minimum(num_m - first, GROUP)
    return first + (tile % (GROUP * num_n)) % size, (tile % (GROUP * num_n)) // size


@triton.jit
def w8a8_kernel(
    a,
    b,
    sa,
    sb,
    bias,
    c,
    M,
    N,
    K,
    stride_a,
    stride_b,
    PROGRAMS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    num_m, num_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_m * num_n, PROGRAMS, flatten=True):
        pm, pn = swizzled(tile, num_m, num_n, 4)
        m = (pm * BM + tl.arange(0, BM)) % M
        n = (pn * BN + tl.arange(0, BN)) % N
        k = tl.arange(0, BK)
        acc = tl.zeros((BM, BN), dtype=tl.int32)
        for k0 in range(tl.cdiv(K, BK)):
            x = tl.load(
                a + m[:, None] * stride_a + (k0 * BK + k)[None, :],
                mask=(k0 * BK + k)[None, :] < K,
                other=0,
            )
            y = tl.load(
                b + n[None, :] * stride_b + (k0 * BK + k)[:, None],
                mask=(k0 * BK + k)[:, None] < K,
                other=0,
            )
            acc = tl.dot(x, y, acc, out_dtype=tl.int32)
        z = acc.to(tl.float32) * tl.load(sa + m)[:, None] * tl.load(sb + n)[None, :]
        if HAS_BIAS:
            z += tl.load(bias + n)[None, :]
        z = 0.5 * z * (1 + libdevice.tanh(0.79788456 * (z + 0.044715 * z * z * z)))
        om, on = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
        tl.store(c + om[:, None] * N + on[None, :], z, mask=(om[:, None] < M) & (on[None, :] < N))


def w8a8_gelu():
    M, N, K = 37, 45, 70
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-9, 9, s, generator=g).to(torch.int8) for s in ((M, K), (N, K)))
    sa, sb, bias = torch.rand(M, generator=g) * 0.02, torch.rand(N, generator=g) * 0.1, normal(N)
    c = torch.empty(M, N)
    w8a8_kernel[(3,)](
        a, b, sa, sb, bias, c, M, N, K, K, K, PROGRAMS=3, BM=16, BN=16, BK=32, HAS_BIAS=True
    )
    z = (a.float() @ b.float().t()) * sa[:, None] * sb[None] + bias
    return c, torch.nn.functional.gelu(z, approximate="tanh")


# -- attention with a bias of distances and dropout, in one function for all stages
@triton.jit
def attended(
    acc,
    total,
    highest,
    q,
    kp,
    vp,
    start_m,
    scale,
    slope,
    seed,
    LO,
    HI,
    p_drop,
    STAGE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    N_CTX,
):
    m = start_m * BM + tl.arange(0, BM)
    kp = tl.advance(kp, (0, LO))
    vp = tl.advance(vp, (LO, 0))
    for s in range(LO, HI, BN):
        s = tl.multiple_of(s, BN)
        k = tl.load(kp, boundary_check=(1,), padding_option="zero")
        n = s + tl.arange(0, BN)
        qk = tl.dot(q, k) * scale + slope * (n[None, :] - m[:, None])
        if STAGE == 2:
            qk = tl.where(m[:, None] >= n[None, :], qk, -1.0e6)
        qk = tl.where(n[None, :] < N_CTX, qk, -1.0e6)
        new = tl.maximum(highest, tl.max(qk, 1))
        p = tl.exp(qk - new[:, None])
        alpha = tl.exp(highest - new)
        total = total * alpha + tl.sum(p, 1)
        keep = tl.rand(seed, m[:, None] * N_CTX + n[None, :]) > p_drop
        acc = acc * alpha[:, None]
        v = tl.load(vp, boundary_check=(0,), padding_option="zero")
        acc += tl.dot(tl.where(keep, p, 0.0).to(v.dtype), v)
        highest = new
        kp = tl.advance(kp, (0, BN))
        vp = tl.advance(vp, (BN, 0))
    return acc, total, highest


@triton.jit
def alibi_kernel(
    Q,
    K,
    V,
    O,
    L,
    slopes,
    seed,
    p_drop,
    N_CTX,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    start_m, h = tl.program_id(0), tl.program_id(1)
    off = h.to(tl.int64) * N_CTX * D
    qp = tl.make_block_ptr(Q + off, (N_CTX, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    kp = tl.make_block_ptr(K + off, (D, N_CTX), (1, D), (0, 0), (D, BN), (0, 1))
    vp = tl.make_block_ptr(V + off, (N_CTX, D), (D, 1), (0, 0), (BN, D), (1, 0))
    q = tl.load(qp, boundary_check=(0,), padding_option="zero")
    highest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    slope = tl.load(slopes + h)
    if CAUSAL:
        acc, total, highest = attended(
            acc,
            total,
            highest,
            q,
            kp,
            vp,
            start_m,
            0.25,
            slope,
            seed,
            0,
            start_m * BM,
            p_drop,
            1,
            BM,
            BN,
            N_CTX,
        )
        acc, total, highest = attended(
            acc,
            total,
            highest,
            q,
            kp,
            vp,
            start_m,
            0.25,
            slope,
            seed,
            start_m * BM,
            (start_m + 1) * BM,
            p_drop,
            2,
            BM,
            BN,
            N_CTX,
        )
    else:
        acc, total, highest = attended(
            acc,
            total,
            highest,
            q,
            kp,
            vp,
            start_m,
            0.25,
            slope,
            seed,
            0,
            N_CTX,
            p_drop,
            3,
            BM,
            BN,
            N_CTX,
        )
    lp = tl.make_block_ptr(L + h * N_CTX, (N_CTX,), (1,), (start_m * BM,), (BM,), (0,))
    tl.store(lp, highest + tl.log(total), boundary_check=(0,))
    op = tl.make_block_ptr(O + off, (N_CTX, D), (D, 1), (start_m * BM, 0), (BM, D), (1, 0))
    tl.store(op, (acc / total[:, None]).to(O.type.element_ty), boundary_check=(0,))


def _alibi(causal):
    H, N, D = 2, 50, 16
    q, k, v = (normal(H, N, D, seed=s, dtype=torch.float16) for s in range(3))
    o, L, slopes = torch.empty_like(q), torch.empty(H, N), torch.tensor([0.5, 0.25])
    alibi_kernel[(4, H)](q, k, v, o, L, slopes, 7, -1.0, N, D=D, BM=16, BN=16, CAUSAL=causal)
    s = q.float() @ k.float().transpose(1, 2) * 0.25 + slopes[:, None, None] * (
        torch.arange(N)[None, :] - torch.arange(N)[:, None]
    )
    if causal:
        s = s.masked_fill(torch.ones(N, N).triu(1).bool(), float("-inf"))
    return torch.cat([o.float().flatten(), L.flatten()]).half(), torch.cat(
        [(s.softmax(-1) @ v.float()).flatten(), s.logsumexp(-1).flatten()]
    )


def alibi():
    return _alibi(False)


def alibi_causal():
    return _alibi(True)


CASES = [multi_tensor, varlen, tuple_scans, w8a8_gelu, alibi, alibi_causal]  # fmt: skip
