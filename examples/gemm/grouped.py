"""Grouped GEMM: each group of rows has a matrix of its own, and the kernel reads the sizes of the groups.

    python examples/gemm/grouped.py

The experts of a mixture of experts get different numbers of tokens, known on the device alone. A program walks over all
tiles; `starts` holds the first row of each group, so nothing is copied to the host.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def grouped_kernel(
    a, b, c, starts, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype)
    left: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_K], dtype)
    right: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_N], dtype)
    out: gl.constexpr = layouts.accumulator
    column = gl.program_id(1) * BLOCK_N
    tile = gl.program_id(0)
    done = 0  # tiles of the groups before
    for group in range(groups):
        first, end = gl.load(starts + group), gl.load(starts + group + 1)
        tiles = gl.cdiv(end - first, BLOCK_M)
        while tile < done + tiles:
            row = first + (tile - done) * BLOCK_M
            i = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, left))
            j = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, right))
            acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, out)
            for k in range(0, K, BLOCK_K):
                x = k + gl.arange(0, BLOCK_K, gl.SliceLayout(0, left))[None, :]
                y = k + gl.arange(0, BLOCK_K, gl.SliceLayout(1, right))[:, None]
                a_tile = gl.load(
                    a + (i * K)[:, None] + x, mask=(i < end)[:, None] & (x < K), other=0.0
                )
                from_b = b + group * K * N + y * N + j[None, :]
                b_tile = gl.load(from_b, mask=(y < K) & (j < N)[None, :], other=0.0)
                a_tile = gl.convert_layout(a_tile, layouts.a)
                acc = gl.portable.mma(a_tile, gl.convert_layout(b_tile, layouts.b), acc)
            i = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, out))
            j = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, out))
            inside = (i < end)[:, None] & (j < N)[None, :]
            gl.store(c + (i * N)[:, None] + j[None, :], acc.to(dtype), mask=inside)
            tile += gl.num_programs(0)
        done += tiles


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    starts = np.array([0, 70, 70, 75, 200], np.int32)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 64), (4, 64, 96)))
    c = place.empty((200, 96), np.float16)
    arrays = (place.array(a), place.array(b), c, place.array(starts))
    grouped_kernel[(4, 2)](*arrays, 4, 96, 64, 64, 64, 32, target=place.target)
    for group, (first, end) in enumerate(zip(starts, starts[1:])):
        wanted = a[first:end].astype(float) @ b[group].astype(float)
        np.testing.assert_allclose(place.numpy(c)[first:end], wanted, rtol=0.01, atol=0.05)
    print(f"grouped GEMM on {place.target}: groups of 70, 0, 5 and 125 rows")


if __name__ == "__main__":
    main()
