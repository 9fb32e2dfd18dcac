"""Kernels of plain Triton in the styles of public libraries of models: caches, quantization, states, gradients."""

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

sys.path.insert(0, str(Path(__file__).parent))
from shared.device_maths import block_offset, welford


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# --- rotary + RMS norm of queries and keys, in one launch, with heuristics and optional weights


@triton.heuristics(
    {
        "HAS_WEIGHT": lambda args: args["k_weight"] is not None,
        "BLOCK_H": lambda args: triton.next_power_of_2(args["HEADS"] + args["KV_HEADS"]),
    }
)
@triton.jit(do_not_specialize=["tokens"])
def norm_rope_kernel(
    qkv, k_weight, cos_sin, positions, tokens, stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr,
    HAS_WEIGHT: tl.constexpr, BLOCK_H: tl.constexpr, NEOX: tl.constexpr = True,
):  # fmt: skip
    token = tl.program_id(0)
    if token >= tokens:
        return
    head = tl.arange(0, BLOCK_H)[:, None]
    half: tl.constexpr = D // 2
    tl.static_assert(half * 2 == D, f"an odd size of heads: {D}")
    d = tl.arange(0, half)[None, :]
    first, second = (d, d + half) if NEOX else (2 * d, 2 * d + 1)
    base = qkv + token * stride + head * D
    inside = head < HEADS + KV_HEADS
    x1 = tl.load(base + first, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(base + second, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(
        (x1 * x1).sum(1, keep_dims=True) / D + (x2 * x2).sum(axis=1, keep_dims=True) / D + 1e-6
    )
    x1, x2 = x1 * rstd, x2 * rstd
    if HAS_WEIGHT:
        w1 = tl.load(k_weight + first)
        w2 = tl.load(k_weight + second)
        x1 = tl.where(head < HEADS, x1, x1 * w1)
        x2 = tl.where(head < HEADS, x2, x2 * w2)
    position = tl.load(positions + token)
    c = tl.load(cos_sin + position * D + d, eviction_policy="evict_last")
    s = tl.load(cos_sin + position * D + half + d, cache_modifier=".ca")
    tl.store(base + first, (x1 * c - x2 * s).to(qkv.dtype.element_ty), mask=inside)
    tl.store(base + second, (x2 * c + x1 * s).to(qkv.dtype.element_ty), mask=inside)


def _norm_rope(weight, neox):
    T, H, K, D = 5, 4, 2, 16
    qkv = normal(T, (H + K) * D)
    want = qkv.clone().view(T, H + K, D)
    positions = torch.tensor([3, 0, 7, 7, 2])
    angle = torch.arange(8)[:, None] * (10000 ** (-torch.arange(D // 2) / (D // 2)))[None, :]
    table = torch.cat([angle.cos(), angle.sin()], 1)
    w = normal(D, seed=1) if weight else None
    norm_rope_kernel[lambda meta: (T + 1,)](qkv, w, table, positions, T, qkv.stride(0), HEADS=H, KV_HEADS=K, D=D, NEOX=neox)  # fmt: skip
    want = want * torch.rsqrt(want.square().mean(-1, keepdim=True) + 1e-6)
    if weight:
        want[:, H:] *= w
    x1, x2 = (
        (want[..., : D // 2], want[..., D // 2 :]) if neox else (want[..., ::2], want[..., 1::2])
    )
    c, s = angle[positions].cos()[:, None], angle[positions].sin()[:, None]
    y1, y2 = x1 * c - x2 * s, x2 * c + x1 * s
    want = torch.cat([y1, y2], -1) if neox else torch.stack([y1, y2], -1).flatten(-2)
    return qkv, want.flatten(1)


def norm_rope():
    return _norm_rope(True, True)


def norm_rope_interleaved():
    return _norm_rope(None, False)


# --- writes to a cache of pages, quantized, with slots of -1


@triton.jit
def cache_kernel(
    key: tl.const, key_cache, scale_ptr, slots, table, stride_k: tl.int64, stride_page, D: tl.constexpr,
    PAGE: tl.constexpr, QUANTIZED: tl.constexpr, X: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(axis=0)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    row = block_offset(table, slot, PAGE, PAGE * D // X)
    d = tl.arange(0, D)
    x = tl.load(key + token * stride_k + d)
    if QUANTIZED:
        scale = tl.load(scale_ptr)
        x = libdevice.nearbyint(x.to(tl.float32) / scale)
        x = tl.clamp(x, -127.0, 127.0)
    target = key_cache + row * X + (d // X) * (PAGE * X) + d % X
    tl.store(target, x.to(key_cache.dtype.element_ty))


def cache_writes():
    T, D, PAGE, X = 6, 32, 4, 8
    key, scale = normal(T, D, dtype=torch.float16), torch.tensor([0.02])
    slots, table = (
        torch.tensor([0, 5, -1, 6, 11, 3]),
        torch.tensor([2, 0, 1], dtype=torch.int32),
    )
    cache = torch.zeros(3, D // X, PAGE, X, dtype=torch.int8)
    cache_kernel[(T,)](key, cache, scale, slots, table, key.stride(0), 0, D, PAGE, True, X)
    want = torch.zeros_like(cache)
    for t, s in enumerate(slots.tolist()):
        if s >= 0:
            q = (key[t].float() / 0.02).round().clamp(-127, 127).to(torch.int8)
            want[table[s // PAGE], :, s % PAGE] = q.view(D // X, X)
    return cache.float(), want.float()


# --- GPTQ with an order of groups, split over K, with atomics


@triton.constexpr_function
def per_word(bits):
    return 32 // bits


@triton.jit
def gptq_kernel(
    a, words, scales, zeros, g_idx, out, M, N, K,
    BITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    pid_n, pid_k = tl.program_id(0), tl.program_id(1)
    each: tl.constexpr = per_word(BITS)
    m, n = tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in tl.range(pid_k * BK, K, BK * SPLIT, num_stages=2):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
        group = tl.load(g_idx + k)
        word = tl.load(words + (k // each)[:, None] * N + n[None, :])
        q = (word >> ((k % each) * BITS)[:, None]) & ((1 << BITS) - 1)
        zero = tl.load(zeros + group[:, None] * (N // each) + (n // each)[None, :])
        zero = (zero >> ((n % each) * BITS)[None, :]) & ((1 << BITS) - 1)
        scale = tl.load(scales + group[:, None] * N + n[None, :])
        w = ((q - zero - 1) * scale).to(x.dtype)
        acc = tl.dot(x, w, acc, input_precision="ieee", out_dtype=tl.float32)
    tl.atomic_add(
        out + m[:, None] * N + n[None, :],
        acc,
        mask=m[:, None] < M,
        sem="relaxed",
        scope="gpu",
    )


def gptq():
    M, N, K, G, BITS = 9, 32, 64, 16, 4
    g = torch.Generator().manual_seed(7)
    q = torch.randint(0, 16, (K, N), generator=g)
    z = torch.randint(0, 15, (K // G, N), generator=g)
    scale, a = (
        torch.rand(K // G, N, generator=g).half() * 0.1,
        normal(M, K, dtype=torch.float16),
    )
    g_idx = (torch.randperm(K, generator=g) // G).to(torch.int32)
    shifts = torch.arange(8) * 4

    def packed(x):
        total = (x.long() << shifts.view(1, 8, 1)).sum(1)
        return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)

    words, zeros = (
        packed(q.view(K // 8, 8, N)),
        packed(z.view(K // G, N // 8, 8).transpose(1, 2).reshape(K // G, 8, N // 8)),
    )
    out = torch.zeros(M, N)
    gptq_kernel[(N // 16, 2)](a, words, scale, zeros, g_idx, out, M, N, K, BITS, 16, 16, 16, 2)
    w = ((q - z[g_idx.long()] - 1) * scale[g_idx.long()].float()).half().float()
    return out.half(), a.float() @ w


# --- selective scan, forwards and backwards, with tuples in associative scans


@triton.jit
def first_order(a_l, x_l, a_r, x_r):
    return a_l * a_r, x_l * a_r + x_r


@triton.jit
def selective_kernel(
    u,
    delta,
    A,
    B,
    C,
    D_ptr,
    z,
    out,
    last,
    L,
    DIM,
    N: tl.constexpr,
    BL: tl.constexpr,
    REVERSE: tl.constexpr,
):
    pid = tl.program_id(0)
    n = tl.arange(0, N)
    a = tl.load(A + pid * N + n)
    skip = tl.load(D_ptr + pid)
    state = tl.zeros([N], tl.float32)
    for start in range(0, L, BL):
        t = start + tl.arange(0, BL)
        if REVERSE:
            t = L - BL - start + tl.arange(0, BL)
        inside = (t < L) & (t >= 0)
        x = tl.load(u + pid * L + t, mask=inside, other=0.0)
        dt = tl.load(delta + pid * L + t, mask=inside, other=0.0)
        dt = tl.where(dt <= 20.0, libdevice.log1p(tl.exp(dt)), dt)
        dt = tl.where(inside, dt, 0.0)
        decay = tl.exp(dt[:, None] * a[None, :])
        b = tl.load(B + t[:, None] * N + n[None, :], mask=inside[:, None], other=0.0)
        c = tl.load(C + t[:, None] * N + n[None, :], mask=inside[:, None], other=0.0)
        decays, states = tl.associative_scan(
            (decay, (dt * x)[:, None] * b), 0, first_order, reverse=REVERSE
        )
        states += decays * state[None, :]
        edge = t == ((L - BL - start) if REVERSE else (start + BL - 1))
        state = tl.sum(tl.where(edge[:, None], states, 0.0), 0)
        gate = tl.load(z + pid * L + t, mask=inside, other=0.0)
        y = tl.sum(states * c, axis=1) + skip * x
        tl.store(out + pid * L + t, y * gate * tl.sigmoid(gate), mask=inside)
    tl.store(last + pid * N + n, state)


def _selective(reverse):
    DIM, L, N = 3, 32, 4
    u, delta, z = (normal(DIM, L, seed=s) for s in range(3))
    A, B, C, D = (
        -normal(DIM, N, seed=3).abs(),
        normal(L, N, seed=4),
        normal(L, N, seed=5),
        normal(DIM, seed=6),
    )
    out, last = torch.empty(DIM, L), torch.empty(DIM, N)
    selective_kernel[(DIM,)](
        u, delta, A, B, C, D, z, out, last, L, DIM, N=N, BL=16, REVERSE=reverse
    )
    dt = torch.nn.functional.softplus(delta)
    h, ys = torch.zeros(DIM, N), [None] * L
    for t in reversed(range(L)) if reverse else range(L):
        h = h * torch.exp(dt[:, t, None] * A) + (dt[:, t] * u[:, t])[:, None] * B[t]
        ys[t] = (h * C[t]).sum(1) + D * u[:, t]
    want = torch.stack(ys, 1) * torch.nn.functional.silu(z)
    return torch.cat([out, last], 1), torch.cat([want, h], 1)


def selective():
    return _selective(False)


def selective_reverse():
    return _selective(True)


# --- batch norm with Welford's sums of tuples over two dimensions


@triton.jit
def batch_norm_kernel(
    x,
    w,
    b,
    running,
    out,
    rows,
    stride,
    eps,
    momentum,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SP: tl.constexpr,
):
    column = tl.program_id(0)
    m, n = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :]
    places = x + m * stride + column * SP + n
    inside = (m < rows) & (n < SP)
    v = tl.load(places, mask=inside, other=0.0)
    count = inside.to(tl.float32)
    mean, m2, total = tl.reduce(
        (tl.ravel(v), tl.zeros([BM * BN], tl.float32), tl.ravel(count)), 0, welford
    )
    var = m2 / total
    y = (v - mean) * libdevice.rsqrt(var + eps) * tl.load(w + column) + tl.load(b + column)
    tl.store(out + m * stride + column * SP + n, y, mask=inside)
    old = tl.load(running + column)
    tl.store(running + column, tl.fma(momentum, mean - old, old))


def batch_norm():
    R, CH, SP = 7, 3, 10
    x, w, b = normal(R, CH, SP), normal(CH, seed=1), normal(CH, seed=2)
    running, out = torch.ones(CH), torch.empty_like(x)
    want = torch.nn.functional.batch_norm(x, None, None, w, b, True, eps=1e-5)
    batch_norm_kernel[(CH,)](x, w, b, running, out, R, CH * SP, 1e-5, 0.1, BM=8, BN=16, SP=SP)
    return torch.cat([out.flatten(), running]), torch.cat(
        [want.flatten(), 0.9 + 0.1 * x.mean((0, 2))]
    )


# --- a step of a causal convolution that moves its state


@triton.jit()
def conv_step_kernel(
    x, state, w, bias, indices, out, dim, stride_s, PAD: tl.constexpr,
    WIDTH: tl.constexpr, SILU: tl.constexpr, BIAS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    seq = tl.program_id(0)
    where = tl.load(indices + seq).to(tl.int64)
    if where == PAD:
        return
    d = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = d < dim
    places = state + where * stride_s + d * (WIDTH - 1)
    if BIAS:
        acc = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    else:
        acc = tl.zeros((BN,), dtype=tl.float32)
    new = tl.load(x + seq * dim + d, mask=inside, other=0.0)
    old = ()
    for j in tl.static_range(WIDTH - 1):
        old = old + (tl.load(places + j, mask=inside, other=0.0),)
    for j in tl.static_range(WIDTH):
        value = old[j] if j < WIDTH - 1 else new
        acc += value * tl.load(w + d * WIDTH + j, mask=inside, other=0.0)
    tl.debug_barrier()
    for j in tl.static_range(WIDTH - 2):
        tl.store(places + j, old[j + 1], mask=inside)
    tl.store(places + WIDTH - 2, new, mask=inside)
    if SILU:
        acc = acc / (1 + tl.exp(-acc))
    tl.store(out + seq * dim + d, acc, mask=inside)


def conv_step():
    S, DIM, W = 4, 20, 4
    x, w, bias = normal(S, DIM), normal(DIM, W, seed=1), normal(DIM, seed=2)
    state, out = normal(6, DIM, W - 1, seed=3), torch.zeros(S, DIM)
    indices, before = (
        torch.tensor([5, 0, -1, 2], dtype=torch.int32),
        state.clone() if (state := normal(6, DIM, W - 1, seed=3)) is not None else None,
    )
    conv_step_kernel[(S, 2)](
        x,
        state,
        w,
        bias,
        indices,
        out,
        DIM,
        state.stride(0),
        -1,
        WIDTH=W,
        SILU=True,
        BIAS=True,
        BN=16,
    )
    want, moved = torch.zeros(S, DIM), before.clone()
    for s, i in enumerate(indices.tolist()):
        if i >= 0:
            window = torch.cat([before[i], x[s, :, None]], 1)
            want[s] = torch.nn.functional.silu((window * w).sum(1) + bias)
            moved[i] = window[:, 1:]
    return torch.cat([out.flatten(), state.flatten()]), torch.cat([want.flatten(), moved.flatten()])


# --- decoding of latent heads, over pages, in a window, with sinks; gradients under locks


@triton.jit
def softmax_step(qk, m, total, SCALE: tl.constexpr):
    new = tl.maximum(m, tl.max(qk, 1) * SCALE)
    p = tl.math.exp2(qk * SCALE - new[:, None])
    alpha = tl.math.exp2(m - new)
    return p, alpha, new, total * alpha + tl.sum(p, 1)


@triton.jit
def mqa_kernel(
    q_ptr,
    kv_ptr,
    table,
    lengths,
    sinks,
    o_ptr,
    lse_ptr,
    stride_qb: tl.int64,
    stride_page,
    scale: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    BH: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    HAS_SINK: tl.constexpr,
):
    b = tl.program_id(0)
    h = tl.arange(0, BH)
    d = tl.arange(0, D)
    dv = tl.arange(0, DV)
    mask_h = h < HEADS
    q = tl.load(
        q_ptr + b * stride_qb + h[:, None] * D + d[None, :],
        mask=mask_h[:, None],
        other=0.0,
    )
    n = tl.load(lengths + b)
    if HAS_SINK:
        m = tl.load(sinks + h, mask=mask_h, other=float("-inf")).to(tl.float32) * 1.4426950408889634
        total = tl.full([BH], 1.0, tl.float32)
    else:
        m = tl.full([BH], float("-inf"), tl.float32)
        total = tl.zeros([BH], tl.float32)
    acc = tl.zeros([BH, DV], tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(n - WINDOW, 0) // PAGE
    for p in tl.range(begin, tl.cdiv(n, PAGE), num_stages=1):
        page = tl.load(table + b * 4 + p).to(tl.int64)
        t = tl.arange(0, PAGE)
        pos = p * PAGE + t
        kv = kv_ptr + page * stride_page + t * D
        k = tl.load(kv[None, :] + d[:, None], mask=pos[None, :] < n, other=0.0)
        v = tl.load(kv[:, None] + dv[None, :], mask=pos[:, None] < n, other=0.0)
        qk = tl.dot(q, k)
        if CAP > 0:
            qk = CAP * (2 * tl.sigmoid(2 * qk * (scale / CAP)) - 1) / scale
        keep = pos < n
        if WINDOW > 0:
            keep &= pos >= n - WINDOW
        qk = tl.where(keep[None, :], qk, float("-inf"))
        w, alpha, m, total = softmax_step(qk, m, total, scale * 1.4426950408889634)
        acc = acc * alpha[:, None]
        acc += tl.dot(w.to(v.dtype), v)
    tl.store(
        o_ptr + b * HEADS * DV + h[:, None] * DV + dv[None, :],
        acc / total[:, None],
        mask=mask_h[:, None],
    )
    tl.store(lse_ptr + b * HEADS + h, m * 0.6931471805599453 + tl.log(total), mask=mask_h)


def mla_decode():
    B, H, D, DV, PAGE = 3, 5, 64, 32, 16
    q, kv = (
        normal(B, H, D, dtype=torch.float16),
        normal(9, PAGE, D, seed=1, dtype=torch.float16),
    )
    table, lengths = (
        torch.tensor([[3, 1, 0, 0], [2, 4, 5, 0], [6, 7, 8, 0]], dtype=torch.int32),
        torch.tensor([17, 33, 5], dtype=torch.int32),
    )
    sinks = normal(H, seed=2)
    o, lse = torch.empty(B, H, DV), torch.empty(B, H)
    mqa_kernel[(B,)](
        q,
        kv,
        table,
        lengths,
        sinks,
        o,
        lse,
        q.stride(0),
        kv.stride(0),
        0.125,
        H,
        D,
        DV,
        PAGE,
        16,
        20,
        30.0,
        True,
    )
    want, wl = torch.empty_like(o), torch.empty_like(lse)
    for b, n in enumerate(lengths.tolist()):
        k = kv[table[b].long()].flatten(0, 1)[:n].float()
        s = 30 * torch.tanh(q[b].float() @ k.t() * 0.125 / 30)
        s[:, : max(0, n - 20)] = float("-inf")
        s = torch.cat([s, sinks[:, None]], 1)
        w = s.softmax(1)[:, :-1]
        want[b] = w @ k[:, :DV]
        wl[b] = s.logsumexp(1)
    return torch.cat([o.flatten(), lse.flatten()]).half(), torch.cat([want.flatten(), wl.flatten()])


@triton.jit
def cce_kernel(
    x_ptr,
    w_ptr,
    t_ptr,
    lse_ptr,
    dx_ptr,
    locks,
    M,
    V,
    D,
    B_M: tl.constexpr,
    B_V: tl.constexpr,
    B_D: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Gradient of a cross entropy into shared rows under locks."""
    pid_m, pid_v = tl.program_id(0), tl.program_id(1)
    m, v = pid_m * B_M + tl.arange(0, B_M), pid_v * B_V + tl.arange(0, B_V)
    logits = tl.zeros((B_M, B_V), tl.float32)
    for d0 in range(0, tl.cdiv(D, B_D)):
        d = d0 * B_D + tl.arange(0, B_D)
        x = tl.load(
            x_ptr + m[:, None] * D + d[None, :],
            mask=(m[:, None] < M) & (d[None, :] < D),
            other=0.0,
        )
        w = tl.load(
            w_ptr + v[:, None] * D + d[None, :],
            mask=(v[:, None] < V) & (d[None, :] < D),
            other=0.0,
        )
        logits = tl.dot(x, w.trans(), logits)
    lse = tl.load(lse_ptr + m, mask=m < M, other=0.0)
    p = tl.exp(logits - lse[:, None])
    p = tl.where((m[:, None] < M) & (v[None, :] < V), p, 0.0)
    t = tl.load(t_ptr + m, mask=m < M, other=-1)
    p += tl.where(t[:, None] == v[None, :], -1.0, 0.0)
    lock = locks + pid_m
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    for d0 in range(0, tl.cdiv(D, B_D)):
        d = d0 * B_D + tl.arange(0, B_D)
        w = tl.load(
            w_ptr + v[:, None] * D + d[None, :],
            mask=(v[:, None] < V) & (d[None, :] < D),
            other=0.0,
        )
        places = dx_ptr + m[:, None] * D + d[None, :]
        ok = (m[:, None] < M) & (d[None, :] < D)
        old = tl.load(places, mask=ok, other=0.0)
        tl.store(places, old + tl.dot(p.to(w.dtype), w), mask=ok)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def cce_backward():
    M, V, D = 20, 50, 40
    x, w, t = (
        normal(M, D).half() * 0.3,
        normal(V, D, seed=1).half() * 0.3,
        torch.randint(0, V, (M,), generator=torch.Generator().manual_seed(2)),
    )
    logits = x.float() @ w.float().t()
    dx, locks = torch.zeros(M, D), torch.zeros(2, dtype=torch.int32)
    cce_kernel[(2, 4)](x, w, t, logits.logsumexp(1), dx, locks, M, V, D, 16, 16, 16, 4)
    p = logits.softmax(1)
    p[torch.arange(M), t] -= 1
    return dx.half(), p @ w.float()


CASES = [
    norm_rope, norm_rope_interleaved, cache_writes, gptq, selective, selective_reverse, batch_norm, conv_step, mla_decode, cce_backward,
]  # fmt: skip
