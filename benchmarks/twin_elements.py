"""Kernels over rows, columns and elements for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def chunk_moments(x_ptr, mean_ptr, var_ptr, N, BLOCK: tl.constexpr):
    """Compute mean and variance of a long row by Welford's update of whole chunks."""
    row = tl.program_id(0)
    base = x_ptr + row.to(tl.int64) * N
    lane = tl.arange(0, BLOCK)
    mean = 0.0
    m2 = 0.0
    for start in range(0, N, BLOCK):
        index = start + lane
        inside = index < N
        x = tl.load(base + index, mask=inside, other=0.0).to(tl.float32)
        count = tl.minimum(N - start, BLOCK).to(tl.float32)
        here = tl.sum(x, 0) / count
        apart = tl.where(inside, x - here, 0.0)
        delta = here - mean
        total = start + count
        m2 += tl.sum(apart * apart, 0) + delta * delta * start * count / total
        mean += delta * count / total
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, m2 / N)


@triton.jit
def softmax_gradients_long(y_ptr, dy_ptr, dx_ptr, stride, N, BLOCK: tl.constexpr):
    """Compute gradients of softmax of long rows in two walks."""
    row = tl.program_id(0).to(tl.int64)
    y_ptr += row * stride
    dy_ptr += row * stride
    dx_ptr += row * stride
    partial = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        index = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + index, mask=index < N, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + index, mask=index < N, other=0.0).to(tl.float32)
        partial += y * dy
    dot = tl.sum(partial, 0)
    for start in range(0, N, BLOCK):
        index = start + tl.arange(0, BLOCK)
        y = tl.load(y_ptr + index, mask=index < N, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + index, mask=index < N, other=0.0).to(tl.float32)
        tl.store(dx_ptr + index, (y * (dy - dot)).to(dx_ptr.dtype.element_ty), mask=index < N)


@triton.jit
def masked_log_softmax(x_ptr, keep_ptr, y_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute log-softmax of the columns that a mask of bytes keeps."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    keep = tl.load(keep_ptr + place, mask=inside, other=0)
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(keep != 0, x, -10000.0)
    x = x - tl.max(x, 1)[:, None]
    y = x - tl.log(tl.sum(tl.exp(x), 1))[:, None]
    tl.store(y_ptr + place, y, mask=inside)


@triton.jit
def rms_gradients(x_ptr, dy_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, M, N, BLOCK: tl.constexpr):
    """Compute gradients of RMS norm; rows of a program add up their part of the weights' gradient."""
    column = tl.arange(0, BLOCK)
    inside = column < N
    w = tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        place = row.to(tl.int64) * N + column
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        normed = x * rstd
        dw += dy * normed
        wdy = w * dy
        shared = tl.sum(wdy * normed, 0) / N
        dx = (wdy - normed * shared) * rstd
        tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    tl.store(dw_ptr + tl.program_id(0) * N + column, dw, mask=inside)


@triton.jit
def largest_with_place(x_ptr, v_ptr, i_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Find the largest element of some rows, and where it is."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < M)[:, None] & (column < N)[None, :]
    x = tl.load(x_ptr + row[:, None] * N + column[None, :], mask=inside, other=-float("inf"))
    value, place = tl.max(x.to(tl.float32), 1, return_indices=True)
    tl.store(v_ptr + row, value, mask=row < M)
    tl.store(i_ptr + row, place, mask=row < M)


@triton.jit
def products_of_rows(x_ptr, y_ptr, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute cumulative products of rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=1.0).to(tl.float32)
    tl.store(y_ptr + place, tl.cumprod(x, 1), mask=inside)


@triton.jit
def first_of_bytes(x_ptr, i_ptr, N, BLOCK: tl.constexpr):
    """Find where the largest byte of a row is."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + column, mask=column < N, other=-128).to(tl.int32)
    tl.store(i_ptr + row, tl.argmax(x, 0))


@triton.jit
def mixed_widths(a_ptr, b_ptr, c_ptr, y_ptr, n, alpha, BLOCK: tl.constexpr):
    """Combine 16-bit integers, 32-bit and 16-bit floats."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    a = tl.load(a_ptr + index, mask=inside).to(tl.float32)
    b = tl.load(b_ptr + index, mask=inside)
    c = tl.load(c_ptr + index, mask=inside).to(tl.float32)
    y = alpha * a * b + c * tl.sigmoid(c)
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def elements_by_index(x_ptr, index_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Gather elements by 64-bit indices."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < n
    index = tl.load(index_ptr + place, mask=inside, other=0)
    tl.store(y_ptr + place, tl.load(x_ptr + index, mask=inside), mask=inside)


@triton.jit
def strided_normalize(x_ptr, y_ptr, N, x_row, x_column, y_row, y_column, eps, BLOCK: tl.constexpr):
    """Divide a row of a view with any strides by its length."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(x_ptr + row * x_row + column * x_column, mask=inside, other=0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x, 0) + eps)
    tl.store(y_ptr + row * y_row + column * y_column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def middle_softmax(x_ptr, y_ptr, B, C, BB: tl.constexpr, S: tl.constexpr, BC: tl.constexpr):
    """Compute softmax along the middle axis of a tensor of three."""
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    s = tl.arange(0, S)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    place = (b[:, None, None] * S + s[None, :, None]) * C + c[None, None, :]
    inside = (b < B)[:, None, None] & (c < C)[None, None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    e = tl.exp(x - tl.max(x, 1, keep_dims=True))
    y = e / tl.sum(e, 1, keep_dims=True)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def scatter_add(x_ptr, index_ptr, y_ptr, n, D, BN: tl.constexpr, BD: tl.constexpr):
    """Add rows to the rows that indices name, by atomic operations."""
    item = tl.program_id(0) * BN + tl.arange(0, BN)
    column = tl.program_id(1) * BD + tl.arange(0, BD)
    index = tl.load(index_ptr + item, mask=item < n, other=0)
    inside = (item < n)[:, None] & (column < D)[None, :]
    x = tl.load(x_ptr + item[:, None] * D + column[None, :], mask=inside, other=0.0)
    tl.atomic_add(y_ptr + index[:, None] * D + column[None, :], x.to(tl.float32), mask=inside)


@triton.jit
def rotate_packed(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    T,
    token,
    head,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BT: tl.constexpr,
):
    """Rotate the halves of the heads of packed queries, keys and values in place."""
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h = tl.program_id(1)
    d = tl.arange(0, HALF)
    inside = (t < T)[:, None]
    place = t[:, None].to(tl.int64) * token + h * head + d[None, :]
    angle = t[:, None] * HALF + d[None, :]
    cos = tl.load(cos_ptr + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=inside, other=0.0)
    first = tl.load(qkv_ptr + place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv_ptr + place + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        qkv_ptr + place, (first * cos - second * sin).to(qkv_ptr.dtype.element_ty), mask=inside
    )
    tl.store(
        qkv_ptr + place + HALF,
        (second * cos + first * sin).to(qkv_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def pack_signs(x_ptr, word_ptr, n, WORDS: tl.constexpr):
    """Pack the signs of 32 elements into a word."""
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    bit = tl.arange(0, 32)
    index = word[:, None] * 32 + bit[None, :]
    x = tl.load(x_ptr + index, mask=index < n, other=0.0)
    bits = (x > 0).to(tl.int32) << bit[None, :]
    tl.store(word_ptr + word, tl.sum(bits, 1), mask=word * 32 < n)


@triton.jit
def quantize_groups(x_ptr, q_ptr, s_ptr, M, N, GROUPS: tl.constexpr):
    """Quantize groups of 128 elements to FP8 with a scale each."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    lane = tl.arange(0, 128)
    known = group < M * (N // 128)
    place = group[:, None].to(tl.int64) * 128 + lane[None, :]
    x = tl.load(x_ptr + place, mask=known[:, None], other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-10) / 448.0
    q = x / scale[:, None]
    tl.store(q_ptr + place, q.to(q_ptr.dtype.element_ty), mask=known[:, None])
    tl.store(s_ptr + group, scale, mask=known)


@triton.jit
def channels_last(x_ptr, y_ptr, C, PIXELS, BC: tl.constexpr, BP: tl.constexpr):
    """Convert an image from channels first to channels last, and to another type."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    base = tl.program_id(2).to(tl.int64) * C * PIXELS
    inside = (c < C)[:, None] & (p < PIXELS)[None, :]
    x = tl.load(x_ptr + base + c[:, None] * PIXELS + p[None, :], mask=inside, other=0.0)
    y = tl.trans(x).to(y_ptr.dtype.element_ty)
    kept = (p < PIXELS)[:, None] & (c < C)[None, :]
    tl.store(y_ptr + base + p[:, None] * C + c[None, :], y, mask=kept)


@triton.jit
def rows_and_columns(x_ptr, row_ptr, column_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Find the largest of each row and the sum of each column of a matrix in one walk."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    largest = tl.full([BM], -1e30, tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        inside = (m < M)[:, None] & (n < N)[None, :]
        x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.atomic_add(column_ptr + n, tl.sum(x, 0), mask=n < N)
        largest = tl.maximum(largest, tl.max(tl.where(inside, x, -1e30), 1))
    tl.store(row_ptr + m, largest, mask=m < M)


@triton.jit
def byte_histogram(x_ptr, count_ptr, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Count the values of bytes."""
    total = tl.zeros([256], tl.int32)
    for step in range(0, STEPS):
        index = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + index, mask=index < n, other=0).to(tl.int32)
        total += tl.histogram(x, 256, mask=index < n)
    tl.atomic_add(count_ptr + tl.arange(0, 256), total)


@triton.jit
def dropout_residual(x_ptr, r_ptr, y_ptr, n, p, seed, BLOCK: tl.constexpr):
    """Drop elements by Philox's numbers, and add a residual."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    x = tl.load(x_ptr + index, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(r_ptr + index, mask=inside, other=0.0).to(tl.float32)
    keep = tl.rand(seed, index) > p
    y = tl.where(keep, x / (1.0 - p), 0.0) + r
    tl.store(y_ptr + index, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def standardize(x_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):
    """Give a row a mean of 0 and a variance of 1."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(x_ptr + row * N + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / N
    apart = tl.where(inside, x - mean, 0.0)
    y = apart * tl.rsqrt(tl.sum(apart * apart, 0) / N + eps)
    tl.store(y_ptr + row * N + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def ragged_softmax(x_ptr, start_ptr, y_ptr, BLOCK: tl.constexpr):
    """Compute softmax of rows of different lengths, one behind the other."""
    row = tl.program_id(0)
    begin = tl.load(start_ptr + row)
    length = tl.load(start_ptr + row + 1) - begin
    column = tl.arange(0, BLOCK)
    inside = column < length
    x = tl.load(x_ptr + begin + column, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    y = e / tl.sum(e, 0)
    tl.store(y_ptr + begin + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def later_first(decay_a, value_a, decay_b, value_b):
    return decay_a * decay_b, value_a * decay_b + value_b


@triton.jit
def discounted_returns(r_ptr, done_ptr, y_ptr, T, gamma, BLOCK: tl.constexpr):
    """Compute discounted returns from the end of each row."""
    row = tl.program_id(0)
    t = tl.arange(0, BLOCK)
    inside = t < T
    reward = tl.load(r_ptr + row * T + t, mask=inside, other=0.0)
    done = tl.load(done_ptr + row * T + t, mask=inside, other=0)
    decay = tl.where(done != 0, 0.0, gamma)
    _, y = tl.associative_scan((decay, reward), 0, later_first, reverse=True)
    tl.store(y_ptr + row * T + t, y, mask=inside)


@triton.jit
def pixel_shuffle(x_ptr, y_ptr, C, H, W, R: tl.constexpr, BLOCK: tl.constexpr):
    """Move channels of an image to pixels."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < C * H * R * W * R
    column = index % (W * R)
    row = (index // (W * R)) % (H * R)
    channel = index // (W * R * H * R)
    source = ((channel * R + row % R) * R + column % R) * H * W + (row // R) * W + column // R
    tl.store(y_ptr + index, tl.load(x_ptr + source, mask=inside), mask=inside)


@triton.jit
def contrast_largest(x_ptr, v_ptr, M, ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Take the largest of each row less the smallest, in falling order."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, N)
    inside = (row < M)[:, None]
    x = tl.load(x_ptr + row[:, None] * N + column[None, :], mask=inside, other=0.0).to(tl.float32)
    ordered = tl.sort(x)
    largest = tl.topk(x, K)
    smallest = tl.topk(-ordered, K)
    y = largest + tl.flip(smallest, 1)
    tl.store(v_ptr + row[:, None] * K + tl.arange(0, K)[None, :], y, mask=inside)


@triton.jit
def taps_of_neighbours(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Compute the Laplacian of a matrix with borders that wrap."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m < M)[:, None] & (n < N)[None, :]
    up = ((m + M - 1) % M)[:, None] * N + n[None, :]
    down = ((m + 1) % M)[:, None] * N + n[None, :]
    left = m[:, None] * N + ((n + N - 1) % N)[None, :]
    right = m[:, None] * N + ((n + 1) % N)[None, :]
    here = m[:, None] * N + n[None, :]
    y = -4.0 * tl.load(x_ptr + here, mask=inside, other=0.0)
    y += tl.load(x_ptr + up, mask=inside, other=0.0) + tl.load(x_ptr + down, mask=inside, other=0.0)
    y += tl.load(x_ptr + left, mask=inside, other=0.0) + tl.load(
        x_ptr + right, mask=inside, other=0.0
    )
    tl.store(y_ptr + here, y, mask=inside)
