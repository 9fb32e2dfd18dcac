"""Block-scaled matrix multiplication on Blackwell, C = A B^T: fp8 and fp4 with a scale for each run of K.

Runs of 32 elements have power-of-two scales (mxfp8, mxfp4), runs of 16 have e4m3 scales (nvfp4).
The host lays the scales out in blocks of 128 rows by four, as `tcgen05` reads them; from there TMA
and the copy to tensor memory move them, never a register. The warps are
specialized as in blackwell.py. K must be a multiple of 32.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryScalesLayout,
    accumulator_ring,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma_scaled,
)
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_kernels.gemm.blackwell import store_tiles


@gluon.jit
def rows_of(scales):
    """Return a box of scales [R, G, 2, 256] as [128 R, 4 G].

    A block of 512 bytes has four scales of row 0, of row 32, of 64 and of 96, then of row 1 and so on.
    """
    R: gl.constexpr = scales.shape[0]
    G: gl.constexpr = scales.shape[1]
    return scales.reshape((R, G, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((R * 128, G * 4))


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr, PACK: gl.constexpr, RUN: gl.constexpr):
    position = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, gl.cdiv(K, BLOCK_K)):
            value = k * (BLOCK_K // PACK)
            scale = k * (BLOCK_K // RUN // 4)
            ring.fetch(
                position,
                [
                    [row, value],
                    [column, value],
                    [row // 128, scale, 0, 0],
                    [column // 128, scale, 0, 0],
                ],
            )
            position = position.next()


@gluon.jit
def multiply_tiles(ring, sums, scales, tiles, K, BLOCK_K: gl.constexpr, KIND: gl.constexpr):
    a_scale_tmem, b_scale_tmem = scales
    position = ring.consumer()
    to = sums.producer()
    for _ in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        acc = sums.take(to)
        for k in range(0, K, BLOCK_K):
            a_tile, b_tile, a_scale, b_scale = ring.wait(position)
            # The unit copies and multiplies in the order in which one warp issues: the scales are
            # there when they are read, and the next ones come when they have been.
            tcgen05_copy(rows_of(a_scale), a_scale_tmem)
            tcgen05_copy(rows_of(b_scale), b_scale_tmem)
            tcgen05_mma_scaled(
                a_tile,
                b_tile.permute((1, 0)),
                acc,
                a_scale_tmem,
                b_scale_tmem,
                KIND,
                KIND,
                use_acc=k > 0,
            )
            # its tiles are done with once the unit has read them
            tcgen05_commit(ring.empty(position))
            position = position.next()
        sums.done(to)
        to = to.next()


@gluon.jit
def matmul_scaled_blackwell(
    a_desc, b_desc, a_scale_desc, b_scale_desc, c_desc, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, KIND: gl.constexpr,
    RUN: gl.constexpr, STAGES: gl.constexpr, ACCS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Multiply A by B transposed. A is [M, K] and B is [N, K]; fp4 ("e2m1") is packed, two along K in a byte. Their scales, one
    for each RUN elements of K, come in blocks [rows / 128, runs / 4, 2, 256]."""
    PACK: gl.constexpr = 2 if KIND == "e2m1" else 1
    ring = tma_ring([a_desc, b_desc, a_scale_desc, b_scale_desc], STAGES)
    sums = accumulator_ring([BLOCK_M, BLOCK_N], ACCS)
    writer = tma_writer(c_desc, parts=BLOCK_N // c_desc.block_type.shape[1], buffers=2)
    # One buffer of scales for all slots: see `multiply_tiles`.
    layout: gl.constexpr = TensorMemoryScalesLayout()
    a_scale_tmem = allocate_tensor_memory(a_scale_desc.dtype, [BLOCK_M, BLOCK_K // RUN], layout)
    b_scale_tmem = allocate_tensor_memory(b_scale_desc.dtype, [BLOCK_N, BLOCK_K // RUN], layout)
    scales = (a_scale_tmem, b_scale_tmem)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    gl.warp_specialize(
        [
            (store_tiles, (sums, writer, tiles)),
            (multiply_tiles, (ring, sums, scales, tiles, K, BLOCK_K, KIND)),
            (copy_tiles, (ring, tiles, K, BLOCK_K, PACK, RUN)),
        ],
        [1, 1],
        [48, 48],
    )
