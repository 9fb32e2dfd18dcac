"""Kernels of plain Triton with scalar loops, tables, scans of tuples, locks, and functions of libdevice."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.constexpr_function
def pow2_below(n):
    p = 1
    while p * 2 <= n:
        p *= 2
    return p


@triton.jit
def lower_bound_kernel(sorted_ptr, query_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Scalar while loop: each program searches for one query."""
    q = tl.load(query_ptr + tl.program_id(0))
    lo = 0
    hi = n
    while lo < hi:
        mid = (lo + hi) // 2
        v = tl.load(sorted_ptr + mid)
        if v < q:
            lo = mid + 1
        else:
            hi = mid
    tl.store(out_ptr + tl.program_id(0), lo)


@triton.jit
def nf4_dequant_kernel(
    q_ptr, absmax_ptr, code_ptr, out_ptr, n, BLOCK: tl.constexpr, GROUP: tl.constexpr
):
    """Nibbles index a table of 16 floats."""
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    packed = tl.load(q_ptr + offs, mask=offs < n // 2, other=0)
    hi = (packed >> 4) & 0xF
    lo = packed & 0xF
    a = tl.load(code_ptr + hi.to(tl.int32))
    b = tl.load(code_ptr + lo.to(tl.int32))
    scale = tl.load(absmax_ptr + (offs * 2) // GROUP, mask=offs < n // 2, other=0.0)
    x = tl.interleave(a * scale, b * scale)
    o = pid * BLOCK * 2 + tl.arange(0, 2 * BLOCK)
    tl.store(out_ptr + o, x, mask=o < n)


@triton.jit
def quantize_code_kernel(
    x_ptr, code_ptr, out_ptr, absmax_ptr, n, BLOCK: tl.constexpr, CODES: tl.constexpr
):
    """Blockwise quantization: the nearest of a table by a vector binary search."""
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    top = tl.max(tl.abs(x))
    tl.store(absmax_ptr + pid, top)
    y = x / top
    lo = tl.zeros([BLOCK], tl.int32)
    hi = tl.full([BLOCK], CODES - 1, tl.int32)
    for _ in tl.static_range(4):
        mid = (lo + hi) // 2
        c = tl.load(code_ptr + mid)
        lo = tl.where(c < y, mid, lo)
        hi = tl.where(c < y, hi, mid)
    left = tl.load(code_ptr + lo)
    right = tl.load(code_ptr + hi)
    nearest = tl.where(tl.abs(y - left) <= tl.abs(right - y), lo, hi)
    tl.store(out_ptr + offs, nearest.to(tl.uint8), mask=offs < n)


@triton.jit
def _first_order(a0, b0, a1, b1):
    return a1 * a0, a1 * b0 + b1


@triton.jit
def gated_scan_kernel(
    a_ptr, x_ptr, y_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr, REVERSE: tl.constexpr
):
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    h = tl.zeros([BD], tl.float32)
    for i in range(0, tl.cdiv(T, BT)):
        j = tl.cdiv(T, BT) - 1 - i if REVERSE else i
        t = j * BT + tl.arange(0, BT)
        m = (t[:, None] < T) & (d[None, :] < D)
        a = tl.load(a_ptr + t[:, None] * D + d[None, :], mask=m, other=1.0)
        x = tl.load(x_ptr + t[:, None] * D + d[None, :], mask=m, other=0.0)
        A, B = tl.associative_scan((a, x), 0, _first_order, reverse=REVERSE)
        y = A * h[None, :] + B
        tl.store(y_ptr + t[:, None] * D + d[None, :], y, mask=m)
        edge = 0 if REVERSE else BT - 1
        h = tl.sum(tl.where((tl.arange(0, BT) == edge)[:, None], y, 0.0), 0)


@triton.jit
def _segment(f0, v0, f1, v1):
    return f0 | f1, tl.where(f1 != 0, v1, v0 + v1)


@triton.jit
def segmented_kernel(flag_ptr, x_ptr, y_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    f = tl.load(flag_ptr + i)
    _, y = tl.associative_scan((f, tl.load(x_ptr + i)), axis=0, combine_fn=_segment)
    tl.store(y_ptr + i, y)


@triton.jit
def _larger(v0, i0, v1, i1):
    take = (v0 > v1) | ((v0 == v1) & (i0 < i1))
    return tl.where(take, v0, v1), tl.where(take, i0, i1)


@triton.jit
def best_two_kernel(x_ptr, v_ptr, i_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + c, mask=c < N, other=-float("inf"))
    v, i = tl.reduce((x, c), 0, _larger)
    tl.store(v_ptr + row * 2, v)
    tl.store(i_ptr + row * 2, i)
    x = tl.where(c == i, -float("inf"), x)
    v2, i2 = tl.reduce((x, c), 0, _larger)
    tl.store(v_ptr + row * 2 + 1, v2)
    tl.store(i_ptr + row * 2 + 1, i2)


@triton.jit
def libdevice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n, other=0.5)
    y = libdevice.tanh(x) + libdevice.erf(x) * libdevice.expm1(x)
    y += (
        libdevice.pow(tl.abs(x) + 1.0, 1.5)
        + libdevice.rsqrt(x * x + 1.0)
        + libdevice.log1p(tl.abs(x))
    )
    y += libdevice.fast_expf(x * 0.1) + libdevice.round(x) + libdevice.copysign(x, -x)
    tl.store(y_ptr + o, y, mask=o < n)


@triton.jit
def asm_kernel(a_ptr, b_ptr, c_ptr, d_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(a_ptr + i), tl.load(b_ptr + i)
    s, d = tl.inline_asm_elementwise(
        """
        {
            add.s32 $0, $2, $3;
            sub.s32 $1, $2, $3;
        }
        """,
        "=r,=r,r,r", [a, b], dtype=(tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(c_ptr + i, s)
    tl.store(d_ptr + i, d)


@triton.jit
def lock_sum_kernel(x_ptr, out_ptr, lock_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + o, mask=o < n, other=0.0), 0)
    while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") == 1:
        pass
    tl.store(out_ptr, tl.load(out_ptr, volatile=True) + part)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0, sem="release")


@triton.jit
def last_block_kernel(
    x_ptr, part_ptr, count_ptr, out_ptr, n, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """The last program to arrive sums the parts of all."""
    pid = tl.program_id(0)
    o = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n, other=0.0)
    tl.store(part_ptr + pid, tl.sum(x * x))
    tl.debug_barrier()
    arrived = tl.atomic_add(count_ptr, 1, sem="acq_rel", scope="gpu")
    if arrived == tl.num_programs(0) - 1:
        p = tl.arange(0, PARTS)
        v = tl.load(part_ptr + p, mask=p < tl.num_programs(0), other=0.0, cache_modifier=".cg")
        tl.store(out_ptr, tl.sqrt(tl.sum(v)))


def normal(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def lower_bound():
    s = normal(100).sort().values
    q = normal(7, seed=1)
    out = torch.empty(7, dtype=torch.int32)
    lower_bound_kernel[(7,)](s, q, out, 100, BLOCK=32)
    return out, torch.searchsorted(s, q)


CODE = torch.linspace(-1, 1, 16)


def nf4():
    n = 200
    q = torch.randint(
        0, 256, (n // 2,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    absmax = normal(4).abs()
    out = torch.empty(n)
    nf4_dequant_kernel[(2,)](q, absmax, CODE, out, n, BLOCK=64, GROUP=64)
    both = torch.stack([q >> 4, q & 15], 1).view(-1).long()
    return out, CODE[both] * absmax.repeat_interleave(64)[:n]


def quantized():
    x = normal(200)
    out, absmax = torch.empty(200, dtype=torch.uint8), torch.empty(2)
    quantize_code_kernel[(2,)](x, CODE, out, absmax, 200, BLOCK=128, CODES=16)
    top = torch.stack([x[:128].abs().max(), x[128:].abs().max()]).repeat_interleave(128)[:200]
    return CODE[out.long()] * top, CODE[(CODE[None] - (x / top)[:, None]).abs().argmin(1)] * top


def gated_scan(reverse=False):
    T, D = 20, 6
    a, x = torch.rand(T, D, generator=torch.Generator().manual_seed(2)), normal(T, D)
    y = torch.empty(T, D)
    gated_scan_kernel[(1,)](a, x, y, T, D, BT=8, BD=8, REVERSE=reverse)
    h, w = torch.zeros(D), torch.empty(T, D)
    for t in reversed(range(T)) if reverse else range(T):
        h = a[t] * h + x[t]
        w[t] = h
    return y, w


def gated_scan_reverse():
    return gated_scan(True)


def segmented():
    f = (torch.rand(64, generator=torch.Generator().manual_seed(3)) < 0.2).int()
    x, y = normal(64), torch.empty(64)
    segmented_kernel[(1,)](f, x, y, N=64)
    w, s = torch.empty(64), 0.0
    for k in range(64):
        s = x[k] if f[k] else s + x[k]
        w[k] = s
    return y, w


def best_two():
    x = normal(3, 50)
    v, i = torch.empty(3, 2), torch.empty(3, 2, dtype=torch.int32)
    best_two_kernel[(3,)](x, v, i, 50, BLOCK=64)
    t = x.topk(2)
    return torch.cat([v, i.float()], 1), torch.cat([t.values, t.indices.float()], 1)


def libdevices():
    x, y = normal(100), torch.empty(100)
    libdevice_kernel[(1,)](x, y, 100, BLOCK=128)
    w = (
        x.tanh()
        + x.erf() * x.expm1()
        + (x.abs() + 1) ** 1.5
        + (x * x + 1).rsqrt()
        + x.abs().log1p()
    )
    return y, w + (x * 0.1).exp() + torch.where(
        x.frac().abs() == 0.5, x.trunc() + x.sign(), x.round()
    ) - x


def assembly_pair():
    a, b = (
        torch.randint(0, 99, (128,), dtype=torch.int32, generator=torch.Generator().manual_seed(s))
        for s in (0, 1)
    )
    c, d = torch.empty_like(a), torch.empty_like(a)
    asm_kernel[(1,)](a, b, c, d, N=128)
    return torch.cat([c, d]), torch.cat([a + b, a - b])


def lock_sum():
    x, out, lock = normal(200), torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    lock_sum_kernel[(4,)](x, out, lock, 200, BLOCK=64)
    return out, x.sum().view(1)


def last_block():
    x, part, out = normal(200), torch.zeros(4), torch.zeros(1)
    count = torch.zeros(1, dtype=torch.int32)
    last_block_kernel[(4,)](x, part, count, out, 200, BLOCK=64, PARTS=4)
    return out, x.norm().view(1)


CASES = [
    lower_bound,
    nf4,
    quantized,
    gated_scan,
    gated_scan_reverse,
    segmented,
    best_two,
    libdevices,
    assembly_pair,
    lock_sum,
    last_block,
]
