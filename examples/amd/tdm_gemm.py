"""GEMM on gfx1250: the tensor data mover fills LDS while WMMA multiplies.

    python examples/amd/tdm_gemm.py

C = A B^T. Copies of the next steps are under way while one is multiplied; elements outside of the matrices arrive as zeros.
TDM pads rows in LDS by 16 bytes on the way, so that lanes that read a column hit different banks.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.gfx1250 import buffer_store, tdm, wmma


@gluon.jit
def gemm_kernel(a, b, c, M, N, K, BLOCK: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr):
    padded: gl.constexpr = gl.PaddedSharedLayout.with_identity_for(
        [[BLOCK_K, 8]], [BLOCK, BLOCK_K], [1, 0]
    )
    sums: gl.constexpr = gl.amd.AMDWMMALayout(
        version=3, transposed=True, warps_per_cta=[2, 2], instr_shape=[16, 16, 32]
    )
    a_desc = tdm.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK, BLOCK_K], padded)
    b_desc = tdm.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK, BLOCK_K], padded)
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK, BLOCK_K], padded)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK, BLOCK_K], padded)
    row, column = gl.program_id(0) * BLOCK, gl.program_id(1) * BLOCK
    steps = gl.cdiv(K, BLOCK_K)

    for i in gl.static_range(STAGES - 1):
        tdm.async_load(a_desc, [row, i * BLOCK_K], a_smem.index(i), pred=i < steps)
        tdm.async_load(b_desc, [column, i * BLOCK_K], b_smem.index(i), pred=i < steps)
    acc = gl.zeros((BLOCK, BLOCK), gl.float32, sums)
    for i in range(steps):
        ahead = i + STAGES - 1
        slot, k = ahead % STAGES, ahead * BLOCK_K
        tdm.async_load(a_desc, [row, k], a_smem.index(slot), pred=ahead < steps)
        tdm.async_load(b_desc, [column, k], b_smem.index(slot), pred=ahead < steps)
        tdm.async_wait(2 * (STAGES - 1))  # the tiles of this step have arrived
        x = a_smem.index(i % STAGES).load(gl.DotOperandLayout(0, sums, 8))
        y = b_smem.index(i % STAGES).permute([1, 0]).load(gl.DotOperandLayout(1, sums, 8))
        acc = wmma(x, y, acc)
    i = row + gl.arange(0, BLOCK, gl.SliceLayout(1, sums))
    j = column + gl.arange(0, BLOCK, gl.SliceLayout(0, sums))
    inside = (i[:, None] < M) & (j[None, :] < N)
    buffer_store(acc.to(c.dtype.element_ty), c, i[:, None] * N + j[None, :], mask=inside)


def main():
    place = gluon.testing.place("amd.tdm")
    rng, (m, n, k) = np.random.default_rng(0), (100, 80, 200)
    a, b = (rng.standard_normal((size, k)).astype(np.float16) for size in (m, n))
    c, grid = place.empty((m, n), np.float16), (gluon.cdiv(m, 64), gluon.cdiv(n, 64))
    arrays = (place.array(a), place.array(b), c)
    gemm_kernel[grid](*arrays, m, n, k, 64, 64, 2, target=place.target)
    wanted = a.astype(float) @ b.astype(float).T
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"GEMM by TDM and WMMA on {place.target}: {m} x {n} x {k}")


if __name__ == "__main__":
    main()
