"""A matrix product of up to 128 rows on Hopper, in roles; programs that are left over help the others.

The product is turned, as in `matmul_small_m_hopper.py`: 64 columns of B are the rows of one `wgmma` of 64 x 128,
which reads 6 KB of shared memory for 16 steps of K, where two of 64 x 64 read 8 KB. A program copies all of
A for its columns, so that with many rows the L2 cache is what bounds it; a warp that only copies keeps it busy.

A tile of columns has one owner. Where processors are left for it, other programs help: each takes some of
the last steps of K of a tile. The owner waits for its helpers and adds what they left, in order, so that equal
inputs have equal results. Helpers wait for nobody, come first in the grid, and have less to do.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, matrices
from tests.kernels.cases.matmul_cooperative_hopper import DTYPES, describe


@gluon.jit
def work_of(sizes, BLOCKS: gl.constexpr, HELP: gl.constexpr):
    """This program's number among helpers or tiles, its tile, the first step, how many, and whether it owns the tile."""
    PARTS: gl.constexpr = HELP[0]
    steps = gl.cdiv(sizes[2], BLOCKS[2])
    share = gl.maximum(steps // (PARTS + 1) - HELP[1], 0)
    number = gl.program_id(0)
    tile = number
    first = 0
    count = steps - PARTS * share
    owner = number >= 0
    if PARTS > 0:
        helpers = gl.cdiv(sizes[1], BLOCKS[1]) * PARTS
        owner = number >= helpers
        tile = gl.where(owner, number - helpers, number // PARTS)
        first = gl.where(owner, 0, steps - (PARTS - number % PARTS) * share)
        count = gl.where(owner, count, share)
    return number, tile, first, count, owner


@gluon.jit
def copies(ring, sizes, BLOCKS: gl.constexpr, HELP: gl.constexpr, OVERLAP: gl.constexpr):
    BLOCK_K: gl.constexpr = BLOCKS[2]
    at = ring.producer()
    _, tile, first, count, _ = work_of(sizes, BLOCKS, HELP)
    for k in range(first * BLOCK_K, (first + count) * BLOCK_K, BLOCK_K):
        of_a = [0, 0, k] if OVERLAP else [0, k]
        ring.fetch(at, [of_a, [k, tile * BLOCKS[1]]])
        at = at.next()


@gluon.jit
def store(c, value, column, sizes, OVERLAP: gl.constexpr):
    """[columns, rows] of sums, 16 bytes at a time."""
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    value = gl.convert_layout(gl.permute(value.to(c.dtype.element_ty), (1, 0)), wide)
    HALF: gl.constexpr = value.shape[0] // 2
    rows = gl.arange(0, value.shape[0], gl.SliceLayout(1, wide))
    inside = rows < sizes[0]
    if (
        OVERLAP
    ):  # the second half ends with the last row; what the first half has is not stored again
        rows = gl.where(rows < HALF, rows, rows + sizes[0] - 2 * HALF)
        second = gl.arange(0, value.shape[0], gl.SliceLayout(1, wide)) >= HALF
        inside = second == (rows >= HALF)
    columns = column + gl.arange(0, value.shape[1], gl.SliceLayout(0, wide))
    to = c + rows.to(gl.int64)[:, None] * sizes[1] + columns[None, :]
    gl.store(to, value, mask=inside[:, None] & (columns < sizes[1])[None, :])


@gluon.jit
def places(sums, acc):
    COLUMNS: gl.constexpr = acc.shape[0]
    ROWS: gl.constexpr = acc.shape[1]
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(1, acc.type.layout))
    rows = gl.arange(0, ROWS, gl.SliceLayout(0, acc.type.layout))
    return sums + columns[:, None] * ROWS + rows[None, :]


@gluon.jit
def add_parts(acc, sums, counter, PARTS: gl.constexpr):
    """Wait until helpers have left all parts of a tile, and add them in order."""
    came = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    while came < PARTS:
        came = gl.atomic_add(counter, 0, sem="acquire", scope="gpu")
    gl.store(counter, 0)  # for the next launch: no helper comes any more
    parts = places(sums, acc)
    for part in range(PARTS):  # one after the other, for want of registers
        acc += gl.load(parts + part * acc.shape[0] * acc.shape[1])
    return acc


@gluon.jit
def multiply(
    ring, out, sizes, BLOCKS: gl.constexpr, HELP: gl.constexpr, OVERLAP: gl.constexpr
):  # fmt: skip
    c, sums, counters = out
    ROWS: gl.constexpr = BLOCKS[0]
    PARTS: gl.constexpr = HELP[0]
    SIZE: gl.constexpr = ROWS * BLOCKS[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 16])
    at = ring.consumer()
    number, tile, _, count, owner = work_of(sizes, BLOCKS, HELP)
    acc = warpgroup_mma_init(gl.zeros([BLOCKS[1], ROWS], gl.float32, layout))
    for step in range(count):
        a_tile, b_tile = ring.wait(at)
        a_tile = a_tile.reshape([ROWS, BLOCKS[2]]).permute((1, 0))
        acc = warpgroup_mma(b_tile.permute((1, 0)), a_tile, acc, is_async=True)
        # The step before is over: its slot takes the tiles that come next.
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        ring.release(at.before(), pred=step > 0)
        at = at.next()
    result = warpgroup_mma_wait(0, deps=[acc])
    ring.release(at.before(), pred=count > 0)
    if owner:
        if PARTS > 0:
            result = add_parts(result, sums + tile * PARTS * SIZE, counters + tile, PARTS)
        store(c, result, tile * BLOCKS[1], sizes, OVERLAP)
    else:
        gl.store(places(sums + number * SIZE, result), result)
        gl.barrier()  # all of the program have stored before it counts
        gl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu")


@gluon.jit
def matmul_small_m_warp_specialized(
    a_desc, b_desc, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    PARTS: gl.constexpr, LEAD: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """Of M rows, at most BLOCK_M. Helpers leave PARTS parts of each tile, each LEAD steps shorter than would
    be even. `sums` is [tiles * PARTS, BLOCK_N, BLOCK_M], float32; `counters` has a 0
    for each tile, and has it again at the end. All programs must be able to run at a time."""
    ring = tma_ring([a_desc, b_desc], STAGES)
    sizes = (M, N, K)
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    HELP: gl.constexpr = (PARTS, LEAD)
    out = (c, sums, counters)
    gl.warp_specialize(
        [
            (multiply, (ring, out, sizes, BLOCKS, HELP, OVERLAP)),
            (copies, (ring, sizes, BLOCKS, HELP, OVERLAP)),
        ],
        [1],
        [24],
    )


def tiles_of(args, config):
    return gluon.cdiv(args["N"], config["BLOCK_N"])


def grid(args, config):
    tiles = tiles_of(args, config)
    return (tiles * (1 + config["PARTS"]),)


def arguments(new, large, sizes=None, options=None):
    """`made` is the configuration that they are for."""
    m, n, k = sizes or ((128, 8192, 8192) if large else (100, 200, 456))
    options = options or (large_config(32) if large else config(32))
    tiles, parts = gluon.cdiv(n, options["BLOCK_N"]), options["PARTS"]
    return matrices(
        new,
        (m, n, k),
        sums=new.empty((tiles * max(parts, 1), options["BLOCK_N"], options["BLOCK_M"])),
        counters=new.integers((tiles,), 0, 1, "int32"),
    )


def halves(a, rows, width):
    """The first rows of A and the last ones, of which some may be the same, side by side: boxes that hang
    over the edge take TMA longer."""
    (m, k), half = a.shape, rows // 2
    if not half < m <= rows:
        raise ValueError(f"OVERLAP is for {half + 1} to {rows} rows, got {m}")
    block = [2, half, width]
    layout = gl.NVMMASharedLayout.get_default_for(block, DTYPES[str(a.dtype).split(".")[-1]])
    return TensorDescriptor(a, [2, half, k], [(m - half) * k, k, 1], block, layout)


def operands(args, config):
    m, n, k = (config[f"BLOCK_{x}"] for x in "MNK")
    if args["M"] > m:
        raise ValueError(f"BLOCK_M must be at least M, got {m} for {args['M']} rows")
    a = halves(args["a"], m, k) if config["OVERLAP"] else describe(args["a"], [m, k])
    others = (args[x] for x in ("c", "sums", "counters", "M", "N", "K"))
    return (a, describe(args["b"], [k, n]), *others)


def config(warp_size, block=(128, 64, 64), stages=3, help=(1, 0), overlap=True, num_warps=4):
    """`help`: how many help with a tile, and steps by which their parts are shorter than even."""
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "PARTS", "LEAD"), block + help))
    return {**sizes, "STAGES": stages, "OVERLAP": overlap, "num_warps": num_warps}


def large_config(warp_size, block=(128, 64, 64), stages=8, help=(0, 0), overlap=False, num_warps=4):
    return config(warp_size, block, stages, help, overlap, num_warps)


# Measured: rows from which this is faster than `matmul_small_m_hopper.py`, parts of a tile that are
# worth it, the fewest steps of a part, and how many fewer it has than would be even.
FROM_ROWS = 65
MOST_PARTS = 7
FEWEST_STEPS = 4
LEAD = 4


def helpers_for(tiles, steps, processors=132):
    """How many help with each tile: as many as there are processors for, if it is worth it."""
    parts = min(max(processors - tiles, 0) // tiles, MOST_PARTS)
    return parts if steps // (parts + 1) >= FEWEST_STEPS + LEAD else 0


def chosen_for(m, n, k, processors=132):
    """Choices for `config`: all rows at once, up to 128, and helpers where processors are left."""
    rows = next(size for size in (8, 16, 32, 64, 128) if size >= m)
    parts = helpers_for(gluon.cdiv(n, 64), gluon.cdiv(k, 64), processors)
    return {
        "block": (rows, 64, 64),
        "stages": {128: 8, 64: 12}.get(rows, 16),
        "help": (parts, LEAD if parts else 0),
        "overlap": rows // 2 < m < rows,
    }


EXAMPLES = [
    Example(
        name="matmul, small M, warp-specialized",
        kernel=matmul_small_m_warp_specialized,
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
