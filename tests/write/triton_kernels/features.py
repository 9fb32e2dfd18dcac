"""Kernels of plain Triton that use rare parts of its language."""

import math

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

LEVELS: tl.constexpr = tl.constexpr(4)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(low, high, *shape, seed=0, dtype=torch.int32):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@triton.jit
def gather_kernel(
    src, index, along_rows, along_columns, M: tl.constexpr, N: tl.constexpr, P: tl.constexpr
):
    m, n, p = tl.arange(0, M), tl.arange(0, N), tl.arange(0, P)
    x = tl.load(src + m[:, None] * N + n[None, :])
    rows = tl.load(index + p[:, None] * N + n[None, :])
    tl.store(along_rows + p[:, None] * N + n[None, :], tl.gather(x, rows % M, 0))
    columns = tl.load(index + m[:, None] * P + p[None, :])
    tl.store(along_columns + m[:, None] * P + p[None, :], tl.gather(x, columns % N, axis=1))


def gathers():
    M, N, P = 16, 32, 64
    x, index = normal(M, N), integers(0, 1 << 20, max(M, N) * P)
    a, b = torch.empty(P, N), torch.empty(M, P)
    gather_kernel[(1,)](x, index, a, b, M=M, N=N, P=P)
    rows, columns = index[: P * N].view(P, N).long() % M, index[: M * P].view(M, P).long() % N
    return torch.cat([a.flatten(), b.flatten()]), torch.cat(
        [x.gather(0, rows).flatten(), x.gather(1, columns).flatten()]
    )


@triton.jit
def rounding_kernel(x_ptr, y_ptr, seed, n, BLOCK: tl.constexpr):
    """Round to bfloat16 up or down at random, four numbers to a call of philox."""
    pid = tl.program_id(0)
    quarter = tl.arange(0, BLOCK)
    r0, r1, r2, r3 = tl.randint4x(seed, pid * BLOCK + quarter)
    for part in tl.static_range(4):
        r = r0 if part == 0 else (r1 if part == 1 else (r2 if part == 2 else r3))
        offs = (pid * 4 + part) * BLOCK + quarter
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        bits = x.to(tl.uint32, bitcast=True)
        noise = (r & 0xFFFF).to(tl.uint32)
        rounded = ((bits + noise) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
        tl.store(y_ptr + offs, rounded, mask=offs < n)


def stochastic_rounding():
    n = 500
    x, y = torch.full((n,), 1.0 + 2**-9), torch.empty(n, dtype=torch.bfloat16)
    rounding_kernel[(2,)](x, y, 7, n, BLOCK=64)
    up, down = (y == 1 + 2**-7), (y == 1.0)
    share = up.float().mean()
    good = (up | down).all() & (share > 0.15) & (share < 0.35)
    return good.float().view(1), torch.ones(1)


@triton.jit
def packed_kernel(x_ptr, y_ptr, z_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    low, high = tl.inline_asm_elementwise(
        """
        and.b32 $0, $2, 0x0f0f0f0f;
        shr.b32 $1, $2, 4;
        and.b32 $1, $1, 0x0f0f0f0f;
        """,
        constraints="=r,=r,r", args=[x], dtype=(tl.uint8, tl.uint8), is_pure=True, pack=4,
    )  # fmt: skip
    tl.store(y_ptr + offs, low)
    tl.store(z_ptr + offs, high)


def assembly_nibbles():
    x = integers(0, 256, 256, dtype=torch.uint8)
    y, z = torch.empty_like(x), torch.empty_like(x)
    packed_kernel[(1,)](x, y, z, BLOCK=256)
    return torch.stack([y, z]), torch.stack([x & 15, x >> 4])


@triton.jit
def larger(value, index, other, other_index):
    keep = (value > other) | ((value == other) & (index < other_index))
    return tl.where(keep, value, other), tl.where(keep, index, other_index)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def scan_kernel(
    x_ptr, best_ptr, place_ptr, product_ptr, back_ptr, M: tl.constexpr, N: tl.constexpr
):
    m, n = tl.arange(0, M), tl.arange(0, N)
    cell = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + cell)
    index = tl.broadcast_to(n[None, :], (M, N))
    best, place = tl.associative_scan((x, index), 1, larger)
    tl.store(best_ptr + cell, best)
    tl.store(place_ptr + cell, place)
    tl.store(product_ptr + cell, tl.cumprod(x, axis=0))
    tl.store(back_ptr + cell, tl.associative_scan(x, 1, times, reverse=True))


def scans():
    M, N = 8, 64
    x = normal(M, N).abs() + 0.5
    best, product, back = (torch.empty(M, N) for _ in range(3))
    place = torch.empty(M, N, dtype=torch.int32)
    scan_kernel[(1,)](x, best, place, product, back, M=M, N=N)
    values, places = x.cummax(1)
    wanted = [values, places.float(), x.cumprod(0), (x.flip(1).cumprod(1).flip(1)).log()]
    return torch.stack([best, place.float(), product, back.log()]), torch.stack(wanted)


@triton.jit
def welford(mean, m2, weight, other_mean, other_m2, other_weight):
    delta = other_mean - mean
    total = weight + other_weight
    part = tl.where(total == 0.0, 0.0, other_weight / total)
    return mean + delta * part, m2 + other_m2 + delta * delta * weight * part, total


@triton.jit
def reduce_kernel(x_ptr, out, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + m[:, None] * N + n[None, :])
    mean, m2, weight = tl.reduce(
        (x, tl.zeros_like(x), tl.full([M, N], 1.0, tl.float32)), 1, welford
    )
    tl.store(out + m, mean)
    tl.store(out + M + m, m2 / weight)
    least, place = tl.min(x, 1, return_indices=True)
    tl.store(out + 2 * M + m, least + place)
    tl.store(out + 3 * M + m, tl.argmax(tl.floor(x), 1, tie_break_left=True))
    centered = x - tl.max(x, axis=1, keep_dims=True)
    tl.store(out + 4 * M + m, tl.sum(centered, 1))
    folded = tl.xor_sum(x.to(tl.int32, bitcast=True), 1)
    tl.store(out + 5 * M + m, (folded & 0xFF).to(tl.float32))
    tl.store(out + 6 * M + m, tl.sum(x) + tl.zeros([M], tl.float32))


def reductions_of_tuples():
    M, N = 16, 64
    x, out = normal(M, N), torch.empty(7, M)
    reduce_kernel[(1,)](x, out, M=M, N=N)
    least, place = x.min(1)
    bits = x.view(torch.int32)
    folded = bits[:, 0]
    for i in range(1, N):
        folded = folded ^ bits[:, i]
    first = torch.stack([torch.nonzero(r == r.max())[0, 0] for r in x.floor()])
    wanted = [
        x.mean(1), x.var(1, unbiased=False), least + place, first.float(), (x - x.amax(1, True)).sum(1),
        (folded & 255).float(), x.sum().expand(M),
    ]  # fmt: skip
    return out, torch.stack(wanted)


@triton.jit
def lookback_kernel(x_ptr, y_ptr, sums, flags, ticket, n, BLOCK: tl.constexpr):
    """Sum a long row in one pass: each block waits for the sum of those before it."""
    block = tl.atomic_add(ticket, 1, sem="relaxed")
    offs = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    inclusive = tl.cumsum(x, 0)
    total = tl.sum(x, 0)
    before = 0.0
    if block > 0:
        while tl.atomic_cas(flags + block - 1, 1, 1, sem="acquire") == 0:
            pass
        before = tl.load(sums + block - 1, volatile=True)
    tl.store(sums + block, before + total)
    tl.debug_barrier()
    tl.atomic_xchg(flags + block, 1, sem="release")
    tl.store(y_ptr + offs, inclusive + before, mask=offs < n)


def lookback():
    n, block = 700, 128
    x, y = normal(n), torch.empty(n)
    sums, flags, ticket = (
        torch.zeros(6),
        torch.zeros(6, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
    )
    lookback_kernel[(6,)](x, y, sums, flags, ticket, n, BLOCK=block)
    return y, x.cumsum(0)


@triton.jit
def quantize_block_kernel(x_ptr, q_ptr, s_ptr, y_ptr, n, BLOCK: tl.constexpr, ROUND: tl.constexpr):
    """Quantize blocks to fp8 with scales that are powers of two, and dequantize them."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x)), 1e-8) / 448.0
    if ROUND:
        scale = tl.exp2(tl.ceil(tl.log2(scale)))
    y = tl.clamp(x / scale, -448.0, 448.0)
    q = y.to(q_ptr.dtype.element_ty)
    tl.store(q_ptr + offs, q, mask=offs < n)
    tl.store(s_ptr + tl.program_id(0), scale)
    tl.store(y_ptr + offs, q.to(tl.float32) * scale, mask=offs < n)


def fp8_blocks():
    n, block = 400, 128
    x, q, s, y = (
        normal(n),
        torch.empty(n, dtype=torch.float8_e4m3fn),
        torch.empty(4),
        torch.empty(n),
    )
    quantize_block_kernel[(4,)](x, q, s, y, n, BLOCK=block, ROUND=True)
    blocks = torch.nn.functional.pad(x, (0, 112)).view(4, block)
    scales = torch.exp2((blocks.abs().amax(1) / 448).log2().ceil())
    wanted = (
        (blocks / scales[:, None]).to(torch.float8_e4m3fn).float() * scales[:, None]
    ).flatten()[:n]
    return torch.cat([y, s]), torch.cat([wanted, scales])


@triton.jit
def int4_kernel(
    x_ptr, packed_ptr, scale_ptr, zero_ptr, y_ptr, COLUMNS: tl.constexpr, GROUP: tl.constexpr
):
    """Pack pairs of 4-bit codes in groups, and unpack them."""
    row, group = tl.program_id(0), tl.program_id(1)
    offs = row * COLUMNS + group * GROUP + tl.arange(0, GROUP)
    x = tl.load(x_ptr + offs).to(tl.float32)
    low, high = tl.min(x), tl.max(x)
    scale = (high - low) / 15
    zero = libdevice.nearbyint(-low / scale)
    code = tl.minimum(tl.maximum(libdevice.nearbyint(x / scale) + zero, 0.0), 15.0).to(tl.uint8)
    even, odd = tl.split(tl.reshape(code, (GROUP // 2, 2)))
    half = (row * COLUMNS + group * GROUP) // 2 + tl.arange(0, GROUP // 2)
    tl.store(packed_ptr + half, even | (odd << 4))
    index = row * (COLUMNS // GROUP) + group
    tl.store(scale_ptr + index, scale)
    tl.store(zero_ptr + index, zero.to(tl.int8))
    both = even | (odd << 4)
    again = tl.interleave((both & 0xF).to(tl.int8), ((both >> 4) & 0xF).to(tl.int8))
    tl.store(y_ptr + offs, (again.to(tl.float32) - zero) * scale)


def int4_groups():
    rows, columns, group = 3, 128, 64
    x, y = normal(rows, columns), torch.empty(rows, columns)
    packed = torch.empty(rows, columns // 2, dtype=torch.uint8)
    scales, zeros = torch.empty(rows, 2), torch.empty(rows, 2, dtype=torch.int8)
    int4_kernel[(rows, 2)](x, packed, scales, zeros, y, COLUMNS=columns, GROUP=group)
    g = x.view(rows, 2, group)
    scale = (g.amax(-1, True) - g.amin(-1, True)) / 15
    zero = (-g.amin(-1, True) / scale).round()
    code = ((g / scale).round() + zero).clamp(0, 15)
    bytes_of = (code.flatten(1)[:, ::2] + 16 * code.flatten(1)[:, 1::2]).float()
    return torch.cat([y, packed.float()], 1), torch.cat(
        [((code - zero) * scale).flatten(1), bytes_of], 1
    )


@triton.jit
def hadamard_kernel(x_ptr, y_ptr, N: tl.constexpr, LOG: tl.constexpr):
    """Transform a row by butterflies: pairs are split, added and joined."""
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * N + tl.arange(0, N))
    for _ in tl.static_range(LOG):
        even, odd = tl.split(tl.reshape(x, (N // 2, 2)))
        x = tl.reshape(tl.trans(tl.join(even + odd, even - odd)), (N,))
    tl.store(y_ptr + row * N + tl.arange(0, N), x / tl.sqrt(N * 1.0))


def hadamard():
    N = 64
    x, y = normal(3, N), torch.empty(3, N)
    hadamard_kernel[(3,)](x, y, N=N, LOG=6)
    h = torch.ones(1, 1)
    while h.shape[0] < N:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return y, x @ h / math.sqrt(N)


@triton.jit
def radix_kernel(keys, out, SHIFT: tl.constexpr, BITS: tl.constexpr, N: tl.constexpr):
    """Sort by a digit, and keep the order of equal ones."""
    offs = tl.arange(0, N)
    key = tl.load(keys + offs)
    digit = (key >> SHIFT) & ((1 << BITS) - 1)
    counts = tl.histogram(digit, 1 << BITS)
    begins = tl.cumsum(counts, 0) - counts
    one_hot = digit[:, None] == tl.arange(0, 1 << BITS)[None, :]
    ranks = tl.cumsum(one_hot.to(tl.int32), 0) - 1
    place = tl.sum(tl.where(one_hot, ranks + begins[None, :], 0), 1)
    tl.store(out + place, key)


def radix_sort():
    n = 128
    keys = integers(0, 256, n)
    source, out = keys.clone(), torch.empty_like(keys)
    for shift in (0, 4):
        radix_kernel[(1,)](source, out, SHIFT=shift, BITS=4, N=n)
        source, out = out, source
    return source, keys.sort().values


@triton.jit
def nested(x, depth: tl.constexpr):
    if depth == 0:
        return x, tl.zeros_like(x)
    else:
        value, total = nested(x * 2, depth - 1)
        return value, total + x


@triton.jit
def constants_kernel(
    pointers, n, SIZES: tl.constexpr, FLAG: tl.constexpr = None, BLOCK: tl.constexpr = 64
):
    tl.static_assert(BLOCK % 2 == 0, "blocks are even")
    first, second = pointers
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.assume(n > 0)
    x = tl.load(first + offs, mask=offs < n, other=0.0)
    width: tl.constexpr = SIZES[0] if FLAG is None else SIZES[1]
    value, total = nested(x, LEVELS)
    for i in tl.static_range(0, width, 2):
        for j in tl.static_range(i):
            total += i * 10 + j
    if FLAG is not None and len(SIZES) > 1:
        total = -total
    tl.device_assert(offs >= 0, "no place before the row")
    tl.store(second + offs, value + total, mask=offs < n)


def constants():
    x, y, z = normal(100), torch.empty(100), torch.empty(100)
    constants_kernel[(2,)]((x, y), 100, SIZES=(3, 5))
    constants_kernel[(2,)]((x, z), 100, SIZES=(3, 5), FLAG=True, BLOCK=64)
    total = x * 15
    more = sum(i * 10 + j for i in range(0, 3, 2) for j in range(i))
    most = sum(i * 10 + j for i in range(0, 5, 2) for j in range(i))
    return torch.stack([y, z]), torch.stack([x * 16 + total + more, x * 16 - total - most])


@triton.jit
def atomics_kernel(x_ptr, out_f, out_i, old_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    slot = offs % 4
    tl.atomic_max(out_f + slot, x, mask=mask, sem="relaxed")
    tl.atomic_min(out_f + 4 + slot, x, mask=mask, scope="gpu")
    key = (x * 100).to(tl.int32)
    tl.atomic_or(out_i + slot, key & 0xFF, mask=mask)
    tl.atomic_and(out_i + 4 + slot, key | 0xF0, mask=mask)
    tl.atomic_xor(out_i + 8 + slot, key & 0xFF, mask=mask, scope="sys")
    tl.atomic_max(out_i + 12 + slot, key, mask=mask, sem="acq_rel")
    old = tl.atomic_cas(old_ptr + tl.program_id(0), 5, tl.program_id(0) + 50)
    tl.atomic_xchg(old_ptr + 2 + tl.program_id(0), old + 1)


def atomics():
    n = 100
    x = normal(n)
    out_f = torch.cat([torch.full((4,), -math.inf), torch.full((4,), math.inf)])
    out_i = torch.cat(
        [torch.zeros(4), torch.full((4,), 255), torch.zeros(4), torch.full((4,), -(1 << 30))]
    ).to(torch.int32)
    old = torch.tensor([5, 6, 0, 0], dtype=torch.int32)
    atomics_kernel[(2,)](x, out_f, out_i, old, n, BLOCK=64)
    rows, key = x.view(25, 4), (x * 100).to(torch.int32).view(25, 4)
    ors, ands, xors = (
        torch.zeros(4, dtype=torch.int32),
        torch.full((4,), 255, dtype=torch.int32),
        torch.zeros(4, dtype=torch.int32),
    )
    for row in key:
        ors, ands, xors = ors | (row & 255), ands & (row | 240), xors ^ (row & 255)
    wanted = torch.cat(
        [ors, ands, xors, key.amax(0), torch.tensor([50, 6, 6, 7], dtype=torch.int32)]
    )
    result = torch.cat([out_f, out_i.float(), old.float()])
    return result, torch.cat([rows.amax(0), rows.amin(0), wanted.float()])


@triton.jit
def sample_kernel(
    image, places, out, C, H, W, n, stride_c, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Sample an image between its pixels."""
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = p < n
    x = (tl.load(places + 2 * p, mask=inside, other=0.0) + 1) * 0.5 * (W - 1)
    y = (tl.load(places + 2 * p + 1, mask=inside, other=0.0) + 1) * 0.5 * (H - 1)
    x0, y0 = tl.floor(x), tl.floor(y)
    c = tl.arange(0, BLOCK_C)
    acc = tl.zeros([BLOCK_C, BLOCK_P], tl.float32)
    for dy in tl.static_range(2):
        for dx in tl.static_range(2):
            xi, yi = (x0 + dx).to(tl.int32), (y0 + dy).to(tl.int32)
            weight = (1 - tl.abs(x - xi)) * (1 - tl.abs(y - yi))
            seen = inside & (xi >= 0) & (xi < W) & (yi >= 0) & (yi < H)
            pixel = tl.load(
                image + c[:, None] * stride_c + (yi * W + xi)[None, :],
                mask=(c < C)[:, None] & seen[None, :],
                other=0.0,
            )
            acc += pixel * weight[None, :]
    tl.store(out + c[:, None] * n + p[None, :], acc, mask=(c < C)[:, None] & inside[None, :])


def sampled_image():
    C, H, W, n = 5, 9, 11, 70
    image, grid = normal(C, H, W), normal(n, 2, seed=1).clamp(-1.2, 1.2)
    out = torch.empty(C, n)
    sample_kernel[(3,)](image, grid, out, C, H, W, n, H * W, BLOCK_P=32, BLOCK_C=8)
    wanted = torch.nn.functional.grid_sample(image[None], grid[None, None], align_corners=True)[
        0, :, 0
    ]
    return out, wanted


@triton.jit
def hash_kernel(keys, out, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(keys + offs, mask=offs < n, other=0).to(tl.uint64)
    h ^= h >> 33
    h *= 0xFF51AFD7ED558CCD
    h ^= h >> 33
    h = tl.where(h % 3 == 0, h // 7, h)
    low = (h & 0xFFFFFFFF).to(tl.uint32)
    mixed = tl.umulhi(low, tl.full([BLOCK], 0x9E3779B1, tl.uint32))
    signed = (mixed >> 8).to(tl.int32) - (1 << 22)
    tl.store(out + offs, signed % 1000 + (signed // 1000) * 10, mask=offs < n)


def hashes():
    n = 100
    keys, out = integers(0, 1 << 30, n, dtype=torch.int64), torch.empty(n, dtype=torch.int32)
    hash_kernel[(2,)](keys, out, n, BLOCK=64)
    wanted = []
    for h in keys.tolist():
        h ^= h >> 33
        h = h * 0xFF51AFD7ED558CCD % (1 << 64)
        h ^= h >> 33
        h = h // 7 if h % 3 == 0 else h
        mixed = (h & 0xFFFFFFFF) * 0x9E3779B1 >> 32
        signed = (mixed >> 8) - (1 << 22)
        quotient = int(signed / 1000)
        wanted.append(signed - quotient * 1000 + quotient * 10)
    return out, torch.tensor(wanted)


@triton.jit
def four_dims_kernel(
    x_ptr, y_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr
):
    a, b, c, d = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C), tl.arange(0, D)
    place = (
        (a[:, None, None, None] * B + b[None, :, None, None]) * C + c[None, None, :, None]
    ) * D + d[None, None, None, :]
    x = tl.load(x_ptr + place)
    y = tl.permute(x, (2, 0, 3, 1))
    y = y - tl.max(y, axis=3, keep_dims=True)
    total = tl.sum(tl.sum(y, axis=3), axis=1)
    back = (
        (c[:, None, None, None] * A + a[None, :, None, None]) * D + d[None, None, :, None]
    ) * B + b[None, None, None, :]
    tl.store(y_ptr + back, y + tl.expand_dims(total, [1, 3]))


def four_dims():
    x, y = normal(2, 4, 8, 16), torch.empty(8, 2, 16, 4)
    four_dims_kernel[(1,)](x, y, A=2, B=4, C=8, D=16)
    w = x.permute(2, 0, 3, 1)
    w = w - w.amax(3, True)
    return y, w + w.sum(3).sum(1)[:, None, :, None]


@triton.jit
def softmax_backward_kernel(dy, y, dx, stride, n_cols, BLOCK: tl.constexpr, MULTI: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dy += row * stride
    y += row * stride
    dx += row * stride
    acc = tl.zeros((BLOCK,), tl.float32) if MULTI else 0.0
    for i in tl.range(0, n_cols, BLOCK, num_stages=2):
        offs = i + tl.arange(0, BLOCK)
        g = tl.load(dy + offs, mask=offs < n_cols, other=0.0, eviction_policy="evict_last")
        p = tl.load(y + offs, mask=offs < n_cols, other=0.0, cache_modifier=".ca")
        if MULTI:
            acc += g * p
        else:
            acc += tl.sum(g * p, axis=0)
    total = tl.sum(acc, axis=0) if MULTI else acc
    for i in tl.range(0, n_cols, BLOCK):
        offs = i + tl.arange(0, BLOCK)
        g = tl.load(dy + offs, mask=offs < n_cols, other=0.0)
        p = tl.load(y + offs, mask=offs < n_cols, other=0.0)
        tl.store(dx + offs, p * (g - total), mask=offs < n_cols, cache_modifier=".wb")


def softmax_backward():
    y, dy = normal(4, 300).softmax(-1), normal(4, 300, seed=1)
    results = []
    for multi in (True, False):
        results.append(torch.empty_like(y))
        softmax_backward_kernel[(4,)](dy, y, results[-1], 300, 300, BLOCK=128, MULTI=multi)
    wanted = y * (dy - (dy * y).sum(-1, keepdim=True))
    return torch.stack(results), torch.stack([wanted, wanted])


CASES = [
    softmax_backward,
    gathers, stochastic_rounding, assembly_nibbles, scans, reductions_of_tuples, lookback, fp8_blocks, int4_groups,
    hadamard, radix_sort, constants, atomics, sampled_image, hashes, four_dims,
]  # fmt: skip
