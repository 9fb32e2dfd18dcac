"""Forms of GEMM for benchmarks/triton_twins.py, written for this repository."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def strided(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
            GROUP: tl.constexpr, EVEN: tl.constexpr, INT: tl.constexpr):  # fmt: skip
    """Multiply matrices of any strides, whose tiles groups of rows share."""
    program = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * across
    first = program // width * GROUP
    tall = min(down - first, GROUP)
    i = first + program % tall
    j = program % width // tall
    row, column, step = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    row_in = tl.max_contiguous(tl.multiple_of(row % M, BM), BM)
    column_in = tl.max_contiguous(tl.multiple_of(column % N, BN), BN)
    if not EVEN:
        row_in, column_in = row % M, column % N
    a_tile = a_ptr + (row_in[:, None] * am + step[None, :] * ak)
    b_tile = b_ptr + (step[:, None] * bk + column_in[None, :] * bn)
    if INT:
        acc = tl.zeros((BM, BN), dtype=tl.int32)
    else:
        acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        if EVEN:
            a, b = tl.load(a_tile), tl.load(b_tile)
        else:
            a = tl.load(a_tile, mask=step[None, :] < K - k * BK, other=0)
            b = tl.load(b_tile, mask=step[:, None] < K - k * BK, other=0)
        if INT:
            acc += tl.dot(a, b, out_dtype=tl.int32)
        else:
            acc = tl.dot(a, b, acc)
        a_tile += BK * ak
        b_tile += BK * bk
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(
        c_ptr + row[:, None] * cm + column[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def scaled_bytes(a_ptr, b_ptr, row_scale_ptr, column_scale_ptr, bias_ptr, c_ptr, M, N, K, BM: tl.constexpr,
                 BN: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Multiply bytes, and scale rows and columns of the product."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    a_tile = a_ptr + row[:, None] * K + step[None, :]
    b_tile = b_ptr + column[None, :] * K + step[:, None]
    acc = tl.zeros((BM, BN), tl.int32)
    for k in range(0, K, BK):
        a = tl.load(a_tile + k, mask=(row < M)[:, None] & (step + k < K)[None, :], other=0)
        b = tl.load(b_tile + k, mask=(column < N)[None, :] & (step + k < K)[:, None], other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    row_scale = tl.load(row_scale_ptr + row, mask=row < M, other=0.0)
    column_scale = tl.load(column_scale_ptr + column, mask=column < N, other=0.0)
    bias = tl.load(bias_ptr + column, mask=column < N, other=0.0)
    c = acc.to(tl.float32) * row_scale[:, None] * column_scale[None, :] + bias[None, :]
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(c_ptr + row[:, None] * N + column[None, :], c.to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def byte_weights(
    x_ptr, w_ptr, scale_ptr, y_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Multiply by weights of 8 bits, which are converted in each step, and scale columns."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    x_tile = x_ptr + row[:, None] * K + step[None, :]
    w_tile = w_ptr + step[:, None] * N + column[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        x = tl.load(x_tile, mask=(row < M)[:, None], other=0.0)
        w = tl.load(w_tile, mask=(column < N)[None, :], other=0)
        acc = tl.dot(x, w.to(x.dtype), acc)
        x_tile += BK
        w_tile += BK * N
    scale = tl.load(scale_ptr + column, mask=column < N, other=0.0)
    inside = (row < M)[:, None] & (column < N)[None, :]
    y = (acc * scale[None, :]).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row[:, None] * N + column[None, :], y, mask=inside)


@triton.jit
def activated(a_ptr, b_ptr, norm_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              RELU: tl.constexpr):  # fmt: skip
    """Multiply by a matrix what is scaled by columns or rectified in each step."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        step = k + tl.arange(0, BK)
        a = tl.load(a_ptr + row[:, None] * K + step[None, :], mask=(row < M)[:, None], other=0.0)
        if RELU:
            a = tl.maximum(a, 0.0).to(b_ptr.dtype.element_ty)
        else:
            norm = tl.load(norm_ptr + step)
            a = (a.to(tl.float32) * norm[None, :]).to(a.dtype)
        b = tl.load(
            b_ptr + step[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0
        )
        acc = tl.dot(a, b, acc)
    inside = (row < M)[:, None] & (column < N)[None, :]
    tl.store(
        c_ptr + row[:, None] * N + column[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def routed(x_ptr, w_ptr, token_ptr, expert_ptr, weight_ptr, y_ptr, N, K, count, TOP: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Multiply rows that a table names by the weights of the expert of their block."""
    program = tl.program_id(0)
    down, across = tl.cdiv(count, BM), tl.cdiv(N, BN)
    first = program // (GROUP * across) * GROUP
    tall = min(down - first, GROUP)
    i = first + program % (GROUP * across) % tall
    j = program % (GROUP * across) // tall
    place = i * BM + tl.arange(0, BM)
    token = tl.load(token_ptr + place).to(tl.int64)
    present = token < count
    expert = tl.load(expert_ptr + i).to(tl.int64)
    column = (j * BN + tl.arange(0, BN).to(tl.int64)) % N
    step = tl.arange(0, BK)
    x_tile = x_ptr + token[:, None] // TOP * K + step[None, :]
    w_tile = w_ptr + expert * N * K + step[:, None] + column[None, :] * K
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(x_tile, mask=present[:, None] & (step[None, :] < K - k * BK), other=0.0)
        w = tl.load(w_tile, mask=step[:, None] < K - k * BK, other=0.0)
        acc += tl.dot(x, w)
        x_tile += BK
        w_tile += BK
    acc = acc * tl.load(weight_ptr + token, mask=present, other=0.0)[:, None]
    column = j * BN + tl.arange(0, BN)
    inside = present[:, None] & (column < N)[None, :]
    tl.store(
        y_ptr + token[:, None] * N + column[None, :], acc.to(y_ptr.dtype.element_ty), mask=inside
    )


@triton.jit
def table_of_gemms(address_ptr, size_ptr, groups, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                   BK: tl.constexpr):  # fmt: skip
    """Multiply matrices whose addresses and sizes are in a table."""
    tile = tl.program_id(0)
    end = 0
    for g in range(groups):
        M, N, K = (
            tl.load(size_ptr + 3 * g),
            tl.load(size_ptr + 3 * g + 1),
            tl.load(size_ptr + 3 * g + 2),
        )
        across = tl.cdiv(N, BN)
        tiles = tl.cdiv(M, BM) * across
        while tile >= end and tile < end + tiles:
            a_ptr = tl.load(address_ptr + 3 * g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(address_ptr + 3 * g + 1).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(address_ptr + 3 * g + 2).to(tl.pointer_type(tl.float16))
            row = (tile - end) // across * BM + tl.arange(0, BM)
            column = (tile - end) % across * BN + tl.arange(0, BN)
            step = tl.arange(0, BK)
            a_tile = a_ptr + row[:, None] * K + step[None, :]
            b_tile = b_ptr + step[:, None] * N + column[None, :]
            acc = tl.zeros((BM, BN), tl.float32)
            for _ in range(0, tl.cdiv(K, BK)):
                tl.multiple_of(a_tile, [16, 16])
                tl.multiple_of(b_tile, [16, 16])
                acc += tl.dot(tl.load(a_tile), tl.load(b_tile))
                a_tile += BK
                b_tile += BK * N
            tl.store(c_ptr + row[:, None] * N + column[None, :], acc.to(tl.float16))
            tile += PROGRAMS
        end += tiles


@triton.jit
def persistent(a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
               BK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Multiply tile after tile in one program for each multiprocessor."""
    down, across, parts = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    step = tl.arange(0, BK)
    for tile in range(tl.program_id(0), down * across, PROGRAMS):
        first = tile // (GROUP * across) * GROUP
        tall = min(down - first, GROUP)
        row = (first + tile % tall) * BM + tl.arange(0, BM)
        column = tile % (GROUP * across) // tall * BN + tl.arange(0, BN)
        row_in, column_in = tl.where(row < M, row, 0), tl.where(column < N, column, 0)
        acc = tl.zeros((BM, BN), tl.float32)
        for part in range(parts):
            k = part * BK + step
            a = tl.load(a_ptr + row_in[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
            b = tl.load(b_ptr + k[:, None] * N + column_in[None, :], mask=k[:, None] < K, other=0.0)
            acc = tl.dot(a, b, acc)
        inside = (row < M)[:, None] & (column < N)[None, :]
        tl.store(
            c_ptr + row[:, None] * N + column[None, :], acc.to(c_ptr.dtype.element_ty), mask=inside
        )


@triton.jit
def described(a_ptr, b_ptr, c_ptr, bias_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              TRANSPOSED: tl.constexpr, BIAS: tl.constexpr):  # fmt: skip
    """Multiply tiles that descriptors name, the second matrix by rows or by columns."""
    a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    if TRANSPOSED:
        b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    else:
        b_tiles = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = a_tiles.load([i, k])
        if TRANSPOSED:
            b = b_tiles.load([j, k]).T
        else:
            b = b_tiles.load([k, j])
        acc = tl.dot(a, b, acc)
    if BIAS:
        column = j + tl.arange(0, BN)
        acc += tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
        acc = acc * tl.sigmoid(acc)
    c_tiles.store([i, j], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def persistent_described(a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                         BK: tl.constexpr):  # fmt: skip
    """Multiply tile after tile by descriptors, the second matrix transposed."""
    a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    down = tl.cdiv(M, BM)
    for tile in range(tl.program_id(0), down * tl.cdiv(N, BN), PROGRAMS):
        i, j = tile % down * BM, tile // down * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for part in range(tl.cdiv(K, BK)):
            a = a_tiles.load([i, part * BK])
            b = b_tiles.load([j, part * BK])
            acc = tl.dot(a, b.T, acc)
        c_tiles.store([i, j], acc.to(c_ptr.dtype.element_ty))


@triton.jit
def by_blocks(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    am,
    ak,
    bk,
    bn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Multiply by block pointers."""
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    a = tl.make_block_ptr(a_ptr, (M, K), (am, ak), (i, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (bk, bn), (0, j), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        left = tl.load(a, boundary_check=(0, 1), padding_option="zero")
        right = tl.load(b, boundary_check=(0, 1), padding_option="zero")
        acc += tl.dot(left, right)
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (N, 1), (i, j), (BM, BN), (1, 0))
    tl.store(c, acc.to(c_ptr.dtype.element_ty), boundary_check=(0, 1))


@triton.jit
def two_products(a_ptr, b_ptr, d_ptr, first_ptr, second_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr,
                 BK: tl.constexpr):  # fmt: skip
    """Multiply by two matrices, and store both products."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    step = tl.arange(0, BK)
    a_tile = a_ptr + row[:, None] * K + step[None, :]
    place = step[:, None] * N + column[None, :]
    first, second = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(a_tile, mask=(row < M)[:, None], other=0.0)
        b = tl.load(b_ptr + place, mask=(column < N)[None, :], other=0.0)
        d = tl.load(d_ptr + place, mask=(column < N)[None, :], other=0.0)
        first += tl.dot(a, b)
        second += tl.dot(a, d)
        a_tile += BK
        place += BK * N
    inside = (row < M)[:, None] & (column < N)[None, :]
    place = row[:, None] * N + column[None, :]
    tl.store(first_ptr + place, first.to(first_ptr.dtype.element_ty), mask=inside)
    tl.store(second_ptr + place, second.to(second_ptr.dtype.element_ty), mask=inside)


@triton.jit
def weight_gradients(x_ptr, dy_ptr, dw_ptr, T, N, K, PARTS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                     BT: tl.constexpr):  # fmt: skip
    """Add the product of a part of the rows of x, transposed, and dy to gradients of weights."""
    feature = tl.program_id(0) * BK + tl.arange(0, BK)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BK, BN), tl.float32)
    for t in range(tl.program_id(2) * BT, T, BT * PARTS):
        token = t + tl.arange(0, BT)
        x = tl.load(x_ptr + token[:, None] * K + feature[None, :], mask=(token < T)[:, None] & (feature < K)[None, :],
                    other=0.0)  # fmt: skip
        dy = tl.load(dy_ptr + token[:, None] * N + column[None, :], mask=(token < T)[:, None] & (column < N)[None, :],
                     other=0.0)  # fmt: skip
        acc += tl.dot(tl.trans(x), dy)
    inside = (feature < K)[:, None] & (column < N)[None, :]
    tl.atomic_add(dw_ptr + feature[:, None] * N + column[None, :], acc, mask=inside, sem="relaxed")


@triton.jit
def tiles_of_both(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Multiply tiles of a matrix by those of another one, transposed."""
    a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a_tiles.load([i, k]), b_tiles.load([j, k]).T, acc)
    c_tiles.store([i, j], acc.to(c_ptr.dtype.element_ty))
