"""Products of groups of rows, each with a matrix of its own, as a mixture of experts needs them; for every
matrix unit.

Where each group of rows begins and how many it has are numbers in memory, known only when the kernel
runs. `starts` of rows one behind the other are a contiguous layout; of rows in boxes of equal size,
of which `counts` are filled, a masked one. Rows that no group has are neither used nor written.

The stream of instructions is that of `matmul.py`: tiles for the next steps are under way across the
border between two tiles of the result, whatever their groups are.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.attention_paged import placed
from tests.kernels.cases.matmul import choices
from tests.kernels.cases.varlen import group_tile_at, groups_of, in_each_warp


@gluon.jit
def fetch(tiles, step, place, k, K, pred):
    """Tiles of A and of the group's B, whose rows stand one group behind the other."""
    group, row, column, _ = place
    tiles.fetch(step, [[row, k], [group * K + k, column]], pred=pred)


@gluon.jit
def grouped_gemm(
    a, b, c, starts, counts, groups, rows, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """`a` and `c` are [rows, K] and [rows, N], `b` [groups, K, N]; `starts` and `counts` are int32
    [groups], up to MOST groups. The groups' rows do not overlap. Where BLOCK_K does not divide K, elements
    behind it in `b` are multiplied with zeros."""
    dtype: gl.constexpr = a.dtype.element_ty
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [rows, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(
        b, [groups * K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared
    )
    c_tiles = gl.portable.descriptor(c, [rows, N], [N, 1], [BLOCK_M, min(BLOCK_N // 4, 32)])
    writer = gl.portable.writer(c_tiles, parts=BLOCK_N // min(BLOCK_N // 4, 32))
    tiles = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    flat: gl.constexpr = in_each_warp(MOST, gl.num_warps(), gl.target.warp_size())
    tiling = groups_of(starts, counts, groups, N, flat, BLOCKS, MOST)
    count = gl.max(tiling[2], 0)
    steps = gl.cdiv(K, BLOCK_K)
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    total = (count - program + programs - 1) // programs * steps

    for i in gl.static_range(STAGES - 1):
        place = group_tile_at(program + i // steps * programs, tiling, N, BLOCKS, GROUP)
        fetch(tiles, i, place, i % steps * BLOCK_K, K, i < total)
    step = 0
    next_tile = program + (STAGES - 1) // steps * programs
    coming = group_tile_at(next_tile, tiling, N, BLOCKS, GROUP)
    next_k = (STAGES - 1) % steps * BLOCK_K
    for tile in range(program, count, programs):
        acc = gl.portable.accumulator(layouts)
        for _ in range(steps):
            a_tile, b_tile = tiles.wait(step)
            acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
            # The step before is over: its buffers are free for the tiles that come next.
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            fetch(tiles, ahead, coming, next_k, K, ahead < total)
            next_k += BLOCK_K
            if next_k >= K:
                next_k = 0
                next_tile += programs
                coming = group_tile_at(next_tile, tiling, N, BLOCKS, GROUP)
            step += 1
        # Found while the last step is under way.
        _, row, column, end = group_tile_at(tile, tiling, N, BLOCKS, GROUP)
        result = gl.portable.read(acc)
        if row + BLOCK_M <= end:
            writer.store([row, column], result)
        else:
            # Rows behind the group's last are another's.
            of_rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, layouts.accumulator))
            of_columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layouts.accumulator))
            inside = (of_rows < end)[:, None] & (of_columns < N)[None, :]
            to = c + of_rows.to(gl.int64)[:, None] * N + of_columns[None, :]
            gl.store(to, result.to(c.dtype.element_ty), mask=inside)
    writer.close()
    tiles.close()


def layout_of(counts, box=None):
    """Return the first rows of groups of so many rows, and the rows of all: one behind the other, or each in a
    box of `box` rows."""
    counts = np.asarray(counts)
    if box is None:
        return np.cumsum(counts) - counts, int(counts.sum())
    return np.arange(len(counts)) * box, len(counts) * box


def arguments(new, large, counts=None, n=None, k=None, box=None):
    counts = counts or ([4096] * 8 if large else [130, 0, 1, 200])
    n, k = n or (4096 if large else 272), k or (4096 if large else 144)
    starts, rows = layout_of(counts, box)
    return {
        "a": new.random((max(rows, 1), k), "bfloat16"),
        "b": new.random((len(counts), k, n), "bfloat16"),
        "c": new.empty((max(rows, 1), n), "bfloat16"),
        "starts": placed(new, np.asarray(starts, np.int32)),
        "counts": placed(new, np.asarray(counts, np.int32)),
        "groups": len(counts),
        "rows": max(rows, 1),
        "N": n,
        "K": k,
    }


def config(warp_size, block=(64, 64, 32), stages=3, num_warps=4, group=2, most=16):
    m, n, k = block
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return {**blocks, "STAGES": stages, "GROUP": group, "MOST": most, "num_warps": num_warps}


def large_config(warp_size, block=(128, 128, 32), stages=3, num_warps=4, group=8, most=16):
    return config(warp_size, block, stages, num_warps, group, most)


def grid(args, config):
    """As many programs as run at a time: how many tiles there are is not known here."""
    here = gluon.multiprocessors(args["a"])
    return (here * max(1, 8 // config["num_warps"]) if here else 3,)


def reference(args):
    wanted = args["c"].astype(np.float64)
    for i, (start, count) in enumerate(zip(args["starts"], args["counts"])):
        rows = slice(start, start + count)
        wanted[rows] = args["a"][rows].astype(np.float64) @ args["b"][i].astype(np.float64)
    return wanted


EXAMPLES = [
    Example(
        name="grouped GEMM",
        kernel=grouped_gemm,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        reference=reference,
        output="c",
        flops=lambda args: 2 * args["N"] * args["K"] * int(args["counts"].sum()),
        tolerance=4e-3,
    )
]
