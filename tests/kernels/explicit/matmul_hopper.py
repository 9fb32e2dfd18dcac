"""Matrix multiplication on Hopper: TMA feeds `wgmma`, each program walks over many tiles.

`matmul_persistent` is one stream of instructions: while the matrix unit works on a step, copies for
the next ones are under way, across the border between two tiles, too.

`matmul_specialized` gives each part of the work to its own warps. One warp issues the copies; two
groups of four warps each multiply half of a tile and store it. They wait for nobody but the copies:
while one stores, the other keeps the matrix unit busy.

`b` is [K, N], or [N, K] with TRANSPOSED, which 8-bit types need: `wgmma` reads them along K only.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core import multiprocessors
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.language.nvidia.hopper.tma import async_load, async_store, store_wait
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example, main


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
def fetch(
    a_desc, b_desc, a_smem, b_smem, ready, row, column, k, TRANSPOSED: gl.constexpr, pred=True
):
    mbarrier.expect(ready, a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred)
    async_load(a_desc, [row, k], ready, a_smem, pred)
    if TRANSPOSED:
        async_load(b_desc, [column, k], ready, b_smem, pred)
    else:
        async_load(b_desc, [k, column], ready, b_smem, pred)


@gluon.jit
def halves(x):
    """The left and the right half of a matrix, without moving a register."""
    split = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1)
    left, right = split.split()
    return left, right


@gluon.jit
def store_part(c_desc, c_smem, part, row, column):
    store_wait(1)  # what left this buffer before is out of it
    c_smem.store(part)
    fence_async_shared()
    async_store(c_desc, [row, column], c_smem)


@gluon.jit
def store_tile(c_desc, c_smem, acc, row, column, first: gl.constexpr):
    """Store a tile in four parts, through buffers `first` and `first + 1`."""
    WIDTH: gl.constexpr = c_desc.block_type.shape[1]
    left, right = halves(acc.to(c_desc.dtype))
    part0, part1 = halves(left)
    part2, part3 = halves(right)
    store_part(c_desc, c_smem.index(first), part0, row, column)
    store_part(c_desc, c_smem.index(first + 1), part1, row, column + WIDTH)
    store_part(c_desc, c_smem.index(first), part2, row, column + 2 * WIDTH)
    store_part(c_desc, c_smem.index(first + 1), part3, row, column + 3 * WIDTH)


@gluon.jit
def matmul_persistent(
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
    TRANSPOSED: gl.constexpr,
    num_warps: gl.constexpr,
):
    a_smem = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout
    )
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [2] + c_desc.block_type.shape, c_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)

    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    mine = (tiles_m * tiles_n - program + programs - 1) // programs
    total = mine * steps
    instruction_k: gl.constexpr = 256 // a_desc.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [num_warps, 1], [16, BLOCK_N, instruction_k]
    )

    for i in gl.static_range(STAGES - 1):
        m, n = tile_at(program + i // steps * programs, tiles_m, tiles_n, GROUP)
        k = i % steps * BLOCK_K
        fetch(
            a_desc,
            b_desc,
            a_smem.index(i),
            b_smem.index(i),
            ready.index(i),
            m * BLOCK_M,
            n * BLOCK_N,
            k,
            TRANSPOSED,
            pred=i < total,
        )

    slot = 0
    phase = 0
    free = STAGES - 1
    ahead = STAGES - 1
    next_tile = program + ahead // steps * programs
    next_m, next_n = tile_at(next_tile, tiles_m, tiles_n, GROUP)
    next_k = ahead % steps * BLOCK_K
    for tile in range(program, tiles_m * tiles_n, programs):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        acc = warpgroup_mma_init(gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layout))
        for _ in range(steps):
            mbarrier.wait(ready.index(slot), phase)
            b_tile = b_smem.index(slot)
            if TRANSPOSED:
                b_tile = b_tile.permute((1, 0))
            acc = warpgroup_mma(a_smem.index(slot), b_tile, acc, is_async=True)
            # The step before is over: its buffers are free for the copies that come next.
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
            fetch(
                a_desc,
                b_desc,
                a_smem.index(free),
                b_smem.index(free),
                ready.index(free),
                next_m * BLOCK_M,
                next_n * BLOCK_N,
                next_k,
                TRANSPOSED,
                pred=ahead < total,
            )
            next_k += BLOCK_K
            if next_k >= K:
                next_k = 0
                next_tile += programs
                next_m, next_n = tile_at(next_tile, tiles_m, tiles_n, GROUP)
            ahead += 1
            free = slot
            slot, phase = advance(slot, phase, STAGES)
        result = warpgroup_mma_wait(0, deps=[acc])
        store_tile(c_desc, c_smem, result, m * BLOCK_M, n * BLOCK_N, 0)
    store_wait(0)


@gluon.jit
def copy_tiles(
    a_desc,
    b_desc,
    a_smem,
    b_smem,
    full,
    empty,
    tiles_m,
    tiles_n,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):
    slot = 0
    phase = 1  # of buffers that nobody has used yet, the phase before the first has ended
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase)
            fetch(
                a_desc,
                b_desc,
                a_smem.index(slot),
                b_smem.index(slot),
                full.index(slot),
                m * BLOCK_M,
                n * BLOCK_N,
                k,
                TRANSPOSED,
            )
            slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def multiply_tiles(
    c_desc,
    a_smem,
    b_smem,
    c_smem,
    full,
    empty,
    tiles_m,
    tiles_n,
    K,
    half: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):
    ROWS: gl.constexpr = BLOCK_M // 2
    instruction_k: gl.constexpr = 256 // a_smem.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, instruction_k])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        acc = warpgroup_mma_init(gl.zeros([ROWS, BLOCK_N], gl.float32, layout))
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(full.index(slot), phase)
            a_tile = a_smem.index(slot).slice(half * ROWS, ROWS, dim=0)
            b_tile = b_smem.index(slot)
            if TRANSPOSED:
                b_tile = b_tile.permute((1, 0))
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
            # The step before is over: give its buffers back.
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
            before = gl.where(slot == 0, STAGES - 1, slot - 1)
            mbarrier.arrive(empty.index(before), count=1, pred=k > 0)
            slot, phase = advance(slot, phase, STAGES)
        result = warpgroup_mma_wait(0, deps=[acc])
        before = gl.where(slot == 0, STAGES - 1, slot - 1)
        mbarrier.arrive(empty.index(before), count=1)
        store_tile(c_desc, c_smem, result, m * BLOCK_M + half * ROWS, n * BLOCK_N, half * 2)
    store_wait(0)


@gluon.jit
def matmul_specialized(
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
    TRANSPOSED: gl.constexpr,
    num_warps: gl.constexpr,
):
    gl.static_assert(num_warps == 4, "each half of a tile is multiplied by four warps")
    a_smem = gl.allocate_shared_memory(
        a_desc.dtype, [STAGES] + a_desc.block_type.shape, a_desc.layout
    )
    b_smem = gl.allocate_shared_memory(
        b_desc.dtype, [STAGES] + b_desc.block_type.shape, b_desc.layout
    )
    c_smem = gl.allocate_shared_memory(c_desc.dtype, [4] + c_desc.block_type.shape, c_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    gl.warp_specialize(
        [
            (
                multiply_tiles,
                (
                    c_desc,
                    a_smem,
                    b_smem,
                    c_smem,
                    full,
                    empty,
                    tiles_m,
                    tiles_n,
                    K,
                    0,
                    BLOCK_M,
                    BLOCK_N,
                    BLOCK_K,
                    STAGES,
                    GROUP,
                    TRANSPOSED,
                ),
            ),
            (
                multiply_tiles,
                (
                    c_desc,
                    a_smem,
                    b_smem,
                    c_smem,
                    full,
                    empty,
                    tiles_m,
                    tiles_n,
                    K,
                    1,
                    BLOCK_M,
                    BLOCK_N,
                    BLOCK_K,
                    STAGES,
                    GROUP,
                    TRANSPOSED,
                ),
            ),
            (
                copy_tiles,
                (
                    a_desc,
                    b_desc,
                    a_smem,
                    b_smem,
                    full,
                    empty,
                    tiles_m,
                    tiles_n,
                    K,
                    BLOCK_M,
                    BLOCK_N,
                    BLOCK_K,
                    STAGES,
                    GROUP,
                    TRANSPOSED,
                ),
            ),
        ],
        [4, 1],
        [232, 24],
    )


DTYPES = {"float16": gl.float16, "bfloat16": gl.bfloat16, "float8_e4m3fn": gl.float8e4nv}


def describe(array, block):
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(array.dtype).split(".")[-1]])
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    rows = m // 2 if config["num_warps"] == 4 else m
    b_block = [n, k] if config["TRANSPOSED"] else [k, n]
    return (
        describe(args["a"], [m, k]),
        describe(args["b"], b_block),
        describe(args["c"], [rows, n // 4]),
        args["M"],
        args["N"],
        args["K"],
    )


def sizes_of(large, sizes):
    return sizes or ((8192, 8192, 8192) if large else (320, 272, 144))


def arguments(new, large, sizes=None):
    m, n, k = sizes_of(large, sizes)
    return {
        "a": new.random((m, k), "bfloat16"),
        "b": new.random((k, n), "bfloat16"),
        "c": new.empty((m, n), "bfloat16"),
        "M": m,
        "N": n,
        "K": k,
    }


def arguments_fp8(new, large, sizes=None):
    m, n, k = sizes_of(large, sizes)
    return {
        "a": new.random((m, k), "float8_e4m3fn"),
        "b": new.random((n, k), "float8_e4m3fn"),
        "c": new.empty((m, n), "bfloat16"),
        "M": m,
        "N": n,
        "K": k,
    }


def configure(num_warps, transposed, small, large):
    def make(block, stages, group):
        m, n, k = block
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "STAGES": stages,
            "GROUP": group,
            "TRANSPOSED": transposed,
            "num_warps": num_warps,
        }

    def config(warp_size, block=small, stages=3, group=2):
        return make(block, stages, group)

    def large_config(warp_size, block=large, stages=4, group=8):
        return make(block, stages, group)

    return config, large_config


def programs(args, tiles):
    """One for each multiprocessor of the device; without one, so many that each has four tiles."""
    return multiprocessors(args["a"]) or max(3, tiles // 4)


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, programs(args, tiles)),)


def example(
    name, kernel, arguments, transposed, num_warps, small, large, tolerance, large_tolerance=None
):
    def reference(args):
        a, b = args["a"].astype(np.float64), args["b"].astype(np.float64)
        return a @ (b.T if transposed else b)

    def device_reference(args):
        a, b = args["a"].float(), args["b"].float()
        return a @ (b.T if transposed else b)

    config, large_config = configure(num_warps, transposed, small, large)
    return Example(
        name=name,
        kernel=kernel,
        arguments=arguments,
        operands=operands,
        grid=grid,
        reference=reference,
        device_reference=device_reference,
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=tolerance,
        large_tolerance=large_tolerance,
        config=config,
        large_config=large_config,
    )


SMALL, LARGE = (128, 128, 32), (128, 256, 64)
EXAMPLES = [
    example("matmul, TMA", matmul_persistent, arguments, False, 8, SMALL, LARGE, 4e-3),
    example(
        "matmul, warp-specialized", matmul_specialized, arguments, False, 4, SMALL, LARGE, 4e-3
    ),
    example(
        "matmul fp8, warp-specialized",
        matmul_specialized,
        arguments_fp8,
        True,
        4,
        (128, 128, 64),
        (128, 256, 128),
        4e-3,
        4e-2,  # sums have about 14 bits, and errors grow with K
    ),
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
