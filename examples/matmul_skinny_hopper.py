"""A matrix product with few rows on Hopper: bound by how fast B comes, so that a warp of its own copies it.

Where blocks of columns are too few for all processors, K is split: the programs of a block leave
their sums in memory, wait for each other, and each adds up a share of the rows, in order, so that
equal inputs have equal results. The numbers by which they wait only grow.

`wgmma` takes 64 rows at least. With fewer, the product is turned: the columns of B are its rows, and
the rows of A its columns, of which 8 are enough.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

try:
    from .matmul_hopper import describe
except ImportError:  # run as a program
    from matmul_hopper import describe


@gluon.jit
def copy_steps(ring, place, first, count, BLOCK_K: gl.constexpr):
    row, column = place
    at = ring.producer()
    for step in range(first, first + count):
        ring.fetch(at, [[row, step * BLOCK_K], [step * BLOCK_K, column]])
        at = at.next()


@gluon.jit
def multiply_steps(ring, count, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """[ROWS, COLUMNS] of all steps, turned where ROWS are fewer than 64."""
    TURNED: gl.constexpr = ROWS < 64
    SHAPE: gl.constexpr = [COLUMNS, ROWS] if TURNED else [ROWS, COLUMNS]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, SHAPE[1], 16]
    )
    at = ring.consumer()
    acc = warpgroup_mma_init(gl.zeros(SHAPE, gl.float32, layout))
    for step in range(count):
        a_tile, b_tile = ring.wait(at)
        if TURNED:
            a_tile, b_tile = b_tile.permute((1, 0)), a_tile.permute((1, 0))
        acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        ring.release(at.before(), pred=step > 0)
        at = at.next()
    result = warpgroup_mma_wait(0, deps=[acc])
    return gl.permute(result, (1, 0)) if TURNED else result


@gluon.jit
def store(c, value, place, sizes):
    layout: gl.constexpr = value.type.layout
    rows = place[0] + gl.arange(0, value.shape[0], gl.SliceLayout(1, layout))
    columns = place[1] + gl.arange(0, value.shape[1], gl.SliceLayout(0, layout))
    inside = (rows < sizes[0])[:, None] & (columns < sizes[1])[None, :]
    to = c + rows.to(gl.int64)[:, None] * sizes[1] + columns[None, :]
    gl.store(to, value.to(c.dtype.element_ty), mask=inside)


@gluon.jit
def multiply_and_store(
    ring, c, shared, place, sizes, count, BLOCKS: gl.constexpr, SPLITS: gl.constexpr
):
    """`shared` are the sums and the counter of this program's block."""
    ROWS: gl.constexpr = BLOCKS[0]
    COLUMNS: gl.constexpr = BLOCKS[1]
    result = multiply_steps(ring, count, ROWS, COLUMNS)
    if SPLITS == 1:
        store(c, result, place, sizes)
    else:
        sums, counter = shared
        split = gl.program_id(0)
        layout: gl.constexpr = result.type.layout
        rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
        mine = sums + split * ROWS * COLUMNS
        gl.store(mine + rows[:, None] * COLUMNS + columns[None, :], result)
        gl.barrier()  # all of the program have stored before it counts
        now = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1
        full = gl.cdiv(now, SPLITS) * SPLITS
        while now < full:
            now = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
        SHARE: gl.constexpr = ROWS // SPLITS
        wide: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0])
        rows = split * SHARE + gl.arange(0, SHARE, gl.SliceLayout(1, wide))
        columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, wide))
        parts = sums + rows[:, None] * COLUMNS + columns[None, :]
        total = gl.zeros([SHARE, COLUMNS], gl.float32, wide)
        for other in gl.static_range(SPLITS):
            total += gl.load(parts + other * ROWS * COLUMNS)
        store(c, total, (place[0] + split * SHARE, place[1]), sizes)


@gluon.jit
def matmul_skinny(
    a_desc, b_desc, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """`sums` is [blocks of columns * blocks of rows, SPLITS, BLOCK_M, BLOCK_N], float32; `counters` has a
    number for each block, 0 before the first launch. SPLITS programs in a row must run at a time."""
    ring = tma_ring([a_desc, b_desc], STAGES)
    split = gl.program_id(0)
    place = (gl.program_id(2) * BLOCK_M, gl.program_id(1) * BLOCK_N)
    block = gl.program_id(2) * gl.num_programs(1) + gl.program_id(1)
    shared = (sums + block * SPLITS * BLOCK_M * BLOCK_N, counters + block)
    steps = gl.cdiv(K, BLOCK_K)
    share = gl.cdiv(steps, SPLITS)
    first = split * share
    count = gl.maximum(gl.minimum(share, steps - first), 0)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N)
    gl.warp_specialize(
        [
            (multiply_and_store, (ring, c, shared, place, (M, N), count, BLOCKS, SPLITS)),
            (copy_steps, (ring, place, first, count, BLOCK_K)),
        ],
        [1],
        [24],
    )


def arguments(new, large, sizes=None, block=None, splits=None):
    m, n, k = sizes or ((16, 8192, 8192) if large else (5, 200, 456))
    chosen = config(32, sizes=(m, n, k)) if large else config(32)
    rows, columns = block or (chosen["BLOCK_M"], chosen["BLOCK_N"])
    splits = splits or chosen["SPLITS"]
    blocks = gluon.cdiv(m, rows) * gluon.cdiv(n, columns)
    return {
        "a": new.random((m, k), "bfloat16"),
        "b": new.random((k, n), "bfloat16"),
        "c": new.empty((m, n), "bfloat16"),
        "sums": new.empty((blocks, splits, rows, columns)),
        "counters": new.integers((blocks,), 0, 1, "int32"),
        "M": m,
        "N": n,
        "K": k,
    }


def operands(args, config):
    m, n, k = (config[f"BLOCK_{x}"] for x in "MNK")
    described = (describe(args["a"], [m, k]), describe(args["b"], [k, n]))
    return (*described, *(args[x] for x in ("c", "sums", "counters", "M", "N", "K")))


def config(warp_size, block=(8, 64, 64), stages=3, splits=2, num_warps=4):
    m, n, k = block
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return {**blocks, "STAGES": stages, "SPLITS": splits, "num_warps": num_warps}
