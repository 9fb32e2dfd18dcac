"""Kernels of plain Triton that take the language at its breadth: shapes, reductions, tuples, functions as arguments."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice as ld


@triton.jit
def shapes_kernel(x_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M * N)
    x = tl.load(x_ptr + i)
    c = x.reshape(M, N // 4, 4)
    c = tl.permute(c, 2, 0, 1)
    c = tl.reshape(c, [4 * M, N // 4])
    a, b = tl.split(tl.reshape(c, [2 * M * N // 4, 2]).reshape(4 * M, N // 8, 2))
    j = tl.join(b, a)
    r = tl.ravel(j)
    s = tl.sum(j.to(tl.float32), axis=None)
    tl.store(y_ptr + i, r + tl.zeros_like(r) + s)


@triton.jit
def reductions_kernel(x_ptr, y_ptr, z_ptr, M: tl.constexpr, N: tl.constexpr):
    r, c = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + r[:, None] * N + c[None, :])
    mx, where = tl.max(x, 1, return_indices=True, return_indices_tie_break_left=True)
    mn = tl.min(x, 1, keep_dims=True)
    am = tl.argmin(x, 1, tie_break_left=True)
    k = tl.xor_sum((x * 8).to(tl.int32), axis=1)
    cp = tl.cumprod(1.0 + x * 0.1, axis=1)
    cs = tl.cumsum(x, axis=1, reverse=True)
    cnt = tl.sum((x > 0).to(tl.int1).to(tl.int32), axis=1)
    any_big = tl.reduce_or((x > 2.5).to(tl.int32), axis=1)
    sm = tl.softmax(x, dim=1, keep_dims=True)
    tl.store(y_ptr + r[:, None] * N + c[None, :], cp + cs + mn + sm)
    tl.store(z_ptr + r, mx + where + am + k + cnt + any_big)


@triton.jit
def math_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(x_ptr + o, mask=m, other=0.0, eviction_policy="evict_first")
    a = tl.clamp(x, -1.0, 1.0)
    b = tl.fma(x, a, 0.5)
    c = tl.maximum(x, b, propagate_nan=tl.PropagateNan.ALL)
    d = tl.where(x > 0, tl.sqrt_rn(tl.abs(x)), tl.div_rn(x, 3.0))
    e = tl.math.log2(tl.abs(x) + 1) + tl.floor(x) - tl.ceil(x) + tl.cdiv(n, BLOCK) + tl.fdiv(x, 7.0)
    f = tl.cast(x.to(tl.float16), tl.float32) + x.to(tl.bfloat16, fp_downcast_rounding="rtne").to(
        tl.float32
    )
    bits = x.to(tl.int32, bitcast=True)
    h = tl.umulhi(bits.to(tl.uint32, bitcast=True), 12345).to(tl.float32) * 1e-3
    g = ((bits >> 23) & 0xFF).to(tl.float32) - 127
    sel = tl.where(m, ld.nearbyint(x), 0.0)
    tl.assume(n > 0)
    tl.device_assert(x == x, "nan", mask=m)
    tl.static_assert(BLOCK % 2 == 0, "even blocks")
    tl.store(y_ptr + o, a + b + c + d + e + f + g + sel + h, mask=m, cache_modifier=".cs")


@triton.jit
def _pair(x, y):
    return (x + y, x - y), x * y


@triton.jit
def _apply(fn: tl.constexpr, x, y):
    return fn(x, y)


@triton.jit
def higher_order_kernel(x_ptr, y_ptr, N: tl.constexpr, MODES: tl.constexpr):
    """Functions as arguments, nested tuples, tuples of constants, and default arguments."""
    i = tl.arange(0, N)
    x, y = tl.load(x_ptr + i), tl.load(x_ptr + N + i)
    (s, d), p = _apply(_pair, x, y)
    total = tl.zeros([N], tl.float32)
    for k in tl.static_range(len(MODES)):
        if MODES[k] == "sum":
            total += s
        elif MODES[k] == "difference":
            total += d * 2
        else:
            total += p * 3
    state = (total, 0, d)
    for t in range(3):
        state = (state[0] + state[2], state[1] + t, state[2] * 0.5)
    tl.store(y_ptr + i, state[0] + state[1])


@triton.jit
def ragged_kernel(x_ptr, start_ptr, out_ptr, D, BT: tl.constexpr, BD: tl.constexpr):
    """Mean of ragged rows: loop bounds from memory, and an early return."""
    b = tl.program_id(0)
    first, last = tl.load(start_ptr + b), tl.load(start_ptr + b + 1)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    if last <= first:
        tl.store(out_ptr + b * D + d, 0.0, mask=d < D)
        return
    acc = tl.zeros([BD], tl.float32)
    t = first
    while t < last:
        r = t + tl.arange(0, BT)
        acc += tl.sum(
            tl.load(
                x_ptr + r[:, None] * D + d[None, :],
                mask=(r[:, None] < last) & (d[None, :] < D),
                other=0.0,
            ),
            0,
        )
        t += BT
    tl.store(out_ptr + b * D + d, acc / (last - first), mask=d < D)


@triton.jit
def cache_kernel(
    k_ptr,
    v_ptr,
    kc_ptr,
    vc_ptr,
    slot_ptr,
    ks,
    H: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    FP8: tl.constexpr,
    k_scale,
):
    """Write keys and values to pages, 8-bit floats optional, slots of -1 are padding."""
    t = tl.program_id(0)
    slot = tl.load(slot_ptr + t).to(tl.int64)
    if slot < 0:
        return
    page, place = slot // PAGE, slot % PAGE
    i = tl.arange(0, H * D)
    k, v = tl.load(k_ptr + t * ks + i), tl.load(v_ptr + t * ks + i)
    if FP8:
        k = (k.to(tl.float32) / k_scale).to(tl.float8e4nv)
        v = (v.to(tl.float32) / k_scale).to(tl.float8e4nv)
    h, d = i // D, i % D
    tl.store(kc_ptr + page * H * D * PAGE + h * D * PAGE + d * PAGE + place, k)
    tl.store(vc_ptr + (page * PAGE + place) * H * D + i, v)


@triton.jit
def reject_kernel(target_ptr, draft_ptr, bonus_ptr, cu_ptr, out_ptr, MAX: tl.constexpr):
    """Speculative decoding, greedy: a flag in a loop instead of a break."""
    r = tl.program_id(0)
    start = 0 if r == 0 else tl.load(cu_ptr + r - 1)
    n = tl.load(cu_ptr + r) - start
    rejected = False
    for pos in range(n):
        if not rejected:
            d, t = tl.load(draft_ptr + start + pos), tl.load(target_ptr + start + pos)
            tl.store(out_ptr + r * (MAX + 1) + pos, t)
            if d != t:
                rejected = True
    if not rejected:
        tl.store(out_ptr + r * (MAX + 1) + n, tl.load(bonus_ptr + r))


@triton.jit
def penalty_kernel(
    logits_ptr,
    count_ptr,
    temp_ptr,
    V,
    BLOCK: tl.constexpr,
    presence,
    frequency,
    repetition: tl.float32,
):
    b, j = tl.program_id(0), tl.program_id(1)
    o = j * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits_ptr + b * V + o, mask=o < V, other=float("-inf")).to(tl.float32)
    c = tl.load(count_ptr + b * V + o, mask=o < V, other=0)
    scale = tl.where(c > 0, repetition, 1.0)
    x *= tl.where(x > 0, 1.0 / scale, scale)
    x -= frequency * c + presence * (c > 0)
    x = x / tl.load(temp_ptr + b)
    tl.store(logits_ptr + b * V + o, x.to(logits_ptr.dtype.element_ty), mask=o < V)


@triton.jit
def positions_kernel(lens_ptr, pos_ptr, B: tl.constexpr, BLOCK: tl.constexpr):
    """Each program sums the lengths before it."""
    b = tl.program_id(0).to(tl.int64)
    before = tl.cast(0, tl.int64)
    for i in range(b):
        before += tl.load(lens_ptr + i)
    n = tl.load(lens_ptr + b)
    for j in range(tl.cdiv(n, BLOCK)):
        o = j * BLOCK + tl.arange(0, BLOCK)
        tl.store(pos_ptr + before + o, o, mask=o < n)


@triton.jit
def stochastic_kernel(x_ptr, y_ptr, seed, n, BLOCK: tl.constexpr):
    """Stochastic rounding to bfloat16 with random bits, and normals of the same counter."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r0, r1, r2, r3 = tl.randint4x(seed, o)
    x = tl.load(x_ptr + o, mask=o < n, other=0.0)
    u = x.to(tl.uint32, bitcast=True) + (r0.to(tl.uint32, bitcast=True) >> 16)
    y = (u & 0xFFFF0000).to(tl.float32, bitcast=True)
    keep = tl.rand(seed, o) < 2.0
    tl.store(y_ptr + o, tl.where(keep, y, 0.0).to(tl.bfloat16), mask=o < n)


def normal(*s, seed=0):
    return torch.randn(*s, generator=torch.Generator().manual_seed(seed))


def shapes():
    x, y = normal(8, 16), torch.empty(128)
    shapes_kernel[(1,)](x, y, M=8, N=16)
    c = x.view(8, 4, 4).permute(2, 0, 1).reshape(32, 4).reshape(32, 2, 2)
    return y, torch.stack([c[..., 1], c[..., 0]], -1).view(-1) + x.sum()


def reductions():
    x = normal(4, 32)
    y, z = torch.empty(4, 32), torch.empty(4)
    reductions_kernel[(1,)](x, y, z, M=4, N=32)
    k = torch.zeros(4, dtype=torch.int32)
    for j in range(32):
        k ^= (x[:, j] * 8).int()
    w = (
        (1 + x * 0.1).cumprod(1)
        + x.flip(1).cumsum(1).flip(1)
        + x.min(1, keepdim=True).values
        + x.softmax(1)
    )
    v = x.max(1).values + x.argmax(1) + x.argmin(1) + k + (x > 0).sum(1) + (x > 2.5).any(1)
    return torch.cat([y.view(-1), z]), torch.cat([w.view(-1), v])


def maths():
    x, y = normal(100), torch.empty(100)
    math_kernel[(1,)](x, y, 100, BLOCK=128)
    a = x.clamp(-1, 1)
    b = x * a + 0.5
    bits = x.view(torch.int32)
    h = ((bits.long() & 0xFFFFFFFF) * 12345 >> 32).float() * 1e-3
    w = (
        a
        + b
        + torch.maximum(x, b)
        + torch.where(x > 0, x.abs().sqrt(), x / 3)
        + (x.abs() + 1).log2()
        + x.floor()
        - x.ceil()
        + 1
        + x / 7
    )
    return y, w + x.half().float() + x.bfloat16().float() + (
        (bits >> 23) & 255
    ) - 127 + x.round() + h


def higher_order():
    x, y = normal(2, 64), torch.empty(64)
    higher_order_kernel[(1,)](x, y, N=64, MODES=("sum", "difference", "product"))
    a, b = x
    return y, (a + b) + 2 * (a - b) + 3 * a * b + (a - b) * 1.75 + 3


def ragged():
    x, start, out = (
        normal(30, 20),
        torch.tensor([0, 7, 7, 30], dtype=torch.int32),
        torch.empty(3, 20),
    )
    ragged_kernel[(3, 2)](x, start, out, 20, BT=8, BD=16)
    return out, torch.stack([x[:7].mean(0), torch.zeros(20), x[7:].mean(0)])


def cached(fp8=False):
    dt = torch.float8_e4m3fn if fp8 else torch.float16
    k, v = normal(5, 64).half(), normal(5, 64, seed=1).half()
    slot = torch.tensor([3, -1, 9, 0, 12])
    kc, vc = torch.zeros(4, 2, 32, 4, dtype=dt), torch.zeros(4, 4, 2, 32, dtype=dt)
    cache_kernel[(5,)](k, v, kc, vc, slot, 64, H=2, D=32, PAGE=4, FP8=fp8, k_scale=0.5)
    wk, wv = torch.zeros_like(kc), torch.zeros_like(vc)
    s = 0.5 if fp8 else 1.0
    for t in (0, 2, 3, 4):
        p, q = divmod(int(slot[t]), 4)
        wk[p, :, :, q] = (k[t].float() / s).view(2, 32).to(dt)
        wv[p, q] = (v[t].float() / s).view(2, 32).to(dt)
    return torch.cat([kc.float().view(-1), vc.float().view(-1)]), torch.cat(
        [wk.float().view(-1), wv.float().view(-1)]
    )


def cached_fp8():
    return cached(True)


def rejected():
    cu = torch.tensor([3, 5, 5], dtype=torch.int32)
    target, draft = (
        torch.tensor([4, 5, 6, 7, 8], dtype=torch.int32),
        torch.tensor([4, 9, 6, 7, 8], dtype=torch.int32),
    )
    bonus, out = (
        torch.tensor([1, 2, 3], dtype=torch.int32),
        torch.full((3, 4), -1, dtype=torch.int32),
    )
    reject_kernel[(3,)](target, draft, bonus, cu, out, MAX=3)
    return out, torch.tensor([[4, 5, -1, -1], [7, 8, 2, -1], [3, -1, -1, -1]])


def penalties():
    x = normal(2, 100).half()
    c = torch.randint(0, 3, (2, 100), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    t, f = torch.tensor([0.7, 1.3]), x.float()
    s = torch.where(c > 0, 1.2, 1.0)
    w = (f * torch.where(f > 0, 1 / s, s) - 0.3 * c - 0.2 * (c > 0)) / t[:, None]
    penalty_kernel[(2, 2)](x, c, t, 100, BLOCK=64, presence=0.2, frequency=0.3, repetition=1.2)
    return x, w


def positions():
    lens = torch.tensor([5, 0, 20, 3], dtype=torch.int32)
    pos = torch.empty(28, dtype=torch.int64)
    positions_kernel[(4,)](lens, pos, B=4, BLOCK=16)
    return pos, torch.cat([torch.arange(int(n)) for n in lens])


def stochastic():
    x, y = normal(100), torch.empty(100, dtype=torch.bfloat16)
    stochastic_kernel[(1,)](x, y, 7, 100, BLOCK=128)
    assert (y.float() - x).abs().max() <= 0.02 and (y.float() != x.bfloat16().float()).any()
    return y, x


CASES = [
    shapes,
    reductions,
    maths,
    higher_order,
    ragged,
    cached,
    cached_fp8,
    rejected,
    penalties,
    positions,
    stochastic,
]
