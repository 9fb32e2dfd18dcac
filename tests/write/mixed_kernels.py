"""Kernels without layouts of many kinds: each `run_` function returns a result, the wanted one, and a tolerance."""

import torch

import gluon_core as gluon
from gluon_core import language as gl


def rand(*shape, seed=0, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g).to(dtype)


@gluon.jit(layouts="auto")
def conv(
    x, w, out, H, W, C, F, R: gl.constexpr, BP: gl.constexpr, BF: gl.constexpr, BC: gl.constexpr
):
    """x [H, W, C], w [R, R, C, F], same padding."""
    pixel = gl.program_id(0) * BP + gl.arange(0, BP)
    f = gl.program_id(1) * BF + gl.arange(0, BF)
    i, j = pixel // W, pixel % W
    acc = gl.zeros([BP, BF], gl.float32)
    for r in range(R):
        for s in range(R):
            ii, jj = i + r - R // 2, j + s - R // 2
            inside = (ii >= 0) & (ii < H) & (jj >= 0) & (jj < W)
            for c0 in range(0, C, BC):
                c = c0 + gl.arange(0, BC)
                patch = gl.load(
                    x + ((ii * W + jj) * C)[:, None] + c[None, :],
                    mask=inside[:, None] & (c < C)[None, :],
                    other=0.0,
                )
                tap = gl.load(
                    w + (((r * R + s) * C + c) * F)[:, None] + f[None, :],
                    mask=(c < C)[:, None] & (f < F)[None, :],
                    other=0.0,
                )
                acc = gl.portable.mma(patch, tap, acc)
    gl.store(
        out + (pixel * F)[:, None] + f[None, :],
        acc,
        mask=(pixel < H * W)[:, None] & (f < F)[None, :],
    )


def run_conv():
    x, w = rand(9, 12, 24, dtype=torch.float16), rand(3, 3, 24, 40, seed=1, dtype=torch.float16)
    out = torch.zeros(9, 12, 40)
    conv[(2, 1)](x, w, out, 9, 12, 24, 40, 3, 64, 64, 16)
    wanted = torch.nn.functional.conv2d(
        x.float().permute(2, 0, 1)[None], w.float().permute(3, 2, 0, 1), padding=1
    )
    return out, wanted[0].permute(1, 2, 0), 5e-2


@gluon.jit(layouts="auto")
def decode(
    q,
    k,
    v,
    part,
    stats,
    length,
    scale,
    HEADS: gl.constexpr,
    D: gl.constexpr,
    BN: gl.constexpr,
    SPLITS: gl.constexpr,
):
    """16 query heads share a key; program s has a slice of the keys."""
    s = gl.program_id(0)
    h, d, n = gl.arange(0, HEADS), gl.arange(0, D), gl.arange(0, BN)
    query = gl.load(q + h[:, None] * D + d[None, :])
    top = gl.full([HEADS], float("-inf"), gl.float32)
    total = gl.zeros([HEADS], gl.float32)
    acc = gl.zeros([HEADS, D], gl.float32)
    each = gl.cdiv(gl.cdiv(length, BN), SPLITS) * BN
    for start in range(s * each, gl.minimum((s + 1) * each, length), BN):
        here = start + n
        key = gl.load(k + d[:, None] + here[None, :] * D, mask=here[None, :] < length, other=0.0)
        score = gl.portable.mma(query, key, gl.zeros([HEADS, BN], gl.float32)) * scale
        score = gl.where(here[None, :] < length, score, float("-inf"))
        new = gl.maximum(top, gl.max(score, 1))
        p = gl.exp(score - new[:, None])
        kept = gl.exp(top - new)
        total = total * kept + gl.sum(p, 1)
        value = gl.load(v + here[:, None] * D + d[None, :], mask=here[:, None] < length, other=0.0)
        acc = gl.portable.mma(p.to(value.dtype), value, acc * kept[:, None])
        top = new
    gl.store(part + (s * HEADS + h)[:, None] * D + d[None, :], acc)
    gl.store(stats + (s * HEADS + h) * 2, top)
    gl.store(stats + (s * HEADS + h) * 2 + 1, total)


@gluon.jit(layouts="auto")
def combine(part, stats, out, HEADS: gl.constexpr, D: gl.constexpr, SPLITS: gl.constexpr):
    h = gl.program_id(0)
    s, d = gl.arange(0, SPLITS), gl.arange(0, D)
    top = gl.load(stats + (s * HEADS + h) * 2)
    total = gl.load(stats + (s * HEADS + h) * 2 + 1)
    weight = gl.exp(top - gl.max(top, 0))
    values = gl.load(part + (s * HEADS + h)[:, None] * D + d[None, :])
    gl.store(out + h * D + d, gl.sum(values * weight[:, None], 0) / gl.sum(total * weight, 0))


def run_decode():
    q, k, v = (
        rand(16, 64, dtype=torch.float16),
        rand(300, 64, seed=1, dtype=torch.float16),
        rand(300, 64, seed=2, dtype=torch.float16),
    )
    part, stats, out = torch.zeros(4, 16, 64), torch.zeros(4, 16, 2), torch.zeros(16, 64)
    decode[(4,)](q, k, v, part, stats, 300, 0.125, 16, 64, 32, 4)
    combine[(16,)](part, stats, out, 16, 64, 4)
    return out, torch.softmax(q.float() @ k.float().T * 0.125, 1) @ v.float(), 1e-2


@gluon.jit
def philox_round(a, b, c, d, key0, key1):
    A: gl.constexpr = 0xD2511F53
    B: gl.constexpr = 0xCD9E8D57
    high0, low0 = gl.umulhi(a, gl.full_like(a, A)), a * A
    high1, low1 = gl.umulhi(c, gl.full_like(c, B)), c * B
    return high1 ^ b ^ key0, low1, high0 ^ d ^ key1, low0


@gluon.jit(layouts="auto")
def dropout(x, out, n, seed, p, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK)
    a = i.to(gl.uint32)
    zero = a * 0
    b, c, d = zero, zero, zero
    key0, key1 = seed.to(gl.uint32) + zero, zero
    for _ in gl.static_range(10):
        a, b, c, d = philox_round(a, b, c, d, key0, key1)
        key0 += 0x9E3779B9
        key1 += 0xBB67AE85
    keep = (a >> 8).to(gl.float32) * (1.0 / 16777216) > p
    values = gl.load(x + i, mask=i < n)
    gl.store(out + i, gl.where(keep, values / (1 - p), 0.0), mask=i < n)


def run_dropout():
    x = torch.ones(1000)
    out = torch.zeros(1000)
    dropout[(4,)](x, out, 1000, 1234, 0.25, 256)

    def philox(i, seed):
        a, b, c, d, k0, k1, M = i, 0, 0, 0, seed, 0, 2**32
        for _ in range(10):
            x, y = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = (y // M) ^ b ^ k0, y % M, (x // M) ^ d ^ k1, x % M
            k0, k1 = (k0 + 0x9E3779B9) % M, (k1 + 0xBB67AE85) % M
        return a

    wanted = (
        torch.tensor([(philox(i, 1234) >> 8) / 16777216 > 0.25 for i in range(1000)]).float() / 0.75
    )
    return out, wanted, 1e-5


@gluon.jit(layouts="auto")
def fp8_gemm(a, b, c, N, K, scale, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    m, n, k = gl.program_id(0) * BM + gl.arange(0, BM), gl.arange(0, BN), gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for start in range(0, K, BK):
        x = gl.load(a + m[:, None] * K + (start + k)[None, :])
        y = gl.load(b + n[None, :] * K + (start + k)[:, None])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + m[:, None] * N + n[None, :], (acc * scale).to(gl.bfloat16))


def run_fp8_gemm(dtype=torch.float8_e5m2):
    a, b = rand(128, 128, dtype=dtype), rand(64, 128, seed=1, dtype=dtype)
    c = torch.zeros(128, 64, dtype=torch.bfloat16)
    fp8_gemm[(2,)](a, b, c, 64, 128, 0.5, 64, 64, 64)
    return c, a.float() @ b.float().T * 0.5, 0.2


@gluon.jit
def combine_moments(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    share = gl.where(n == 0.0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@gluon.jit(layouts="auto")
def column_moments(x, mean, var, rows, columns, BR: gl.constexpr, BC: gl.constexpr):
    c = gl.program_id(0) * BC + gl.arange(0, BC)
    m, s, count = gl.zeros([BC], gl.float32), gl.zeros([BC], gl.float32), gl.zeros([BC], gl.float32)
    for start in range(0, rows, BR):
        r = start + gl.arange(0, BR)
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        values = gl.load(x + r[:, None] * columns + c[None, :], mask=inside, other=0.0)
        one = gl.where(inside, 1.0, 0.0)
        m1, s1, n1 = gl.reduce((values, values * 0, one), 0, combine_moments)
        m, s, count = combine_moments(m, s, count, m1, s1, n1)
    gl.store(mean + c, m, mask=c < columns)
    gl.store(var + c, s / count, mask=c < columns)


def run_column_moments():
    x = rand(50, 40)
    mean, var = torch.zeros(40), torch.zeros(40)
    column_moments[(2,)](x, mean, var, 50, 40, 16, 32)
    return torch.cat([mean, var]), torch.cat([x.mean(0), x.var(0, unbiased=False)]), 1e-4


@gluon.jit(layouts="auto")
def ragged(x, starts, out, D: gl.constexpr, BLOCK: gl.constexpr):
    """Mean of each sequence; lengths come from memory."""
    s = gl.program_id(0)
    first, last = gl.load(starts + s), gl.load(starts + s + 1)
    if first >= last:
        return
    d = gl.arange(0, D)
    acc = gl.zeros([D], gl.float32)
    row = first
    while row < last:
        r = row + gl.arange(0, BLOCK)
        acc += gl.sum(
            gl.load(x + r[:, None] * D + d[None, :], mask=(r < last)[:, None], other=0.0), 0
        )
        row += BLOCK
    gl.store(out + s * D + d, acc / (last - first).to(gl.float32))


def run_ragged():
    x, starts = rand(60, 32), torch.tensor([0, 7, 7, 40, 60], dtype=torch.int32)
    out = torch.zeros(4, 32)
    ragged[(4,)](x, starts, out, 32, 16)
    wanted = torch.stack([x[0:7].mean(0), torch.zeros(32), x[7:40].mean(0), x[40:60].mean(0)])
    return out, wanted, 1e-4


@gluon.jit
def halves_of(x, N: gl.constexpr):
    return gl.split(gl.reshape(x, [x.shape[0], N // 2, 2]))


@gluon.jit
def rotated(pair, cos, sin):
    a, b = pair
    return a * cos - b * sin, a * sin + b * cos


@gluon.jit(layouts="auto")
def rotary(x, cos, sin, out, D: gl.constexpr, ROWS: gl.constexpr, INTERLEAVED: gl.constexpr):
    r, d, h = gl.program_id(0) * ROWS + gl.arange(0, ROWS), gl.arange(0, D), gl.arange(0, D // 2)
    c = gl.load(cos + r[:, None] * (D // 2) + h[None, :])
    s = gl.load(sin + r[:, None] * (D // 2) + h[None, :])
    if INTERLEAVED:
        place = r[:, None] * D + d[None, :]
        even, odd = rotated(halves_of(gl.load(x + place), D), c, s)
        gl.store(out + place, gl.reshape(gl.join(even, odd), [ROWS, D]))
    else:
        place = r[:, None] * D + h[None, :]
        low, high = rotated((gl.load(x + place), gl.load(x + place + D // 2)), c, s)
        gl.store(out + place, low)
        gl.store(out + place + D // 2, high)


def run_rotary():
    x, angle = rand(32, 64), rand(32, 32, seed=1)
    out, other = torch.zeros(32, 64), torch.zeros(32, 64)
    for target, inter in ((out, True), (other, False)):
        rotary[(2,)](x, angle.cos(), angle.sin(), target, 64, 16, inter)
    a, b = x[:, 0::2], x[:, 1::2]
    wanted = torch.stack(
        [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], 2
    ).reshape(32, 64)
    a, b = x[:, :32], x[:, 32:]
    wanted2 = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], 1)
    return torch.cat([out, other]), torch.cat([wanted, wanted2]), 1e-4


@gluon.jit(layouts="auto")
def int4_gemm(
    x,
    w,
    scales,
    out,
    N,
    K,
    BM: gl.constexpr,
    BN: gl.constexpr,
    BK: gl.constexpr,
    GROUP: gl.constexpr,
):
    """w [K / 2, N] bytes with rows 2k (low bits) and 2k + 1; a scale for GROUP rows."""
    m, n = gl.program_id(0) * BM + gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    for start in range(0, K, BK):
        k, half = start + gl.arange(0, BK), start // 2 + gl.arange(0, BK // 2)
        rows = gl.load(x + m[:, None] * K + k[None, :])
        packed = gl.load(w + half[:, None] * N + n[None, :])
        low, high = (packed & 15).to(gl.int8) - 8, (packed >> 4).to(gl.int8) - 8
        both = gl.permute(gl.join(low, high), (0, 2, 1)).reshape([BK, BN])
        scale = gl.load(scales + (start // GROUP) * N + n)
        acc = gl.portable.mma(rows, (both.to(gl.float32) * scale[None, :]).to(rows.dtype), acc)
    gl.store(out + m[:, None] * N + n[None, :], acc)


def run_int4_gemm():
    g = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (128, 64), generator=g)
    x, scales = rand(64, 128, dtype=torch.float16), rand(4, 64, seed=1).abs()
    packed = (q[0::2] | q[1::2] << 4).to(torch.uint8)
    out = torch.zeros(64, 64)
    int4_gemm[(1,)](x, packed, scales, out, 64, 128, 64, 64, 32, 32)
    return out, x.float() @ ((q - 8).float() * scales.repeat_interleave(32, 0)), 0.2


@gluon.jit(layouts="auto")
def two_depths(a, b, c, d, out, B: gl.constexpr, DEEP: gl.constexpr, FLAT: gl.constexpr):
    """The sum of products whose matrix units have layouts of their own on some targets."""
    i, deep, flat = gl.arange(0, B), gl.arange(0, DEEP), gl.arange(0, FLAT)
    x = gl.load(a + i[:, None] * DEEP + deep[None, :])
    y = gl.load(b + deep[:, None] * B + i[None, :])
    both = gl.portable.mma(x, y, gl.zeros([B, B], gl.float32))
    x = gl.load(c + i[:, None] * FLAT + flat[None, :])
    both += gl.portable.mma(
        x, gl.load(d + flat[:, None] * B + i[None, :]), gl.zeros([B, B], gl.float32)
    )
    gl.store(out + i[:, None] * B + i[None, :], both)


def run_two_depths():
    a, b = rand(32, 32, dtype=torch.float16), rand(32, 32, seed=1, dtype=torch.float16)
    c, d = rand(32, 16, seed=2, dtype=torch.float16), rand(16, 32, seed=3, dtype=torch.float16)
    out = torch.zeros(32, 32)
    two_depths[(1,)](a, b, c, d, out, 32, 32, 16)
    return out, a.float() @ b.float() + c.float() @ d.float(), 5e-2
