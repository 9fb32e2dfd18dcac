"""Sparse rows, segments, bits, searches, and loops whose ends the data give."""

import torch
import triton
import triton.language as tl


@triton.jit
def radix_topk_kernel(x_ptr, v_ptr, i_ptr, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """Find the K largest of a row bit by bit, and store them in the order of the row."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(x_ptr + row * N + column, mask=inside, other=-float("inf")).to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648
    key = tl.where(inside, key, -1)
    least = tl.zeros([1], tl.int64)
    for step in range(0, 32):
        tried = least + (tl.full([1], 1, tl.int64) << (31 - step))
        count = tl.sum((key >= tried).to(tl.int32), 0)
        least = tl.where(count >= K, tried, least)
    above = key > least
    equal = key == least
    room = K - tl.sum(above.to(tl.int32), 0)
    kept = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
    place = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(v_ptr + row * K + place, x, mask=kept)
    tl.store(i_ptr + row * K + place, column, mask=kept)


@triton.jit
def add_segments(a_value, a_start, b_value, b_start):
    return tl.where(b_start != 0, b_value, a_value + b_value), a_start | b_start


@triton.jit
def segment_sums_kernel(x_ptr, segment_ptr, out_ptr, n, C, BLOCK: tl.constexpr, BC: tl.constexpr):
    """Add rows of sorted segments: sums of a block go to memory where a segment ends."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    inside = place < n
    segment = tl.load(segment_ptr + place, mask=inside, other=-1)
    before = tl.load(segment_ptr + place - 1, mask=inside & (place > 0), other=-1)
    after = tl.load(segment_ptr + place + 1, mask=place + 1 < n, other=-1)
    x = tl.load(
        x_ptr + place[:, None] * C + channel[None, :],
        mask=inside[:, None] & (channel < C)[None, :],
        other=0.0,
    )
    start = (segment != before).to(tl.int32)[:, None] + tl.zeros([BLOCK, BC], tl.int32)
    total, _ = tl.associative_scan((x.to(tl.float32), start), 0, add_segments)
    last = (segment != after) | (tl.arange(0, BLOCK) == BLOCK - 1)
    tl.atomic_add(
        out_ptr + segment[:, None] * C + channel[None, :],
        total,
        mask=(last & inside)[:, None] & (channel < C)[None, :],
    )


@triton.jit
def csr_rows_kernel(
    row_ptr, column_ptr, value_ptr, x_ptr, y_ptr, M, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Multiply a sparse matrix in rows by a vector."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    begin = tl.load(row_ptr + row, mask=row < M, other=0)
    end = tl.load(row_ptr + row + 1, mask=row < M, other=0)
    longest = tl.max(end - begin, 0)
    acc = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, longest, BLOCK):
        place = begin[:, None] + start + tl.arange(0, BLOCK)[None, :]
        inside = place < end[:, None]
        column = tl.load(column_ptr + place, mask=inside, other=0)
        value = tl.load(value_ptr + place, mask=inside, other=0.0)
        acc += value * tl.load(x_ptr + column, mask=inside, other=0.0)
    tl.store(y_ptr + row, tl.sum(acc, 1), mask=row < M)


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def pack_bits_kernel(x_ptr, out_ptr, n, WORDS: tl.constexpr):
    """Pack the signs of 32 numbers into a word."""
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    bit = tl.arange(0, 32)
    place = word[:, None] * 32 + bit[None, :]
    x = tl.load(x_ptr + place, mask=place < n, other=-1.0)
    bits = (x > 0).to(tl.int32) << bit[None, :]
    tl.store(out_ptr + word, tl.reduce(bits, 1, either), mask=word * 32 < n)


@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def moments_kernel(x_ptr, mean_ptr, var_ptr, N, BLOCK: tl.constexpr):
    """Combine means and squares of lanes by Welford's rule."""
    row = tl.program_id(0)
    mean = tl.zeros([BLOCK], tl.float32)
    m2 = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < N
        x = tl.load(x_ptr + row * N + column, mask=inside, other=0.0).to(tl.float32)
        n = tl.where(inside, 1.0, 0.0)
        mean, m2, count = welford(mean, m2, count, x, tl.zeros([BLOCK], tl.float32), n)
    mean, m2, count = tl.reduce((mean, m2, count), 0, welford)
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, m2 / count)


@triton.jit
def search_kernel(keys_ptr, x_ptr, out_ptr, n, m, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Find the places of numbers in sorted keys by halving."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place, mask=place < m, other=0.0)
    low = tl.zeros([BLOCK], tl.int32)
    high = tl.zeros([BLOCK], tl.int32) + n
    for _ in range(STEPS):
        middle = (low + high) // 2
        key = tl.load(keys_ptr + middle, mask=(middle < n) & (low < high), other=float("inf"))
        right = (key < x) & (low < high)
        low = tl.where(right, middle + 1, low)
        high = tl.where(right, high, middle)
    tl.store(out_ptr + place, low, mask=place < m)


@triton.jit
def euclid_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Compute greatest common divisors: a while loop over tensors."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + place, mask=place < n, other=1)
    b = tl.load(b_ptr + place, mask=place < n, other=0)
    while tl.max(b, 0) > 0:
        rest = tl.where(b > 0, a % tl.maximum(b, 1), 0)
        a = tl.where(b > 0, b, a)
        b = rest
    tl.store(out_ptr + place, a, mask=place < n)


@triton.jit
def edit_distance_kernel(a_ptr, b_ptr, out_ptr, n, m, BLOCK: tl.constexpr):
    """Compute the distance of two texts along diagonals."""
    lane = tl.arange(0, BLOCK)
    old = tl.where(lane == 0, 0, 1 << 20)
    older = tl.full([BLOCK], 1 << 20, tl.int32)
    for diagonal in range(1, n + m + 1):
        # lane i: cell (i, diagonal - i)
        j = diagonal - lane
        ok = (j >= 0) & (j <= m) & (lane <= n)
        a = tl.load(a_ptr + lane - 1, mask=ok & (lane > 0) & (j > 0), other=-1)
        b = tl.load(b_ptr + j - 1, mask=ok & (lane > 0) & (j > 0), other=-2)
        above = tl.gather(old, tl.maximum(lane - 1, 0), 0)
        corner = tl.gather(older, tl.maximum(lane - 1, 0), 0)
        best = tl.minimum(old + 1, tl.where(lane > 0, above + 1, 1 << 20))
        best = tl.minimum(
            best, tl.where((lane > 0) & (j > 0), corner + (a != b).to(tl.int32), 1 << 20)
        )
        best = tl.where(lane == 0, j, best)
        older = old
        old = tl.where(ok, best, 1 << 20)
    tl.store(out_ptr, tl.sum(tl.where(lane == n, old, 0), 0))


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def radix_topk():
    x = normal(4, 50).round(decimals=1)
    values, places = torch.full((4, 8), -9.0), torch.zeros(4, 8, dtype=torch.int32)
    radix_topk_kernel[(4,)](x, values, places, 50, K=8, BLOCK=64)
    assert (x.gather(1, places.long()) == values).all() and (places.diff() > 0).all()
    return values.sort(1).values, x.topk(8).values.flip(1)


def segment_sums():
    segments = torch.tensor([0, 0, 0, 1, 3, 3, 3, 3, 3, 3, 4, 7, 7], dtype=torch.int32)
    x, out = normal(13, 10), torch.zeros(8, 10)
    segment_sums_kernel[(2, 2)](x, segments, out, 13, 10, BLOCK=8, BC=8)
    return out, torch.zeros(8, 10).index_add(0, segments.long(), x)


def csr_rows():
    dense = normal(11, 40) * (normal(11, 40, seed=1) > 0.7)
    csr, x, y = dense.to_sparse_csr(), normal(40, seed=2), torch.empty(11)
    parts = csr.crow_indices().int(), csr.col_indices().int(), csr.values()
    csr_rows_kernel[(2,)](*parts, x, y, 11, ROWS=8, BLOCK=8)
    return y, dense @ x


def pack_bits():
    x, words = normal(320), torch.empty(10, dtype=torch.int32)
    pack_bits_kernel[(2,)](x, words, 320, WORDS=8)
    bits = (words[:, None] >> torch.arange(32)) & 1
    return bits.view(-1), (x > 0).int()


def moments():
    x = normal(3, 100) + 5
    mean, variance = torch.empty(3), torch.empty(3)
    moments_kernel[(3,)](x, mean, variance, 100, BLOCK=32)
    return torch.stack([mean, variance]), torch.stack([x.mean(1), x.var(1, correction=0)])


def search():
    keys, x = normal(37).sort().values, normal(20, seed=1)
    out = torch.empty(20, dtype=torch.int32)
    search_kernel[(2,)](keys, x, out, 37, 20, STEPS=7, BLOCK=16)
    return out, torch.searchsorted(keys, x)


def euclid():
    a, b = (torch.arange(1, 21, dtype=torch.int32) * n for n in (6, 8))
    out = torch.empty_like(a)
    euclid_kernel[(2,)](a, b.flip(0).contiguous(), out, 20, BLOCK=16)
    return out, torch.gcd(a, b.flip(0))


def edit_distance():
    a, b = (torch.tensor(list(word.encode())) for word in ("kitten on a mat", "sitting in a mat"))
    out = torch.empty(1, dtype=torch.int32)
    edit_distance_kernel[(1,)](a.int(), b.int(), out, len(a), len(b), BLOCK=16)
    return out, torch.tensor([4])


CASES = [radix_topk, segment_sums, csr_rows, pack_bits, moments, search, euclid, edit_distance]
