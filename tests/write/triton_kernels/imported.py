"""Kernels that import functions one by one and from other files, and products that `tl.dot` has besides the plain one."""

import shared.activations as activations
import torch
import triton
import triton.language.core as core
from shared.activations import offsets
from triton import cdiv, heuristics, jit, next_power_of_2
from triton import language as tl
from triton.language import arange, load, program_id, store
from triton.language.math import exp

BASE: tl.constexpr = 2.0


@jit
def listed_kernel(x, y, n, B: tl.constexpr):
    i = program_id(0) * B + arange(0, B)
    v = load(x + i, i < n, 1.0)
    for k in tl.range(1, 7, step=3):
        v += core.where(v > 0, v, -v) * k
    store(y + i, exp(-v) * BASE + cdiv(B, 3), mask=i < n)


@triton.jit
def helped_kernel(x, y, stride, BM: tl.constexpr, BN: tl.constexpr):
    o = offsets(program_id(0), program_id(1), BM, BN, stride)
    store(y + o, activations.quick_gelu(load(x + o)))


@heuristics({"B": lambda arguments: next_power_of_2(arguments["n"])})
@jit
def tuned_kernel(x, y, n, B: tl.constexpr):
    i = arange(0, B)
    store(y + i, load(x + i, mask=i < n, other=0.0) + B, mask=i < n)


@triton.jit
def integer_kernel(a, b, c, N: tl.constexpr):
    o = arange(0, N)[:, None] * N + arange(0, N)[None, :]
    once = tl.dot(load(a + o), load(b + o))
    store(c + o, tl.dot(load(a + o), load(b + o), acc=once, out_dtype=tl.int32))


@triton.jit
def precise_kernel(a, b, c, N: tl.constexpr, PRECISION: tl.constexpr):
    o = arange(0, N)[:, None] * N + arange(0, N)[None, :]
    x, y = load(a + o), load(b + o)
    store(c + o, tl.dot(x, y, input_precision="tf32x3"))
    store(c + N * N + o, tl.dot(x, y, input_precision=PRECISION))
    store(c + 2 * N * N + o, tl.dot(x, y, allow_tf32=False))
    store(c + 3 * N * N + o, tl.dot(x, y, input_precision="bf16x6"))


@triton.jit
def batched_kernel(a, b, c, Z: tl.constexpr, N: tl.constexpr):
    row, column = arange(0, N)[None, :, None], arange(0, N)[None, None, :]
    o = arange(0, Z)[:, None, None] * N * N + row * N + column
    store(c + o, tl.dot(load(a + o), load(b + o)))


@triton.jit
def residual_kernel(x, a, b, out, N: tl.constexpr):
    """Add products to a narrow tensor and to a row: the sums are float32, and of the product's shape."""
    o = arange(0, N)[:, None] * N + arange(0, N)[None, :]
    total = load(x + o)
    total += tl.dot(load(a + o), load(b + o))
    bias = load(x + arange(0, N))[None, :]
    bias += tl.dot(load(a + o), load(b + o))
    store(out + o, total * 1000)
    store(out + N * N + o, bias)


@triton.jit
def kahan(sum_a, rest_a, sum_b, rest_b):
    total = sum_a + sum_b
    return total, rest_a + rest_b + ((sum_a - total) + sum_b)


@triton.jit
def decayed_kernel(c, b, x, decay, out, L, D: tl.constexpr, N: tl.constexpr, Q: tl.constexpr):
    """Scan a vector that products use, chain products of two depths, and reduce a pair."""
    i, n, d = arange(0, Q), arange(0, N), arange(0, D)
    state = tl.zeros((N, D), tl.float32)
    for first in range(0, L, Q):
        rows = first + i
        cs = load(c + rows[:, None] * N + n[None, :])
        bs = load(b + rows[:, None] * N + n[None, :])
        xs = load(x + rows[:, None] * D + d[None, :])
        steps = load(decay + rows)
        until = tl.cumsum(steps, 0)
        whole, rest = tl.reduce((steps, tl.zeros([Q], tl.float32)), 0, kahan)
        whole += rest
        scores = tl.dot(cs, tl.trans(bs)) * tl.exp(until[:, None] - until[None, :])
        y = tl.dot(tl.where(i[:, None] >= i[None, :], scores, 0.0).to(xs.dtype), xs)
        y += tl.dot((cs * tl.exp(until)[:, None]).to(xs.dtype), state.to(xs.dtype))
        state = state * tl.exp(whole)
        state += tl.dot((bs * tl.exp(whole - until)[:, None]).to(xs.dtype).T, xs)
        store(out + rows[:, None] * D + d[None, :], y)


@triton.jit
def ranks_kernel(x, bias, out, N: tl.constexpr):
    """Add a row to a matrix without a new axis, as Triton allows."""
    i = arange(0, N)
    m = load(x + i[:, None] * N + i)
    m = m + load(bias + i)
    store(out + i[:, None] * N + i, tl.softmax(tl.dot(m, m)))


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def listed():
    x = randn(100).abs()
    y = torch.empty(100)
    listed_kernel[(2,)](x, y, 100, 64)
    return y, (-10 * x).exp() * 2 + 22


def helped():
    x = randn(32, 64)
    y = torch.empty_like(x)
    helped_kernel[(2, 2)](x, y, 64, 16, 32)
    return y, x * (1.702 * x).sigmoid()


def tuned_once():
    x = randn(100)
    y = torch.empty(100)
    tuned_kernel[(1,)](x, y, 100)
    return y, x + 128


def integer():
    a, b = (torch.randint(-128, 127, (32, 32), dtype=torch.int8) for _ in range(2))
    c = torch.empty(32, 32, dtype=torch.int32)
    integer_kernel[(1,)](a, b, c, 32)
    return c.float(), 2.0 * (a.long() @ b.long())


def precise():
    a, b = randn(32, 32) * 100, randn(32, 32, seed=1)
    c = torch.empty(4, 32, 32)
    precise_kernel[(1,)](a, b, c, 32, "ieee")
    return (c - a @ b).abs().amax((1, 2)).clamp(min=1e-2), torch.full((4,), 1e-2)


def batched():
    a, b = randn(2, 32, 32).half(), randn(2, 32, 32, seed=1).half()
    c = torch.empty(2, 32, 32)
    batched_kernel[(1,)](a, b, c, 2, 32)
    return c, a.float() @ b.float()


def residual():
    x, a, b = randn(32, 32).half(), *((randn(32, 32, seed=s) * 0.01).half() for s in (1, 2))
    out = torch.empty(2, 32, 32)
    residual_kernel[(1,)](x, a, b, out, 32)
    product = a.float() @ b.float()
    return out, torch.stack([(x.float() + product) * 1000, x.float()[0] + product])


def decayed():
    L, D, N, Q = 64, 32, 16, 32
    c, b = ((randn(L, N, seed=s) * 0.3).half() for s in (0, 1))
    x, decay = randn(L, D, seed=2).half(), -randn(L, seed=3).abs() * 0.1
    out, wanted, state = torch.empty(L, D), torch.empty(L, D), torch.zeros(N, D)
    decayed_kernel[(1,)](c, b, x, decay, out, L, D, N, Q)
    for t in range(L):
        state = state * decay[t].exp() + b[t].float()[:, None] * x[t].float()
        wanted[t] = c[t].float() @ state
    return out.half(), wanted


def ranks():
    x, bias = randn(32, 32).half() * 0.3, randn(32, seed=1).half()
    out = torch.empty(32, 32)
    ranks_kernel[(1,)](x, bias, out, 32)
    m = (x + bias).float()
    return out, (m @ m).softmax(0)


CASES = [
    listed, helped, tuned_once, integer, precise, batched, residual, decayed, ranks,
]  # fmt: skip
