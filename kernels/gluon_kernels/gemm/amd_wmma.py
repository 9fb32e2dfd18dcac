"""Matrix multiplication for RDNA4 on WMMA: C = A B^T with A [M, K] and B [N, K], 16-bit.

The next tiles travel through registers while the current ones are multiplied; LDS is
double-buffered, with rows of 128 bytes that are swizzled. K must be a multiple of 16.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3, rdna4


@gluon.jit
def tile_offsets(first, size, K, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    """Offsets of a tile's elements; rows past the end wrap, for their results are not stored."""
    row = (first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))) % size
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return (row * K)[:, None] + column[None, :], column[None, :]


@gluon.jit
def matmul_rdna4(
    a, b, c, M, N, K, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr
):
    gl.target.require("amd.wmma_v2")
    dtype: gl.constexpr = a.dtype.element_ty
    warps: gl.constexpr = gl.num_warps()
    acc_layout: gl.constexpr = gl.amd.AMDWMMALayout(2, True, warps_per_cta=[warps // 2, 2])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 8)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, acc_layout, 8)
    rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_K], dtype)
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    a_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_M, BLOCK_K], shared)
    b_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_N, BLOCK_K], shared)
    first_m, first_n = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    a_offsets, column = tile_offsets(first_m, M, K, BLOCK_M, BLOCK_K, rows)
    b_offsets, _ = tile_offsets(first_n, N, K, BLOCK_N, BLOCK_K, rows)

    # Buffer addressing is CDNA's by name only.
    a_smem.index(0).store(cdna3.buffer_load(a, a_offsets, mask=column < K))
    b_smem.index(0).store(cdna3.buffer_load(b, b_offsets, mask=column < K))
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, acc_layout)
    for tile in range(gl.cdiv(K, BLOCK_K)):
        ahead = (tile + 1) * BLOCK_K
        a_next = cdna3.buffer_load(a + ahead, a_offsets, mask=column < K - ahead)
        b_next = cdna3.buffer_load(b + ahead, b_offsets, mask=column < K - ahead)
        x = a_smem.index(tile % 2).load(a_layout)
        y = b_smem.index(tile % 2).permute([1, 0]).load(b_layout)
        acc = rdna4.wmma(x, y, acc)
        a_smem.index((tile + 1) % 2).store(a_next)
        b_smem.index((tile + 1) % 2).store(b_next)

    out: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], c.dtype.element_ty)
    result = gl.convert_layout(acc.to(c.dtype.element_ty), out)
    row = first_m + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, out))
    columns = first_n + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, out))
    mask = (row < M)[:, None] & (columns < N)[None, :]
    cdna3.buffer_store(result, c, (row * N)[:, None] + columns[None, :], mask=mask)
