"""Gradients of the matrices that groups of rows are multiplied with: of each group, its rows of A, transposed, times
its rows of B; for every matrix unit.

A sum is over a group's rows, whose number is known only when the kernel runs, and differs from group to group; a group
without rows has zeros. Rows behind a group's last are another's or nobody's: they are set to 0 in shared memory,
whatever they are. Tiles for the next steps are under way across the border between two tiles of the result.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.attention_paged import placed
from tests.kernels.cases.grouped_gemm import config, layout_of
from tests.kernels.cases.matmul import choices
from tests.kernels.cases.matmul_cooperative_hopper import programs


@gluon.jit
def result_at(tile, K, N, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    """A tile's group, and its first row and column in the group's result, GROUP rows of tiles at a time."""
    down = gl.cdiv(K, BLOCKS[0])
    across = gl.cdiv(N, BLOCKS[1])
    group = tile // (down * across)
    inside = tile % (down * across)
    before = inside // (GROUP * across) * GROUP
    height = gl.minimum(down - before, GROUP)
    inside = inside % (GROUP * across)
    return group, (before + inside % height) * BLOCKS[0], inside // height * BLOCKS[1]


@gluon.jit
def work_at(tile, count, lists, sizes, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    """The first row and column of a tile, the group's first row and its end; behind the last tile, nowhere."""
    starts, counts = lists
    K, N = sizes
    group, row, column = result_at(tile, K, N, BLOCKS, GROUP)
    begin = gl.load(starts + group, mask=tile < count, other=0)
    return row, column, begin, begin + gl.load(counts + group, mask=tile < count, other=0)


@gluon.jit
def fetch_next(ring, step, coming, count, lists, sizes, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    """Fetch the tiles of a step, and return those that the step after it reads; a group without rows has one step, too."""
    tile, row, column, at, end = coming
    ring.fetch(step, [[at, row], [at, column]], pred=tile < count)
    at += BLOCKS[2]
    if at >= end:
        tile += gl.num_programs(0)
        row, column, at, end = work_at(tile, count, lists, sizes, BLOCKS, GROUP)
    return tile, row, column, at, end


@gluon.jit
def keep_rows(tile, rows):
    """Set the rows of a tile in shared memory behind the first `rows` to 0, whatever they are."""
    layout: gl.constexpr = gl.portable.blocked_layout(tile.shape, tile.dtype)
    near = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))[:, None]
    x = tile.load(layout)
    tile.store(gl.where(near < rows, x, gl.zeros_like(x)))


@gluon.jit
def grouped_gemm_wgrad(
    a, b, c, starts, counts, groups, rows, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """`a` and `b` are [rows, K] and [rows, N], `c` [groups, K, N]; `starts` and `counts` are int32 [groups]."""
    dtype: gl.constexpr = a.dtype.element_ty
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    turned: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_N, BLOCK_M, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [rows, K], [K, 1], [BLOCK_K, BLOCK_M], turned.b_shared)
    b_tiles = gl.portable.descriptor(b, [rows, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [groups, K, N], [K * N, N, 1], [1, BLOCK_M, BLOCK_N // 4])
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    count = groups * gl.cdiv(K, BLOCK_M) * gl.cdiv(N, BLOCK_N)
    lists = (starts, counts)
    sizes = (K, N)
    row, column, at, end = work_at(gl.program_id(0), count, lists, sizes, BLOCKS, GROUP)
    coming = (gl.program_id(0), row, column, at, end)
    for i in gl.static_range(STAGES - 1):
        coming = fetch_next(ring, i, coming, count, lists, sizes, BLOCKS, GROUP)
    step = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        top, left, begin, last = work_at(tile, count, lists, sizes, BLOCKS, GROUP)
        acc = gl.portable.accumulator(layouts)
        for _ in range((last - begin) // BLOCK_K):
            a_tile, b_tile = ring.wait(step)
            acc = gl.portable.mma(a_tile.permute((1, 0)), b_tile, acc, is_async=True)
            # The step before is over: its buffers are free for the tiles that come next.
            acc = gl.portable.mma_wait(acc, pending=1)
            coming = fetch_next(ring, step + STAGES - 1, coming, count, lists, sizes, BLOCKS, GROUP)
            step += 1
        acc = gl.portable.mma_wait(acc)
        over = (last - begin) % BLOCK_K
        if (over > 0) | (last == begin):
            a_tile, b_tile = ring.wait(step)
            keep_rows(a_tile, over)
            keep_rows(b_tile, over)
            gl.portable.fence()
            acc = gl.portable.mma(a_tile.permute((1, 0)), b_tile, acc, is_async=True)
            acc = gl.portable.mma_wait(acc)
            coming = fetch_next(ring, step + STAGES - 1, coming, count, lists, sizes, BLOCKS, GROUP)
            step += 1
        group = tile // (gl.cdiv(K, BLOCK_M) * gl.cdiv(N, BLOCK_N))
        result = gl.portable.read(acc)
        gl.portable.store(c_tiles, [group, top, left], result.reshape([1, BLOCK_M, BLOCK_N]))
    ring.close()


def arguments(new, large, counts=None, n=None, k=None, box=None):
    counts = counts or ([4096] * 8 if large else [130, 0, 1, 64])
    n, k = n or (4096 if large else 144), k or (4096 if large else 176)
    starts, rows = layout_of(counts, box)
    return {
        "a": new.random((max(rows, 1), k), "bfloat16"),
        "b": new.random((max(rows, 1), n), "bfloat16"),
        "c": new.empty((len(counts), k, n), "bfloat16"),
        "starts": placed(new, np.asarray(starts, np.int32)),
        "counts": placed(new, np.asarray(counts, np.int32)),
        "groups": len(counts),
        "rows": max(rows, 1),
        "N": n,
        "K": k,
    }


def configure(small, stages, group):
    def make(warp_size, block=small, stages=stages, num_warps=4, group=group):
        options = config(warp_size, block, stages, num_warps, group)
        return {name: value for name, value in options.items() if name != "MOST"}

    return make


def choices_of(target):
    """Those of a plain product; elsewhere eight warps, for there are no registers left."""
    return {"num_warps": 8, **choices(target)}


def grid(args, config):
    """As many programs as run at a time."""
    tiles = -(-args["K"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles * args["groups"], programs(args, tiles * args["groups"])),)


def reference(args):
    wanted = np.zeros(args["c"].shape)
    for i, (start, count) in enumerate(zip(args["starts"], args["counts"])):
        rows = slice(start, start + count)
        wanted[i] = args["a"][rows].astype(np.float64).T @ args["b"][rows].astype(np.float64)
    return wanted


EXAMPLES = [
    Example(
        name="grouped GEMM, weight gradients",
        kernel=grouped_gemm_wgrad,
        arguments=arguments,
        grid=grid,
        config=configure((64, 64, 32), 3, 2),
        large_config=configure((128, 128, 32), 3, 8),
        choices=choices_of,
        reference=reference,
        output="c",
        flops=lambda args: 2 * args["N"] * args["K"] * int(args["counts"].sum()),
        tolerance=4e-3,
    )
]
