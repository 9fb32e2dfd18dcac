"""Matrix multiplication on gfx1250: the tensor data mover fills LDS while WMMA multiplies.

Each step's tiles of A and B come by TDM into one of STAGES buffers, and copies for the next steps
are under way while one is multiplied. Elements outside of the matrices arrive as zeros, so neither
the loads nor the loop need masks. Rows in LDS are padded by 16 bytes, which TDM does on its way:
lanes that read one column of 16-byte pieces then hit different banks.

`b` is [N, K]: WMMA reads both operands along K.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.gfx1250 import buffer_store, tdm, wmma


@gluon.jit
def matmul_tdm(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    WARPS: gl.constexpr,
):
    """C = A B^T for float16 or bfloat16 operands."""
    PAD: gl.constexpr = 8
    a_layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for(
        [[BLOCK_K, PAD]], [BLOCK_M, BLOCK_K], [1, 0]
    )
    b_layout: gl.constexpr = gl.PaddedSharedLayout.with_identity_for(
        [[BLOCK_K, PAD]], [BLOCK_N, BLOCK_K], [1, 0]
    )
    acc_layout: gl.constexpr = gl.amd.AMDWMMALayout(
        version=3, transposed=True, warps_per_cta=WARPS, instr_shape=[16, 16, 32]
    )
    a_operand: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 8)
    b_operand: gl.constexpr = gl.DotOperandLayout(1, acc_layout, 8)

    a_desc = tdm.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], a_layout)
    b_desc = tdm.make_tensor_descriptor(b, [N, K], [K, 1], [BLOCK_N, BLOCK_K], b_layout)
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_N, BLOCK_K], b_layout)
    row = gl.program_id(0) * BLOCK_M
    column = gl.program_id(1) * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)

    for i in gl.static_range(STAGES - 1):
        tdm.async_load(a_desc, [row, i * BLOCK_K], a_smem.index(i), pred=i < steps)
        tdm.async_load(b_desc, [column, i * BLOCK_K], b_smem.index(i), pred=i < steps)
    acc = gl.zeros((BLOCK_M, BLOCK_N), gl.float32, acc_layout)
    for i in range(steps):
        ahead = i + STAGES - 1
        slot = ahead % STAGES
        tdm.async_load(a_desc, [row, ahead * BLOCK_K], a_smem.index(slot), pred=ahead < steps)
        tdm.async_load(b_desc, [column, ahead * BLOCK_K], b_smem.index(slot), pred=ahead < steps)
        tdm.async_wait(2 * (STAGES - 1))  # the tiles of this step are there
        x = a_smem.index(i % STAGES).load(a_operand)
        y = b_smem.index(i % STAGES).permute([1, 0]).load(b_operand)
        acc = wmma(x, y, acc)

    rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, acc_layout))
    columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, acc_layout))
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    value = acc.to(c.dtype.element_ty)
    buffer_store(value, c, rows[:, None] * N + columns[None, :], mask=inside)
