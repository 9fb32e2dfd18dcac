"""Gradients of the matrices that groups of rows are multiplied with (Hopper): of each group, its rows of A,
transposed, times its rows of B.

Roles and rings are those of `grouped_gemm_hopper.py`; here groups differ in how many steps a tile has. The last
step may reach into another group's rows: each group of warps sets those of its columns of A to 0 in shared
memory.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_report.example import Example
from tests.kernels.cases.grouped_gemm_wgrad import (
    arguments,
    configure,
    grid,
    reference,
    result_at,
    work_at,
)
from tests.kernels.cases.matmul_cooperative_hopper import describe


@gluon.jit
def copy_tiles(ring, lists, count, sizes, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    at = ring.producer()
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        row, column, begin, end = work_at(tile, count, lists, sizes, BLOCKS, GROUP)
        for k in range(begin, end, BLOCKS[2]):
            ring.fetch(at, [[k, row], [k, column]])
            at = at.next()


@gluon.jit
def multiply_tiles(
    ring, writer, lists, count, sizes, half: gl.constexpr, BLOCKS: gl.constexpr, GROUP: gl.constexpr
):
    ROWS: gl.constexpr = BLOCKS[0] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS[1], 16])
    flat: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // ROWS, ROWS // 8], [4, 1], [1, 0])
    near = gl.arange(0, BLOCKS[2], gl.SliceLayout(1, flat))[:, None]
    at = ring.consumer()
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        group, row, column = result_at(tile, sizes[0], sizes[1], BLOCKS, GROUP)
        rows = gl.load(lists[1] + group)
        acc = warpgroup_mma_init(gl.zeros([ROWS, BLOCKS[1]], gl.float32, layout))
        for k in range(0, rows // BLOCKS[2]):
            a_tile, b_tile = ring.wait(at)
            a_tile = a_tile.slice(half * ROWS, ROWS, dim=1).permute((1, 0))
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
            ring.release(at.before(), pred=k > 0)
            at = at.next()
        result = warpgroup_mma_wait(0, deps=[acc])
        ring.release(at.before(), pred=rows >= BLOCKS[2])
        if rows % BLOCKS[2] > 0:
            a_tile, b_tile = ring.wait(at)
            a_tile = a_tile.slice(half * ROWS, ROWS, dim=1)
            mine = a_tile.load(flat)
            a_tile.store(gl.where(near < rows % BLOCKS[2], mine, gl.zeros_like(mine)))
            fence_async_shared()
            acc = warpgroup_mma_init(result)
            acc = warpgroup_mma(a_tile.permute((1, 0)), b_tile, acc, is_async=True)
            result = warpgroup_mma_wait(0, deps=[acc])
            ring.release(at)
            at = at.next()
        to = [group, row + half * ROWS, column]
        writer.store(to, result.reshape([1, ROWS, BLOCKS[1]]))
    writer.close()


@gluon.jit
def grouped_gemm_wgrad(
    a_desc, b_desc, c_desc, starts, counts, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """`a` and `b` are [rows, K] and [rows, N], `c` [groups, K, N]; `starts` and `counts` are int32 [groups].
    Rows of `b` behind a group's last are multiplied with zeros: they must be numbers."""
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    upper = tma_writer(c_desc, parts=4)
    lower = tma_writer(c_desc, parts=4)
    count = groups * gl.cdiv(K, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    lists = (starts, counts)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, upper, lists, count, (K, N), 0, BLOCKS, GROUP)),
            (multiply_tiles, (ring, lower, lists, count, (K, N), 1, BLOCKS, GROUP)),
            (copy_tiles, (ring, lists, count, (K, N), BLOCKS, GROUP)),
        ],
        [4, 1],
        [232, 40],
    )


def operands(args, config):
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    described = (
        describe(args["a"], [k, m]),
        describe(args["b"], [k, n]),
        describe(args["c"], [1, m // 2, n // 4]),
    )
    return (*described, *(args[x] for x in ("starts", "counts", "groups", "N", "K")))


EXAMPLES = [
    Example(
        name="grouped GEMM, weight gradients, Hopper",
        kernel=grouped_gemm_wgrad,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=configure((128, 128, 32), 3, 2),
        large_config=configure((128, 256, 64), 4, 8),
        reference=reference,
        output="c",
        flops=lambda args: 2 * args["N"] * args["K"] * int(args["counts"].sum()),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=4e-3,
    )
]
