"""Kernels of plain Triton whose products depend on each other, and whose rows are found through others."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# -- a gated delta rule by chunks, with a triangular system that rows solve
@triton.jit
def load_rows(p, rows, cols, stride, n, D):
    return tl.load(
        p + rows[:, None] * stride + cols[None, :],
        mask=(rows[:, None] < n) & (cols[None, :] < D),
        other=0.0,
    )


@triton.jit
def delta_kernel(
    q, k, v, beta, g, o, h0, ht, T, scale, D: tl.constexpr, DV: tl.constexpr, BT: tl.constexpr
):
    b = tl.program_id(0)
    q += b * T * D
    k += b * T * D
    v += b * T * DV
    o += b * T * DV
    beta += b * T
    g += b * T
    d, dv, t = tl.arange(0, D), tl.arange(0, DV), tl.arange(0, BT)
    h = tl.load(h0 + b * D * DV + d[:, None] * DV + dv[None, :])
    for c in range(0, tl.cdiv(T, BT)):
        rows = c * BT + t
        ok = rows < T
        bk, bq, bv = (
            load_rows(k, rows, d, D, T, D),
            load_rows(q, rows, d, D, T, D),
            load_rows(v, rows, dv, DV, T, DV),
        )
        bb = tl.load(beta + rows, mask=ok, other=0.0)
        bg = tl.cumsum(tl.load(g + rows, mask=ok, other=0.0), 0)
        decay = tl.exp(tl.where(t[:, None] >= t[None, :], bg[:, None] - bg[None, :], 0.0))
        a = tl.dot(bk * bb[:, None], tl.trans(bk), allow_tf32=False) * decay
        a = tl.where(t[:, None] > t[None, :], -a, 0.0)
        for i in range(1, BT):
            row = tl.sum(tl.where((t == i)[:, None], a, 0.0), 0)
            row += tl.sum(row[:, None] * a, 0) * (t < i)
            a = tl.where((t == i)[:, None], row[None, :], a)
        a += (t[:, None] == t[None, :]).to(tl.float32)
        u = tl.dot(a, bv * bb[:, None], allow_tf32=False)
        w = tl.dot(a, bk * (bb * tl.exp(bg))[:, None], allow_tf32=False)
        u -= tl.dot(w, h, allow_tf32=False)
        s = tl.dot(bq, tl.trans(bk), allow_tf32=False) * decay
        s = tl.where(t[:, None] >= t[None, :], s, 0.0)
        y = tl.dot(bq * tl.exp(bg)[:, None], h, allow_tf32=False) + tl.dot(s, u, allow_tf32=False)
        tl.store(o + rows[:, None] * DV + dv[None, :], y * scale, mask=ok[:, None])
        last = tl.sum(tl.where(t == tl.minimum(BT, T - c * BT) - 1, bg, 0.0), 0)
        h = h * tl.exp(last) + tl.dot(
            tl.trans(bk * tl.exp(last - bg)[:, None]), u, allow_tf32=False
        )
    tl.store(ht + b * D * DV + d[:, None] * DV + dv[None, :], h)


def delta():
    B, T, D, DV = 2, 40, 16, 32
    q, k, v = (
        normal(B, T, D) * 0.3,
        torch.nn.functional.normalize(normal(B, T, D, seed=1), dim=-1),
        normal(B, T, DV, seed=2),
    )
    beta, g = normal(B, T, seed=3).sigmoid(), -normal(B, T, seed=4).abs() * 0.1
    h0, ht, o = normal(B, D, DV, seed=5) * 0.1, torch.empty(B, D, DV), torch.empty(B, T, DV)
    delta_kernel[(B,)](q, k, v, beta, g, o, h0, ht, T, 0.25, D=D, DV=DV, BT=16)
    h, ys = h0.clone(), []
    for t in range(T):
        h = h * g[:, t].exp()[:, None, None]
        err = (v[:, t] - torch.einsum("bd,bdv->bv", k[:, t], h)) * beta[:, t, None]
        h = h + k[:, t, :, None] * err[:, None]
        ys.append(torch.einsum("bd,bdv->bv", q[:, t], h) * 0.25)
    return torch.cat([o.flatten(), ht.flatten()]), torch.cat(
        [torch.stack(ys, 1).flatten(), h.flatten()]
    )


# -- two products with an activation, whose result is loaded again
@triton.jit
def mlp_kernel(
    x_desc, w1_desc, w2_desc, y_desc, H, BM: tl.constexpr, BH: tl.constexpr, D: tl.constexpr
):
    row = tl.program_id(0) * BM
    x = x_desc.load([row, 0])
    acc = tl.zeros((BM, D), tl.float32)
    for h in tl.range(0, H, BH, num_stages=2):
        a = tl.dot(x, w1_desc.load([h, 0]).T)
        a = a * tl.sigmoid(a)
        acc = tl.dot(a.to(x.dtype), w2_desc.load([h, 0]), acc)
    y_desc.store([row, 0], acc.to(x.dtype))
    again = y_desc.load([row, 0])
    y_desc.store([row, 0], again + x)


def fused_mlp():
    M, D, H = 64, 32, 128
    x, w1, w2 = (
        normal(M, D, dtype=torch.float16),
        normal(H, D, seed=1, dtype=torch.float16) * 0.2,
        normal(H, D, seed=2, dtype=torch.float16) * 0.2,
    )
    y = torch.empty_like(x)
    de = TensorDescriptor.from_tensor
    mlp_kernel[(2,)](
        de(x, [32, D]), de(w1, [32, D]), de(w2, [32, D]), de(y, [32, D]), H, BM=32, BH=32, D=D
    )
    a = x.float() @ w1.float().t()
    return y, (torch.nn.functional.silu(a) @ w2.float()).half().float() + x.float()


# -- a divergence of two rows, and a function that two kernels call
@triton.jit
def row_lse(p, n, BLOCK: tl.constexpr):
    m = float("-inf")
    s = 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(p + i, mask=i < n, other=float("-inf")).to(tl.float32)
        top = tl.max(x, 0)
        new = tl.maximum(m, top)
        s = s * tl.exp(m - new) + tl.sum(tl.exp(x - new), 0)
        m = new
    return m + tl.log(s)


@triton.jit
def kl_kernel(
    student, teacher, loss, grad, n, temperature, BLOCK: tl.constexpr, REVERSE: tl.constexpr
):
    r = tl.program_id(0).to(tl.int64)
    s, t = student + r * n, teacher + r * n
    ls, lt = row_lse(s, n, BLOCK), row_lse(t, n, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        ok = i < n
        x = tl.load(s + i, mask=ok, other=float("-inf")).to(tl.float32) - ls
        y = tl.load(t + i, mask=ok, other=float("-inf")).to(tl.float32) - lt
        px, py = tl.exp(x), tl.exp(y)
        if REVERSE:
            total += tl.where(ok, px * (x - y), 0.0)
        else:
            total += tl.where(ok, py * (y - x), 0.0)
        tl.store(grad + r * n + i, px - py, mask=ok)
    tl.store(loss + r, tl.sum(total) * (temperature * temperature))


@triton.jit
def lse_kernel(x, out, n, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    tl.store(out + r, row_lse(x + r * n, n, BLOCK))


def kl():
    R, n = 3, 75
    s, t = normal(R, n), normal(R, n, seed=1)
    loss, grad, lse = torch.empty(R), torch.empty(R, n), torch.empty(R)
    kl_kernel[(R,)](s, t, loss, grad, n, 2.0, BLOCK=32, REVERSE=False)
    lse_kernel[(R,)](s, lse, n, BLOCK=32)
    p, q = s.log_softmax(1), t.log_softmax(1)
    return torch.cat([loss, grad.flatten(), lse]), torch.cat(
        [4 * (q.exp() * (q - p)).sum(1), (p.exp() - q.exp()).flatten(), s.logsumexp(1)]
    )


# -- words of sixteen numbers
@triton.jit
def unpack2_kernel(packed, scales, mins, out, n, G: tl.constexpr, BLOCK: tl.constexpr):
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(packed + w, mask=w < n, other=0)
    shifts = tl.arange(0, 16) * 2
    q = (word[:, None] >> shifts[None, :]) & 3
    group = (w * 16) // G
    s, m = (
        tl.load(scales + group, mask=w < n, other=0.0),
        tl.load(mins + group, mask=w < n, other=0.0),
    )
    v = q.to(tl.float32) * s[:, None] + m[:, None]
    tl.store(
        out + w[:, None] * 16 + tl.arange(0, 16)[None, :],
        v.to(out.dtype.element_ty),
        mask=(w < n)[:, None],
    )


def unpack2():
    n, G = 50, 32
    q = torch.randint(0, 4, (n, 16), generator=torch.Generator().manual_seed(1))
    word = (q.long() << (2 * torch.arange(16))).sum(1)
    word = torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)
    s, m = normal(n * 16 // G, seed=2).abs(), normal(n * 16 // G)
    out = torch.empty(n, 16, dtype=torch.float16)
    unpack2_kernel[(2,)](word, s, m, out, n, G, 32)
    return out, q * s.repeat_interleave(2)[:, None] + m.repeat_interleave(2)[:, None]


# -- bags of rows, some of them empty
@triton.jit
def bag_kernel(
    table, idx, offsets, weights, out, D, MODE: tl.constexpr, BD: tl.constexpr, HAS_W: tl.constexpr
):
    bag = tl.program_id(0)
    begin, end = tl.load(offsets + bag), tl.load(offsets + bag + 1)
    d = tl.arange(0, BD)
    acc = tl.full([BD], float("-inf") if MODE == "max" else 0.0, tl.float32)
    if begin == end:
        tl.store(out + bag * D + d, tl.zeros([BD], tl.float32), mask=d < D)
        return
    i = begin
    while i < end:
        row = tl.load(idx + i)
        if row >= 0:
            x = tl.load(table + row * D + d, mask=d < D, other=0.0)
            if HAS_W:
                x *= tl.load(weights + i)
            if MODE == "max":
                acc = tl.maximum(acc, x)
            else:
                acc += x
        i += 1
    if MODE == "mean":
        acc /= (end - begin).to(tl.float32)
    tl.store(out + bag * D + d, acc, mask=d < D)


def bags():
    table, idx = normal(10, 20), torch.tensor([1, 3, -1, 5, 9, 0, 2])
    off, w = torch.tensor([0, 3, 3, 7]), normal(7, seed=1).abs()
    outs = [torch.empty(3, 20) for _ in range(3)]
    for o, mode in zip(outs, ("sum", "mean", "max")):
        bag_kernel[(3,)](table, idx, off, w, o, 20, MODE=mode, BD=32, HAS_W=mode == "sum")
    want = []
    for mode in ("sum", "mean", "max"):
        rows = []
        for a, b in ((0, 3), (3, 3), (3, 7)):
            sel = [(i, idx[i]) for i in range(a, b) if idx[i] >= 0]
            if a == b:
                rows.append(torch.zeros(20))
                continue
            x = torch.stack([table[j] * (w[i] if mode == "sum" else 1) for i, j in sel])
            rows.append(x.amax(0) if mode == "max" else x.sum(0) / (b - a if mode == "mean" else 1))
        want.append(torch.stack(rows))
    return torch.stack(outs), torch.stack(want)


CASES = [delta, fused_mlp, kl, unpack2, bags]
