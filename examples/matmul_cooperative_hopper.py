"""Matrix multiplication on Hopper: TMA feeds `wgmma`, each program walks over many tiles.

Each part of the work has its own warps. One warp issues the copies; two groups of four warps each
multiply half of a tile and store it. They wait for nobody but the copies: while one stores, the
other keeps the matrix unit busy. Between them is a ring of slots.

`b` is [K, N], or [N, K] with TRANSPOSED, which 8-bit types need: `wgmma` reads them along K only.
`matmul.py` becomes the same units in one stream of instructions.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example, main
from gluon_report.gemm import flops, matrices


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr, TRANSPOSED: gl.constexpr):
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            with gl.scope("copy A and B"):
                if TRANSPOSED:
                    ring.fetch(at, [[row, k], [column, k]])
                else:
                    ring.fetch(at, [[row, k], [k, column]])
            at = at.next()


@gluon.jit
def multiply_tile(
    ring,
    at,
    K,
    half: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,
    TRANSPOSED: gl.constexpr,
):
    """Half of a tile, and the position after its last step. BLOCK is its columns, and a step of K."""
    instruction_k: gl.constexpr = 256 // ring.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK[0], instruction_k])
    acc = warpgroup_mma_init(gl.zeros([ROWS, BLOCK[0]], gl.float32, layout))
    for k in range(0, K, BLOCK[1]):
        with gl.scope("wait for A and B"):
            a_tile, b_tile = ring.wait(at)
        a_tile = a_tile.slice(half * ROWS, ROWS, dim=0)
        if TRANSPOSED:
            b_tile = b_tile.permute((1, 0))
        acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        # The step before is over: give its slot back.
        with gl.scope("wait for the product"):
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        ring.release(at.before(), pred=k > 0)
        at = at.next()
    result = warpgroup_mma_wait(0, deps=[acc])
    ring.release(at.before())
    return result, at


@gluon.jit
def multiply_tiles(
    ring, tiles, writer, K, half: gl.constexpr, BLOCK_K: gl.constexpr, TRANSPOSED: gl.constexpr
):
    ROWS: gl.constexpr = tiles.block[0] // 2
    COLUMNS: gl.constexpr = tiles.block[1]
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        result, at = multiply_tile(ring, at, K, half, ROWS, (COLUMNS, BLOCK_K), TRANSPOSED)
        with gl.scope("store"):
            writer.store([row + half * ROWS, column], result)
    writer.close()


@gluon.jit
def matmul_cooperative(
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
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    first = tma_writer(c_desc, parts=4)
    second = tma_writer(c_desc, parts=4)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, tiles, first, K, 0, BLOCK_K, TRANSPOSED)),
            (multiply_tiles, (ring, tiles, second, K, 1, BLOCK_K, TRANSPOSED)),
            (copy_tiles, (ring, tiles, K, BLOCK_K, TRANSPOSED)),
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
    b_block = [n, k] if config["TRANSPOSED"] else [k, n]
    return (
        describe(args["a"], [m, k]),
        describe(args["b"], b_block),
        describe(args["c"], [m // 2, n // 4]),
        args["M"],
        args["N"],
        args["K"],
    )


def sizes_of(large, sizes):
    return sizes or ((8192, 8192, 8192) if large else (320, 272, 144))


def arguments(new, large, sizes=None):
    return matrices(new, sizes_of(large, sizes))


def arguments_fp8(new, large, sizes=None):
    return matrices(new, sizes_of(large, sizes), "float8_e4m3fn", out="bfloat16", transposed=True)


def configure(transposed, small, large):
    def make(block, stages, group):
        m, n, k = block
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "BLOCK_K": k,
            "STAGES": stages,
            "GROUP": group,
            "TRANSPOSED": transposed,
            "num_warps": 4,
        }

    def config(warp_size, block=small, stages=3, group=2):
        return make(block, stages, group)

    def large_config(warp_size, block=large, stages=4, group=8):
        return make(block, stages, group)

    return config, large_config


def programs(args, tiles):
    """One for each multiprocessor of the device; without one, so many that each has four tiles."""
    return gluon.multiprocessors(args["a"]) or max(3, tiles // 4)


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, programs(args, tiles)),)


def example(name, arguments, transposed, small, large, tolerance, large_tolerance=None):
    def reference(args):
        a, b = args["a"].astype(np.float64), args["b"].astype(np.float64)
        return a @ (b.T if transposed else b)

    def device_reference(args):
        a, b = args["a"].float(), args["b"].float()
        return a @ (b.T if transposed else b)

    config, large_config = configure(transposed, small, large)
    return Example(
        name=name,
        kernel=matmul_cooperative,
        arguments=arguments,
        operands=operands,
        grid=grid,
        reference=reference,
        device_reference=device_reference,
        output="c",
        flops=flops,
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=tolerance,
        large_tolerance=large_tolerance,
        config=config,
        large_config=large_config,
    )


EXAMPLES = [
    example("matmul, warp-specialized", arguments, False, (128, 128, 32), (128, 256, 64), 4e-3),
    example(
        "matmul fp8, warp-specialized",
        arguments_fp8,
        True,
        (128, 128, 64),
        (128, 256, 128),
        4e-3,
        4e-2,  # sums have about 14 bits, and errors grow with K
    ),
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
