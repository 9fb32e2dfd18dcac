"""A GEMM without layouts: the source that `gluon write` makes explicit in this folder."""

# proved: matmul on sim:sm_90

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def matmul_products(tiles, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Multiply the tiles of each step."""
    # demanded by the matrix unit
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16]
    )
    # The kernel in front may still run; the one behind may begin.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;",
        "=r,r",
        [0],
        gl.int32,
        False,
        1,
    )
    slot = tiles.consumer()
    # Described here, while the first tiles come.
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN // 2])
    c_writer = gl.portable.writer(c_tiles, parts=2)
    units = gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1)
    acc = gl.zeros([BM, BN], gl.float32, layout=acc_layout)
    for program in range(gl.program_id(1) * gl.num_programs(0) + gl.program_id(0), gl.num_programs(0) * gl.num_programs(1), units):
        index = program % gl.num_programs(0)
        index_1 = program // gl.num_programs(0)
        row, column = index * BM, index_1 * BN
        for k in range(0, K, BK):
            x, y = tiles.wait(slot)
            acc = gl.nvidia.hopper.warpgroup_mma(x, y, acc, is_async=True, use_acc=k != 0)
            acc = gl.nvidia.hopper.warpgroup_mma_wait(1, deps=[acc])
            tiles.release(slot.before(), pred=k != 0)
            slot = slot.next()
        acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])
        tiles.release(slot.before(), pred=0 < K)
        c_writer.store([row, column], acc.to(c.dtype.element_ty))
    c_writer.close()


@gluon.jit
def matmul_copies_0(tiles, a, M, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Copy the tiles of each step."""
    # Described here, while other partitions describe other tensors.
    # The kernel in front may still run; the one behind may begin.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;",
        "=r,r",
        [0],
        gl.int32,
        False,
        1,
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    tiles = tiles.part(0, a_tiles)
    slot = tiles.producer()
    units = gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1)
    for program in range(gl.program_id(1) * gl.num_programs(0) + gl.program_id(0), gl.num_programs(0) * gl.num_programs(1), units):
        index = program % gl.num_programs(0)
        index_1 = program // gl.num_programs(0)
        row, column = index * BM, index_1 * BN
        for k in range(0, K, BK):
            tiles.fetch(slot, [[row, k]])
            slot = slot.next()


@gluon.jit
def matmul_copies_1(tiles, b, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Copy the tiles of each step."""
    # Described here, while other partitions describe other tensors.
    # The kernel in front may still run; the one behind may begin.
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;",
        "=r,r",
        [0],
        gl.int32,
        False,
        1,
    )
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    tiles = tiles.part(1, b_tiles)
    slot = tiles.producer()
    units = gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1)
    for program in range(gl.program_id(1) * gl.num_programs(0) + gl.program_id(0), gl.num_programs(0) * gl.num_programs(1), units):
        index = program % gl.num_programs(0)
        index_1 = program // gl.num_programs(0)
        row, column = index * BM, index_1 * BN
        for k in range(0, K, BK):
            tiles.fetch(slot, [[k, column]])
            slot = slot.next()


# Layouts for nvidia:sm_90, *fp16:16, *fp16:16, *fp16:16, i32:16, i32:16, i32:16.
# Launched with launch_pdl=True, it begins while the kernel in front ends.
@gluon.jit
def matmul(a, b, c, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    if gl.program_id(1) * gl.num_programs(0) + gl.program_id(0) >= gl.inline_asm_elementwise("mov.u32 $0, %nsmid;", "=r", [], gl.int32, True, 1):
        return
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    # Partitions copy a tensor each, through rings of 4 slots; the other multiplies.
    tiles = gl.nvidia.hopper.tma_ring([a_tiles, b_tiles], 4, producers=2)
    gl.warp_specialize(
        [
            (matmul_products, (tiles, c, M, N, K, BM, BN, BK)),
            (matmul_copies_0, (tiles, a, M, K, BM, BN, BK)),
            (matmul_copies_1, (tiles, b, N, K, BM, BN, BK)),
        ],
        [1, 1],
        [24, 24],
    )


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype(np.float16) for _ in range(2))
    c = np.zeros((128, 128), np.float16)
    matmul[(1, 1)](a, b, c, 128, 128, 128, 128, 128, 64, launch_pdl=True)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    print("right:", np.allclose(c, wanted, atol=0.05))
