"""GEMM on CDNA: MFMA fed from LDS, while the next tiles travel through registers.

    python examples/amd/mfma_gemm.py

C = A B^T with A [M, K] and B [N, K]. LDS holds two tiles of each; rows of 128 bytes are swizzled, so that 16 lanes that read
a column hit different banks. `gluon_kernels.gemm.amd` adds direct copies to LDS, fp8 and block scales on CDNA4.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3


@gluon.jit
def tile_offsets(first, size, K, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    """Return offsets of a tile; rows past the end wrap, for their results are not stored."""
    row = (first + gl.arange(0, ROWS, gl.SliceLayout(1, layout))) % size
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
    return (row * K)[:, None] + column, column


@gluon.jit
def gemm_kernel(a, b, c, M, N, K, BLOCK: gl.constexpr, BLOCK_K: gl.constexpr):
    dtype: gl.constexpr = a.dtype.element_ty
    sums: gl.constexpr = gl.amd.AMDMFMALayout(3, [32, 32, 8], True, [2, 2])
    left: gl.constexpr = gl.DotOperandLayout(0, sums, 8)
    right: gl.constexpr = gl.DotOperandLayout(1, sums, 8)
    rows: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    a_smem = gl.allocate_shared_memory(dtype, [2, BLOCK, BLOCK_K], shared)
    b_smem = gl.allocate_shared_memory(dtype, [2, BLOCK, BLOCK_K], shared)
    row, column = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    a_offsets, along = tile_offsets(row, M, K, BLOCK, BLOCK_K, rows)
    b_offsets, _ = tile_offsets(column, N, K, BLOCK, BLOCK_K, rows)

    a_smem.index(0).store(cdna3.buffer_load(a, a_offsets, mask=along < K))
    b_smem.index(0).store(cdna3.buffer_load(b, b_offsets, mask=along < K))
    acc = gl.zeros([BLOCK, BLOCK], gl.float32, sums)
    for step in range(gl.cdiv(K, BLOCK_K)):
        ahead = (step + 1) * BLOCK_K
        a_next = cdna3.buffer_load(a + ahead, a_offsets, mask=along < K - ahead)
        b_next = cdna3.buffer_load(b + ahead, b_offsets, mask=along < K - ahead)
        x = a_smem.index(step % 2).load(left)
        y = b_smem.index(step % 2).permute([1, 0]).load(right)
        acc = cdna3.mfma(x, y, acc)
        a_smem.index((step + 1) % 2).store(a_next)
        b_smem.index((step + 1) % 2).store(b_next)
    i = row + gl.arange(0, BLOCK, gl.SliceLayout(1, sums))
    j = column + gl.arange(0, BLOCK, gl.SliceLayout(0, sums))
    inside = (i < M)[:, None] & (j < N)[None, :]
    cdna3.buffer_store(acc.to(dtype), c, (i * N)[:, None] + j[None, :], mask=inside)


def main():
    place = gluon.testing.place("amd.mfma", "amd.mfma_fp8")
    rng, (m, n, k) = np.random.default_rng(0), (150, 104, 336)
    a, b = (rng.standard_normal((size, k)).astype(np.float16) for size in (m, n))
    c, grid = place.empty((m, n), np.float16), (gluon.cdiv(m, 64), gluon.cdiv(n, 64))
    arrays = (place.array(a), place.array(b), c)
    gemm_kernel[grid](*arrays, m, n, k, 64, 64, target=place.target)
    wanted = a.astype(float) @ b.astype(float).T
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"GEMM by MFMA on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
