"""Kernels of products for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def gemm(a_ptr, b_ptr, bias_ptr, residual_ptr, c_ptr, M, N, K, lda, ldb, ldc, BM: tl.constexpr, BN: tl.constexpr,
         BK: tl.constexpr, GROUP: tl.constexpr, GELU: tl.constexpr, RESIDUAL: tl.constexpr):  # fmt: skip
    """Multiply, add a bias, and, where they are asked for, apply GELU and add a residual."""
    program = tl.program_id(0)
    down = tl.cdiv(M, BM)
    across = tl.cdiv(N, BN)
    first = program // (GROUP * across) * GROUP
    tall = tl.minimum(down - first, GROUP)
    row = (first + program % (GROUP * across) % tall) * BM + tl.arange(0, BM)
    column = program % (GROUP * across) // tall * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    a_tile = a_ptr + (row % M)[:, None] * lda + step[None, :]
    b_tile = b_ptr + step[:, None] * ldb + (column % N)[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_tile, mask=(step < K - k)[None, :], other=0.0)
        b = tl.load(b_tile, mask=(step < K - k)[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
        a_tile += BK
        b_tile += BK * ldb
    acc += tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    if GELU:
        acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.70710678))
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * ldc + column[None, :]
    if RESIDUAL:
        acc += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def split_k(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Multiply a part of the columns with a part of the rows, and add it to the result."""
    across = tl.cdiv(N, BN)
    row = tl.program_id(0) // across * BM + tl.arange(0, BM)
    column = tl.program_id(0) % across * BN + tl.arange(0, BN)
    step = tl.program_id(1) * BK + tl.arange(0, BK)
    a_tile = a_ptr + row[:, None] * K + step[None, :]
    b_tile = b_ptr + step[:, None] * N + column[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK * PARTS):
        a = tl.load(a_tile, mask=(row < M)[:, None] & (step < K - k)[None, :], other=0.0)
        b = tl.load(b_tile, mask=(step < K - k)[:, None] & (column < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
        a_tile += BK * PARTS
        b_tile += BK * PARTS * N
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.atomic_add(c_ptr + row[:, None] * N + column[None, :], acc, mask=inside)


@triton.jit
def grouped(
    x_ptr, w_ptr, expert_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Multiply each block of rows by the weights of its group."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    expert = tl.load(expert_ptr + tl.program_id(0)).to(tl.int64)
    x_tile = x_ptr + row[:, None] * K + step[None, :]
    w_tile = w_ptr + expert * N * K + column[None, :] * K + step[:, None]
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_tile, mask=(row < M)[:, None] & (step < K - k)[None, :], other=0.0)
        w = tl.load(w_tile, mask=(column < N)[None, :] & (step < K - k)[:, None], other=0.0)
        acc = tl.dot(x, w, acc)
        x_tile += BK
        w_tile += BK
    inside = (row < M)[:, None] & (column < N)[None, :]
    y = acc.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row[:, None] * N + column[None, :], y, mask=inside)


@triton.jit
def batched(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Multiply the matrices of a batch."""
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    a_base = a_ptr + batch * M * K
    b_base = b_ptr + batch * K * N
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        index = k + step
        a_mask = (row < M)[:, None] & (index < K)[None, :]
        b_mask = (index < K)[:, None] & (column < N)[None, :]
        a = tl.load(a_base + row[:, None] * K + index[None, :], mask=a_mask, other=0.0)
        b = tl.load(b_base + index[:, None] * N + column[None, :], mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc)
    place = batch * M * N + row[:, None] * N + column[None, :]
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(c_ptr + place, acc.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gated(
    x_ptr, up_ptr, gate_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Multiply by two matrices, and gate one product with the other (SwiGLU)."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    x_tile = x_ptr + row[:, None] * K + step[None, :]
    w_tile = step[:, None] * N + column[None, :]
    up = tl.zeros([BM, BN], tl.float32)
    gate = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        present = (step < K - k)[:, None] & (column < N)[None, :]
        x = tl.load(x_tile, mask=(row < M)[:, None] & (step < K - k)[None, :], other=0.0)
        up = tl.dot(x, tl.load(up_ptr + w_tile, mask=present, other=0.0), up)
        gate = tl.dot(x, tl.load(gate_ptr + w_tile, mask=present, other=0.0), gate)
        x_tile += BK
        w_tile += BK * N
    y = up * gate / (1.0 + tl.exp(-gate))
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(y_ptr + row[:, None] * N + column[None, :], y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def mlp(
    x_ptr,
    first_ptr,
    second_ptr,
    y_ptr,
    M,
    HIDDEN,
    D: tl.constexpr,
    BM: tl.constexpr,
    BH: tl.constexpr,
):
    """Multiply by two matrices with a ReLU between them."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    lane = tl.arange(0, D)
    inside = (row < M)[:, None]
    x = tl.load(x_ptr + row[:, None] * D + lane[None, :], mask=inside, other=0.0)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, HIDDEN, BH):
        unit = start + tl.arange(0, BH)
        first = tl.load(
            first_ptr + lane[:, None] * HIDDEN + unit[None, :],
            mask=(unit < HIDDEN)[None, :],
            other=0.0,
        )
        hidden = tl.dot(x, first, tl.zeros([BM, BH], tl.float32))
        hidden = tl.maximum(hidden, 0.0).to(x.dtype)
        second = tl.load(
            second_ptr + unit[:, None] * D + lane[None, :], mask=(unit < HIDDEN)[:, None], other=0.0
        )
        acc = tl.dot(hidden, second, acc)
    tl.store(y_ptr + row[:, None] * D + lane[None, :], acc.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def int4(
    x_ptr, w_ptr, scale_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Multiply by weights of 4 bits, eight in an integer, which have a scale for BK of a column."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        index = k + step
        x = tl.load(x_ptr + row[:, None] * K + index[None, :], mask=(row < M)[:, None], other=0.0)
        words = tl.load(
            w_ptr + (index // 8)[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0
        )
        scale = tl.load(scale_ptr + k // BK * N + column, mask=column < N, other=0.0)
        nibble = (words >> (index % 8 * 4)[:, None]) & 15
        w = (nibble - 8).to(x.dtype) * scale[None, :]
        acc = tl.dot(x, w, acc)
    inside = (row < M)[:, None] & (column < N)[None, :]
    y = acc.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row[:, None] * N + column[None, :], y, mask=inside)


@triton.jit
def gram(a_ptr, c_ptr, M, K, BM: tl.constexpr, BK: tl.constexpr):
    """Compute the lower half of A times its transpose, and store it twice."""
    down = tl.program_id(0)
    across = tl.program_id(1)
    if across <= down:
        row = down * BM + tl.arange(0, BM)
        column = across * BM + tl.arange(0, BM)
        step = tl.arange(0, BK)
        acc = tl.zeros([BM, BM], tl.float32)
        for k in range(0, K, BK):
            index = k + step
            a = tl.load(
                a_ptr + row[:, None] * K + index[None, :],
                mask=(row < M)[:, None] & (index < K)[None, :],
                other=0.0,
            )
            b = tl.load(
                a_ptr + column[None, :] * K + index[:, None],
                mask=(column < M)[None, :] & (index < K)[:, None],
                other=0.0,
            )
            acc = tl.dot(a, b, acc)
        c = acc.to(c_ptr.dtype.element_ty)
        inside = (row < M)[:, None] & (column < M)[None, :]
        tl.store(c_ptr + row[:, None] * M + column[None, :], c, mask=inside)
        tl.store(c_ptr + column[None, :] * M + row[:, None], c, mask=inside)


@triton.jit
def fp8(
    a_ptr,
    b_ptr,
    a_scale_ptr,
    b_scale_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Multiply bytes that have a scale for BK of a row, and one for BK by BK of the weights."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    parts = tl.cdiv(K, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for part in range(0, parts):
        index = part * BK + step
        a = tl.load(
            a_ptr + row[:, None] * K + index[None, :],
            mask=(row < M)[:, None] & (index < K)[None, :],
            other=0.0,
        )
        b = tl.load(
            b_ptr + column[None, :] * K + index[:, None],
            mask=(column < N)[None, :] & (index < K)[:, None],
            other=0.0,
        )
        a_scale = tl.load(a_scale_ptr + row * parts + part, mask=row < M, other=0.0)
        b_scale = tl.load(b_scale_ptr + column // BK * parts + part, mask=column < N, other=0.0)
        product = tl.dot(a, b, tl.zeros([BM, BN], tl.float32))
        acc += product * a_scale[:, None] * b_scale[None, :]
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(
        c_ptr + row[:, None] * N + column[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def convolution(x_ptr, w_ptr, y_ptr, BATCH, H, W, C, F, OH, OW, STRIDE: tl.constexpr, BM: tl.constexpr,
                BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Convolve images with filters of 3x3, channels last, as a product of pixels and weights."""
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    image = pixel // (OH * OW)
    y = pixel % (OH * OW) // OW * STRIDE - 1
    x = pixel % OW * STRIDE - 1
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, 9 * C, BK):
        index = k + tl.arange(0, BK)
        tap = index // C
        channel = index % C
        down = y[:, None] + (tap // 3)[None, :]
        right = x[:, None] + (tap % 3)[None, :]
        present = (pixel < BATCH * OH * OW)[:, None] & (index < 9 * C)[None, :]
        present = present & (down >= 0) & (down < H) & (right >= 0) & (right < W)
        place = ((image[:, None] * H + down) * W + right) * C + channel[None, :]
        a = tl.load(x_ptr + place, mask=present, other=0.0)
        w_mask = (index < 9 * C)[:, None] & (column < F)[None, :]
        b = tl.load(w_ptr + index[:, None] * F + column[None, :], mask=w_mask, other=0.0)
        acc = tl.dot(a, b, acc)
    inside = (pixel < BATCH * OH * OW)[:, None] & (column < F)[None, :]
    tl.store(
        y_ptr + pixel[:, None] * F + column[None, :], acc.to(y_ptr.dtype.element_ty), mask=inside
    )
