"""Kernels of plain Triton over rows. Each case returns results and what torch computes."""

import torch
import triton
import triton.language as tl
from torch.nn import functional


@triton.jit
def softmax_kernel(out_ptr, in_ptr, stride_in, stride_out, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(in_ptr + row * stride_in + cols, mask=mask, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    num = tl.exp(x)
    tl.store(out_ptr + row * stride_out + cols, num / tl.sum(num, axis=0), mask=mask)


@triton.jit
def online_softmax_kernel(out_ptr, in_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    m = tl.full([BLOCK], -float("inf"), tl.float32)
    s = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(in_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
        new = tl.maximum(m, x)
        s = tl.where(new == -float("inf"), 0.0, s * tl.exp(m - new) + tl.exp(x - new))
        m = new
    top = tl.max(m, 0)
    total = tl.sum(tl.where(m == -float("inf"), 0.0, s * tl.exp(m - top)), 0)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(in_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
        tl.store(out_ptr + row * n_cols + cols, tl.exp(x - top) / total, mask=cols < n_cols)


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / n + eps)
    tl.store(rstd_ptr + row, rstd)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    tl.store(y_ptr + row * n + cols, x * rstd * w, mask=mask)


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, M, n, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    w = tl.load(w_ptr + cols, mask=mask, other=0.0)
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(pid * ROWS, min(pid * ROWS + ROWS, M)):
        x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0)
        dy = tl.load(dy_ptr + row * n + cols, mask=mask, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        normed = x * rstd
        dw += dy * normed
        m = dy * w
        dx = rstd * (m - normed * (tl.sum(m * normed, axis=0) / n))
        tl.store(dx_ptr + row * n + cols, dx, mask=mask)
    tl.store(dw_ptr + pid * n + cols, dw, mask=mask)


@triton.jit
def layer_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * n
    y_ptr += row * n
    mean_acc = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mean_acc += tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
    mean = tl.sum(mean_acc, axis=0) / n
    var_acc = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < n, other=0.0).to(tl.float32)
        x = tl.where(cols < n, x - mean, 0.0)
        var_acc += x * x
    rstd = 1 / tl.sqrt(tl.sum(var_acc, axis=0) / n + eps)
    for off in range(0, n, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < n
        w = tl.load(w_ptr + cols, mask=mask)
        b = tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def cross_entropy_kernel(logits_ptr, labels_ptr, loss_ptr, n_cols, IGNORE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    label = tl.load(labels_ptr + row)
    m = -float("inf")
    d = 0.0
    for i in range(0, n_cols, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * n_cols + offs, mask=offs < n_cols, other=-float("inf"))
        m_new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(x - m_new))
        m = m_new
    if label == IGNORE:
        tl.store(loss_ptr + row, 0.0)
    else:
        picked = tl.load(logits_ptr + row * n_cols + label)
        tl.store(loss_ptr + row, m + tl.log(d) - picked)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def swiglu_kernel(a_ptr, b_ptr, c_ptr, stride, n_cols: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    a_ptr += pid * stride
    b_ptr += pid * stride
    c_ptr += pid * stride
    col = tl.arange(0, BLOCK)
    mask = col < n_cols
    a = tl.load(a_ptr + col, mask=mask, other=0).to(tl.float32)
    b = tl.load(b_ptr + col, mask=mask, other=0)
    tl.store(c_ptr + col, silu(a).cast(b.dtype) * b, mask=mask)


@triton.jit
def rope_kernel(q_ptr, cos_ptr, sin_ptr, T, H: tl.constexpr, D: tl.constexpr, PAD_H: tl.constexpr):
    t = tl.program_id(0)
    half = tl.arange(0, D // 2)
    cos = tl.load(cos_ptr + t * (D // 2) + half)
    sin = tl.load(sin_ptr + t * (D // 2) + half)
    head = tl.arange(0, PAD_H)
    first = t * H * D + head[:, None] * D + half[None, :]
    mask = head[:, None] < H
    a = tl.load(q_ptr + first, mask=mask, other=0)
    b = tl.load(q_ptr + first + D // 2, mask=mask, other=0)
    tl.store(q_ptr + first, a * cos[None, :] - b * sin[None, :], mask=mask)
    tl.store(q_ptr + first + D // 2, b * cos[None, :] + a * sin[None, :], mask=mask)


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def embedding_kernel(ids_ptr, table_ptr, out_ptr, n, dim: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ids = tl.load(ids_ptr + rows, mask=rows < n, other=0)
    mask = (rows[:, None] < n) & (cols[None, :] < dim)
    values = tl.load(table_ptr + ids[:, None] * dim + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + rows[:, None] * dim + cols[None, :], values, mask=mask)


@triton.jit
def quantize_kernel(x_ptr, q_ptr, scale_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-10) / 127.0
    q = tl.floor(x / scale + 0.5)
    tl.store(q_ptr + row * n + cols, q.to(tl.int8), mask=cols < n)
    tl.store(scale_ptr + row, scale)


@triton.jit
def argmax_kernel(x_ptr, out_ptr, best_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=-float("inf"))
    best, index = tl.max(x, axis=0, return_indices=True)
    tl.store(out_ptr + row, index)
    tl.store(best_ptr + row, best)


@triton.jit
def combine(a_decay, a_value, b_decay, b_value):
    return a_decay * b_decay, b_decay * a_value + b_value


@triton.jit
def linear_scan_kernel(decay_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    decay = tl.load(decay_ptr + row * n + cols, mask=mask, other=1.0)
    x = tl.load(x_ptr + row * n + cols, mask=mask, other=0.0)
    _, y = tl.associative_scan((decay, x), 0, combine)
    tl.store(out_ptr + row * n + cols, y, mask=mask)


@triton.jit
def causal_conv_kernel(x_ptr, w_ptr, out_ptr, T, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    channel = tl.program_id(0)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in tl.static_range(WIDTH):
        place = t - (WIDTH - 1) + i
        x = tl.load(x_ptr + channel * T + place, mask=(place >= 0) & (place < T), other=0.0)
        acc += x * tl.load(w_ptr + channel * WIDTH + i)
    tl.store(out_ptr + channel * T + t, acc, mask=t < T)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0)
    tl.atomic_add(out_ptr + x, 1, mask=(offsets < n) & (x < BINS))


@triton.jit
def group_norm_kernel(x_ptr, y_ptr, C, HW, eps, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    base = pid * GROUP * HW
    size = GROUP * HW
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    x = tl.load(x_ptr + base + offs, mask=mask, other=0.0)
    mean = tl.sum(x, 0) / size
    centered = tl.where(mask, x - mean, 0.0)
    var = tl.sum(centered * centered, 0) / size
    tl.store(y_ptr + base + offs, centered * tl.math.rsqrt(var + eps), mask=mask)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def softmax():
    x = rows(8, 100)
    out = torch.empty_like(x)
    softmax_kernel[(8,)](out, x, x.stride(0), out.stride(0), 100, BLOCK=128)
    return out, x.softmax(1)


def online_softmax():
    x = rows(4, 300)
    out = torch.empty_like(x)
    online_softmax_kernel[(4,)](out, x, 300, BLOCK=128)
    return out, x.softmax(1)


def rms_norm():
    x, w = rows(6, 200), rows(200, seed=1)
    y, rstd = torch.empty_like(x), torch.empty(6)
    rms_norm_kernel[(6,)](x, w, y, rstd, 200, 1e-6, BLOCK=256)
    return y, x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() * w


def rms_norm_backward():
    x, w, dy = rows(7, 60).requires_grad_(), rows(60, seed=1).requires_grad_(), rows(7, 60, seed=2)
    rstd = (x.square().mean(1, keepdim=True) + 1e-6).rsqrt()
    (x * rstd * w).backward(dy)
    dx, dw = torch.empty(7, 60), torch.empty(4, 60)
    args = dy, x.detach(), w.detach(), rstd.detach().flatten(), dx, dw
    rms_norm_backward_kernel[(4,)](*args, 7, 60, ROWS=2, BLOCK=64)
    return torch.cat([dx, dw.sum(0, keepdim=True)]), torch.cat([x.grad, w.grad[None]])


def layer_norm():
    x, w, b = rows(4, 300), rows(300, seed=1), rows(300, seed=2)
    y = torch.empty_like(x)
    layer_norm_kernel[(4,)](x, w, b, y, 300, 1e-5, BLOCK=128)
    return y, functional.layer_norm(x, (300,), w, b)


def cross_entropy():
    x, labels = rows(6, 500), torch.tensor([3, 499, -100, 0, 77, 250])
    loss = torch.empty(6)
    cross_entropy_kernel[(6,)](x, labels, loss, 500, IGNORE=-100, BLOCK=128)
    return loss, functional.cross_entropy(x, labels, reduction="none", ignore_index=-100)


def swiglu():
    a, b = rows(4, 100).half(), rows(4, 100, seed=1).half()
    c = torch.empty_like(a)
    swiglu_kernel[(4,)](a, b, c, 100, 100, BLOCK=128)
    return c, functional.silu(a) * b


def rope():
    q, angles = rows(5, 3, 32), rows(5, 16, seed=1)
    cos, sin = angles.cos(), angles.sin()
    a, b = q.chunk(2, -1)
    want = torch.cat([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1)
    out = q.clone()
    rope_kernel[(5,)](out, cos, sin, 5, H=3, D=32, PAD_H=4)
    return out, want


def dropout():
    x = torch.ones(1000)
    out = torch.empty_like(x)
    dropout_kernel[(8,)](x, out, 1000, 0.5, 123, BLOCK=128)
    share = (out != 0).float().mean()
    assert ((out == 0) | (out == 2)).all() and 0.4 < share < 0.6
    again = torch.empty_like(x)
    dropout_kernel[(8,)](x, again, 1000, 0.5, 123, BLOCK=128)
    return out, again


def embedding():
    ids, table = torch.randint(0, 40, (30,)), rows(40, 50)
    out = torch.empty(30, 50)
    embedding_kernel[(2, 2)](ids, table, out, 30, 50, BLOCK_M=16, BLOCK_N=32)
    return out, table[ids]


def quantize():
    x = rows(4, 100)
    q, scale = torch.empty(4, 100, dtype=torch.int8), torch.empty(4)
    quantize_kernel[(4,)](x, q, scale, 100, BLOCK=128)
    want = x.abs().amax(1) / 127
    return torch.cat([q * scale[:, None], scale[:, None]], 1), torch.cat(
        [(x / want[:, None] + 0.5).floor() * want[:, None], want[:, None]], 1
    )


def argmax():
    x = rows(5, 77)
    index, best = torch.empty(5, dtype=torch.int32), torch.empty(5)
    argmax_kernel[(5,)](x, index, best, 77, BLOCK=128)
    return torch.stack([index.float(), best]), torch.stack([x.argmax(1).float(), x.amax(1)])


def linear_scan():
    decay, x = rows(3, 50).sigmoid(), rows(3, 50, seed=1)
    out, state, want = torch.empty(3, 50), torch.zeros(3), []
    for t in range(50):
        state = state * decay[:, t] + x[:, t]
        want.append(state)
    linear_scan_kernel[(3,)](decay, x, out, 50, BLOCK=64)
    return out, torch.stack(want, 1)


def causal_conv():
    x, w = rows(3, 100), rows(3, 4, seed=1)
    out = torch.empty_like(x)
    causal_conv_kernel[(3, 2)](x, w, out, 100, WIDTH=4, BLOCK=64)
    padded = functional.pad(x, (3, 0))[None]
    return out, functional.conv1d(padded, w[:, None], groups=3)[0]


def histogram():
    x = torch.randint(0, 16, (500,), dtype=torch.int32)
    out = torch.zeros(16, dtype=torch.int32)
    histogram_kernel[(4,)](x, out, 500, BINS=16, BLOCK=128)
    return out, torch.bincount(x, minlength=16).int()


def group_norm():
    x = rows(2, 8, 5, 5)
    y = torch.empty_like(x)
    group_norm_kernel[(8,)](x, y, 8, 25, 1e-5, GROUP=2, BLOCK=64)
    return y, functional.group_norm(x, 4)


CASES = [
    softmax, online_softmax, rms_norm, rms_norm_backward, layer_norm, cross_entropy, swiglu, rope,
    dropout, embedding, quantize, argmax, linear_scan, causal_conv, histogram, group_norm,
]  # fmt: skip
