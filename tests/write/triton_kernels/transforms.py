"""Transforms by butterflies, stencils, solvers and images."""

import torch
import triton
import triton.language as tl


@triton.jit
def hadamard_kernel(x_ptr, y_ptr, M, scale, BM: tl.constexpr, N: tl.constexpr, LOG: tl.constexpr):
    """Transform rows by butterflies of pairs."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.arange(0, N)
    inside = (row < M)[:, None]
    place = row[:, None] * N + column[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    for step in tl.static_range(0, LOG):
        pairs = tl.permute(tl.reshape(x, [BM, N >> (step + 1), 2, 1 << step]), (0, 1, 3, 2))
        one, other = tl.split(pairs)
        x = tl.reshape(tl.permute(tl.join(one + other, one - other), (0, 1, 3, 2)), [BM, N])
    tl.store(y_ptr + place, (x * scale).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def fft_kernel(
    re_ptr, im_ptr, ore_ptr, oim_ptr, M, BM: tl.constexpr, N: tl.constexpr, LOG: tl.constexpr
):
    """Transform complex rows: butterflies of the Stockham order."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.arange(0, N)
    inside = (row < M)[:, None]
    place = row[:, None] * N + column[None, :]
    re = tl.load(re_ptr + place, mask=inside, other=0.0)
    im = tl.load(im_ptr + place, mask=inside, other=0.0)
    for step in tl.static_range(0, LOG):
        # [p, q, 2 parts of the input] -> halves of the rows
        a_re, b_re = tl.split(
            tl.permute(tl.reshape(re, [BM, 2, N >> (step + 1), 1 << step]), (0, 2, 3, 1))
        )
        a_im, b_im = tl.split(
            tl.permute(tl.reshape(im, [BM, 2, N >> (step + 1), 1 << step]), (0, 2, 3, 1))
        )
        turn = tl.arange(0, N // 2) >> step
        angle = turn.to(tl.float32) * (-6.283185307179586 / (N >> step))
        cos = tl.reshape(tl.cos(angle), [1, N >> (step + 1), 1 << step])
        sin = tl.reshape(tl.sin(angle), [1, N >> (step + 1), 1 << step])
        d_re = a_re - b_re
        d_im = a_im - b_im
        out_re = tl.join(a_re + b_re, d_re * cos - d_im * sin)
        out_im = tl.join(a_im + b_im, d_re * sin + d_im * cos)
        re = tl.reshape(tl.permute(out_re, (0, 1, 3, 2)), [BM, N])
        im = tl.reshape(tl.permute(out_im, (0, 1, 3, 2)), [BM, N])
    tl.store(ore_ptr + place, re, mask=inside)
    tl.store(oim_ptr + place, im, mask=inside)


@triton.jit
def stencil_kernel(x_ptr, w_ptr, y_ptr, H, W, R: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr):
    """Apply a stencil of (2R+1)^2 taps to an image, zeros around it."""
    down = tl.program_id(0) * BH + tl.arange(0, BH)
    right = tl.program_id(1) * BW + tl.arange(0, BW)
    acc = tl.zeros([BH, BW], tl.float32)
    for dy in tl.static_range(-R, R + 1):
        for dx in tl.static_range(-R, R + 1):
            y = down[:, None] + dy
            x = right[None, :] + dx
            seen = (y >= 0) & (y < H) & (x >= 0) & (x < W)
            acc += tl.load(w_ptr + (dy + R) * (2 * R + 1) + dx + R) * tl.load(
                x_ptr + y * W + x, mask=seen, other=0.0
            )
    tl.store(
        y_ptr + down[:, None] * W + right[None, :],
        acc,
        mask=(down < H)[:, None] & (right < W)[None, :],
    )


@triton.jit
def triangular_solve_kernel(l_ptr, b_ptr, x_ptr, N, B: tl.constexpr, BN: tl.constexpr):
    """Solve L X = B for a lower triangle of a block, row after row."""
    batch = tl.program_id(0)
    row = tl.arange(0, B)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (column < N)[None, :]
    l = tl.load(l_ptr + batch * B * B + row[:, None] * B + row[None, :])
    x = tl.load(b_ptr + batch * B * N + row[:, None] * N + column[None, :], mask=inside, other=0.0)
    for i in range(0, B):
        diagonal = tl.sum(tl.where((row[:, None] == i) & (row[None, :] == i), l, 0.0))
        solved = tl.sum(tl.where(row[:, None] == i, x, 0.0), 0) / diagonal
        factor = tl.sum(tl.where(row[None, :] == i, l, 0.0), 1)
        factor = tl.where(row > i, factor, 0.0)
        x = tl.where(row[:, None] == i, solved[None, :], x - factor[:, None] * solved[None, :])
    tl.store(x_ptr + batch * B * N + row[:, None] * N + column[None, :], x, mask=inside)


@triton.jit
def cholesky_kernel(a_ptr, l_ptr, B: tl.constexpr):
    """Factor small positive matrices, one for each program."""
    batch = tl.program_id(0)
    row = tl.arange(0, B)
    place = batch * B * B + row[:, None] * B + row[None, :]
    a = tl.load(a_ptr + place)
    l = tl.zeros([B, B], tl.float32)
    for j in range(0, B):
        column = tl.sum(tl.where(row[None, :] == j, a, 0.0), 1)
        pivot = tl.sqrt(tl.sum(tl.where(row == j, column, 0.0), 0))
        column = tl.where(row >= j, column / pivot, 0.0)
        l = tl.where(row[None, :] == j, column[:, None], l)
        across = tl.sum(tl.where(row[:, None] == row[None, :], column[:, None], 0.0), 0)
        a -= column[:, None] * across[None, :]
    tl.store(l_ptr + place, l)


@triton.jit
def equalize_kernel(x_ptr, y_ptr, N: tl.constexpr, BINS: tl.constexpr):
    """Map the bytes of a row through their cumulative histogram."""
    row = tl.program_id(0)
    column = tl.arange(0, N)
    x = tl.load(x_ptr + row * N + column).to(tl.int32)
    counts = tl.cumsum(tl.histogram(x, BINS), 0)
    y = tl.gather(counts, x, 0) * (BINS - 1) // N
    tl.store(y_ptr + row * N + column, y.to(tl.uint8))


@triton.jit
def pool_kernel(x_ptr, y_ptr, at_ptr, H, W, BH: tl.constexpr, BW: tl.constexpr):
    """Take the largest of 2x2, and its place."""
    y = tl.program_id(0) * BH + tl.arange(0, BH)
    x = tl.program_id(1) * BW + tl.arange(0, BW)
    place = y[:, None] * W + x[None, :]
    inside = (y < H)[:, None] & (x < W)[None, :]
    values = tl.load(x_ptr + place, mask=inside, other=-float("inf"))
    parts = tl.reshape(
        tl.permute(tl.reshape(values, [BH // 2, 2, BW // 2, 2]), (0, 2, 1, 3)),
        [BH // 2, BW // 2, 4],
    )
    largest, part = tl.max(parts, 2, return_indices=True)
    oy = tl.program_id(0) * (BH // 2) + tl.arange(0, BH // 2)
    ox = tl.program_id(1) * (BW // 2) + tl.arange(0, BW // 2)
    out = oy[:, None] * (W // 2) + ox[None, :]
    kept = (oy < H // 2)[:, None] & (ox < W // 2)[None, :]
    tl.store(y_ptr + out, largest, mask=kept)
    tl.store(at_ptr + out, part, mask=kept)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hadamard():
    x, y = normal(10, 16), torch.empty(10, 16)
    hadamard_kernel[(2,)](x, y, 10, 16**-0.5, BM=8, N=16, LOG=4)
    matrix = torch.ones(1, 1)
    for _ in range(4):
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return y, x @ matrix * 16**-0.5


def fft():
    re, im = normal(5, 8), normal(5, 8, seed=1)
    outs = torch.empty_like(re), torch.empty_like(im)
    fft_kernel[(2,)](re, im, *outs, 5, BM=4, N=8, LOG=3)
    wanted = torch.fft.fft(torch.complex(re, im))
    return torch.cat(outs), torch.cat([wanted.real, wanted.imag])


def stencil():
    x, w, y = normal(13, 21), normal(3, 3, seed=1), torch.empty(13, 21)
    stencil_kernel[(2, 2)](x, w, y, 13, 21, R=1, BH=8, BW=16)
    return y, torch.conv2d(x[None, None], w[None, None], padding=1)[0, 0]


def triangular_solve():
    lower = normal(2, 8, 8).tril() + 4 * torch.eye(8)
    b, x = normal(2, 8, 20, seed=1), torch.empty(2, 8, 20)
    triangular_solve_kernel[(2, 2)](lower, b, x, 20, B=8, BN=16)
    return x, torch.linalg.solve_triangular(lower, b, upper=False)


def cholesky():
    a = normal(3, 8, 8)
    a = a @ a.mT + 2 * torch.eye(8)
    lower = torch.empty_like(a)
    cholesky_kernel[(3,)](a, lower, B=8)
    return lower, torch.linalg.cholesky(a)


def equalize():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 32, (3, 128), generator=generator, dtype=torch.uint8)
    y = torch.empty_like(x)
    equalize_kernel[(3,)](x, y, N=128, BINS=32)
    counts = torch.stack([row.long().bincount(minlength=32).cumsum(0) for row in x])
    return y, counts.gather(1, x.long()) * 31 // 128


def pool():
    x, y = normal(16, 20), torch.empty(8, 10)
    place = torch.empty(8, 10, dtype=torch.int32)
    pool_kernel[(2, 2)](x, y, place, 16, 20, BH=8, BW=16)
    parts = x.view(8, 2, 10, 2).transpose(1, 2).reshape(8, 10, 4)
    wanted = parts.max(2)
    return torch.cat([y, place]), torch.cat([wanted.values, wanted.indices])


CASES = [hadamard, fft, stencil, triangular_solve, cholesky, equalize, pool]
