"""A matrix product with few rows on Hopper: bound by how fast B comes, so that nothing else may take time.

Tiles come by TMA, several steps ahead. `wgmma` takes 64 rows at least; with fewer, the product is
turned: the columns of B are its rows, and the rows of A its columns, of which 8 are enough. Where
blocks of columns are too few for all processors, K is split: the programs of a block leave their sums
in memory, wait for each other, and each adds up a share of the rows, in order, so that equal inputs
have equal results. The counters by which they wait only grow.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, matrices
from tests.kernels.cases.matmul_cooperative_hopper import describe


@gluon.jit
def product(ring, place, first, count, BLOCKS: gl.constexpr, STAGES: gl.constexpr):
    """[rows, columns] of `count` steps; turned where the rows are 64 or fewer."""
    row, column = place
    BLOCK_K: gl.constexpr = BLOCKS[2]
    TURNED: gl.constexpr = BLOCKS[0] <= 64
    SHAPE: gl.constexpr = (BLOCKS[1], BLOCKS[0]) if TURNED else (BLOCKS[0], BLOCKS[1])
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, SHAPE[1], 16]
    )
    put = ring.producer()
    for i in gl.static_range(STAGES):
        k = (first + i) * BLOCK_K
        ring.fetch(put, [[row, k], [k, column]], pred=i < count)
        put = put.next()
    at = ring.consumer()
    acc = warpgroup_mma_init(gl.zeros([SHAPE[0], SHAPE[1]], gl.float32, layout))
    for step in range(count):
        a_tile, b_tile = ring.wait(at)
        if TURNED:
            acc = warpgroup_mma(b_tile.permute((1, 0)), a_tile.permute((1, 0)), acc, is_async=True)
        else:
            acc = warpgroup_mma(a_tile, b_tile, acc, is_async=True)
        # The step before is over: its slot takes the tiles that come next.
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        over = step > 0
        ring.release(at.before(), pred=over)
        k = (first + step - 1 + STAGES) * BLOCK_K
        ring.fetch(put, [[row, k], [k, column]], pred=over & (step - 1 + STAGES < count))
        if over:
            put = put.next()
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
def wait_for_all(counter, SPLITS: gl.constexpr):
    """Until all programs of a block have come this far; each comes once in a launch."""
    gl.static_assert(
        SPLITS & (SPLITS - 1) == 0, "numbers that overflow must go on where they began"
    )
    gl.barrier()  # all of the program have stored before it counts
    before = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    last = before | (SPLITS - 1)
    while before - last < 0:
        before = gl.atomic_add(counter, 0, sem="acquire", scope="gpu") - 1


@gluon.jit
def add_up(c, sums, result, place, sizes, SPLITS: gl.constexpr):
    """A share of the rows of `result` and of those of the other programs of the block; `sums` are theirs."""
    ROWS: gl.constexpr = result.shape[0]
    COLUMNS: gl.constexpr = result.shape[1]
    SHARE: gl.constexpr = ROWS // SPLITS
    wide: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0])
    rows = gl.program_id(0) * SHARE + gl.arange(0, SHARE, gl.SliceLayout(1, wide))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, wide))
    parts = sums + rows[:, None] * COLUMNS + columns[None, :]
    total = gl.zeros([SHARE, COLUMNS], gl.float32, wide)
    for split in gl.static_range(SPLITS):
        total += gl.load(parts + split * ROWS * COLUMNS)
    store(c, total, (place[0] + gl.program_id(0) * SHARE, place[1]), sizes)


@gluon.jit
def matmul_small_m(
    a_desc, b_desc, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """`sums` is [blocks of columns * blocks of rows, SPLITS, BLOCK_M, BLOCK_N], float32; `counters` has a
    number for each block, 0 before the first launch. The SPLITS programs of a block, which follow each
    other, must be able to run at a time."""
    ring = tma_ring([a_desc, b_desc], STAGES)
    split = gl.program_id(0)
    place = (gl.program_id(2) * BLOCK_M, gl.program_id(1) * BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    share = gl.cdiv(steps, SPLITS)
    first = split * share
    count = gl.minimum(share, steps - first)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    result = product(ring, place, first, count, BLOCKS, STAGES)
    if SPLITS == 1:
        store(c, result, place, (M, N))
    else:
        block = gl.program_id(2) * gl.num_programs(1) + gl.program_id(1)
        sums += block * SPLITS * BLOCK_M * BLOCK_N
        rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, result.type.layout))
        columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, result.type.layout))
        mine = sums + split * BLOCK_M * BLOCK_N
        gl.store(mine + rows[:, None] * BLOCK_N + columns[None, :], result)
        wait_for_all(counters + block, SPLITS)
        add_up(c, sums, result, place, (M, N), SPLITS)


def arguments(new, large, sizes=None, block=None, splits=None):
    m, n, k = sizes or ((16, 8192, 8192) if large else (5, 200, 456))
    chosen = large_config(32) if large else config(32)
    rows, columns = block or (chosen["BLOCK_M"], chosen["BLOCK_N"])
    splits = splits or chosen["SPLITS"]
    blocks = gluon.cdiv(m, rows) * gluon.cdiv(n, columns)
    return matrices(
        new,
        (m, n, k),
        sums=new.empty((blocks, splits, rows, columns)),
        counters=new.integers((blocks,), 0, 1, "int32"),
    )


def operands(args, config):
    m, n, k = (config[f"BLOCK_{x}"] for x in "MNK")
    described = (describe(args["a"], [m, k]), describe(args["b"], [k, n]))
    return (*described, *(args[x] for x in ("c", "sums", "counters", "M", "N", "K")))


def config(warp_size, block=(8, 64, 64), stages=3, splits=2, num_warps=4):
    m, n, k = block
    blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return {**blocks, "STAGES": stages, "SPLITS": splits, "num_warps": num_warps}


def large_config(warp_size, block=(16, 64, 128), stages=6, splits=1, num_warps=4):
    return config(warp_size, block, stages, splits, num_warps)


def chosen_for(m, n, processors=132):
    """Choices for `config`: all rows at once up to 128, 64 columns, and K split while processors are
    left."""
    rows = next(size for size in (8, 16, 32, 64, 128) if size >= min(m, 128))
    blocks = gluon.cdiv(m, rows) * gluon.cdiv(n, 64)
    splits = next(s for s in (8, 4, 2, 1) if s == 1 or blocks * s <= processors)
    large = {"stages": 4, "num_warps": 8} if rows == 128 else {"stages": 6}
    return {"block": (rows, 64, 128), "splits": splits, **large}


def grid(args, config):
    blocks = [gluon.cdiv(args[x], config[f"BLOCK_{x}"]) for x in "NM"]
    return (config["SPLITS"], blocks[0], blocks[1])


EXAMPLES = [
    Example(
        name="matmul, small M, Hopper",
        kernel=matmul_small_m,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=config,
        large_config=large_config,
        **GEMM,
        bytes_moved=lambda args: 2 * args["K"] * args["N"],
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=4e-3,
    )
]
