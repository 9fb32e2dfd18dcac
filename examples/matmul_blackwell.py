"""Matrix multiplication on Blackwell: TMA feeds `tcgen05`, whose results stay in tensor memory.

Three kinds of warps work on their own: one copies tiles, one issues multiplications, four read
finished tiles from tensor memory and store them. There are two accumulators, so that one tile is
stored while the next is multiplied. Each program walks over many tiles.

With CTAS=2 (from Triton 3.8 on) the two blocks of a cluster multiply one tile: each copies and keeps
half of A's rows, B's columns and C's rows, and the even one issues for both. Barriers at which
both arrive are in the even block.
"""

from typing import Any

import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    accumulator_ring,
    tcgen05_commit,
    tcgen05_mma,
)
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_core.nvidia.blackwell import TensorDescriptor
from gluon_report.example import Example, main
from gluon_report.gemm import GEMM, flops, matrices


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr):
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            ring.fetch(at, [[row, k], [k, column]])
            at = at.next()


@gluon.jit
def multiply_tile(ring, at, acc, K, BLOCK_K: gl.constexpr):
    """Start the products of a tile; the position after its last step."""
    for k in range(0, K, BLOCK_K):
        a_tile, b_tile = ring.wait(at)
        tcgen05_mma(a_tile, b_tile, acc, use_acc=k > 0)
        tcgen05_commit(ring.empty(at))  # its tiles are done with once the unit has read them
        at = at.next()
    return at


@gluon.jit
def multiply_tiles(ring, sums, tiles, K, BLOCK_K: gl.constexpr):
    at = ring.consumer()
    to = sums.producer()
    for _ in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        at = multiply_tile(ring, at, sums.take(to), K, BLOCK_K)
        sums.done(to)
        to = to.next()


@gluon.jit
def store_tiles(sums, writer, tiles):
    at = sums.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        sums.store(at, writer, [row, column])
        at = at.next()
    writer.close()


@gluon.jit
def begin(a_desc, b_desc, c_desc, M, N, BLOCKS: gl.constexpr, STAGES: gl.constexpr,
          GROUP: gl.constexpr, CTAS: gl.constexpr):  # fmt: skip
    """Allocate everything that the roles share: slots of tiles, accumulators, buffers of results, and the order of tiles."""
    if CTAS == 2:
        layout: gl.constexpr = TensorMemoryLayout(
            [BLOCKS[0] // 2, BLOCKS[1]], col_stride=1, cga_layout=[[1, 0]], two_ctas=True
        )
    else:
        layout: gl.constexpr = TensorMemoryLayout([BLOCKS[0], BLOCKS[1]], col_stride=1)
    ring = tma_ring([a_desc, b_desc], STAGES, two_ctas=CTAS == 2)
    sums = accumulator_ring([BLOCKS[0], BLOCKS[1]], 2, layout)
    writer = tma_writer(c_desc, parts=4)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCKS[0], BLOCKS[1]], GROUP)
    return ring, sums, writer, tiles


@gluon.jit
def matmul_blackwell(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, CTAS: gl.constexpr,
):  # fmt: skip
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N)
    ring, sums, writer, tiles = begin(a_desc, b_desc, c_desc, M, N, BLOCKS, STAGES, GROUP, CTAS)
    gl.warp_specialize(
        [
            (store_tiles, (sums, writer, tiles)),
            (multiply_tiles, (ring, sums, tiles, K, BLOCK_K)),
            (copy_tiles, (ring, tiles, K, BLOCK_K)),
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
    return matrices(new, sizes or ((8192, 8192, 8192) if large else (320, 272, 144)))


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
    here = gluon.multiprocessors(args["a"])
    return (min(tiles, here // config["CTAS"] if here else 3),)


def example(name, ctas, small, large, kernel: Any = matmul_blackwell, grid=grid, **more):
    def with_more(config):
        return lambda warp_size, **choices: {**config(warp_size, **choices), **more}

    return Example(
        name=name,
        kernel=kernel,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=with_more(config_of(ctas, *small)),
        large_config=with_more(config_of(ctas, *large)),
        **GEMM,
        flops=flops,
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
