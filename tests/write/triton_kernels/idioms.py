"""Kernels of plain Triton in the idioms of compilers and serving libraries."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import triton
import triton.language as L
import triton.language.core as core
from triton.language import core as tlc
from triton.language.extra import libdevice
from triton.language.math import rsqrt
from triton.language.standard import _log2

if os.environ.get("FAST_MATHS") == "1":

    @triton.jit
    def exponential(x):
        return L.exp2(x * 1.4426950408889634)

else:
    exponential = L.exp

if hasattr(L, "gather"):
    picked = L.gather
else:

    @triton.jit
    def picked(src, index, axis):
        return None


LOG2E: L.constexpr = L.constexpr(1.4426950408889634)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- the compiler's persistent reductions: moments by triples, indices that are checked
@triton.jit
def combined_moments(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    share = L.where(n == 0.0, 0.0, n_b / n)
    apart = mean_b - mean_a
    return mean_a + apart * share, m2_a + m2_b + apart * apart * n_a * share, n


@triton.jit
def norm_lookup_kernel(
    in_ptr0,
    in_ptr1,
    in_ptr2,
    out_ptr0,
    out_ptr1,
    ks0,
    xnumel,
    r0_numel,
    XBLOCK: L.constexpr,
    R0_BLOCK: L.constexpr,
):
    xoffset = L.program_id(0) * XBLOCK
    xindex = xoffset + L.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = L.arange(0, R0_BLOCK)[None, :]
    x0 = xindex
    tmp0 = L.load(in_ptr0 + (x0), xmask, eviction_policy="evict_last")
    tmp1 = ks0
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = L.where(tmp3, tmp2, tmp0)
    L.device_assert(((0 <= tmp4) & (tmp4 < ks0)) | ~(xmask), "index out of bounds: 0 <= tmp4 < ks0")
    mean = L.full([XBLOCK, R0_BLOCK], 0, L.float32)
    m2 = L.full([XBLOCK, R0_BLOCK], 0, L.float32)
    weight = L.full([XBLOCK, R0_BLOCK], 0, L.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        tmp5 = L.load(
            in_ptr1 + (r0_index + r0_numel * tmp4),
            r0_mask & xmask,
            eviction_policy="evict_first",
            other=0.0,
        ).to(L.float32)
        tmp6 = L.broadcast_to(tmp5, [XBLOCK, R0_BLOCK])
        apart = tmp6 - mean
        weight_next = weight + 1
        mean_next = mean + apart / weight_next
        m2_next = m2 + apart * (tmp6 - mean_next)
        mean = L.where(r0_mask & xmask, mean_next, mean)
        m2 = L.where(r0_mask & xmask, m2_next, m2)
        weight = L.where(r0_mask & xmask, weight_next, weight)
    tmp8, tmp9, tmp10 = L.reduce((mean, m2, weight), 1, combined_moments)
    tmp8, tmp9, tmp10 = tmp8[:, None], tmp9[:, None], tmp10[:, None]
    L.store(out_ptr0 + (x0), tmp8, xmask)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        tmp11 = L.load(in_ptr1 + (r0_index + r0_numel * tmp4), r0_mask & xmask, other=0.0).to(
            L.float32
        )
        tmp12 = L.load(in_ptr2 + (r0_index), r0_mask, eviction_policy="evict_last", other=0.0)
        tmp13 = (tmp11 - tmp8) * libdevice.rsqrt(tmp9 / r0_numel + 1e-05)
        tmp14 = (tmp13 * tmp12).to(L.float32)
        tmp15 = tmp14 * L.sigmoid(tmp14)
        L.store(out_ptr1 + (r0_index + r0_numel * x0), tmp15, r0_mask & xmask)


def norm_lookup():
    x, r, rows = 5, 50, 7
    index = torch.tensor([3, -1, 0, 6, -7])
    table, scale = normal(rows, r, dtype=torch.float16), normal(r, seed=1)
    mean, out = torch.empty(x, 1), torch.empty(x, r)
    norm_lookup_kernel[(3,)](index, table, scale, mean, out, rows, x, r, XBLOCK=2, R0_BLOCK=16)
    values = table[index].float()
    y = torch.nn.functional.layer_norm(values, (r,), eps=1e-5) * scale
    return torch.cat([mean, out], 1), torch.cat(
        [values.mean(1, keepdim=True), torch.nn.functional.silu(y)], 1
    )


# -- launches that depend on each other, and kernels that are members of a class
class Activations:
    LEAK = L.constexpr(0.125)

    @staticmethod
    @triton.jit
    def kernel(x_ptr, y_ptr, n, BLOCK: L.constexpr, PDL: L.constexpr):
        if PDL:
            L.extra.cuda.gdc_wait()
        offs = L.program_id(axis=0).to(L.int64) * BLOCK + L.arange(0, BLOCK)
        x = L.load(x_ptr + offs, mask=offs < n)
        if PDL:
            L.extra.cuda.gdc_launch_dependents()
        L.store(y_ptr + offs, x if n == 0 else L.where(x > 0, x, x * 0.125), mask=offs < n)

    @classmethod
    def run(cls, x):
        y = torch.empty_like(x)
        cls.kernel[(triton.cdiv(x.numel(), 32),)](x, y, x.numel(), BLOCK=32, PDL=False)
        return y


def member():
    x = normal(75)
    return Activations.run(x), torch.nn.functional.leaky_relu(x, 0.125)


# -- values by heuristics, asserts with formatted words
@triton.heuristics(
    {
        "EVEN": lambda args: args["n"] % args["BLOCK"] == 0,
        "HAS_BIAS": lambda args: args["b_ptr"] is not None,
    }
)
@triton.jit(do_not_specialize=["n"], debug=False)
def biased_kernel(
    x_ptr,
    b_ptr: core.tensor,
    y_ptr,
    n: int,
    eps: float,
    BLOCK: "L.constexpr",
    EVEN: L.constexpr,
    HAS_BIAS: L.constexpr,
) -> None:
    L.static_assert(BLOCK & (BLOCK - 1) == 0, f"BLOCK={BLOCK} is no power of two")
    assert BLOCK >= 16, f"{BLOCK} is too little"
    offs = L.program_id(0) * BLOCK + L.arange(0, BLOCK)
    if EVEN:
        x = L.load(x_ptr + offs)
    else:
        x = L.load(x_ptr + offs, mask=offs < n, other=0.0)
    if HAS_BIAS:
        x += L.load(b_ptr + offs, mask=None if EVEN else offs < n, other=None if EVEN else 0.0)
    y = L.clamp(x * rsqrt(x * x + eps), min=-0.5, max=0.5)
    L.store(y_ptr + offs, y, mask=offs < n)


def biased():
    x, b = normal(80), normal(80, seed=1)
    y, z = torch.empty(80), torch.empty(80)
    biased_kernel[(5,)](x, b, y, 80, 1e-3, BLOCK=16)
    biased_kernel[(3,)](x, None, z, 80, 1e-3, BLOCK=32)
    want = [(v * torch.rsqrt(v * v + 1e-3)).clamp(-0.5, 0.5) for v in (x + b, x)]
    return torch.cat([y, z]), torch.cat(want)


# -- a delta rule's chunk by reversed scans of tuples
@triton.jit
def affine(a_l, b_l, a_r, b_r):
    return a_l * a_r, a_r * b_l + b_r


class Pair(NamedTuple):
    keep: object
    add: object


@triton.jit
def loaded_pair(a_ptr, b_ptr, offs, ok):
    return Pair(L.load(a_ptr + offs, ok, 1.0), L.load(b_ptr + offs, ok, 0.0))


@triton.jit
def recurrence_kernel(
    a_ptr, b_ptr, y_ptr, last_ptr, T, D, BT: L.constexpr, BD: L.constexpr, REVERSE: L.constexpr
):
    o_d = L.program_id(0) * BD + L.arange(0, BD)
    o_t = L.arange(0, BT)
    m_d = o_d < D
    state = L.zeros([BD], dtype=L.float32)
    n = L.cdiv(T, BT)
    i = 0
    while i < n:
        c = n - 1 - i if REVERSE else i
        t = c * BT + o_t
        offs = t[:, None] * D + o_d[None, :]
        ok = (t < T)[:, None] & m_d[None, :]
        pair = loaded_pair(a_ptr, b_ptr, offs, ok)
        a, b = L.associative_scan((pair.keep, pair.add), 0, affine, reverse=REVERSE)
        y = a * state[None, :] + b
        L.store(y_ptr + offs, y, mask=ok)
        edge: L.constexpr = 0 if REVERSE else BT - 1
        state = L.sum(L.where((o_t == edge)[:, None], y, 0.0), axis=0)
        i += 1
    L.store(last_ptr + o_d, state, mask=m_d)


def recurrence(reverse=False):
    T, D = 21, 10
    a, b = normal(T, D).sigmoid(), normal(T, D, seed=1)
    y, last, h, want = torch.empty(T, D), torch.empty(D), torch.zeros(D), [None] * T
    recurrence_kernel[(2,)](a, b, y, last, T, D, BT=8, BD=8, REVERSE=reverse)
    for t in reversed(range(T)) if reverse else range(T):
        h = want[t] = a[t] * h + b[t]
    return torch.cat([y.flatten(), last]), torch.cat([torch.stack(want).flatten(), h])


def reversed_recurrence():
    return recurrence(True)


# -- attention with a sink, soft caps and a window, by descriptors that the kernel makes
@triton.jit
def capped(x, CAP: core.constexpr):
    if CAP > 0:
        z = exponential(2 * x / CAP)
        return CAP * (z - 1) / (z + 1)
    else:
        return x


@triton.jit
def window_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    sink_ptr,
    o_ptr,
    lse_ptr,
    sm_scale,
    N,
    H: L.constexpr,
    HK: L.constexpr,
    D: L.constexpr,
    BM: L.constexpr,
    BN: L.constexpr,
    WINDOW: L.constexpr,
    CAP: L.constexpr,
):
    start_m, head = L.program_id(0), L.program_id(1)
    group: L.constexpr = H // HK
    q = L.make_tensor_descriptor(
        q_ptr + head * N * D, shape=[N, D], strides=[D, 1], block_shape=[BM, D]
    )
    k = L.make_tensor_descriptor(k_ptr + head // group * N * D, [N, D], [D, 1], [BN, D])
    v = L.make_tensor_descriptor(v_ptr + head // group * N * D, [N, D], [D, 1], [BN, D])
    o = L.make_tensor_descriptor(o_ptr + head * N * D, [N, D], [D, 1], [BM, D])
    q_tile = q.load([start_m * BM, 0])
    m_i = L.full([BM], L.load(sink_ptr + head).to(L.float32) * LOG2E, dtype=L.float32)
    l_i = L.full([BM], 1.0, dtype=L.float32)
    acc = L.zeros([BM, D], dtype=L.float32)
    rows = start_m * BM + L.arange(0, BM)
    lo = L.maximum(start_m * BM - WINDOW, 0) // BN * BN
    hi = min((start_m + 1) * BM, N)
    for start_n in L.range(
        lo, hi, BN, num_stages=2, warp_specialize=False, disallow_acc_multi_buffer=True
    ):
        start_n = L.multiple_of(start_n, BN)
        columns = start_n + L.arange(0, BN)
        s = L.dot(q_tile, L.trans(k.load([start_n, 0])), out_dtype=L.float32)
        s = capped(s * sm_scale, CAP) * LOG2E
        keep = (rows[:, None] >= columns[None, :]) & (rows[:, None] - columns[None, :] < WINDOW)
        s = L.where(keep, s, -1.0e6)
        m_new = L.maximum(m_i, L.max(s, 1))
        p = L.math.exp2(s - m_new[:, None])
        alpha = L.math.exp2(m_i - m_new)
        l_i = l_i * alpha + L.sum(p, 1)
        acc = L.dot(p.to(v_ptr.type.element_ty), v.load([start_n, 0]), acc * alpha[:, None])
        m_i = m_new
    o.store([start_m * BM, 0], (acc / l_i[:, None]).to(o_ptr.dtype.element_ty))
    L.store(lse_ptr + head * N + rows, m_i + L.log2(l_i), mask=rows < N)


def window_attention():
    N, H, HK, D, W, CAP = 48, 2, 1, 16, 20, 8.0
    q, k, v = (normal(h, N, D, seed=i, dtype=torch.float16) for i, h in enumerate((H, HK, HK)))
    sink, o, lse = normal(H, seed=3), torch.empty(H, N, D, dtype=torch.float16), torch.empty(H, N)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
    window_attention_kernel[(3, H)](
        q, k, v, sink, o, lse, 0.25, N, H, HK, D, BM=16, BN=16, WINDOW=W, CAP=CAP
    )
    s = CAP * torch.tanh(q.float() @ k.float().transpose(1, 2) * 0.25 / CAP)
    t = torch.arange(N)
    s = s.masked_fill((t[:, None] < t) | (t[:, None] - t >= W), -torch.inf)
    s = torch.cat([s, sink[:, None, None].expand(H, N, 1)], 2)
    want = s.softmax(2)[..., :-1] @ v.float()
    return torch.cat([o.flatten(), (lse / LOG2E.value).half().flatten()]), torch.cat(
        [want.flatten(), s.logsumexp(2).flatten()]
    )


# -- routing: ranks by a histogram, one order for all experts, atomics with scopes
@triton.jit
def route_kernel(
    topk_ptr, count_ptr, rank_ptr, start_ptr, done_ptr, n, E: L.constexpr, BLOCK: L.constexpr
):
    pid = L.program_id(0)
    offs = pid * BLOCK + L.arange(0, BLOCK)
    expert = L.load(topk_ptr + offs, mask=offs < n, other=E)
    same = (expert[:, None] == expert[None, :]) & (
        L.arange(0, BLOCK)[:, None] > L.arange(0, BLOCK)[None, :]
    )
    within = L.sum(same.to(L.int32), axis=1)
    counts = L.histogram(expert, 2 * E, mask=offs < n)
    e = L.arange(0, 2 * E)
    before = L.atomic_add(count_ptr + e, counts, mask=e < E, sem="relaxed", scope="gpu")
    rank = within + picked(before, L.where(offs < n, expert, 0), axis=0)
    L.store(rank_ptr + offs, rank, mask=offs < n)
    L.debug_barrier()
    last = L.atomic_add(done_ptr, 1, sem="acq_rel", scope="gpu")
    if last == L.num_programs(0) - 1:
        c = L.load(count_ptr + e, mask=e < E, other=0, volatile=True)
        L.store(start_ptr + e, L.cumsum(c, 0) - c, mask=e < E)


def routed():
    n, E = 40, 8
    topk = torch.randint(0, E, (n,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    count, rank, start, done = (torch.zeros(s, dtype=torch.int32) for s in (E, n, E, 1))
    route_kernel[(1,)](topk, count, rank, start, done, n, E, BLOCK=64)
    want = torch.stack([(topk[:i] == topk[i]).sum() for i in range(n)])
    bins = torch.bincount(topk, minlength=E)
    return torch.cat([rank, count, start]), torch.cat([want, bins, bins.cumsum(0) - bins])


# -- tuples of tensors that static loops read, arguments by star
@triton.jit
def summed(first, second, third):
    total = first
    for other in L.static_range(2):
        total += (second, third)[other]
    return total


@triton.jit
def joined_kernel(inputs, strides, out_ptr, n, ACTIVATION: L.constexpr, BLOCK: L.constexpr):
    offs = L.program_id(0) * BLOCK + L.arange(0, BLOCK)
    ok = offs < n
    parts = (
        L.load(inputs[0] + offs * strides[0], mask=ok, other=0.0),
        L.load(inputs[1] + offs * strides[1], mask=ok, other=0.0),
        L.load(inputs[2] + offs * strides[2], mask=ok, other=0.0),
    )
    total = summed(*parts)
    L.store(out_ptr + offs, ACTIVATION(total), mask=ok)


@triton.jit
def squared_relu(x):
    r = L.maximum(x, 0.0)
    return r * r


def joined_sums():
    a, b, c = normal(50), normal(100, seed=1), normal(150, seed=2)
    out = torch.empty(50)
    joined_kernel[(2,)]((a, b, c), (1, 2, 3), out, 50, ACTIVATION=squared_relu, BLOCK=32)
    return out, torch.relu(a + b[::2] + c[::3]) ** 2


# -- packed weights, scales of groups, products of two halves
@triton.jit
def unpacked(packed):
    low = (packed & 0xF).to(L.int8)
    high = (packed >> 4).to(L.int8)
    return L.interleave(low, high) - 8


@triton.jit
def int4_kernel(
    x_ptr,
    w_ptr,
    s_ptr,
    y_ptr,
    M,
    N,
    K,
    BM: L.constexpr,
    BN: L.constexpr,
    BK: L.constexpr,
    GROUP: L.constexpr,
):
    pid = L.program_id(0)
    pid_m, pid_n = pid // L.cdiv(N, BN), pid % L.cdiv(N, BN)
    rm, rn = pid_m * BM + L.arange(0, BM), pid_n * BN + L.arange(0, BN)
    rk = L.arange(0, BK)
    x_ptrs = x_ptr + rm[:, None] * K + rk
    w_ptrs = w_ptr + rn[:, None] * (K // 2) + L.arange(0, BK // 2)
    acc = L.zeros((BM, BN), L.float32)
    for k in L.range(0, K, BK, num_stages=3, flatten=False):
        x = L.load(x_ptrs, mask=(rm < M)[:, None], other=0.0)
        q = unpacked(L.load(w_ptrs, mask=rn[:, None] < N, other=0x88))
        s = L.load(s_ptr + rn * (K // GROUP) + k // GROUP, mask=rn < N, other=0.0)
        w = (q.to(s.dtype) * s[:, None]).to(x.dtype)
        acc = L.dot(x, w.T, acc, max_num_imprecise_acc=0)
        x_ptrs += BK
        w_ptrs += BK // 2
    L.store(
        y_ptr + rm[:, None] * N + rn[None, :],
        acc.to(y_ptr.dtype.element_ty),
        mask=(rm[:, None] < M) & (rn[None, :] < N),
    )


def int4_groups():
    M, N, K, G = 20, 40, 64, 32
    x, s = (
        normal(M, K, dtype=torch.float16),
        normal(N, K // G, seed=1, dtype=torch.float16).abs() * 0.1,
    )
    w = torch.randint(
        0, 256, (N, K // 2), generator=torch.Generator().manual_seed(2), dtype=torch.uint8
    )
    y = torch.empty(M, N, dtype=torch.float16)
    int4_kernel[(4,)](x, w, s, y, M, N, K, BM=16, BN=32, BK=32, GROUP=G)
    q = torch.stack([w & 15, w >> 4], 2).reshape(N, K).float() - 8
    return y, x.float() @ (q.reshape(N, K // G, G) * s.float()[:, :, None]).reshape(N, K).t()


# -- gradients of a gated unit with a cast by the tensors' types, and prints
@triton.jit
def gate_backward_kernel(
    dy_ptr,
    g_ptr,
    u_ptr,
    dg_ptr,
    du_ptr,
    n,
    limit,
    ALPHA: L.constexpr,
    BLOCK: L.constexpr,
    DEBUG: L.constexpr = False,
):
    pid = L.program_id(0)
    offs = pid * BLOCK + L.arange(0, BLOCK)
    ok = offs < n
    dy, g, u = [L.load(p + offs, mask=ok, other=0).cast(L.float32) for p in (dy_ptr, g_ptr, u_ptr)]
    if DEBUG:
        L.static_print("block", BLOCK, f"alpha {ALPHA}")
        L.device_print("limit", limit)
    inside = (g < limit) & (u < limit) & (u > -limit)
    sig = 1 / (1 + exponential(-ALPHA * g))
    glu = g * sig
    du = tlc.where(inside, dy * glu, 0)
    dg = core.where(inside, dy * (u + 1) * (sig + ALPHA * glu * (1 - sig)), 0.0)
    L.store(du_ptr + offs, du.to(u_ptr.dtype.element_ty, fp_downcast_rounding="rtne"), mask=ok)
    L.store(dg_ptr + offs, dg.to(dg_ptr.type.element_ty), ok)


def gate_backward():
    n = 100
    dy, g, u = (normal(n, seed=i, dtype=torch.float16) for i in range(3))
    dg, du = torch.empty_like(g), torch.empty_like(u)
    gate_backward_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](
        dy, g, u, dg, du, n, 1.5, ALPHA=1.702, BLOCK=32
    )
    f, h, d = g.float(), u.float(), dy.float()
    inside = (f < 1.5) & (h.abs() < 1.5)
    s = torch.sigmoid(1.702 * f)
    want = [
        torch.where(inside, d * (h + 1) * (s + 1.702 * f * s * (1 - s)), 0),
        torch.where(inside, d * f * s, 0),
    ]
    return torch.cat([dg, du]), torch.cat(want)


# -- block pointers that a tuple moves back, step by step
@triton.jit
def blocks_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, sa, sb, BM: L.constexpr, BN: L.constexpr, BK: L.constexpr
):
    pid_n, pid_m = L.program_id(0), L.program_id(1)
    a_block = L.make_block_ptr(
        base=a_ptr,
        shape=(M, K),
        strides=(sa, 1),
        offsets=(pid_m * BM, 0),
        block_shape=(BM, BK),
        order=(1, 0),
    )
    b_block = L.make_block_ptr(
        base=b_ptr,
        shape=(K, N),
        strides=(1, sb),
        offsets=(0, pid_n * BN),
        block_shape=(BK, BN),
        order=(0, 1),
    )
    last = (L.cdiv(K, BK) - 1) * BK
    a_block = L.advance(a_block, (0, last))
    b_block = L.advance(b_block, (last, 0))
    acc = L.zeros([BM, BN], dtype=L.float32)
    for k in range(last, -BK, -BK):
        a = L.load(a_block, boundary_check=(0, 1), padding_option="zero")
        b = L.load(b_block, boundary_check=(0, 1), padding_option="zero")
        acc += L.dot(a, b, allow_tf32=False)
        a_block, b_block = L.advance(a_block, (0, -BK)), L.advance(b_block, (-BK, 0))
    c_block = L.make_block_ptr(c_ptr, (M, N), (N, 1), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0))
    L.store(c_block, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


def falling_blocks():
    M, N, K = 24, 40, 50
    a, b = normal(M, K, dtype=torch.float16), normal(N, K, seed=1, dtype=torch.float16)
    c = torch.empty(M, N, dtype=torch.float16)
    blocks_kernel[(3, 2)](a, b, c, M, N, K, K, K, BM=16, BN=16, BK=16)
    return c, a.float() @ b.float().t()


# -- the largest of a row with their places, as words of 64 bits
@triton.jit
def ordered_kernel(x_ptr, value_ptr, index_ptr, mask_ptr, n, K: L.constexpr, BLOCK: L.constexpr):
    row = L.program_id(0)
    i = L.arange(0, BLOCK)
    x = L.load(x_ptr + row * n + i, mask=i < n, other=float("-inf"))
    bits = x.to(L.uint32, bitcast=True)
    key = bits ^ L.where(x < 0, L.full((), 0xFFFFFFFF, L.uint32), L.full((), 0x80000000, L.uint32))
    word = (key.to(L.uint64) << 32) | (BLOCK - 1 - i).to(L.uint64)
    best = L.topk(word, K)
    place = BLOCK - 1 - (best & 0xFFFFFFFF).to(L.int32)
    k = L.arange(0, K)
    high = (best >> 32).to(L.uint32)
    back = high ^ L.where(
        high >= 0x80000000, L.full((), 0x80000000, L.uint32), L.full((), 0xFFFFFFFF, L.uint32)
    )
    L.store(value_ptr + row * K + k, back.to(L.float32, bitcast=True))
    L.store(index_ptr + row * K + k, place)
    L.store(mask_ptr + row, L.xor_sum(1 << (place % 31), 0))
    L.static_assert(_log2(BLOCK) == 5)


def ordered():
    n, K = 30, 4
    x = normal(3, n)
    value, index, mask = (
        torch.empty(3, K),
        torch.empty(3, K, dtype=torch.int32),
        torch.empty(3, dtype=torch.int32),
    )
    ordered_kernel[(3,)](x, value, index, mask, n, K, BLOCK=32)
    v, index_of = x.topk(K)
    want = torch.zeros(3, dtype=torch.int64)
    for j in range(K):
        want ^= 1 << (index_of[:, j] % 31)
    return torch.cat([value.flatten(), index.flatten().float(), mask.float()]), torch.cat(
        [v.flatten(), index_of.flatten().float(), want.float()]
    )


CASES = [
    norm_lookup, member, biased, recurrence, reversed_recurrence, window_attention, routed, joined_sums, int4_groups,
    gate_backward, falling_blocks, ordered,
]  # fmt: skip
