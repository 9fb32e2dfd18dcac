"""GEMM on RDNA4: WMMA, one tile of A and B in LDS at a time.

    python examples/amd/wmma_gemm.py

C = A B^T with A [M, K] and B [N, K] in float16. `gl.portable.blocked_layout` gives loads and stores 16 bytes a lane.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import rdna4


@gluon.jit
def load_tile(pointer, first, size, k, K, shape: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout(shape, pointer.dtype.element_ty)
    row = first + gl.arange(0, shape[0], gl.SliceLayout(1, layout))
    column = k + gl.arange(0, shape[1], gl.SliceLayout(0, layout))
    inside = (row < size)[:, None] & (column < K)[None, :]
    return gl.load(pointer + (row * K)[:, None] + column[None, :], mask=inside, other=0.0)


@gluon.jit
def gemm_kernel(a, b, c, M, N, K, BLOCK: gl.constexpr, BLOCK_K: gl.constexpr):
    dtype: gl.constexpr = a.dtype.element_ty
    sums: gl.constexpr = gl.amd.AMDWMMALayout(2, True, warps_per_cta=[2, 2])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    a_smem = gl.allocate_shared_memory(dtype, [BLOCK, BLOCK_K], shared)
    b_smem = gl.allocate_shared_memory(dtype, [BLOCK, BLOCK_K], shared)
    row, column = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    acc = gl.zeros([BLOCK, BLOCK], gl.float32, sums)
    for k in range(0, K, BLOCK_K):
        a_smem.store(load_tile(a, row, M, k, K, [BLOCK, BLOCK_K]))
        b_smem.store(load_tile(b, column, N, k, K, [BLOCK, BLOCK_K]))
        x = a_smem.load(gl.DotOperandLayout(0, sums, 8))
        y = b_smem.permute([1, 0]).load(gl.DotOperandLayout(1, sums, 8))
        acc = rdna4.wmma(x, y, acc)
    out: gl.constexpr = gl.portable.blocked_layout([BLOCK, BLOCK], dtype)
    result = gl.convert_layout(acc.to(dtype), out)
    i = row + gl.arange(0, BLOCK, gl.SliceLayout(1, out))
    j = column + gl.arange(0, BLOCK, gl.SliceLayout(0, out))
    inside = (i < M)[:, None] & (j < N)[None, :]
    gl.store(c + (i * N)[:, None] + j[None, :], result, mask=inside)


def main():
    place = gluon.testing.place("amd.wmma_v2")
    rng, (m, n, k) = np.random.default_rng(0), (150, 104, 336)
    a, b = (rng.standard_normal((size, k)).astype(np.float16) for size in (m, n))
    c, grid = place.empty((m, n), np.float16), (gluon.cdiv(m, 64), gluon.cdiv(n, 64))
    arrays = (place.array(a), place.array(b), c)
    gemm_kernel[grid](*arrays, m, n, k, 64, 64, target=place.target)
    wanted = a.astype(float) @ b.astype(float).T
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"GEMM by WMMA on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
