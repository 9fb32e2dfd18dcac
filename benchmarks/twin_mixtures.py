"""Further kernels over rows, columns and elements for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def dequantize(q_ptr, row_ptr, column_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Scale bytes by their rows and columns."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m < M)[:, None] & (n < N)[None, :]
    place = m[:, None] * N + n[None, :]
    q = tl.load(q_ptr + place, mask=inside, other=0).to(tl.float32)
    down = tl.load(row_ptr + m, mask=m < M, other=0.0)
    right = tl.load(column_ptr + n, mask=n < N, other=0.0)
    y = q * down[:, None] * right[None, :]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_since_flag(flag_a, value_a, flag_b, value_b):
    return flag_a | flag_b, tl.where(flag_b != 0, value_b, value_a + value_b)


@triton.jit
def sums_since_flags(x_ptr, flag_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """Compute prefix sums of a row that begin again at each flag."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(x_ptr + row * N + column, mask=inside, other=0.0).to(tl.float32)
    flag = tl.load(flag_ptr + row * N + column, mask=inside, other=0).to(tl.int32)
    _, y = tl.associative_scan((flag, x), 0, add_since_flag)
    tl.store(y_ptr + row * N + column, y, mask=inside)


@triton.jit
def online_softmax(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Compute softmax of some long rows at a time, with one walk for maximum and sum."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    largest = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        inside = (m < M)[:, None] & (n < N)[None, :]
        x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=-1e30).to(tl.float32)
        higher = tl.maximum(largest, tl.max(x, 1))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
        largest = higher
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        inside = (m < M)[:, None] & (n < N)[None, :]
        x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=-1e30).to(tl.float32)
        y = tl.exp(x - largest[:, None]) / total[:, None]
        tl.store(y_ptr + m[:, None] * N + n[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def two_experts(x_ptr, w_ptr, e_ptr, M, ROWS: tl.constexpr, E: tl.constexpr):
    """Choose the two best experts of each token, with weights that sum to 1."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, E)
    x = tl.load(x_ptr + row[:, None] * E + e[None, :], mask=(row < M)[:, None], other=0.0)
    x = x.to(tl.float32)
    first = tl.argmax(x, 1)
    best = tl.max(x, 1)
    rest = tl.where(e[None, :] == first[:, None], -1e30, x)
    second = tl.argmax(rest, 1)
    weight = tl.sigmoid(best - tl.max(rest, 1))
    tl.store(w_ptr + row * 2, weight, mask=row < M)
    tl.store(w_ptr + row * 2 + 1, 1.0 - weight, mask=row < M)
    tl.store(e_ptr + row * 2, first, mask=row < M)
    tl.store(e_ptr + row * 2 + 1, second, mask=row < M)


@triton.jit
def window_maxima(x_ptr, y_ptr, N, W: tl.constexpr, BLOCK: tl.constexpr):
    """Find the largest of the elements up to W before each element of a row."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = tl.full([BLOCK], -1e30, tl.float32)
    for back in tl.static_range(0, W):
        known = (n >= back) & (n < N)
        x = tl.load(x_ptr + row * N + n - back, mask=known, other=-1e30).to(tl.float32)
        y = tl.maximum(y, x)
    tl.store(y_ptr + row * N + n, y.to(y_ptr.dtype.element_ty), mask=n < N)


@triton.jit
def gelu_gradients(x_ptr, dy_ptr, dx_ptr, n, BLOCK: tl.constexpr):
    """Compute gradients of GELU by the error function."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    x = tl.load(x_ptr + index, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + index, mask=inside, other=0.0).to(tl.float32)
    cdf = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    dx = dy * (cdf + x * tl.exp(-0.5 * x * x) * 0.3989422804014327)
    tl.store(dx_ptr + index, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def complex_products(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Multiply complex numbers whose parts alternate in memory."""
    index = tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    inside = index < 2 * n
    a = tl.load(a_ptr + index, mask=inside, other=0.0)
    b = tl.load(b_ptr + index, mask=inside, other=0.0)
    ar, ai = tl.split(tl.reshape(a, [BLOCK, 2]))
    br, bi = tl.split(tl.reshape(b, [BLOCK, 2]))
    y = tl.join(ar * br - ai * bi, ar * bi + ai * br)
    tl.store(y_ptr + index, tl.reshape(y, [2 * BLOCK]), mask=inside)


@triton.jit
def take_along(x_ptr, index_ptr, y_ptr, M, N, K, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Gather elements of each row by indices of its own."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK)
    inside = (row < M)[:, None] & (k < K)[None, :]
    index = tl.load(index_ptr + row[:, None] * K + k[None, :], mask=inside, other=0)
    x = tl.load(x_ptr + row[:, None] * N + index, mask=inside, other=0.0)
    tl.store(y_ptr + row[:, None] * K + k[None, :], x, mask=inside)


@triton.jit
def lower_triangles(x_ptr, y_ptr, N, BM: tl.constexpr, BN: tl.constexpr):
    """Keep the lower triangles of matrices."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    place = tl.program_id(2).to(tl.int64) * N * N + m[:, None] * N + n[None, :]
    inside = (m < N)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + place, mask=inside & (m[:, None] >= n[None, :]), other=0.0)
    tl.store(y_ptr + place, x, mask=inside)


@triton.jit
def wide_sums(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """Add up the bytes of a row in 64 bits."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * N + n, mask=n < N, other=0).to(tl.int64)
    tl.store(y_ptr + row, tl.sum(total, 0))


@triton.jit
def compensated_sums(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Add up columns with Kahan's compensation."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    lost = tl.zeros([BM, BN], tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        inside = (m < M)[:, None] & (n < N)[None, :]
        x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32)
        x = x - lost
        more = total + x
        lost = (more - total) - x
        total = more
    tl.store(y_ptr + n, tl.sum(total, 0), mask=n < N)


@triton.jit
def log_sums_down(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Compute the logarithm of the sum of exponentials of columns."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    largest = tl.full([BN], -1e30, tl.float32)
    total = tl.zeros([BN], tl.float32)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        inside = (m < M)[:, None] & (n < N)[None, :]
        x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=-1e30).to(tl.float32)
        higher = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher[None, :]), 0)
        largest = higher
    tl.store(y_ptr + n, largest + tl.log(total), mask=n < N)


@triton.jit
def doubled_pixels(x_ptr, y_ptr, H, W, C: tl.constexpr, BW: tl.constexpr):
    """Repeat each pixel of an image with channels last four times."""
    y = tl.program_id(0)
    x = tl.program_id(1) * BW + tl.arange(0, BW)
    c = tl.arange(0, C)
    inside = (x < W)[:, None]
    value = tl.load(x_ptr + (y * W + x)[:, None] * C + c[None, :], mask=inside, other=0.0)
    for down in tl.static_range(0, 2):
        for right in tl.static_range(0, 2):
            pixel = (2 * y + down) * 2 * W + 2 * x + right
            tl.store(y_ptr + pixel[:, None] * C + c[None, :], value, mask=inside)


@triton.jit
def running_counts(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """Count the elements of a long row above zero so far."""
    row = tl.program_id(0).to(tl.int64)
    carry = tl.zeros([], tl.int32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + n, mask=n < N, other=0.0)
        above = (x > 0).to(tl.int32)
        tl.store(y_ptr + row * N + n, tl.cumsum(above, 0) + carry, mask=n < N)
        carry += tl.sum(above, 0)


@triton.jit
def transposed_bytes(x_ptr, q_ptr, M, N, scale, BM: tl.constexpr, BN: tl.constexpr):
    """Scale a matrix, convert it to FP8, and transpose it."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (m < M)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + m[:, None] * N + n[None, :], mask=inside, other=0.0).to(tl.float32) * scale
    q = x.to(q_ptr.dtype.element_ty)
    tl.store(q_ptr + m[:, None] + n[None, :] * M, q, mask=inside)
