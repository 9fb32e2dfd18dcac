"""Products of groups of rows, each with a matrix of its own, as a mixture of experts needs them (Hopper).

Where each group of rows begins and how many it has are numbers in memory, known only when the kernel
runs. `starts` of rows one behind the other are a contiguous layout; of rows in boxes of equal size,
of which `counts` are filled, a masked one. Rows that no group has are neither used nor written.

Roles and rings are those of `matmul_cooperative_hopper.py`. Each role finds its tiles by itself: with the numbers
of tiles summed up over the groups, a tile is of the group that so many sums are not above.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_report.example import Example
from tests.kernels.cases.grouped_gemm import arguments, reference
from tests.kernels.cases.matmul_cooperative_hopper import describe, programs
from tests.kernels.cases.varlen import group_tile_at, groups_of, in_each_warp


@gluon.jit
def copy_tiles(ring, lists, groups, sizes, BLOCKS: gl.constexpr, SETTINGS: gl.constexpr):
    N, K = sizes
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    tiling = groups_of(lists[0], lists[1], groups, N, layout, BLOCKS, SETTINGS[1])
    at = ring.producer()
    for tile in range(gl.program_id(0), gl.max(tiling[2], 0), gl.num_programs(0)):
        group, row, column, _ = group_tile_at(tile, tiling, N, BLOCKS, SETTINGS[0])
        for k in range(0, K, BLOCKS[2]):
            if SETTINGS[2]:
                ring.fetch(at, [[row, k], [group, column, k]])
            else:
                ring.fetch(at, [[row, k], [group, k, column]])
            at = at.next()


@gluon.jit
def multiply_tiles(
    ring, outputs, lists, groups, sizes, half: gl.constexpr, BLOCKS: gl.constexpr,
    SETTINGS: gl.constexpr,
):  # fmt: skip
    writer, c = outputs
    N, K = sizes
    GROUP: gl.constexpr = SETTINGS[0]
    ROWS: gl.constexpr = BLOCKS[0] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCKS[1], 16])
    flat: gl.constexpr = in_each_warp(SETTINGS[1], 4)
    tiling = groups_of(lists[0], lists[1], groups, N, flat, BLOCKS, SETTINGS[1])
    at = ring.consumer()
    for tile in range(gl.program_id(0), gl.max(tiling[2], 0), gl.num_programs(0)):
        _, row, column, end = group_tile_at(tile, tiling, N, BLOCKS, GROUP)
        row += half * ROWS
        acc = warpgroup_mma_init(gl.zeros([ROWS, BLOCKS[1]], gl.float32, layout))
        for k in range(0, K, BLOCKS[2]):
            a_tile, b_tile = ring.wait(at)
            a_tile = a_tile.slice(half * ROWS, ROWS, dim=0)
            if SETTINGS[2]:
                b_tile = b_tile.reshape([BLOCKS[1], BLOCKS[2]]).permute((1, 0))
            else:
                b_tile = b_tile.reshape([BLOCKS[2], BLOCKS[1]])
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
            ring.release(at.before(), pred=k > 0)
            at = at.next()
        result = warpgroup_mma_wait(0, deps=[acc])
        ring.release(at.before())
        if row + ROWS <= end:
            writer.store([row, column], result)
        elif row < end:
            # Rows behind the group's last are another's.
            rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
            columns = column + gl.arange(0, BLOCKS[1], gl.SliceLayout(0, layout))
            inside = (rows < end)[:, None] & (columns < N)[None, :]
            to = c + rows.to(gl.int64)[:, None] * N + columns[None, :]
            gl.store(to, result.to(c.dtype.element_ty), mask=inside)
    writer.close()


@gluon.jit
def grouped_gemm(
    a_desc, b_desc, c_desc, c, starts, counts, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, MOST: gl.constexpr, TRANSPOSED: gl.constexpr,
):  # fmt: skip
    """`a` and `c` are [rows, K] and [rows, N], `b` [groups, K, N], or TRANSPOSED [groups, N, K]; `starts` and
    `counts` are int32 [groups], up to MOST groups. The groups' rows do not overlap."""
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    SETTINGS: gl.constexpr = (GROUP, MOST, TRANSPOSED)
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    lists = (starts, counts)
    upper = (tma_writer(c_desc, parts=4), c)
    lower = (tma_writer(c_desc, parts=4), c)
    sizes = (N, K)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, upper, lists, groups, sizes, 0, BLOCKS, SETTINGS)),
            (multiply_tiles, (ring, lower, lists, groups, sizes, 1, BLOCKS, SETTINGS)),
            (copy_tiles, (ring, lists, groups, sizes, BLOCKS, SETTINGS)),
        ],
        [4, 1],
        [232, 40],
    )


def operands(args, config):
    m, n, k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    described = (
        describe(args["a"], [m, k]),
        describe(args["b"], [1, n, k] if config["TRANSPOSED"] else [1, k, n]),
        describe(args["c"], [m // 2, n // 4]),
    )
    return (*described, *(args[x] for x in ("c", "starts", "counts", "groups", "N", "K")))


def configure(small, stages, group):
    def config(warp_size, block=small, stages=stages, group=group, most=16):
        m, n, k = block
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
        return {**blocks, "STAGES": stages, "GROUP": group, "MOST": most, "num_warps": 4}

    return config


def either(config, by_default):
    """The same for matrices that may be transposed."""

    def configured(warp_size, transposed=by_default, **choices):
        return {**config(warp_size, **choices), "TRANSPOSED": transposed}

    return configured


def grid(args, config):
    """One program for each multiprocessor: how many tiles there are is not known here."""
    return (programs(args, 12),)


def turned(new, large, *sizes):
    args = arguments(new, large, *sizes)
    groups, k, n = args["b"].shape
    return {**args, "b": new.random((groups, n, k), "bfloat16")}


def example(name, make, transposed):
    def wanted(args):
        return reference({**args, "b": args["b"].transpose(0, 2, 1)} if transposed else args)

    return Example(
        name=name,
        kernel=grouped_gemm,
        arguments=make,
        operands=operands,
        grid=grid,
        config=either(configure((128, 128, 32), 3, 2), transposed),
        large_config=either(configure((128, 256, 64), 4, 8), transposed),
        reference=wanted,
        output="c",
        flops=lambda args: 2 * args["N"] * args["K"] * int(args["counts"].sum()),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=4e-3,
    )


EXAMPLES = [example("grouped GEMM, Hopper", arguments, False)]
# Not in the demo.
MORE = [example("grouped GEMM, transposed, Hopper", turned, True)]
