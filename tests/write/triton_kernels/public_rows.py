"""Kernels of plain Triton in the style of public libraries: norms, losses, scans, gates."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def fused_add_rms_norm_kernel(
    x_ptr, residual_ptr, w_ptr, stride, n_cols, eps, offset,
    CASTING: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Add, normalize in place, and keep the sum: two passes over chunks."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride
    residual_ptr += row * stride
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for c in tl.static_range(CHUNKS):
        cols = tl.max_contiguous(tl.multiple_of(c * BLOCK + tl.arange(0, BLOCK), BLOCK), BLOCK)
        mask = cols < n_cols
        x = tl.load(x_ptr + cols, mask=mask, other=0.0, eviction_policy="evict_first")
        r = tl.load(residual_ptr + cols, mask=mask, other=0.0, cache_modifier=".cg")
        s = x + r
        tl.store(residual_ptr + cols, s, mask=mask)
        s = s.to(tl.float32)
        square += s * s
    rstd = tl.math.rsqrt(tl.sum(square, axis=0) / n_cols + eps)
    tl.debug_barrier()
    for c in tl.static_range(CHUNKS):
        cols = c * BLOCK + tl.arange(0, BLOCK)
        mask = cols < n_cols
        s = tl.load(residual_ptr + cols, mask=mask, other=0.0)
        w = tl.load(w_ptr + cols, mask=mask, other=0.0)
        if CASTING == "llama":
            y = (s.to(tl.float32) * rstd).to(s.dtype) * (offset + w).to(s.dtype)
        else:
            tl.static_assert(CASTING == "gemma", "an unknown casting mode")
            y = s.to(tl.float32) * rstd * (offset + w.to(tl.float32))
        tl.store(x_ptr + cols, y, mask=mask)


@triton.jit
def linear_cross_entropy_kernel(
    logits_ptr, stride, target_ptr, loss_ptr, total_ptr, count_ptr, n_cols, ignore_index, smoothing, z_weight,
    HAS_SMOOTHING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the loss online, and write the gradient over the logits."""
    row = tl.program_id(0)
    target = tl.load(target_ptr + row)
    logits_ptr += row.to(tl.int64) * stride
    if target == ignore_index:
        for i in range(0, n_cols, BLOCK):
            cols = i + tl.arange(0, BLOCK)
            tl.store(logits_ptr + cols, 0.0, mask=cols < n_cols)
        return
    m = float("-inf")
    d = 0.0
    scaled_sum = 0.0
    picked = tl.load(logits_ptr + target).to(tl.float32)
    eps = smoothing / n_cols
    for i in range(0, n_cols, BLOCK):
        cols = i + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
        block_max = tl.max(x)
        if HAS_SMOOTHING:
            scaled_sum += tl.sum(tl.where(cols < n_cols, -eps * x, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    lse = m + tl.log(d)
    for i in range(0, n_cols, BLOCK):
        cols = i + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
        soft = tl.exp(x - m) / d
        x = soft + 2 * z_weight * lse * soft - eps
        x = tl.where(cols != target, x, x - (1 - smoothing))
        tl.store(logits_ptr + cols, x, mask=cols < n_cols)
    loss = lse - picked
    if HAS_SMOOTHING:
        loss = loss * (1 - smoothing) + scaled_sum + smoothing * lse
    loss += z_weight * lse * lse
    tl.store(loss_ptr + row, loss)
    tl.atomic_add(total_ptr, loss)
    tl.atomic_add(count_ptr, 1, sem="relaxed")


@triton.jit
def rotate(x1, x2, cos, sin, CONJUGATE: tl.constexpr):
    if CONJUGATE:
        sin = -sin
    return x1 * cos - x2 * sin, x1 * sin + x2 * cos


@triton.jit
def rotary_kernel(
    out_ptr, x_ptr, cos_ptr, sin_ptr, offsets_ptr, seqlen, stride_b, stride_s, stride_h,
    ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, CONJUGATE: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    BLOCK_M: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = ROTARY // 2
    pid_m, pid_h, pid_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    x_ptr = x_ptr + pid_b * stride_b + pid_h * stride_h
    out_ptr = out_ptr + pid_b * stride_b + pid_h * stride_h
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rm_cs = rm
    if HAS_OFFSETS:
        rm_cs += tl.load(offsets_ptr + pid_b)
    rk = tl.arange(0, HALF)
    mask = rm[:, None] < seqlen
    cos = tl.load(cos_ptr + rm_cs[:, None] * HALF + rk[None, :], mask=mask, other=1.0)
    sin = tl.load(sin_ptr + rm_cs[:, None] * HALF + rk[None, :], mask=mask, other=0.0)
    if INTERLEAVED:
        both = tl.arange(0, ROTARY)
        x = tl.load(x_ptr + rm[:, None] * stride_s + both[None, :], mask=mask, other=0.0)
        x1, x2 = tl.split(tl.reshape(x.to(tl.float32), [BLOCK_M, HALF, 2]))
        o1, o2 = rotate(x1, x2, cos, sin, CONJUGATE)
        o = tl.reshape(tl.join(o1, o2), [BLOCK_M, ROTARY])
        tl.store(out_ptr + rm[:, None] * stride_s + both[None, :], o, mask=mask)
    else:
        x1_ptrs = x_ptr + (rm[:, None] * stride_s + rk[None, :])
        x1 = tl.load(x1_ptrs, mask=mask, other=0.0).to(tl.float32)
        x2 = tl.load(x1_ptrs + HALF, mask=mask, other=0.0).to(tl.float32)
        o1, o2 = rotate(x1, x2, cos, sin, CONJUGATE)
        o_ptrs = out_ptr + (rm[:, None] * stride_s + rk[None, :])
        tl.store(o_ptrs, o1, mask=mask)
        tl.store(o_ptrs + HALF, o2, mask=mask)


@triton.jit
def gated_step(a1, b1, a2, b2):
    return a1 * a2, a2 * b1 + b2


@triton.jit
def chunk_scan_kernel(
    gate_ptr,
    x_ptr,
    out_ptr,
    last_ptr,
    T,
    D,
    REVERSE: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    """Scan h = g * h + x over chunks of time, with a state from chunk to chunk."""
    i_d, i_b = tl.program_id(0), tl.program_id(1)
    o_d = i_d * BD + tl.arange(0, BD)
    base = i_b * T * D
    h = tl.zeros([BD], dtype=tl.float32)
    for i_t in range(0, tl.cdiv(T, BT)):
        i_c = tl.cdiv(T, BT) - 1 - i_t if REVERSE else i_t
        o_t = i_c * BT + tl.arange(0, BT)
        p = base + o_t[:, None] * D + o_d[None, :]
        mask = (o_t < T)[:, None] & (o_d < D)[None, :]
        g = tl.load(gate_ptr + p, mask=mask, other=1.0).to(tl.float32)
        x = tl.load(x_ptr + p, mask=mask, other=0.0).to(tl.float32)
        a, b = tl.associative_scan((g, x), 0, gated_step, reverse=REVERSE)
        b += a * h[None, :]
        tl.store(out_ptr + p, b.to(out_ptr.dtype.element_ty), mask=mask)
        edge = 0 if REVERSE else BT - 1
        h = tl.sum(tl.where((tl.arange(0, BT) == edge)[:, None], b, 0.0), axis=0)
    tl.store(last_ptr + i_b * D + o_d, h, mask=o_d < D)


@triton.jit
def softplus(x):
    return tl.where(x <= 20.0, tl.math.log(tl.math.exp(x) + 1), x)


@triton.jit
def selective_state_update_kernel(
    state_ptr, x_ptr, dt_ptr, bias_ptr, A_ptr, B_ptr, C_ptr, z_ptr, out_ptr, dim,
    HAS_Z: tl.constexpr, N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    pid_m, pid_b = tl.program_id(0), tl.program_id(1)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, N)
    state_ptrs = state_ptr + pid_b * dim * N + (offs_m[:, None] * N + offs_n[None, :])
    state = tl.load(state_ptrs, mask=offs_m[:, None] < dim, other=0.0)
    x = tl.load(x_ptr + pid_b * dim + offs_m, mask=offs_m < dim, other=0.0).to(tl.float32)
    dt = tl.load(dt_ptr + pid_b * dim + offs_m, mask=offs_m < dim, other=0.0).to(tl.float32)
    dt = softplus(dt + tl.load(bias_ptr + offs_m, mask=offs_m < dim, other=0.0))
    A = tl.load(
        A_ptr + offs_m[:, None] * N + offs_n[None, :], mask=offs_m[:, None] < dim, other=0.0
    )
    B = tl.load(B_ptr + pid_b * N + offs_n)[None, :].to(tl.float32)
    C = tl.load(C_ptr + pid_b * N + offs_n).to(tl.float32)
    state = state * tl.exp(A * dt[:, None]) + (B * dt[:, None]) * x[:, None]
    tl.store(state_ptrs, state, mask=offs_m[:, None] < dim)
    out = tl.sum(state * C[None, :], axis=1)
    if HAS_Z:
        z = tl.load(z_ptr + pid_b * dim + offs_m, mask=offs_m < dim, other=0.0).to(tl.float32)
        out *= z * tl.sigmoid(z)
    tl.store(out_ptr + pid_b * dim + offs_m, out, mask=offs_m < dim)


@triton.jit
def layer_norm_backward_kernel(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, lock_ptr, stride, N,
    GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute dx, and add up dw and db of groups of rows under a lock."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x_ptr += row * stride
    dy_ptr += row * stride
    dx_ptr += row * stride
    lock_id = row % GROUP
    lock_ptr += lock_id
    count_ptr = lock_ptr + GROUP
    dw_ptr = dw_ptr + lock_id * N + cols
    db_ptr = db_ptr + lock_id * N + cols
    x = tl.load(x_ptr + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=mask).to(tl.float32)
    mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(dx_ptr + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    count = tl.load(count_ptr)
    tl.debug_barrier()  # all threads have loaded the count before one changes it
    if count == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        partial_dw += tl.load(dw_ptr, mask=mask)
        partial_db += tl.load(db_ptr, mask=mask)
    tl.store(dw_ptr, partial_dw, mask=mask)
    tl.store(db_ptr, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.constexpr_function
def rounded(n):
    return 1 << (n - 1).bit_length()


class Shape(NamedTuple):
    rows: tl.tensor
    experts: tl.constexpr


@triton.jit
def larger(value_a, index_a, value_b, index_b):
    first = (value_a > value_b) | ((value_a == value_b) & (index_a < index_b))
    return tl.where(first, value_a, value_b), tl.where(first, index_a, index_b)


@triton.jit
def topk_gating_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    shape,
    K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    """Pick K experts of each token by a softmax."""
    WIDE: tl.constexpr = rounded(shape.experts)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    experts = tl.arange(0, WIDE)
    inside = (rows < shape.rows)[:, None] & (experts < shape.experts)[None, :]
    x = tl.load(
        logits_ptr + rows[:, None] * shape.experts + experts[None, :],
        mask=inside,
        other=float("-inf"),
    )
    x = x.to(tl.float32)
    x = tl.softmax(x, dim=1, keep_dims=True)
    total = tl.zeros([BLOCK_M], tl.float32)
    index = tl.broadcast_to(experts[None, :], [BLOCK_M, WIDE])
    for k in tl.static_range(K):
        best, where = tl.reduce((x, index), 1, larger)
        total += best
        tl.store(weights_ptr + rows * K + k, best, mask=rows < shape.rows)
        tl.store(ids_ptr + rows * K + k, where.to(tl.int32), mask=rows < shape.rows)
        x = tl.where(experts[None, :] == where[:, None], -1.0, x)
    if RENORMALIZE:
        for k in tl.static_range(K):
            w = tl.load(weights_ptr + rows * K + k, mask=rows < shape.rows, other=0.0)
            tl.store(weights_ptr + rows * K + k, w / total, mask=rows < shape.rows)


@triton.jit
def geglu_kernel(a_ptr, b_ptr, c_ptr, n, APPROXIMATE: tl.constexpr, BLOCK: tl.constexpr):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n
    a = tl.load(a_ptr + cols, mask=mask, other=0).to(tl.float32)
    b = tl.load(b_ptr + cols, mask=mask, other=0)
    if APPROXIMATE:
        inner = 0.7978845608028654 * (a + 0.044715 * a * a * a)
        a = 0.5 * a * (1 + libdevice.tanh(inner))
    else:
        a = 0.5 * a * (1 + tl.erf(a * 0.7071067811865476))
    c = a.to(b.dtype) * b
    tl.store(c_ptr + cols, c, mask=mask)


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def fused_add_rms_norm():
    x, r, w = randn(3, 200), randn(3, 200, seed=1), randn(200, seed=2)
    wanted_sum = x + r
    rstd = torch.rsqrt(wanted_sum.square().mean(-1, keepdim=True) + 1e-6)
    wanted = torch.cat([wanted_sum * rstd * (1 + w), wanted_sum])
    fused_add_rms_norm_kernel[(3,)](x, r, w, 200, 200, 1e-6, 1.0, "gemma", BLOCK=64, CHUNKS=4)
    return torch.cat([x, r]), wanted


def linear_cross_entropy():
    logits, target = randn(4, 150), torch.tensor([3, 149, -100, 70])
    leaf = logits.clone().requires_grad_()
    lse = leaf.logsumexp(-1)
    losses = torch.nn.functional.cross_entropy(
        leaf, target, reduction="none", ignore_index=-100, label_smoothing=0.1
    ) + 0.01 * torch.where(target != -100, lse * lse, 0)
    losses.sum().backward()
    loss, total, count = torch.zeros(4), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    linear_cross_entropy_kernel[(4,)](
        logits, 150, target, loss, total, count, 150, -100, 0.1, 0.01, HAS_SMOOTHING=True, BLOCK=64
    )
    result = torch.cat([loss, total, count.float(), logits.flatten()])
    return result, torch.cat(
        [losses.detach(), losses.sum()[None].detach(), torch.tensor([3.0]), leaf.grad.flatten()]
    )


def rotary(interleaved=False):
    B, S, H, D = 2, 20, 3, 32
    x, offsets = randn(B, S, H, D), torch.tensor([0, 5], dtype=torch.int32)
    angles = randn(S + 8, D // 2, seed=1)
    cos, sin = angles.cos(), angles.sin()
    out = torch.empty_like(x)
    rotary_kernel[(2, H, B)](
        out, x, cos, sin, offsets, S, *x.stride()[:3], ROTARY=D, INTERLEAVED=interleaved,
        CONJUGATE=False, HAS_OFFSETS=True, BLOCK_M=16,
    )  # fmt: skip
    x1, x2 = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    c, s = (torch.stack([t[o : o + S] for o in (0, 5)])[:, :, None] for t in (cos, sin))
    parts = x1 * c - x2 * s, x1 * s + x2 * c
    return out, torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)


def rotary_interleaved():
    return rotary(True)


def chunk_scan(reverse=False):
    B, T, D = 2, 40, 24
    g, x = torch.sigmoid(randn(B, T, D)), randn(B, T, D, seed=1)
    out, last = torch.empty_like(x), torch.empty(B, D)
    chunk_scan_kernel[(2, B)](g, x, out, last, T, D, reverse, BT=16, BD=16)
    h, wanted = torch.zeros(B, D), torch.empty_like(x)
    for t in reversed(range(T)) if reverse else range(T):
        h = g[:, t] * h + x[:, t]
        wanted[:, t] = h
    return (out, wanted) if reverse else (torch.cat([out.flatten()]), wanted.flatten())


def chunk_scan_reverse():
    return chunk_scan(True)


def selective_state_update():
    B, dim, N = 2, 40, 16
    state, x, dt = randn(B, dim, N), randn(B, dim, seed=1), randn(B, dim, seed=2)
    bias, A, z = randn(dim, seed=3), -torch.rand(dim, N), randn(B, dim, seed=6)
    Bm, C, out = randn(B, N, seed=4), randn(B, N, seed=5), torch.empty(B, dim)
    d = torch.nn.functional.softplus(dt + bias)
    wanted_state = state * torch.exp(A * d[..., None]) + Bm[:, None] * (d * x)[..., None]
    wanted = (wanted_state * C[:, None]).sum(-1) * z * torch.sigmoid(z)
    selective_state_update_kernel[(3, B)](
        state, x, dt, bias, A, Bm, C, z, out, dim, HAS_Z=True, N=N, BLOCK_M=16
    )
    return torch.cat([state.flatten(), out.flatten()]), torch.cat(
        [wanted_state.flatten(), wanted.flatten()]
    )


def layer_norm_backward():
    M, N, GROUP = 6, 100, 2
    x, dy, w = randn(M, N), randn(M, N, seed=1), randn(N, seed=2)
    leaf, weight, bias = (
        x.clone().requires_grad_(),
        w.clone().requires_grad_(),
        torch.zeros(N, requires_grad=True),
    )
    torch.nn.functional.layer_norm(leaf, (N,), weight, bias).backward(dy)
    mean, rstd = x.mean(-1), torch.rsqrt(x.var(-1, unbiased=False) + 1e-5)
    dx, dw, db = torch.empty_like(x), torch.zeros(GROUP, N), torch.zeros(GROUP, N)
    locks = torch.zeros(2 * GROUP, dtype=torch.int32)
    layer_norm_backward_kernel[(M,)](
        dx, dy, dw, db, x, w, mean, rstd, locks, N, N, GROUP=GROUP, BLOCK=128
    )
    return torch.cat([dx, dw.sum(0)[None], db.sum(0)[None]]), torch.cat(
        [leaf.grad, weight.grad[None], bias.grad[None]]
    )


def topk_gating():
    M, E, K = 20, 24, 3
    logits = randn(M, E)
    weights, ids = torch.empty(M, K), torch.empty(M, K, dtype=torch.int32)
    topk_gating_kernel[(2,)](logits, weights, ids, Shape(M, tl.constexpr(E)), K, True, BLOCK_M=16)
    best = torch.softmax(logits, -1).topk(K)
    return torch.cat([weights, ids.float()]), torch.cat(
        [best.values / best.values.sum(-1, keepdim=True), best.indices.float()]
    )


def geglu():
    a, b = randn(500), randn(500, seed=1)
    c, d = torch.empty(500), torch.empty(500)
    geglu_kernel[(4,)](a, b, c, 500, True, BLOCK=128)
    geglu_kernel[(4,)](a, b, d, 500, False, BLOCK=128)
    gelu = torch.nn.functional.gelu
    return torch.cat([c, d]), torch.cat([gelu(a, approximate="tanh") * b, gelu(a) * b])


CASES = [
    fused_add_rms_norm, linear_cross_entropy, rotary, rotary_interleaved, chunk_scan, chunk_scan_reverse,
    selective_state_update, layer_norm_backward, topk_gating, geglu,
]  # fmt: skip
