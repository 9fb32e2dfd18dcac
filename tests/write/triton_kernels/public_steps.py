"""Kernels of plain Triton in the style of public libraries: attention in two parts, gates, gradients, resized images."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- sparsemax: the numbers above a threshold that a sort finds
@triton.jit
def sparsemax_kernel(x_ptr, o_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf")).to(tl.float32)
    ordered = tl.sort(x, descending=True)
    sums = tl.cumsum(tl.where(mask, ordered, 0.0), axis=0)
    inside = mask & (1.0 + (cols + 1) * ordered > sums)
    count = tl.sum(inside.to(tl.int32), axis=0)
    total = tl.sum(tl.where(inside, ordered, 0.0), axis=0)
    tau = (total - 1.0) / count
    tl.store(o_ptr + row * n_cols + cols, tl.maximum(x - tau, 0.0), mask=mask)


def sparsemax():
    rows, n = 3, 100
    x = normal(rows, n)
    o = torch.empty_like(x)
    sparsemax_kernel[(rows,)](x, o, n, BLOCK=128)
    ordered = x.sort(-1, descending=True).values
    sums, places = ordered.cumsum(-1), torch.arange(1, n + 1)
    count = (1 + places * ordered > sums).sum(-1, keepdim=True)
    tau = (sums.gather(1, count - 1) - 1) / count
    return o, (x - tau).clamp(min=0)


# -- rotary embeddings with angles of three positions: time, height, width
@triton.jit
def mrope_kernel(
    q_ptr, k_ptr, cos, sin, num_tokens, n_qh: tl.constexpr, n_kh: tl.constexpr, hd: tl.constexpr,
    pad_qh: tl.constexpr, pad_kh: tl.constexpr, pad_hd: tl.constexpr, t_end: tl.constexpr, h_end: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    q_ptr += pid * (n_qh * hd)
    k_ptr += pid * (n_kh * hd)
    half: tl.constexpr = hd // 2
    t_cos = cos + pid * half
    h_cos = t_cos + num_tokens * half
    w_cos = h_cos + num_tokens * half
    t_sin = sin + pid * half
    h_sin = t_sin + num_tokens * half
    w_sin = h_sin + num_tokens * half
    pair = tl.arange(0, pad_hd // 2)
    in_t = pair < t_end
    in_h = (t_end <= pair) & (pair < h_end)
    in_w = (h_end <= pair) & (pair < half)
    cos_row = tl.load(t_cos + pair, mask=in_t, other=0) + tl.load(h_cos + pair, mask=in_h, other=0)
    cos_row += tl.load(w_cos + pair, mask=in_w, other=0)
    sin_row = tl.load(t_sin + pair, mask=in_t, other=0) + tl.load(h_sin + pair, mask=in_h, other=0)
    sin_row += tl.load(w_sin + pair, mask=in_w, other=0)
    first_q = tl.arange(0, pad_qh)[:, None] * hd + pair[None, :]
    first_k = tl.arange(0, pad_kh)[:, None] * hd + pair[None, :]
    mask_q = (tl.arange(0, pad_qh)[:, None] < n_qh) & (pair[None, :] < half)
    mask_k = (tl.arange(0, pad_kh)[:, None] < n_kh) & (pair[None, :] < half)
    q1 = tl.load(q_ptr + first_q, mask=mask_q, other=0).to(sin_row.dtype)
    k1 = tl.load(k_ptr + first_k, mask=mask_k, other=0).to(sin_row.dtype)
    q2 = tl.load(q_ptr + first_q + half, mask=mask_q, other=0).to(sin_row.dtype)
    k2 = tl.load(k_ptr + first_k + half, mask=mask_k, other=0).to(sin_row.dtype)
    tl.store(q_ptr + first_q, q1 * cos_row - q2 * sin_row, mask=mask_q)
    tl.store(q_ptr + first_q + half, q2 * cos_row + q1 * sin_row, mask=mask_q)
    tl.store(k_ptr + first_k, k1 * cos_row - k2 * sin_row, mask=mask_k)
    tl.store(k_ptr + first_k + half, k2 * cos_row + k1 * sin_row, mask=mask_k)


def mrope():
    N, QH, KH, D = 5, 6, 2, 64
    q, k = normal(N, QH, D, dtype=torch.float16), normal(N, KH, D, seed=1, dtype=torch.float16)
    angles = normal(3, N, D // 2, seed=2)
    cos, sin = angles.cos(), angles.sin()
    rotated = []
    parts = [slice(0, 8), slice(8, 20), slice(20, 32)]
    c, s = (
        torch.cat([one[i, :, part] for i, part in enumerate(parts)], -1)[:, None]
        for one in (cos, sin)
    )
    for one in (q, k):
        a, b = one.float().chunk(2, -1)
        rotated.append(torch.cat([a * c - b * s, b * c + a * s], -1))
    mrope_kernel[(N,)](q, k, cos, sin, N, QH, KH, D, 8, 2, 64, 8, 20)
    return torch.cat([q, k], 1), torch.cat(rotated, 1)


# -- attention of new tokens to cached ones, which a list names, and to one another
@triton.jit
def extend_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, k_cache, v_cache, starts, kv_starts, kv_list, scale, cap,
    H: tl.constexpr, KVH: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    seq, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    kv_head = head // (H // KVH)
    start = tl.load(starts + seq)
    length = tl.load(starts + seq + 1) - start
    prefix_start = tl.load(kv_starts + seq)
    prefix = tl.load(kv_starts + seq + 1) - prefix_start
    offs_d, offs_m, offs_n = tl.arange(0, D), tl.arange(0, BM), tl.arange(0, BN)
    mask_m = block * BM + offs_m < length
    offs_q = (start + block * BM + offs_m[:, None]) * H * D + head * D + offs_d[None, :]
    q = tl.load(q_ptr + offs_q, mask=mask_m[:, None], other=0.0)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    denom = tl.zeros([BM], dtype=tl.float32)
    top = tl.full([BM], -1e30, tl.float32)
    for n in range(0, prefix, BN):
        n = tl.multiple_of(n, BN)
        mask_n = n + offs_n < prefix
        places = tl.load(kv_list + prefix_start + n + offs_n, mask=mask_n, other=0)
        k = tl.load(
            k_cache + places[None, :] * KVH * D + kv_head * D + offs_d[:, None],
            mask=mask_n[None, :],
            other=0.0,
        )
        qk = tl.dot(q.to(k.dtype), k) * scale
        if cap > 0:
            qk = cap * (2.0 / (1.0 + tl.exp(-2.0 * qk / cap)) - 1.0)
        qk = tl.where(mask_m[:, None] & mask_n[None, :], qk, -1e30)
        new = tl.maximum(tl.max(qk, 1), top)
        keep = tl.exp(top - new)
        p = tl.exp(qk - new[:, None])
        denom = denom * keep + tl.sum(p, 1)
        v = tl.load(
            v_cache + places[:, None] * KVH * D + kv_head * D + offs_d[None, :],
            mask=mask_n[:, None],
            other=0.0,
        )
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v)
        top = new
    end = tl.minimum(length, (block + 1) * BM)
    for n in range(0, end, BN):
        n = tl.multiple_of(n, BN)
        mask_n = n + offs_n < end
        offs_k = (start + n + offs_n[None, :]) * KVH * D + kv_head * D + offs_d[:, None]
        k = tl.load(k_ptr + offs_k, mask=mask_n[None, :], other=0.0)
        qk = tl.dot(q, k) * scale
        if cap > 0:
            qk = cap * (2.0 / (1.0 + tl.exp(-2.0 * qk / cap)) - 1.0)
        causal = block * BM + offs_m[:, None] >= n + offs_n[None, :]
        qk = tl.where(causal & mask_m[:, None] & mask_n[None, :], qk, -1e30)
        new = tl.maximum(tl.max(qk, 1), top)
        keep = tl.exp(top - new)
        p = tl.exp(qk - new[:, None])
        denom = denom * keep + tl.sum(p, 1)
        offs_v = (start + n + offs_n[:, None]) * KVH * D + kv_head * D + offs_d[None, :]
        v = tl.load(v_ptr + offs_v, mask=mask_n[:, None], other=0.0)
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v)
        top = new
    tl.store(o_ptr + offs_q, acc / denom[:, None], mask=mask_m[:, None])


def extend_attention():
    H, KVH, D, cap = 4, 2, 32, 20.0
    lengths, prefixes = [20, 9], [25, 40]
    starts = torch.tensor([0, 20, 29], dtype=torch.int32)
    kv_starts = torch.tensor([0, 25, 65], dtype=torch.int32)
    kv_list = torch.randperm(80, generator=torch.Generator().manual_seed(7))[:65].to(torch.int32)
    q = normal(29, H, D, dtype=torch.float16)
    k, v = (normal(29, KVH, D, seed=s, dtype=torch.float16) for s in (1, 2))
    k_cache, v_cache = (normal(80, KVH, D, seed=s, dtype=torch.float16) for s in (3, 4))
    o = torch.empty_like(q)
    extend_kernel[(2, H, 2)](
        q, k, v, o, k_cache, v_cache, starts, kv_starts, kv_list, D**-0.5, cap, H, KVH, D, 16, 16
    )
    want = torch.empty(29, H, D)
    for i, (length, prefix) in enumerate(zip(lengths, prefixes)):
        new = slice(int(starts[i]), int(starts[i]) + length)
        listed = kv_list[int(kv_starts[i]) :][:prefix].long()
        keys, values = (
            torch.cat([a[listed], b[new]]).float() for a, b in ((k_cache, k), (v_cache, v))
        )
        keys, values = (one.repeat_interleave(H // KVH, 1) for one in (keys, values))
        s = torch.einsum("mhd,nhd->hmn", q[new].float(), keys) * D**-0.5
        s = cap * torch.tanh(s / cap)
        late = torch.arange(prefix + length)[None] > prefix + torch.arange(length)[:, None]
        s = s.masked_fill(late, -torch.inf)
        want[new] = torch.einsum("hmn,nhd->mhd", s.softmax(-1), values)
    return o, want


# -- gradients of a gate in place: each result takes the memory of an operand
@triton.jit
def gate_in_place_kernel(d_ptr, e_ptr, g_ptr, n_elements, LONG: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    if LONG:
        offsets = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
        n_elements = tl.cast(n_elements, tl.int64)
    else:
        offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n_elements
    d = tl.load(d_ptr + offsets, mask=mask, other=0)
    e = tl.load(e_ptr + offsets, mask=mask, other=0).to(tl.float32)
    g = tl.load(g_ptr + offsets, mask=mask, other=0)
    part = 0.5 * (tl.math.erf(tl.math.rsqrt(2.0) * e) + 1.0)
    f = (part * e).to(d.dtype)
    tl.store(d_ptr + offsets, f * g, mask=mask)
    tl.store(e_ptr + offsets, d * f, mask=mask)
    slope = part + 0.3989422804014327 * e * tl.exp(-0.5 * e * e)
    tl.store(g_ptr + offsets, ((d * g).to(tl.float32) * slope).to(d.dtype), mask=mask)


def gate_in_place():
    n = 1000
    d, e, g = (normal(n, seed=s, dtype=torch.float16) for s in range(3))
    x = e.float()
    part = 0.5 * (torch.erf(x * 0.5**0.5) + 1)
    f = (part * x).half()
    slope = part + 0.3989422804014327 * x * torch.exp(-0.5 * x * x)
    want = torch.stack([f * g, d * f, ((d * g).float() * slope).half()])
    gate_in_place_kernel[(2,)](d, e, g, n, LONG=True, BLOCK=512)
    return torch.stack([d, e, g]), want


# -- the largest number so far and its place, along rows
@triton.jit
def larger(a, i, b, j):
    later = (b > a) | ((b == a) & (j > i))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def cummax_kernel(x_ptr, out_ptr, place_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    best = tl.full([BM], -float("inf"), tl.float32)
    place = tl.zeros([BM], tl.int32)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        offsets = rows[:, None] * N + cols[None, :]
        x = tl.load(x_ptr + offsets, mask=mask, other=-float("inf")).to(tl.float32)
        places = tl.broadcast_to(cols[None, :], [BM, BN])
        top, highest = tl.associative_scan((x, places), 1, larger)
        before = top < best[:, None]
        top, highest = (
            tl.where(before, best[:, None], top),
            tl.where(before, place[:, None], highest),
        )
        tl.store(out_ptr + offsets, top, mask=mask)
        tl.store(place_ptr + offsets, highest.to(tl.int64), mask=mask)
        last = cols[None, :] == start + BN - 1
        best = tl.max(tl.where(last, top, -float("inf")), 1)
        place = tl.sum(tl.where(last, highest, 0), 1)


def cummax():
    M, N = 6, 90
    x = normal(M, N)
    out, places = torch.empty_like(x), torch.empty(M, N, dtype=torch.int64)
    cummax_kernel[(2,)](x, out, places, M, N, BM=4, BN=32)
    want = x.cummax(1)
    return torch.stack([out, places.float()]), torch.stack([want.values, want.indices.float()])


# -- images of another size, each number from four neighbours
@triton.jit
def bilinear_kernel(
    out_ptr, x_ptr, C, OH, OW, IH, IW, scale_h, scale_w, ALIGNED: tl.constexpr, BX: tl.constexpr, BY: tl.constexpr
):  # fmt: skip
    x = tl.program_id(0) * BX + tl.arange(0, BX)
    y = tl.program_id(1) * BY + tl.arange(0, BY)
    if ALIGNED:
        real_x, real_y = x * scale_w, y * scale_h
    else:
        real_x = tl.maximum((x + 0.5) * scale_w - 0.5, 0.0)
        real_y = tl.maximum((y + 0.5) * scale_h - 0.5, 0.0)
    x0, y0 = real_x.to(tl.int32), real_y.to(tl.int32)
    lx, ly = real_x - x0, real_y - y0
    x1, y1 = tl.minimum(x0 + 1, IW - 1), tl.minimum(y0 + 1, IH - 1)
    mask = (y[:, None] < OH) & (x[None, :] < OW)
    for c in range(C):
        plane = x_ptr + c * IH * IW
        a = tl.load(plane + y0[:, None] * IW + x0[None, :], mask=mask, other=0.0)
        b = tl.load(plane + y0[:, None] * IW + x1[None, :], mask=mask, other=0.0)
        d = tl.load(plane + y1[:, None] * IW + x0[None, :], mask=mask, other=0.0)
        e = tl.load(plane + y1[:, None] * IW + x1[None, :], mask=mask, other=0.0)
        above = a * (1.0 - lx)[None, :] + b * lx[None, :]
        below = d * (1.0 - lx)[None, :] + e * lx[None, :]
        value = above * (1.0 - ly)[:, None] + below * ly[:, None]
        tl.store(out_ptr + (c * OH + y[:, None]) * OW + x[None, :], value, mask=mask)


def bilinear():
    C, IH, IW, OH, OW = 3, 11, 13, 20, 30
    x = normal(C, IH, IW)
    out = torch.empty(C, OH, OW)
    bilinear_kernel[(2, 3)](out, x, C, OH, OW, IH, IW, IH / OH, IW / OW, False, BX=16, BY=8)
    want = torch.nn.functional.interpolate(x[None], size=(OH, OW), mode="bilinear")[0]
    return out, want


# -- gradients of weights that are a direction and a length
@triton.jit
def weight_norm_backward_kernel(
    v_grad, g_grad, w, v, g, norm, M, N, eps, BM: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    row_mask = rows < M
    length = tl.load(g + rows, mask=row_mask, other=0.0).to(tl.float32)
    size = tl.load(norm + rows, mask=row_mask, other=1.0).to(tl.float32)
    dots = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)[None, :]
        mask = (cols < N) & row_mask
        one = tl.load(v + rows * N + cols, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(w + rows * N + cols, mask=mask, other=0.0).to(tl.float32)
        dots += one * grad
    dot = tl.sum(dots, 1)[:, None]
    for start in range(0, N, BN):
        cols = start + tl.arange(0, BN)[None, :]
        mask = (cols < N) & row_mask
        one = tl.load(v + rows * N + cols, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(w + rows * N + cols, mask=mask, other=0.0).to(tl.float32)
        back = length * (grad / (size + eps) - one / (size * size * size + eps) * dot)
        tl.store(v_grad + rows * N + cols, back, mask=mask)
    tl.store(g_grad + rows, dot / (size + eps), mask=row_mask)


def weight_norm_backward():
    M, N = 10, 150
    v, g = normal(M, N), normal(M, 1, seed=1)
    w = normal(M, N, seed=2)
    norm = v.norm(dim=1, keepdim=True)
    v_grad, g_grad = torch.empty(M, N), torch.empty(M, 1)
    weight_norm_backward_kernel[(3,)](v_grad, g_grad, w, v, g, norm, M, N, 1e-12, BM=4, BN=64)
    dot = (v * w).sum(1, keepdim=True)
    want = g * (w / norm - v / norm**3 * dot)
    return torch.cat([v_grad, g_grad], 1), torch.cat([want, dot / norm], 1)


# -- gradients of a gated norm of groups; each program adds up the weight's of its rows
@triton.jit
def gated_norm_backward_kernel(
    x_ptr, w_ptr, z_ptr, dy_ptr, dx_ptr, dw_ptr, dz_ptr, rstd_ptr, stride, M, N, rows_per,
    RECOMPUTE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    part, group = tl.program_id(0), tl.program_id(1)
    start = part * rows_per
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x_ptr += start * stride + group * N
    z_ptr += start * stride + group * N
    dy_ptr += start * stride + group * N
    dx_ptr += start * stride + group * N
    dz_ptr += start * stride + group * N
    rstd_ptr += group * M
    w = tl.load(w_ptr + group * N + cols, mask=mask).to(tl.float32)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(start, min((part + 1) * rows_per, M)):
        x = tl.load(x_ptr + cols, mask=mask, other=0).to(tl.float32)
        dy = tl.load(dy_ptr + cols, mask=mask, other=0).to(tl.float32)
        z = tl.load(z_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(z)
        rstd = tl.load(rstd_ptr + row)
        x_hat = tl.where(mask, x * rstd, 0.0)
        y = x_hat * w
        dz = dy * y * sigmoid * (1 + z * (1 - sigmoid))
        tl.store(dz_ptr + cols, dz, mask=mask)
        if RECOMPUTE:
            tl.store(x_ptr + cols, y * z * sigmoid, mask=mask)
        dy *= z * sigmoid
        wdy = w * dy
        c1 = tl.sum(x_hat * wdy, axis=0) / N
        tl.store(dx_ptr + cols, (wdy - x_hat * c1) * rstd, mask=mask)
        dw += dy * x_hat
        x_ptr += stride
        z_ptr += stride
        dy_ptr += stride
        dx_ptr += stride
        dz_ptr += stride
    tl.store(dw_ptr + part * stride + group * N + cols, dw, mask=mask)


def gated_norm_backward():
    M, G, N = 7, 2, 96
    x, z, dy = (normal(M, G * N, seed=s).requires_grad_(s < 2) for s in range(3))
    w = normal(G * N, seed=3).requires_grad_()
    rstd = (x.detach().view(M, G, N).square().mean(-1) + 1e-5).rsqrt()
    y = (x.view(M, G, N) * (x.view(M, G, N).square().mean(-1, keepdim=True) + 1e-5).rsqrt()).view(
        M, -1
    )
    (y * w * torch.nn.functional.silu(z)).backward(dy)
    dx, dz, dw = torch.empty(M, G * N), torch.empty(M, G * N), torch.empty(3, G * N)
    gated_norm_backward_kernel[(3, G)](
        x.detach().clone(), w.detach(), z.detach(), dy, dx, dw, dz, rstd.t().contiguous(), G * N, M, N, 3, False, BLOCK=128
    )  # fmt: skip
    return torch.cat([dx, dz, dw.sum(0)[None]]), torch.cat([x.grad, z.grad, w.grad[None]])


# -- one query against keys and values of four bits, which have a scale and a shift for each group
@triton.jit
def unpacked(words, scale, shift, PACKED: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    nibbles = words[:, :, None] >> (tl.arange(0, PACKED) * 4)[None, None, :]
    values = (nibbles & 0xF).to(tl.float32) * scale[:, :, None] + shift[:, :, None]
    return tl.reshape(values, (BN, D))


@triton.jit
def int4_decode_kernel(
    q_ptr, k_ptr, v_ptr, ks_ptr, vs_ptr, o_ptr, lse_ptr, length, split, scale,
    D: tl.constexpr, G: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Attend to one part of the keys; 8 values of 4 bits are a word, each of the G groups of a row has two halves."""
    part, head = tl.program_id(0), tl.program_id(1)
    W: tl.constexpr = D // 8
    words, d = tl.arange(0, W), tl.arange(0, D)
    group = words // (W // G)
    q = tl.load(q_ptr + head * D + d) * scale
    top, total = -float("inf"), 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    begin = part * split
    end = tl.minimum(begin + split, length)
    for n in range(begin, end, BN):
        token = n + tl.arange(0, BN)
        inside = token < end
        row = (head * length + token)[:, None]
        k = tl.load(k_ptr + row * W + words[None, :], mask=inside[:, None], other=0)
        ks = tl.load(ks_ptr + row * G + group[None, :], mask=inside[:, None], other=0)
        k_scale = (ks & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        k_shift = (ks >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        keys = unpacked(k, k_scale, k_shift, 8, BN, D)
        s = tl.where(inside, tl.sum(keys * q[None, :], 1), -float("inf"))
        new = tl.maximum(top, tl.max(s, 0))
        p = tl.exp2(s - new)
        keep = tl.exp2(top - new)
        v = tl.load(v_ptr + row * W + words[None, :], mask=inside[:, None], other=0)
        vs = tl.load(vs_ptr + row * G + group[None, :], mask=inside[:, None], other=0)
        v_scale = (vs & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        v_shift = (vs >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        values = unpacked(v, v_scale, v_shift, 8, BN, D)
        acc = acc * keep + tl.sum(p[:, None] * values, 0)
        total = total * keep + tl.sum(p, 0)
        top = new
    tl.store(o_ptr + (part * tl.num_programs(1) + head) * D + d, acc / total)
    tl.store(lse_ptr + part * tl.num_programs(1) + head, top + tl.log2(total))


def int4_decode():
    H, n, D, G, split = 2, 50, 64, 2, 32
    generator = torch.Generator().manual_seed(5)
    q = normal(H, D)
    words, scales, rows = [], [], []
    for seed in (1, 2):
        codes = torch.randint(0, 16, (H, n, D), generator=generator)
        packed = (codes.view(H, n, D // 8, 8) << (torch.arange(8) * 4)).sum(-1)
        words.append((packed - (packed >> 31 << 32)).to(torch.int32))
        pair = torch.stack(
            [normal(H, n, G, seed=seed).abs() * 0.1, normal(H, n, G, seed=seed + 2)], -1
        ).half()
        scales.append(pair.contiguous().view(torch.int32).view(H, n, G))
        wide = pair.float().repeat_interleave(D // G, 2)
        rows.append(codes * wide[..., 0] + wide[..., 1])
    o, lse = torch.empty(2, H, D), torch.empty(2, H)
    int4_decode_kernel[(2, H)](
        q, words[0], words[1], scales[0], scales[1], o, lse, n, split, D**-0.5 * 1.44269504, D, G, BN=16
    )  # fmt: skip
    share = torch.softmax(lse * 0.6931471805599453, 0)
    s = torch.einsum("hd,hnd->hn", q, rows[0]) * D**-0.5
    return (o * share[..., None]).sum(0), torch.einsum("hn,hnd->hd", s.softmax(-1), rows[1])


CASES = [
    sparsemax, mrope, extend_attention, gate_in_place, cummax, bilinear, weight_norm_backward, gated_norm_backward,
    int4_decode,
]  # fmt: skip
