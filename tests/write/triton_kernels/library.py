"""Kernels of plain Triton that use its library: sorts, scans, tuning, assembly, atomics."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl


@triton.jit
def sort_kernel(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr, DESCENDING: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y_ptr + i, tl.sort(tl.load(x_ptr + i), 1, DESCENDING))


@triton.jit
def topk_kernel(x_ptr, y_ptr, n, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
    best = tl.topk(x, K)
    tl.store(y_ptr + row * K + tl.arange(0, K), best)


@triton.jit
def long_topk_kernel(x_ptr, y_ptr, n, N: tl.constexpr, K: tl.constexpr):
    """Merge the largest of each block: of numbers that rise and others that fall, the larger ones rise, then fall."""
    row = tl.program_id(0)
    i = tl.arange(0, N)
    best = tl.topk(tl.load(x_ptr + row * n + i), K)
    for start in range(N, n, N):
        x = tl.load(x_ptr + row * n + start + i, mask=start + i < n, other=-float("inf"))
        best = tl.maximum(tl.bitonic_merge(best), tl.topk(x, K, dim=0))
    best = tl.bitonic_merge(best, 0, descending=True)
    tl.store(y_ptr + row * K + tl.arange(0, K), best)


@triton.jit
def flip_kernel(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, tl.flip(tl.flip(x, 1), 0))


@triton.jit
def pick_kernel(x_ptr, i_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y_ptr + i, tl.gather(tl.load(x_ptr + i), tl.load(i_ptr + i), axis=1))


@triton.jit
def joined_kernel(x_ptr, y_ptr, cat_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x_ptr + i), tl.load(x_ptr + N + i)
    tl.store(y_ptr + tl.arange(0, 2 * N), tl.interleave(a, b))
    both = tl.cat(a, b, can_reorder=True)
    tl.store(cat_ptr, tl.sum(both))
    low, high = tl.split(tl.reshape(both, [N, 2]))
    tl.store(cat_ptr + 1, tl.max(low) + tl.max(high))


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def cumulative_kernel(x_ptr, y_ptr, z_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, tl.associative_scan(x, 0, _add))
    tl.store(z_ptr + i, tl.cumsum(x, axis=0, reverse=True) + tl.cumprod(x * 0 + 1, 0))


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 64}, num_warps=2, num_stages=2),
        triton.Config({"BLOCK": 128}, num_warps=4),
    ],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y_ptr + i, tl.load(x_ptr + i) * 2)
    else:
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["n"])})
@triton.jit
def heuristic_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=-float("inf")).to(tl.float32)
    tl.store(y_ptr + i, tl.softmax(x), mask=i < n)


@triton.jit
def checked_kernel(x_ptr, y_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=1.0)
    tl.device_assert(x > 0, "not positive")
    tl.static_print("N", N)
    y = tl.zeros_like(x)
    for k in tl.static_range(3):
        y += x * k
    tl.store(
        y_ptr + i,
        tl.sigmoid(y) + tl.erf(x) + tl.math.tanh(x) if False else tl.sigmoid(y) + tl.erf(x),
        mask=i < n,
    )


@triton.jit
def asm_kernel(x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise(
        "add.s32 $0, $1, 7;", "=r,r", args=[x], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(y_ptr + i, y)


class Window(NamedTuple):
    low: int
    high: int


@triton.constexpr_function
def half(n):
    return n // 2


@triton.jit
def within(x, window):
    return (x >= window.low) & (x < window[1])


@triton.jit
def tuple_kernel(x_ptr, y_ptr, bounds, N: tl.constexpr):
    i = tl.arange(0, N)
    window = Window(bounds[0], bounds[1])
    first = (tl.load(x_ptr + i), i)
    inside = within(first[0], window)
    H: tl.constexpr = half(N)
    tl.store(y_ptr + i, tl.where(inside & (first[1] < H), first[0], -1))


@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    mean = mean_a + delta * (n_b / tl.maximum(n, 1.0))
    return mean, m2_a + m2_b + delta * delta * n_a * n_b / tl.maximum(n, 1.0), n


@triton.jit
def variance_kernel(x_ptr, out_ptr, n, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    one = (i < n).to(tl.float32)
    mean, m2, count = tl.reduce((x, tl.zeros_like(x), one), 0, welford)
    tl.store(out_ptr, mean)
    tl.store(out_ptr + 1, m2 / count)


@triton.jit
def spin_kernel(x_ptr, lock_ptr, count_ptr, total_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.sum(tl.load(x_ptr + tl.program_id(0) * N + i))
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    count = tl.load(count_ptr)
    tl.debug_barrier()  # all threads have loaded the count before one changes it
    if count == 0:
        tl.store(total_ptr, total)
    else:
        tl.store(total_ptr, tl.load(total_ptr) + total)
    tl.store(count_ptr, count + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def seeded_dropout_kernel(x_ptr, y_ptr, n, p, seed, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + i, mask=i < n)
    keep = tl.rand(seed, i) > p
    tl.store(y_ptr + i, tl.where(keep, x / (1 - p), 0.0), mask=i < n)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sorted_rows():
    x = randn(4, 64)
    y = torch.empty_like(x)
    sort_kernel[(1,)](x, y, 4, 64, False)
    return y, x.sort(1).values


def sorted_down():
    x = randn(2, 128)
    y = torch.empty_like(x)
    sort_kernel[(1,)](x, y, 2, 128, True)
    return y, x.sort(1, descending=True).values


def topk():
    x = randn(3, 100)
    y = torch.empty(3, 8)
    topk_kernel[(3,)](x, y, 100, 128, 8)
    return y, x.topk(8).values


def long_topk():
    x = randn(3, 300)
    y = torch.empty(3, 8)
    long_topk_kernel[(3,)](x, y, 300, 128, 8)
    return y, x.topk(8).values


def flipped():
    x = randn(8, 32)
    y = torch.empty_like(x)
    flip_kernel[(1,)](x, y, 8, 32)
    return y, x.flip((0, 1))


def picked():
    x, i = randn(8, 32), torch.randint(0, 32, (8, 32), dtype=torch.int32)
    y = torch.empty_like(x)
    pick_kernel[(1,)](x, i, y, 8, 32)
    return y, x.gather(1, i.long())


def joined():
    x = randn(128)
    y, s = torch.empty(128), torch.zeros(2)
    joined_kernel[(1,)](x, y, s, 64)
    return torch.cat([y, s[:1]]), torch.cat(
        [torch.stack([x[:64], x[64:]], 1).ravel(), x.sum(0, True)]
    )


def cumulative():
    x = randn(128)
    y, z = torch.empty(128), torch.empty(128)
    cumulative_kernel[(1,)](x, y, z, 128)
    return torch.cat([y, z]), torch.cat([x.cumsum(0), x.flip(0).cumsum(0).flip(0) + 1])


def tuned():
    x = randn(200)
    y = torch.empty(200)
    grid = lambda meta: (triton.cdiv(200, meta["BLOCK"]),)
    tuned_kernel[grid](x, y, 200)
    return y, x * 2


def heuristic():
    x = randn(100)
    y = torch.empty(100)
    heuristic_kernel[(1,)](x, y, 100)
    return y, x.softmax(0)


def checked():
    x = randn(100).abs() + 0.1
    y = torch.empty(100)
    checked_kernel[(1,)](x, y, 100, 128)
    return y, (x * 3).sigmoid() + x.erf()


def assembly():
    x = torch.arange(128, dtype=torch.int32)
    y = torch.empty_like(x)
    asm_kernel[(1,)](x, y, 128)
    return y, x + 7


def tuples():
    x = torch.arange(128, dtype=torch.int32)
    y = torch.empty_like(x)
    tuple_kernel[(1,)](x, y, (5, 99), 128)
    i = torch.arange(128)
    return y, torch.where((x >= 5) & (x < 99) & (i < 64), x, -1)


def variance():
    x = randn(100)
    y = torch.empty(2)
    variance_kernel[(1,)](x, y, 100, 128)
    return y, torch.stack([x.mean(), x.var(correction=0)])


def locked():
    x = randn(4, 64)
    lock, count, total = (
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        torch.empty(1),
    )
    spin_kernel[(4,)](x, lock, count, total, 64)
    return total, x.sum().reshape(1)


def seeded_dropout():
    x = randn(1000)
    y = torch.empty(1000)
    seeded_dropout_kernel[(4,)](x, y, 1000, 0.4, 7, 256)
    kept = y != 0
    assert 0.5 < kept.float().mean() < 0.7
    return y[kept], x[kept] / 0.6


CASES = [
    sorted_rows, sorted_down, topk, long_topk, flipped, picked, joined, cumulative, heuristic, checked, assembly,
    tuples, variance, locked, seeded_dropout,
]  # fmt: skip
