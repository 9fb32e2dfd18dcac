"""Attention, forward, for CDNA3 and CDNA4: softmax(Q K^T / sqrt(D)) V on MFMA.

Each warp has rows of queries to itself, so that the softmax, computed online (Milakov and
Gimelshein, arXiv:1805.02867), never leaves the warp, and the accumulator of the scores is at once the
operand of the second product. The next keys and values travel through registers meanwhile; LDS is
double-buffered. Values are read transposed: CDNA4 can do that, for CDNA3 they are stored so.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3


@gluon.constexpr_function
def column_layout(rows, columns):
    """Columns one after the other, in pieces of 4 rows that are swizzled over the banks.

    The swizzle differs for 16 columns side by side, which are read together, as well as for 16 that
    are 8 apart, which are written together.
    """
    bases = [[1 << i, 0] for i in range(rows.bit_length() - 1)]
    for i in range(columns.bit_length() - 1):
        bases = bases + [[(4 << i % 4) % rows, 1 << i]]
    return gl.SharedLinearLayout(bases)


@gluon.jit
def tile_offsets(first, ROWS: gl.constexpr, D: gl.constexpr, layout: gl.constexpr):
    row = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, D, layout=gl.SliceLayout(0, layout))
    return (row * D)[:, None] + column[None, :], row[:, None]


@gluon.jit
def attend(
    block, q, k_tile, v_tile, acc, largest, total, length, scale, BLOCK_N: gl.constexpr,
    MASKED: gl.constexpr,
):  # fmt: skip
    """Add one block of keys and values to the running softmax."""
    layout: gl.constexpr = acc.type.layout
    zero = gl.zeros([q.shape[0], BLOCK_N], gl.float32, layout)
    k_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 8)
    score = cdna3.mfma(q, k_tile.permute([1, 0]).load(k_layout), zero) * scale
    if MASKED:
        key = block * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))
        score = gl.where((key < length)[None, :], score, -1e30)
    higher = gl.maximum(largest, gl.max(score, axis=1))
    kept = gl.exp2(largest - higher)
    p = gl.exp2(score - higher[:, None])
    total = total * kept + gl.sum(p, axis=1)
    # Four columns lie in each lane, before and after: nothing moves.
    p_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 4)
    p_tile = gl.convert_layout(p.to(q.dtype), p_layout)
    v_layout: gl.constexpr = gl.DotOperandLayout(1, layout, 4)
    acc = cdna3.mfma(p_tile, v_tile.load(v_layout), acc * kept[:, None])
    return acc, higher, total


@gluon.jit
def attention_cdna(
    q,
    k,
    v,
    out,
    length,
    scale,
    D: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    gl.target.require("amd.mfma", "amd.mfma_fp8")
    warps: gl.constexpr = gl.num_warps()
    dtype: gl.constexpr = q.dtype.element_ty
    cdna4: gl.constexpr = gl.target.has("amd.mfma_double_rate")
    layout: gl.constexpr = gl.amd.AMDMFMALayout(
        4 if cdna4 else 3, [32, 32, 16 if cdna4 else 8], True, [warps, 1]
    )
    q_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 8)
    rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_N, D], dtype)
    k_shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 16, [1, 0])
    # CDNA3 cannot read values transposed: four rows in each thread are stored as a piece of a column.
    v_rows: gl.constexpr = (
        rows if cdna4 else gl.BlockedLayout([4, 8], [64 * 8 // D, D // 8], [warps, 1], [1, 0])
    )
    v_shared: gl.constexpr = k_shared if cdna4 else column_layout(BLOCK_N, D)
    k_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_N, D], k_shared)
    v_smem = gl.allocate_shared_memory(dtype, [2, BLOCK_N, D], v_shared)
    head = gl.program_id(1) * length * D
    scale = scale * 1.4426950408889634  # log2(e): the hardware has powers of two

    q_offsets, q_row = tile_offsets(gl.program_id(0) * BLOCK_M, BLOCK_M, D, q_layout)
    q_tile = cdna3.buffer_load(q + head, q_offsets, mask=q_row < length)
    k_offsets, k_row = tile_offsets(0, BLOCK_N, D, rows)
    v_offsets, v_row = tile_offsets(0, BLOCK_N, D, v_rows)
    k_smem.index(0).store(cdna3.buffer_load(k + head, k_offsets, mask=k_row < length))
    v_smem.index(0).store(cdna3.buffer_load(v + head, v_offsets, mask=v_row < length))

    by_row: gl.constexpr = gl.SliceLayout(1, layout)
    largest = gl.full([BLOCK_M], -1e30, gl.float32, by_row)
    total = gl.zeros([BLOCK_M], gl.float32, by_row)
    acc = gl.zeros([BLOCK_M, D], gl.float32, layout)
    whole = length // BLOCK_N
    for block in range(whole):
        left = length - (block + 1) * BLOCK_N
        offsets = head + (block + 1) * (BLOCK_N * D)
        k_next = cdna3.buffer_load(k + offsets, k_offsets, mask=k_row < left)
        v_next = cdna3.buffer_load(v + offsets, v_offsets, mask=v_row < left)
        k_tile, v_tile = k_smem.index(block % 2), v_smem.index(block % 2)
        acc, largest, total = attend(
            block, q_tile, k_tile, v_tile, acc, largest, total, length, scale, BLOCK_N, False
        )
        k_smem.index((block + 1) % 2).store(k_next)
        v_smem.index((block + 1) % 2).store(v_next)
    if whole * BLOCK_N < length:
        k_tile, v_tile = k_smem.index(whole % 2), v_smem.index(whole % 2)
        acc, largest, total = attend(
            whole, q_tile, k_tile, v_tile, acc, largest, total, length, scale, BLOCK_N, True
        )
    # Through LDS, where keys and values are done with: 16 bytes of a row in each lane.
    out_rows: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, D], out.dtype.element_ty)
    out_offsets, out_row = tile_offsets(gl.program_id(0) * BLOCK_M, BLOCK_M, D, out_rows)
    result = gl.convert_layout((acc / total[:, None]).to(out.dtype.element_ty), out_rows)
    cdna3.buffer_store(result, out + head, out_offsets, mask=out_row < length)
