"""Matrix multiplication for CDNA, C = A B^T with A [M, K] and B [N, K]: the loop by hand.

CDNA3 (MI300) reads the next tiles into registers while it multiplies, and swizzles them into LDS.
CDNA4 (MI350) copies them into LDS past the registers; a padded buffer takes the place of the
swizzle. Either way rows of tiles have 128 bytes, LDS is double-buffered, and all reads of it have
128 bits and no bank conflicts. K must be a multiple of 16.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3, cdna4
from gluon_core.language.amd.cdna4 import async_copy


@gluon.constexpr_function
def log2(size):
    return size.bit_length() - 1


@gluon.constexpr_function
def staged_bases(rows, columns, bits):
    """Return the move of each bit of an offset in LDS: along a row, then to other rows.

    A warp's copy writes 1 KiB, after which there is a gap. It takes rows that are 16 apart, so that
    the 16 rows that an instruction reads lie in 16 such pieces, shifted by the gaps.
    """
    along = [[0, 1 << i] for i in range(log2(columns))]
    far = [[1 << i, 0] for i in range(4, log2(rows))]
    near = [[1 << i, 0] for i in range(4 if rows >= 16 else log2(rows))]
    inside = max(0, log2(1024 * 8 // bits) - log2(columns))  # bits of the row within 1 KiB
    if len(far) < inside:  # a small tile: some near rows share a piece
        return along + far + near[::-1]
    return along + far[:inside] + near + far[inside:]


@gluon.constexpr_function
def staged_layout(rows, columns, bits):
    """Return the layout of an operand's tile in LDS."""
    bases = staged_bases(rows, columns, bits)
    return gl.PaddedSharedLayout([[1024 * 8 // bits, 32 * 8 // bits]], bases, [], [rows, columns])


@gluon.constexpr_function
def copy_layout(rows, columns, bits, num_warps):
    """Return the layout of copies into it: 16 bytes per lane, the lanes of a warp one after the other."""
    bases = staged_bases(rows, columns, bits)
    vector = log2(128 // bits)
    warps = vector + 6 + log2(num_warps)
    return gl.DistributedLinearLayout(
        bases[:vector] + bases[warps:], bases[vector : vector + 6], bases[vector + 6 : warps], [],
        [rows, columns],
    )  # fmt: skip


@gluon.constexpr_function
def swizzled_layout(bits):
    return gl.SwizzledSharedLayout(128 // bits, 1, 8, [1, 0])


@gluon.constexpr_function
def row_layout(columns, bits, num_warps):
    """16 bytes per lane, as many lanes along a row as it takes."""
    vector = 128 // bits
    lanes = min(64, columns // vector)
    return gl.BlockedLayout([1, vector], [64 // lanes, lanes], [num_warps, 1], [1, 0])


@gluon.constexpr_function
def mfma_layout(version, depth, num_warps):
    wide = 2 if num_warps >= 4 else 1
    size = 32 if version == 3 else 16
    return gl.amd.AMDMFMALayout(version, [size, size, depth], True, [num_warps // wide, wide])


@gluon.jit
def first_of_tile(M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """Programs that run together share rows of A and rows of B in the cache."""
    tiles_m, tiles_n = gl.cdiv(M, BLOCK_M), gl.cdiv(N, BLOCK_N)
    program = gl.program_id(0)
    group = program // (GROUP * tiles_n)
    height = min(tiles_m - group * GROUP, GROUP)
    first_m = (group * GROUP + program % (GROUP * tiles_n) % height) * BLOCK_M
    return first_m, (program % (GROUP * tiles_n) // height) * BLOCK_N


@gluon.jit
def tile_offsets(first, size, K, ROWS: gl.constexpr, COLUMNS: gl.constexpr, layout: gl.constexpr):
    """Offsets of a tile's elements; rows past the end wrap, for their results are not stored."""
    row = (first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))) % size
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    return (row * K)[:, None] + column[None, :], column[None, :]


@gluon.jit
def store_tile(c, acc, first_m, first_n, M, N):
    rows: gl.constexpr = acc.shape[0]
    columns: gl.constexpr = acc.shape[1]
    bits: gl.constexpr = c.dtype.element_ty.primitive_bitwidth
    layout: gl.constexpr = row_layout(columns, bits, gl.num_warps())
    result = gl.convert_layout(acc.to(c.dtype.element_ty), layout)
    row = first_m + gl.arange(0, rows, layout=gl.SliceLayout(1, layout))
    column = first_n + gl.arange(0, columns, layout=gl.SliceLayout(0, layout))
    mask = (row < M)[:, None] & (column < N)[None, :]
    cdna3.buffer_store(result, c, (row * N)[:, None] + column[None, :], mask=mask)


@gluon.jit
def matmul_cdna3(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    DEPTH: gl.constexpr,
    GROUP: gl.constexpr,
    FP8: gl.constexpr,
):
    if FP8:
        gl.target.require("amd.mfma", "amd.fp8_fnuz")
    else:
        gl.target.require("amd.mfma", "amd.mfma_fp8")
    dtype: gl.constexpr = a.dtype.element_ty
    bits: gl.constexpr = dtype.primitive_bitwidth
    acc_layout: gl.constexpr = mfma_layout(3, DEPTH, gl.num_warps())
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 128 // bits)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, acc_layout, 128 // bits)
    rows: gl.constexpr = row_layout(BLOCK_K, bits, gl.num_warps())
    shared: gl.constexpr = swizzled_layout(bits)
    a_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_M, BLOCK_K], shared)
    b_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_N, BLOCK_K], shared)
    first_m, first_n = first_of_tile(M, N, BLOCK_M, BLOCK_N, GROUP)
    a_offsets, a_column = tile_offsets(first_m, M, K, BLOCK_M, BLOCK_K, rows)
    b_offsets, b_column = tile_offsets(first_n, N, K, BLOCK_N, BLOCK_K, rows)

    a_smem.index(0).store(cdna3.buffer_load(a, a_offsets, mask=a_column < K))
    b_smem.index(0).store(cdna3.buffer_load(b, b_offsets, mask=b_column < K))
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, acc_layout)
    for tile in range(gl.cdiv(K, BLOCK_K)):
        ahead = (tile + 1) * BLOCK_K
        a_next = cdna3.buffer_load(a + ahead, a_offsets, mask=a_column < K - ahead)
        b_next = cdna3.buffer_load(b + ahead, b_offsets, mask=b_column < K - ahead)
        x = a_smem.index(tile % 2).load(a_layout)
        y = b_smem.index(tile % 2).permute([1, 0]).load(b_layout)
        acc = cdna3.mfma(x, y, acc)
        a_smem.index((tile + 1) % 2).store(a_next)
        b_smem.index((tile + 1) % 2).store(b_next)
    store_tile(c, acc, first_m, first_n, M, N)


@gluon.jit
def matmul_cdna4(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    DEPTH: gl.constexpr,
    GROUP: gl.constexpr,
    FP8: gl.constexpr,
):
    gl.target.require("amd.direct_to_lds_128")
    dtype: gl.constexpr = a.dtype.element_ty
    bits: gl.constexpr = dtype.primitive_bitwidth
    acc_layout: gl.constexpr = mfma_layout(4, DEPTH, gl.num_warps())
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 128 // bits)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, acc_layout, 128 // bits)
    a_shared: gl.constexpr = staged_layout(BLOCK_M, BLOCK_K, bits)
    b_shared: gl.constexpr = staged_layout(BLOCK_N, BLOCK_K, bits)
    a_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_M, BLOCK_K], a_shared)
    b_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_N, BLOCK_K], b_shared)
    a_copy: gl.constexpr = copy_layout(BLOCK_M, BLOCK_K, bits, gl.num_warps())
    b_copy: gl.constexpr = copy_layout(BLOCK_N, BLOCK_K, bits, gl.num_warps())
    first_m, first_n = first_of_tile(M, N, BLOCK_M, BLOCK_N, GROUP)
    a_offsets, a_column = tile_offsets(first_m, M, K, BLOCK_M, BLOCK_K, a_copy)
    b_offsets, b_column = tile_offsets(first_n, N, K, BLOCK_N, BLOCK_K, b_copy)

    async_copy.buffer_load_to_shared(a_smem.index(0), a, a_offsets, mask=a_column < K)
    async_copy.buffer_load_to_shared(b_smem.index(0), b, b_offsets, mask=b_column < K)
    async_copy.commit_group()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, acc_layout)
    for tile in range(gl.cdiv(K, BLOCK_K)):
        ahead = (tile + 1) * BLOCK_K
        a_next, b_next = a_smem.index((tile + 1) % 2), b_smem.index((tile + 1) % 2)
        async_copy.buffer_load_to_shared(a_next, a + ahead, a_offsets, mask=a_column < K - ahead)
        async_copy.buffer_load_to_shared(b_next, b + ahead, b_offsets, mask=b_column < K - ahead)
        async_copy.commit_group()
        async_copy.wait_group(1)
        x = async_copy.load_shared_relaxed(a_smem.index(tile % 2), a_layout)
        y = async_copy.load_shared_relaxed(b_smem.index(tile % 2).permute([1, 0]), b_layout)
        if FP8:  # without scales, for their instruction has twice the rate
            acc = cdna4.mfma_scaled(x, None, "e4m3", y, None, "e4m3", acc)
        else:
            acc = cdna4.mfma(x, y, acc)
    async_copy.wait_group(0)
    store_tile(c, acc, first_m, first_n, M, N)


@gluon.constexpr_function
def scale_copy_layout(rows, columns, num_warps):
    """Return the layout of copies of scales to LDS: 4 bytes per lane, row after row; the rest repeats."""
    bases = [[0, 1 << i] for i in range(log2(columns))] + [[1 << i, 0] for i in range(log2(rows))]
    bases = bases + [[0, 0]] * (8 + log2(num_warps) - len(bases))
    warps = 8 + log2(num_warps)
    return gl.DistributedLinearLayout(
        bases[:2] + bases[warps:], bases[2:8], bases[8:warps], [], [rows, columns]
    )


@gluon.jit
def matmul_scaled_cdna4(
    a,
    a_scale,
    b,
    b_scale,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    KIND: gl.constexpr,
    GROUP: gl.constexpr,
):
    """Multiply A by B transposed, which have a scale for every 32 elements along K, [M, K / 32] and [N, K / 32]; fp4 ("e2m1")
    comes packed, two along K in a byte. K must be a multiple of BLOCK_K."""
    gl.target.require("amd.mfma_scaled", "amd.direct_to_lds_128")
    pack: gl.constexpr = 2 if KIND == "e2m1" else 1
    bytes_k: gl.constexpr = BLOCK_K // pack
    blocks: gl.constexpr = BLOCK_K // 32
    warps: gl.constexpr = gl.num_warps()
    acc_layout: gl.constexpr = mfma_layout(4, 128, warps)
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 16)
    b_layout: gl.constexpr = gl.DotOperandLayout(1, acc_layout, 16)
    a_scale_layout: gl.constexpr = cdna4.get_mfma_scale_layout(a_layout, [BLOCK_M, blocks])
    b_scale_layout: gl.constexpr = cdna4.get_mfma_scale_layout(b_layout, [BLOCK_N, blocks])
    element: gl.constexpr = a.dtype.element_ty
    a_shared: gl.constexpr = staged_layout(BLOCK_M, bytes_k, 8)
    b_shared: gl.constexpr = staged_layout(BLOCK_N, bytes_k, 8)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    a_smem = gl.allocate_shared_memory(element, [2, BLOCK_M, bytes_k], a_shared)
    b_smem = gl.allocate_shared_memory(element, [2, BLOCK_N, bytes_k], b_shared)
    s_smem = gl.allocate_shared_memory(gl.uint8, [2, BLOCK_M, blocks], plain)
    t_smem = gl.allocate_shared_memory(gl.uint8, [2, BLOCK_N, blocks], plain)
    a_copy: gl.constexpr = copy_layout(BLOCK_M, bytes_k, 8, warps)
    b_copy: gl.constexpr = copy_layout(BLOCK_N, bytes_k, 8, warps)
    s_copy: gl.constexpr = scale_copy_layout(BLOCK_M, blocks, warps)
    t_copy: gl.constexpr = scale_copy_layout(BLOCK_N, blocks, warps)
    first_m, first_n = first_of_tile(M, N, BLOCK_M, BLOCK_N, GROUP)
    row_bytes = gl.multiple_of(K // pack, bytes_k)
    row_scales = gl.multiple_of(K // 32, blocks)
    a_offsets, _ = tile_offsets(first_m, M, row_bytes, BLOCK_M, bytes_k, a_copy)
    b_offsets, _ = tile_offsets(first_n, N, row_bytes, BLOCK_N, bytes_k, b_copy)
    s_offsets, _ = tile_offsets(first_m, M, row_scales, BLOCK_M, blocks, s_copy)
    t_offsets, _ = tile_offsets(first_n, N, row_scales, BLOCK_N, blocks, t_copy)

    async_copy.buffer_load_to_shared(a_smem.index(0), a, a_offsets)
    async_copy.buffer_load_to_shared(b_smem.index(0), b, b_offsets)
    async_copy.buffer_load_to_shared(s_smem.index(0), a_scale, s_offsets)
    async_copy.buffer_load_to_shared(t_smem.index(0), b_scale, t_offsets)
    async_copy.commit_group()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, acc_layout)
    tiles = K // BLOCK_K
    for tile in range(tiles):
        # The last round reads its own tile again, which nobody uses.
        ahead = min(tile + 1, tiles - 1)
        now, after = tile % 2, (tile + 1) % 2
        # For all copies: not every wave issues those of scales, which Triton before 3.8 counts for each.
        async_copy.wait_group(0)
        async_copy.buffer_load_to_shared(a_smem.index(after), a + ahead * bytes_k, a_offsets)
        async_copy.buffer_load_to_shared(b_smem.index(after), b + ahead * bytes_k, b_offsets)
        async_copy.buffer_load_to_shared(s_smem.index(after), a_scale + ahead * blocks, s_offsets)
        async_copy.buffer_load_to_shared(t_smem.index(after), b_scale + ahead * blocks, t_offsets)
        async_copy.commit_group()
        x = async_copy.load_shared_relaxed(a_smem.index(now), a_layout)
        y = async_copy.load_shared_relaxed(b_smem.index(now).permute([1, 0]), b_layout)
        s = async_copy.load_shared_relaxed(s_smem.index(now), a_scale_layout)
        t = async_copy.load_shared_relaxed(t_smem.index(now), b_scale_layout)
        acc = cdna4.mfma_scaled(x, s, KIND, y, t, KIND, acc)
    async_copy.wait_group(0)
    store_tile(c, acc, first_m, first_n, M, N)
