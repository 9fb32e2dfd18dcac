"""Matrix multiplication on Blackwell: TMA feeds `tcgen05`, whose results stay in tensor memory.

Three kinds of warps work on their own: one copies tiles, one issues multiplications, four read
finished tiles from tensor memory and store them. There are two accumulators, so that one tile is
stored while the next is multiplied. Each program walks over many tiles.

With CTAS=2 (from Triton 3.8 on) the two blocks of a cluster multiply one tile: each copies and keeps
half of A's rows, B's columns and C's rows, and the even one issues for both. Barriers that say what
both have done stand in the even block.
"""

import numpy as np
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import Example, main
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    fence_async_shared,
    mbarrier,
    tcgen05_commit,
    tcgen05_mma,
)
from gluon_core.language.nvidia.blackwell.tma import async_load, async_store, store_wait
from gluon_core.nvidia.blackwell import TensorDescriptor


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    """The next slot of a ring, and the parity of its phase."""
    last = slot == STAGES - 1
    return gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def tile_at(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile: programs that run together share rows of A and columns of B."""
    width = GROUP * tiles_n
    first = tile // width * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    inside = tile % width
    return first + inside % height, inside // height


@gluon.jit
def copy_tiles(
    a_desc, b_desc, a_smem, b_smem, full, empty, tiles_m, tiles_n, K, GROUP: gl.constexpr,
    CTAS: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    STAGES: gl.constexpr = a_smem.shape[0]
    BYTES: gl.constexpr = (a_desc.block_type.nbytes + b_desc.block_type.nbytes) // CTAS
    slot = 0
    phase = 1  # of buffers that nobody has used yet, the phase before the first has ended
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase)
            ready = full.index(slot)
            mbarrier.expect(ready, BYTES)
            async_load(a_desc, [m * BLOCK_M, k], ready, a_smem.index(slot))
            async_load(b_desc, [k, n * BLOCK_N], ready, b_smem.index(slot))
            slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def multiply_tiles(a_smem, b_smem, acc_tmem, full, empty, acc_full, acc_empty, tiles_m, tiles_n, K):
    BLOCK_K: gl.constexpr = a_smem.shape[2]
    STAGES: gl.constexpr = a_smem.shape[0]
    slot = 0
    phase = 0
    acc_slot = 0
    acc_phase = 1
    for _ in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        mbarrier.wait(acc_empty.index(acc_slot), acc_phase)
        acc = acc_tmem.index(acc_slot)
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(full.index(slot), phase)
            tcgen05_mma(a_smem.index(slot), b_smem.index(slot), acc, use_acc=k > 0)
            tcgen05_commit(empty.index(slot))  # its buffers are free once the unit has read them
            slot, phase = advance(slot, phase, STAGES)
        tcgen05_commit(acc_full.index(acc_slot))
        acc_slot, acc_phase = advance(acc_slot, acc_phase, 2)


@gluon.jit
def store_tiles(
    c_desc, c_smem, acc_tmem, acc_full, acc_empty, tiles_m, tiles_n, GROUP: gl.constexpr,
    CTAS: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = acc_tmem.shape[1]
    BLOCK_N: gl.constexpr = acc_tmem.shape[2]
    WIDTH: gl.constexpr = c_desc.block_type.shape[1]
    # A lane of tensor memory is a row of the tile; each of four warps reaches 32 lanes.
    if CTAS == 2:
        layout: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32, 1], [4, 1], [0, 1], [[1, 0]])
    else:
        layout: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32, 1], [4, 1], [0, 1])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        mbarrier.wait(acc_full.index(slot), phase)
        acc = acc_tmem.index(slot)
        for i in gl.static_range(BLOCK_N // WIDTH):
            part = acc.slice(i * WIDTH, WIDTH).load(layout).to(c_desc.dtype)
            buffer = c_smem.index(i % 2)
            store_wait(1)  # what left this buffer before is out of it
            buffer.store(part)
            fence_async_shared()
            async_store(c_desc, [m * BLOCK_M, n * BLOCK_N + i * WIDTH], buffer)
        mbarrier.arrive(acc_empty.index(slot), count=1)
        slot, phase = advance(slot, phase, 2)
    store_wait(0)


@gluon.jit
def matmul_blackwell(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    CTAS: gl.constexpr,
):
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [2] + c_desc.block_type.shape, c_desc.layout)
    if CTAS == 2:
        acc_layout: gl.constexpr = TensorMemoryLayout(
            [BLOCK_M // 2, BLOCK_N], col_stride=1, cga_layout=[[1, 0]], two_ctas=True
        )
        full = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=True)
        empty = mbarrier.allocate_mbarrier(batch=STAGES)
        acc_full = mbarrier.allocate_mbarrier(batch=2)
        acc_empty = mbarrier.allocate_mbarrier(batch=2, two_ctas=True)
    else:
        acc_layout: gl.constexpr = TensorMemoryLayout([BLOCK_M, BLOCK_N], col_stride=1)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        acc_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        acc_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    acc_tmem = allocate_tensor_memory(gl.float32, [2, BLOCK_M, BLOCK_N], acc_layout)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(acc_full.index(i), count=1)
        mbarrier.init(acc_empty.index(i), count=1)
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    gl.warp_specialize(
        [
            (
                store_tiles,
                (c_desc, c_smem, acc_tmem, acc_full, acc_empty, tiles_m, tiles_n, GROUP, CTAS),
            ),
            (
                multiply_tiles,
                (
                    a_smem,
                    b_smem,
                    acc_tmem,
                    full,
                    empty,
                    acc_full,
                    acc_empty,
                    tiles_m,
                    tiles_n,
                    K,
                ),
            ),
            (
                copy_tiles,
                (a_desc, b_desc, a_smem, b_smem, full, empty, tiles_m, tiles_n, K, GROUP, CTAS),
            ),
        ],
        [1, 1],
        [48, 48],
    )


def describe(array, block, ctas, split):
    """The descriptor of boxes of which each of the blocks has a part along dimension `split`."""
    dtypes = {"float16": gl.float16, "bfloat16": gl.bfloat16}
    dtype = dtypes[str(array.dtype).split(".")[-1]]
    if ctas == 1:
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    else:
        cga_layout = [[int(dim == split) for dim in range(2)]]
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype, cga_layout=cga_layout)
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    m, n, k, ctas = (config[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "CTAS"))
    return (
        describe(args["a"], [m, k], ctas, 0),
        describe(args["b"], [k, n], ctas, 1),
        describe(args["c"], [m, n // 4], ctas, 0),
        args["M"],
        args["N"],
        args["K"],
    )


def arguments(new, large, sizes=None):
    m, n, k = sizes or ((8192, 8192, 8192) if large else (320, 272, 144))
    return {
        "a": new.random((m, k), "bfloat16"),
        "b": new.random((k, n), "bfloat16"),
        "c": new.empty((m, n), "bfloat16"),
        "M": m,
        "N": n,
        "K": k,
    }


def config_of(ctas, block, stages, group):
    def config(warp_size, block=block, stages=stages, group=group):
        m, n, k = block
        shared = {"num_warps": 4} if ctas == 1 else {"num_warps": 4, "num_ctas": ctas}
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "STAGES": stages,
            "GROUP": group,
            "CTAS": ctas,
            **shared,
        }

    return config


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    if getattr(args["a"], "is_cuda", False):
        import torch

        device = torch.cuda.get_device_properties(args["a"].device)
        return (min(tiles, device.multi_processor_count // config["CTAS"]),)
    return (min(tiles, 3),)


def example(name, ctas, small, large):
    return Example(
        name=name,
        kernel=matmul_blackwell,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=config_of(ctas, *small),
        large_config=config_of(ctas, *large),
        reference=lambda args: args["a"].astype(np.float64) @ args["b"].astype(np.float64),
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        requires=("nvidia.tcgen05", "nvidia.tma"),
        tolerance=4e-3,
    )


ONE = ((128, 128, 32), 3, 2), ((128, 256, 64), 4, 8)
TWO = ((256, 128, 32), 3, 2), ((256, 256, 64), 6, 8)

EXAMPLES = [example("matmul, Blackwell, warp-specialized", 1, *ONE)]
if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8):  # barriers of pairs of blocks
    EXAMPLES.append(example("matmul, Blackwell, pairs of blocks", 2, *TWO))

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
