"""A GEMM without layouts: the source that `gluon write` makes explicit in this folder."""

# proved: matmul on sim:sm_100

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def matmul_stores(sums, c, M, N, BM: gl.constexpr, BN: gl.constexpr):
    """Store the sum of each block."""
    acc_layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    turn = sums.consumer()
    # Described here, while the first tiles come.
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN // 2])
    c_writer = gl.portable.writer(c_tiles, parts=2)
    units = gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1)
    for program in range(gl.program_id(1) * gl.num_programs(0) + gl.program_id(0), gl.num_programs(0) * gl.num_programs(1), units):
        index = program % gl.num_programs(0)
        index_1 = program // gl.num_programs(0)
        row, column = index * BM, index_1 * BN
        acc = gl.zeros([BM, BN], gl.float32, layout=acc_layout)
        acc = sums.wait(turn).load()
        sums.release(turn)
        turn = turn.next()
        c_writer.store([row, column], acc.to(c.dtype.element_ty))
    c_writer.close()


@gluon.jit
def matmul_products(tiles, sums, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Multiply the tiles of each step."""
    slot = tiles.consumer()
    turn = sums.producer()
    units = gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1)
    for program in range(gl.program_id(1) * gl.num_programs(0) + gl.program_id(0), gl.num_programs(0) * gl.num_programs(1), units):
        index = program % gl.num_programs(0)
        index_1 = program // gl.num_programs(0)
        row, column = index * BM, index_1 * BN
        total = sums.take(turn)
        for k in range(0, K, BK):
            x, y = tiles.wait(slot)
            gl.nvidia.blackwell.tcgen05_mma(x, y, total, use_acc=k != 0)
            gl.nvidia.blackwell.tcgen05_commit(tiles.empty(slot))
            slot = slot.next()
        sums.done(turn)
        turn = turn.next()


@gluon.jit
def matmul_copies(tiles, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Copy the tiles of each step."""
    slot = tiles.producer()
    units = gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1)
    for program in range(gl.program_id(1) * gl.num_programs(0) + gl.program_id(0), gl.num_programs(0) * gl.num_programs(1), units):
        index = program % gl.num_programs(0)
        index_1 = program // gl.num_programs(0)
        row, column = index * BM, index_1 * BN
        for k in range(0, K, BK):
            tiles.fetch(slot, [[row, k], [k, column]])
            slot = slot.next()


# Layouts for nvidia:sm_100, *fp16:16, *fp16:16, *fp16:16, i32:16, i32:16, i32:16.
# Launched with launch_pdl=True, it begins while the kernel in front ends.
@gluon.jit
def matmul(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    # The kernel in front may still run; the one behind may begin.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;",
        "=r,r",
        [0],
        gl.int32,
        False,
        1,
    )
    if gl.program_id(1) * gl.num_programs(0) + gl.program_id(0) >= gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1):
        return
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    # One partition copies, through rings of 4 slots; one multiplies, one stores.
    tiles = gl.nvidia.hopper.tma_ring([a_tiles, b_tiles], 4)
    # One sum is stored while the next one grows.
    sums = gl.nvidia.blackwell.accumulator_ring([128, 128], 2)
    gl.warp_specialize(
        [
            (matmul_stores, (sums, c, M, N, BM, BN)),
            (matmul_products, (tiles, sums, K, BM, BN, BK)),
            (matmul_copies, (tiles, K, BM, BN, BK)),
        ],
        [1, 1],
        [48, 48],
    )


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype(np.float16) for _ in range(2))
    c = np.zeros((128, 128), np.float16)
    matmul[(1, 1)](a, b, c, 128, 128, 128, 128, 128, 64, launch_pdl=True)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    print("right:", np.allclose(c, wanted, atol=0.05))
