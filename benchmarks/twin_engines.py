"""Kernels over rows, columns and elements in the styles of inference engines and of training for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def sort_with_places(x_ptr, y_ptr, place_ptr, M, ROWS: tl.constexpr, N: tl.constexpr):
    """Sort rows, with the place of each element, as words of 64 bits."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, N)
    spot = m[:, None] * N + n[None, :]
    x = tl.load(x_ptr + spot, mask=(m < M)[:, None], other=0.0)
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    word = (bits.to(tl.int64) << 32) | n[None, :].to(tl.int64)
    word = tl.sort(word, 1)
    bits = (word >> 32).to(tl.int32)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    tl.store(y_ptr + spot, bits.to(tl.float32, bitcast=True), mask=(m < M)[:, None])
    tl.store(place_ptr + spot, (word & 0xFFFFFFFF).to(tl.int32), mask=(m < M)[:, None])


@triton.jit
def count_rows(x_ptr, count_ptr, N, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """Count the values of each row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BINS], tl.int32)
    for start in range(0, N, BLOCK):
        place = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + place, mask=place < N, other=0)
        total += tl.histogram(x, BINS, mask=place < N)
    tl.store(count_ptr + row * BINS + tl.arange(0, BINS), total)


@triton.jit
def groups_last_gradients(x_ptr, dy_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, PIXELS, C, SIZE: tl.constexpr,
                          BC: tl.constexpr, BP: tl.constexpr):  # fmt: skip
    """Compute gradients of a norm over groups of channels that come last."""
    image = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    c = tl.arange(0, BC)
    base = image * PIXELS * C + group * SIZE
    w = tl.load(w_ptr + group * SIZE + c, mask=c < SIZE, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + image * tl.num_programs(1) + group)
    rstd = tl.load(rstd_ptr + image * tl.num_programs(1) + group)
    first = 0.0
    second = 0.0
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        inside = (p < PIXELS)[:, None] & (c < SIZE)[None, :]
        place = base + p[:, None] * C + c[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32) * w[None, :]
        first += tl.sum(dy)
        second += tl.sum(dy * (x - mean) * rstd)
    first = first / (PIXELS * SIZE)
    second = second / (PIXELS * SIZE)
    for start in range(0, PIXELS, BP):
        p = start + tl.arange(0, BP)
        inside = (p < PIXELS)[:, None] & (c < SIZE)[None, :]
        place = base + p[:, None] * C + c[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32) * w[None, :]
        dx = (dy - first - (x - mean) * rstd * second) * rstd
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated_norm(
    x_ptr, z_ptr, w_ptr, y_ptr, rstd_ptr, N, eps, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """Gate a row by SiLU, then normalize each of its groups."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    n = tl.arange(0, BLOCK)
    place = row * N + group * GROUP + n
    x = tl.load(x_ptr + place, mask=n < GROUP, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + place, mask=n < GROUP, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + group * GROUP + n, mask=n < GROUP, other=0.0).to(tl.float32)
    x *= z * tl.sigmoid(z)
    rstd = 1 / tl.sqrt(tl.sum(x * x, 0) / GROUP + eps)
    tl.store(rstd_ptr + row * tl.num_programs(1) + group, rstd)
    tl.store(y_ptr + place, (x * rstd * w).to(y_ptr.dtype.element_ty), mask=n < GROUP)


@triton.jit
def rotate_part(q_ptr, k_ptr, place_ptr, table_ptr, y_ptr, z_ptr, HEADS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr,
                HALF: tl.constexpr, PADDED: tl.constexpr):  # fmt: skip
    """Rotate the first part of each head of queries and keys by a table that a position picks, and copy the rest."""
    t = tl.program_id(0)
    place = tl.load(place_ptr + t)
    h = tl.arange(0, PADDED)
    d = tl.arange(0, HALF)
    cos = tl.load(table_ptr + place * 2 * HALF + d).to(tl.float32)[None, :]
    sin = tl.load(table_ptr + place * 2 * HALF + HALF + d).to(tl.float32)[None, :]
    spot = t * HEADS * D + h[:, None] * D + d[None, :]
    inside = (h < HEADS)[:, None]
    a = tl.load(q_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(q_ptr + spot + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + spot, (a * cos - b * sin).to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(y_ptr + spot + HALF, (b * cos + a * sin).to(y_ptr.dtype.element_ty), mask=inside)
    spot = t * KEYS * D + h[:, None] * D + d[None, :]
    inside = (h < KEYS)[:, None]
    a = tl.load(k_ptr + spot, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(k_ptr + spot + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(z_ptr + spot, (a * cos - b * sin).to(z_ptr.dtype.element_ty), mask=inside)
    tl.store(z_ptr + spot + HALF, (b * cos + a * sin).to(z_ptr.dtype.element_ty), mask=inside)


@triton.jit
def permuted_bytes(x_ptr, from_ptr, q_ptr, scale_ptr, N, BLOCK: tl.constexpr):
    """Gather a row, and quantize it to 8 bits by its largest element."""
    row = tl.program_id(0).to(tl.int64)
    source = tl.load(from_ptr + row).to(tl.int64)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + source * N + n, mask=n < N, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-10) / 127.0
    q = x / scale
    q = tl.where(q >= 0, tl.floor(q + 0.5), tl.ceil(q - 0.5)).to(tl.int8)
    tl.store(q_ptr + row * N + n, q, mask=n < N)
    tl.store(scale_ptr + row, scale)


@triton.jit
def merge_parts(a_ptr, la_ptr, b_ptr, lb_ptr, y_ptr, l_ptr, D: tl.constexpr, BD: tl.constexpr):
    """Merge two parts of attention by the logs of their sums."""
    row = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    d = tl.arange(0, BD)
    la, lb = tl.load(la_ptr + row), tl.load(lb_ptr + row)
    most = tl.maximum(la, lb)
    ea, eb = tl.exp(la - most), tl.exp(lb - most)
    total = ea + eb
    a = tl.load(a_ptr + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + row * D + d, mask=d < D, other=0.0).to(tl.float32)
    y = a * (ea / total) + b * (eb / total)
    tl.store(y_ptr + row * D + d, y.to(y_ptr.dtype.element_ty), mask=d < D)
    tl.store(l_ptr + row, tl.log(total) + most)


@triton.jit
def penalize(x_ptr, count_ptr, seen_ptr, rate_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """Apply penalties of repetition, of presence and of frequency to logits."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    repeats = tl.load(rate_ptr + row * 3)
    presence = tl.load(rate_ptr + row * 3 + 1)
    frequency = tl.load(rate_ptr + row * 3 + 2)
    x = tl.load(x_ptr + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    count = tl.load(count_ptr + row * N + n, mask=n < N, other=0)
    seen = tl.load(seen_ptr + row * N + n, mask=n < N, other=0)
    x = tl.where((count > 0) | (seen != 0), tl.where(x > 0, x / repeats, x * repeats), x)
    x -= frequency * count.to(tl.float32) + tl.where(count > 0, presence, 0.0)
    tl.store(y_ptr + row * N + n, x, mask=n < N)


@triton.jit
def greater(a, b):
    return tl.maximum(a, b)


@triton.jit
def running_largest(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """Compute running maxima of a long row, block by block."""
    row = tl.program_id(0).to(tl.int64)
    most = float("-inf")
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + n, mask=n < N, other=float("-inf")).to(tl.float32)
        y = tl.maximum(tl.associative_scan(x, 0, greater), most)
        tl.store(y_ptr + row * N + n, y.to(y_ptr.dtype.element_ty), mask=n < N)
        most = tl.maximum(most, tl.max(x, 0))


@triton.jit
def quantize_both_ways(
    x_ptr, row_ptr, row_scale_ptr, column_ptr, column_scale_ptr, M, N, B: tl.constexpr
):
    """Quantize tiles to FP8 with a scale for each row, and transposed with one for each column."""
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    inside = (m < M)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32)
    down = tl.maximum(tl.max(tl.abs(x), 1), 1e-6) / 448.0
    right = tl.maximum(tl.max(tl.abs(x), 0), 1e-6) / 448.0
    q = (x / down[:, None]).to(row_ptr.dtype.element_ty)
    t = (x / right[None, :]).to(column_ptr.dtype.element_ty)
    tl.store(row_ptr + m[:, None] * N + n[None, :], q, mask=inside)
    tl.store(column_ptr + n[:, None] * M + m[None, :], tl.trans(t), mask=tl.trans(inside))
    tl.store(row_scale_ptr + tl.program_id(1) * M + m, down, mask=m < M)
    tl.store(column_scale_ptr + tl.program_id(0) * N + n, right, mask=n < N)


@triton.jit
def momentum_and_length(g_ptr, m_ptr, u_ptr, square_ptr, n, beta, BLOCK: tl.constexpr):
    """Update a momentum, write the step that looks ahead, and add the squares of it."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    g = tl.load(g_ptr + place, mask=inside, other=0.0).to(tl.float32)
    m = tl.load(m_ptr + place, mask=inside, other=0.0)
    m = beta * m + g
    u = g + beta * m
    tl.store(m_ptr + place, m, mask=inside)
    tl.store(u_ptr + place, u.to(u_ptr.dtype.element_ty), mask=inside)
    tl.atomic_add(square_ptr, tl.sum(tl.where(inside, u * u, 0.0), 0))


@triton.jit
def sample_pixels(x_ptr, grid_ptr, y_ptr, H, W, C, POINTS, BP: tl.constexpr, BC: tl.constexpr):
    """Sample an image whose channels come last between its pixels."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = p < POINTS
    gx = tl.load(grid_ptr + 2 * p, mask=known, other=0.0)
    gy = tl.load(grid_ptr + 2 * p + 1, mask=known, other=0.0)
    fx, fy = (gx + 1) * 0.5 * (W - 1), (gy + 1) * 0.5 * (H - 1)
    left, top = tl.floor(fx), tl.floor(fy)
    wx, wy = fx - left, fy - top
    first, above = left.to(tl.int32), top.to(tl.int32)
    y = tl.zeros([BP, BC], tl.float32)
    for i in tl.static_range(2):
        for j in tl.static_range(2):
            row, column = above + i, first + j
            inside = known & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            place = (row * W + column)[:, None] * C + c[None, :]
            x = tl.load(x_ptr + place, mask=inside[:, None] & (c < C)[None, :], other=0.0)
            weight = (wy if i == 1 else 1 - wy) * (wx if j == 1 else 1 - wx)
            y += x.to(tl.float32) * weight[:, None]
    tl.store(
        y_ptr + p[:, None] * C + c[None, :],
        y.to(y_ptr.dtype.element_ty),
        mask=known[:, None] & (c < C)[None, :],
    )


@triton.jit
def overlaps(a_ptr, b_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Compute the shared part of each pair of boxes."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    a0 = tl.load(a_ptr + m * 4, mask=m < M, other=0.0)
    a1 = tl.load(a_ptr + m * 4 + 1, mask=m < M, other=0.0)
    a2 = tl.load(a_ptr + m * 4 + 2, mask=m < M, other=0.0)
    a3 = tl.load(a_ptr + m * 4 + 3, mask=m < M, other=0.0)
    b0 = tl.load(b_ptr + n * 4, mask=n < N, other=0.0)
    b1 = tl.load(b_ptr + n * 4 + 1, mask=n < N, other=0.0)
    b2 = tl.load(b_ptr + n * 4 + 2, mask=n < N, other=0.0)
    b3 = tl.load(b_ptr + n * 4 + 3, mask=n < N, other=0.0)
    wide = tl.minimum(a2[:, None], b2[None, :]) - tl.maximum(a0[:, None], b0[None, :])
    high = tl.minimum(a3[:, None], b3[None, :]) - tl.maximum(a1[:, None], b1[None, :])
    both = tl.maximum(wide, 0.0) * tl.maximum(high, 0.0)
    area = ((a2 - a0) * (a3 - a1))[:, None] + ((b2 - b0) * (b3 - b1))[None, :] - both
    inside = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y_ptr + m[:, None] * N + n[None, :], both / tl.maximum(area, 1e-9), mask=inside)


@triton.jit
def distances(a_ptr, b_ptr, y_ptr, M, N, D, BM: tl.constexpr, BN: tl.constexpr):
    """Add the distances of each pair of rows, one column after the other."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for d in range(0, D):
        a = tl.load(a_ptr + m * D + d, mask=m < M, other=0.0)
        b = tl.load(b_ptr + n * D + d, mask=n < N, other=0.0)
        total += tl.abs(a[:, None] - b[None, :])
    inside = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y_ptr + m[:, None] * N + n[None, :], total, mask=inside)


@triton.jit
def cut_below(x_ptr, y_ptr, N, K, BLOCK: tl.constexpr):
    """Keep the K largest elements of a row, whose bound is found by halving."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + n, mask=n < N, other=float("-inf")).to(tl.float32)
    low = tl.min(tl.where(n < N, x, float("inf")), 0)
    high = tl.max(x, 0)
    for _ in range(20):
        middle = (low + high) * 0.5
        count = tl.sum((x >= middle).to(tl.int32), 0)
        low = tl.where(count >= K, middle, low)
        high = tl.where(count >= K, high, middle)
    tl.store(y_ptr + row * N + n, tl.where(x >= low, x, -1e30), mask=n < N)


@triton.jit
def class_gradients(x_ptr, label_ptr, loss_ptr, dx_ptr, M, C, ROWS: tl.constexpr, BC: tl.constexpr):
    """Compute losses over few classes, and their gradients, of several rows at a time."""
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BC)
    inside = (m < M)[:, None] & (c < C)[None, :]
    place = m[:, None] * C + c[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=float("-inf")).to(tl.float32)
    label = tl.load(label_ptr + m, mask=m < M, other=-1)
    most = tl.max(x, 1)
    e = tl.exp(x - most[:, None])
    total = tl.sum(e, 1)
    hit = c[None, :] == label[:, None]
    own = tl.sum(tl.where(hit, x, 0.0), 1)
    tl.store(loss_ptr + m, tl.where(label >= 0, most + tl.log(total) - own, 0.0), mask=m < M)
    dx = e / total[:, None] - tl.where(hit, 1.0, 0.0)
    dx = tl.where(label[:, None] >= 0, dx, 0.0) / M
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def mask_blocks(mask_ptr, some_ptr, all_ptr, T, S, BM: tl.constexpr, BN: tl.constexpr):
    """Note which blocks of a mask have any element, and which have all."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m < T)[:, None] & (n < S)[None, :]
    kept = tl.load(mask_ptr + m[:, None] * S + n[None, :], mask=inside, other=0)
    count = tl.sum((kept != 0).to(tl.int32))
    place = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(some_ptr + place, (count > 0).to(tl.int8))
    tl.store(all_ptr + place, (count == tl.sum(inside.to(tl.int32))).to(tl.int8))


@triton.jit
def follow(ar, ai, xr, xi, br, bi, yr, yi):
    return ar * br - ai * bi, ar * bi + ai * br, br * xr - bi * xi + yr, br * xi + bi * xr + yi


@triton.jit
def complex_recurrence(r_ptr, i_ptr, x_ptr, y_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    """Scan a complex state of each channel along time."""
    t = tl.arange(0, BT)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    base = tl.program_id(1).to(tl.int64) * T * D
    inside = (t < T)[:, None] & (d < D)[None, :]
    place = base + t[:, None] * D + d[None, :]
    ar = tl.zeros([BT, BD], tl.float32) + tl.load(r_ptr + d, mask=d < D, other=0.0)[None, :]
    ai = tl.zeros([BT, BD], tl.float32) + tl.load(i_ptr + d, mask=d < D, other=0.0)[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    _, _, y, _ = tl.associative_scan((ar, ai, x, tl.zeros([BT, BD], tl.float32)), 0, follow)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def pack_ternary(x_ptr, q_ptr, scale_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Round rows to -1, 0 and 1 by their mean size, four in a byte."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.arange(0, BN)
    inside = (m < M)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.sum(tl.abs(x), 1) / N, 1e-5)
    code = tl.floor(x / scale[:, None] + 0.5)
    code = (tl.minimum(tl.maximum(code, -1.0), 1.0) + 1.0).to(tl.int32)
    shift = (tl.arange(0, 4) * 2)[None, None, :]
    byte = tl.sum(tl.reshape(code, [BM, BN // 4, 4]) << shift, 2)
    word = tl.arange(0, BN // 4)
    kept = (m < M)[:, None] & (word < N // 4)[None, :]
    tl.store(q_ptr + m[:, None] * (N // 4) + word[None, :], byte.to(tl.uint8), mask=kept)
    tl.store(scale_ptr + m, scale, mask=m < M)


@triton.jit
def unpack_ternary(q_ptr, scale_ptr, y_ptr, M, N, BM: tl.constexpr, BW: tl.constexpr):
    """Read four numbers from each byte of a row."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    kept = (m < M)[:, None] & (w < N // 4)[None, :]
    q = tl.load(q_ptr + m[:, None] * (N // 4) + w[None, :], mask=kept, other=0).to(tl.int32)
    scale = tl.load(scale_ptr + m, mask=m < M, other=0.0)
    shift = (tl.arange(0, 4) * 2)[None, None, :]
    y = (((q[:, :, None] >> shift) & 3) - 1).to(tl.float32) * scale[:, None, None]
    y = tl.reshape(y, [BM, 4 * BW])
    n = tl.program_id(1) * 4 * BW + tl.arange(0, 4 * BW)
    inside = (m < M)[:, None] & (n < N)[None, :]
    tl.store(y_ptr + m[:, None] * N + n[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def weights_of_tiles(q_ptr, scale_ptr, y_ptr, M, N, B: tl.constexpr):
    """Scale FP8 weights by tiles."""
    m = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    inside = (m < M)[:, None] & (n < N)[None, :]
    place = m[:, None] * N + n[None, :]
    scale = tl.load(scale_ptr + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1))
    q = tl.load(q_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, (q * scale).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_to_bytes(x_ptr, r_ptr, w_ptr, q_ptr, scale_ptr, N, eps, BLOCK: tl.constexpr):
    """Add a residual in place, normalize the sum, and quantize it to 8 bits, in three walks over a row."""
    row = tl.program_id(0).to(tl.int64) * N
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + n, mask=n < N, other=0.0).to(tl.float32)
        x += tl.load(r_ptr + row + n, mask=n < N, other=0.0).to(tl.float32)
        tl.store(r_ptr + row + n, x.to(r_ptr.dtype.element_ty), mask=n < N)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, 0) / N + eps)
    most = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(r_ptr + row + n, mask=n < N, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(x * rstd * w))
    scale = tl.maximum(tl.max(most, 0), 1e-8) / 127.0
    tl.store(scale_ptr + tl.program_id(0), scale)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(r_ptr + row + n, mask=n < N, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + n, mask=n < N, other=0.0).to(tl.float32)
        q = tl.floor(x * rstd * w / scale + 0.5)
        tl.store(q_ptr + row + n, q.to(tl.int8), mask=n < N)


@triton.jit
def gate_halves(x_ptr, y_ptr, n, N, BLOCK: tl.constexpr):
    """Gate one half of each row by the other, element by element of the whole result."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = place // N, place % N
    a = tl.load(x_ptr + row * 2 * N + column, mask=place < n, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row * 2 * N + N + column, mask=place < n, other=0.0).to(tl.float32)
    y = 0.5 * a * (1 + tl.erf(a * 0.7071067811865476)) * b
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=place < n)


@triton.jit
def windows(x_ptr, y_ptr, n, C, H, W, K: tl.constexpr, BLOCK: tl.constexpr):
    """Copy the window around each pixel to a row, element by element."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = C * K * K
    pixel, rest = place // size, place % size
    c, tap = rest // (K * K), rest % (K * K)
    row = pixel // W + tap // K - K // 2
    column = pixel % W + tap % K - K // 2
    inside = (place < n) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    x = tl.load(x_ptr + (c * H + row) * W + column, mask=inside, other=0.0)
    tl.store(y_ptr + place, x, mask=place < n)


@triton.jit
def rolled(x_ptr, y_ptr, H, W, C, down, right, BW: tl.constexpr, BC: tl.constexpr):
    """Roll an image whose channels come last."""
    h = tl.program_id(0)
    w = tl.program_id(1) * BW + tl.arange(0, BW)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    row = (h + down) % H
    column = (w + right) % W
    inside = (w < W)[:, None] & (c < C)[None, :]
    x = tl.load(x_ptr + (row * W + column[:, None]) * C + c[None, :], mask=inside)
    tl.store(y_ptr + (h * W + w[:, None]) * C + c[None, :], x, mask=inside)


@triton.jit
def decays(g_ptr, y_ptr, T, H, BT: tl.constexpr):
    """Write the decay between each pair of steps of a chunk, of which the second comes first."""
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    i = chunk * BT + tl.arange(0, BT)
    j = chunk * BT + tl.arange(0, BT)
    gi = tl.load(g_ptr + i * H + head, mask=i < T, other=0.0)
    gj = tl.load(g_ptr + j * H + head, mask=j < T, other=0.0)
    ci, cj = tl.cumsum(gi, 0), tl.cumsum(gj, 0)
    y = tl.where(i[:, None] >= j[None, :], tl.exp(ci[:, None] - cj[None, :]), 0.0)
    place = ((chunk * H + head) * BT + tl.arange(0, BT))[:, None] * BT + tl.arange(0, BT)[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty))
