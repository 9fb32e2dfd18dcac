"""Kernels over rows, moves and sequences for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def transposed_copy(
    x_ptr, y_ptr, M, N, row_stride, column_stride, BM: tl.constexpr, BN: tl.constexpr
):
    """Copy a view of any strides into rows."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (row < M)[:, None] & (column < N)[None, :]
    x = tl.load(x_ptr + row[:, None] * row_stride + column[None, :] * column_stride, mask=inside)
    tl.store(y_ptr + row[:, None] * N + column[None, :], x, mask=inside)


@triton.jit
def transposed_batches(x_ptr, y_ptr, M, N, B: tl.constexpr):
    """Transpose each matrix of a batch."""
    base = tl.program_id(2).to(tl.int64) * M * N
    row = tl.program_id(0) * B + tl.arange(0, B)
    column = tl.program_id(1) * B + tl.arange(0, B)
    inside = (row < M)[:, None] & (column < N)[None, :]
    x = tl.load(x_ptr + base + row[:, None] * N + column[None, :], mask=inside)
    tl.store(y_ptr + base + column[None, :] * M + row[:, None], x, mask=inside)


@triton.jit
def gathered_rows(x_ptr, index_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Copy rows that an index names."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    source = tl.load(index_ptr + row, mask=row < M, other=0)
    inside = (row < M)[:, None] & (column < N)[None, :]
    x = tl.load(x_ptr + source[:, None] * N + column[None, :], mask=inside)
    tl.store(y_ptr + row[:, None] * N + column[None, :], x, mask=inside)


@triton.jit
def scattered_rows(x_ptr, index_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Add rows to those that an index names."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    target = tl.load(index_ptr + row, mask=row < M, other=0)
    inside = (row < M)[:, None] & (column < N)[None, :]
    x = tl.load(x_ptr + row[:, None] * N + column[None, :], mask=inside)
    tl.atomic_add(y_ptr + target[:, None] * N + column[None, :], x, mask=inside)


@triton.jit
def softmax_by_lanes(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """Keep a maximum and a sum for each lane, and join them behind the loop."""
    base = tl.program_id(0).to(tl.int64) * N
    lane = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        index = start + lane
        x = tl.load(x_ptr + base + index, mask=index < N, other=-1e30).to(tl.float32)
        higher = tl.maximum(largest, x)
        total = total * tl.exp(largest - higher) + tl.exp(x - higher)
        largest = higher
    peak = tl.max(largest, 0)
    scale = 1.0 / tl.sum(total * tl.exp(largest - peak), 0)
    for start in range(0, N, BLOCK):
        index = start + lane
        x = tl.load(x_ptr + base + index, mask=index < N, other=-1e30).to(tl.float32)
        y = tl.exp(x - peak) * scale
        tl.store(y_ptr + base + index, y.to(y_ptr.dtype.element_ty), mask=index < N)


@triton.jit
def masked_softmax(x_ptr, mask_ptr, y_ptr, M, N, scale, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute a softmax of the elements whose byte is not zero."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None].to(tl.int64) * N + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) * scale
    kept = tl.load(mask_ptr + place, mask=inside, other=0)
    x = tl.where(kept != 0, x, -1e30)
    weight = tl.exp(x - tl.max(x, 1)[:, None])
    y = weight / tl.sum(weight, 1)[:, None]
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_gradients(y_ptr, dy_ptr, dx_ptr, N, BLOCK: tl.constexpr):
    """Compute gradients of a softmax of a row."""
    base = tl.program_id(0).to(tl.int64) * N
    column = tl.arange(0, BLOCK)
    y = tl.load(y_ptr + base + column, mask=column < N, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + base + column, mask=column < N, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(y * dy, 0))
    tl.store(dx_ptr + base + column, dx.to(dx_ptr.dtype.element_ty), mask=column < N)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, rstd_ptr, N, eps, BLOCK: tl.constexpr):
    """Normalize a row, and keep its mean and scale."""
    row = tl.program_id(0)
    base = row.to(tl.int64) * N
    column = tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(x_ptr + base + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / N
    centred = tl.where(inside, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 0) / N + eps)
    w = tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + column, mask=inside, other=0.0).to(tl.float32)
    y = centred * rstd * w + b
    tl.store(y_ptr + base + column, y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def layer_norm_gradients(
    x_ptr, dy_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, M, N, BLOCK: tl.constexpr
):
    """Compute gradients of rows, and sums of those of weight and bias for each program."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    w = tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for row in range(program, M, tl.num_programs(0)):
        base = row * N
        x = tl.load(x_ptr + base + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + base + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        normal = tl.where(inside, (x - mean) * rstd, 0.0)
        scaled = dy * w
        along = tl.sum(normal * scaled, 0) / N
        average = tl.sum(scaled, 0) / N
        dx = (scaled - normal * along - average) * rstd
        tl.store(dx_ptr + base + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dw += dy * normal
        db += dy
    tl.store(dw_ptr + program * N + column, dw, mask=inside)
    tl.store(db_ptr + program * N + column, db, mask=inside)


@triton.jit
def rms_norm(x_ptr, w_ptr, y_ptr, N, eps, BLOCK: tl.constexpr):
    """Normalize a row by its root mean square."""
    base = tl.program_id(0).to(tl.int64) * N
    column = tl.arange(0, BLOCK)
    inside = column < N
    x = tl.load(x_ptr + base + column, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    w = tl.load(w_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + base + column, (x * rstd * w).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def group_norm(x_ptr, w_ptr, b_ptr, y_ptr, C, PIXELS, groups, eps, BLOCK: tl.constexpr):
    """Normalize the channels of a group of an image, channels first."""
    size = C // groups * PIXELS
    base = tl.program_id(0).to(tl.int64) * size
    first = tl.program_id(0) % groups * (C // groups)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        index = start + lane
        x = tl.load(x_ptr + base + index, mask=index < size, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    mean = tl.sum(total, 0) / size
    rstd = tl.rsqrt(tl.sum(squares, 0) / size - mean * mean + eps)
    for start in range(0, size, BLOCK):
        index = start + lane
        x = tl.load(x_ptr + base + index, mask=index < size, other=0.0).to(tl.float32)
        channel = first + index // PIXELS
        w = tl.load(w_ptr + channel, mask=index < size, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + channel, mask=index < size, other=0.0).to(tl.float32)
        y = (x - mean) * rstd * w + b
        tl.store(y_ptr + base + index, y.to(y_ptr.dtype.element_ty), mask=index < size)


@triton.jit
def matrix_vector(a_ptr, x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Multiply a matrix and a vector."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, N, BN):
        column = start + tl.arange(0, BN)
        inside = (row < M)[:, None] & (column < N)[None, :]
        a = tl.load(a_ptr + row[:, None] * N + column[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        x = tl.load(x_ptr + column, mask=column < N, other=0.0).to(tl.float32)
        acc += a * x[None, :]
    tl.store(y_ptr + row, tl.sum(acc, 1).to(y_ptr.dtype.element_ty), mask=row < M)


@triton.jit
def recurrence(decay_ptr, x_ptr, y_ptr, T, C, BLOCK: tl.constexpr):
    """Advance a state for each channel of a sequence, one step after the other."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < C
    state = tl.zeros([BLOCK], tl.float32)
    base = tl.program_id(1).to(tl.int64) * T * C
    for step in range(0, T):
        index = base + step * C + channel
        decay = tl.load(decay_ptr + index, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + index, mask=inside, other=0.0).to(tl.float32)
        state = state * decay + x
        tl.store(y_ptr + index, state.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def histogram(x_ptr, count_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    """Count the values of a block, and add the counts."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + index, mask=index < n, other=0)
    counts = tl.histogram(x, BINS)
    tl.atomic_add(count_ptr + tl.arange(0, BINS), counts)


@triton.jit
def gates(x_ptr, weight_ptr, index_ptr, M, N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr):
    """Take the largest K of N gates of a row, and divide their weights by their sum."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, N)
    place = tl.arange(0, K)
    inside = (row < M)[:, None]
    x = tl.load(x_ptr + row[:, None] * N + column[None, :], mask=inside, other=0.0).to(tl.float32)
    weights = tl.zeros([ROWS, K], tl.float32)
    indices = tl.zeros([ROWS, K], tl.int32)
    peak = tl.max(x, 1)
    total = tl.zeros([ROWS], tl.float32)
    for k in range(0, K):
        largest = tl.max(x, 1)
        best = tl.argmax(x, 1)
        weight = tl.exp(largest - peak)
        total += weight
        weights = tl.where(place[None, :] == k, weight[:, None], weights)
        indices = tl.where(place[None, :] == k, best[:, None], indices)
        x = tl.where(column[None, :] == best[:, None], -1e30, x)
    place_of = row[:, None] * K + place[None, :]
    tl.store(weight_ptr + place_of, weights / total[:, None], mask=inside)
    tl.store(index_ptr + place_of, indices, mask=inside)


@triton.jit
def cross_entropy(x_ptr, label_ptr, loss_ptr, dx_ptr, N, scale, BLOCK: tl.constexpr):
    """Compute the loss of a row and its gradients."""
    row = tl.program_id(0)
    base = row.to(tl.int64) * N
    label = tl.load(label_ptr + row)
    largest = -1e30
    total = 0.0
    for start in range(0, N, BLOCK):
        index = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + index, mask=index < N, other=-1e30).to(tl.float32)
        higher = tl.maximum(largest, tl.max(x, 0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(x - higher), 0)
        largest = higher
    lse = largest + tl.log(total)
    tl.store(loss_ptr + row, lse - tl.load(x_ptr + base + label).to(tl.float32))
    for start in range(0, N, BLOCK):
        index = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + index, mask=index < N, other=-1e30).to(tl.float32)
        dx = tl.exp(x - lse) - tl.where(index == label, 1.0, 0.0)
        tl.store(dx_ptr + base + index, (dx * scale).to(dx_ptr.dtype.element_ty), mask=index < N)


@triton.jit
def time_convolution(
    x_ptr, w_ptr, b_ptr, y_ptr, T, C, BT: tl.constexpr, BC: tl.constexpr, WIDTH: tl.constexpr
):
    """Convolve each channel along time with what came before, and apply SiLU."""
    time = tl.program_id(0) * BT + tl.arange(0, BT)
    channel = tl.program_id(1) * BC + tl.arange(0, BC)
    base = tl.program_id(2).to(tl.int64) * T * C
    inside = (time < T)[:, None] & (channel < C)[None, :]
    acc = tl.zeros([BT, BC], tl.float32)
    acc += tl.load(b_ptr + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(0, WIDTH):
        before = time - (WIDTH - 1 - tap)
        present = (before >= 0)[:, None] & inside
        x = tl.load(x_ptr + base + before[:, None] * C + channel[None, :], mask=present, other=0.0)
        w = tl.load(w_ptr + tap * C + channel, mask=channel < C, other=0.0)
        acc += x.to(tl.float32) * w.to(tl.float32)[None, :]
    y = acc / (1.0 + tl.exp(-acc))
    tl.store(
        y_ptr + base + time[:, None] * C + channel[None, :],
        y.to(y_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def rotary(x_ptr, cos_ptr, sin_ptr, y_ptr, T, HEADS: tl.constexpr, HALF: tl.constexpr):
    """Rotate both halves of the heads of a token."""
    token = tl.program_id(0)
    head = tl.arange(0, HEADS)
    lane = tl.arange(0, HALF)
    cos = tl.load(cos_ptr + token % T * HALF + lane)[None, :]
    sin = tl.load(sin_ptr + token % T * HALF + lane)[None, :]
    place = token.to(tl.int64) * HEADS * HALF * 2 + head[:, None] * (HALF * 2) + lane[None, :]
    first = tl.load(x_ptr + place).to(tl.float32)
    second = tl.load(x_ptr + place + HALF).to(tl.float32)
    tl.store(y_ptr + place, (first * cos - second * sin).to(y_ptr.dtype.element_ty))
    tl.store(y_ptr + place + HALF, (second * cos + first * sin).to(y_ptr.dtype.element_ty))


@triton.jit
def quantize4(x_ptr, q_ptr, scale_ptr, M, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Quantize groups to 4 bits, two in a byte, with a scale for each."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, GROUP // 2)
    inside = (row < M)[:, None]
    place = row[:, None].to(tl.int64) * GROUP + pair[None, :] * 2
    even = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x_ptr + place + 1, mask=inside, other=0.0).to(tl.float32)
    peak = tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), 1)
    scale = tl.maximum(peak / 7.0, 1e-8)
    low = tl.floor(even / scale[:, None] + 8.5).to(tl.int32)
    high = tl.floor(odd / scale[:, None] + 8.5).to(tl.int32)
    packed = (low | (high << 4)).to(tl.uint8)
    tl.store(q_ptr + row[:, None].to(tl.int64) * (GROUP // 2) + pair[None, :], packed, mask=inside)
    tl.store(scale_ptr + row, scale, mask=row < M)
