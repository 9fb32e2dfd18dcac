"""Matrix multiplication on Hopper, ping-pong schedule: two consumer warp groups have a tile each.

In `matmul_cooperative_hopper.py` both groups work on the same tile and store at about the same time, when nobody
multiplies. Here each has a tile of its own, and a group may multiply only in its turn: so one stores while
the other has the matrix unit to itself. The shorter the sums, the more a store weighs.

Tiles are 128 wide, or 192: then a group has two sums, of 128 and of 64 columns, since widths of tensors are
powers of two.

With two blocks to a cluster (`ctas=2`, from Triton 3.8 on) a tile has twice the rows, and each block half of them: it
copies its own rows of A, and one copies the columns of B for both by multicast, so that the L2 cache gives them once.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    ordered_barrier,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, flops
from tests.kernels.cases.matmul_cooperative_hopper import DTYPES, arguments, programs


@gluon.constexpr_function
def widths(columns):
    """The powers of two that a tile's columns are the sum of, from left to right."""
    return (128, 64) if columns == 192 else (columns,)


@gluon.constexpr_function
def split(ctas, dim):
    """`cga_layout` of what the blocks of a cluster have a half each of along `dim`; with None, all of it."""
    return [[int(dim == 0), int(dim == 1)]] if ctas == 2 else []


@gluon.jit
def copy_tiles(ring, tiles, K, BLOCK_K: gl.constexpr, WIDTHS: gl.constexpr):
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            places = ([row, k], [k, column])
            if len(WIDTHS) == 2:
                places = places + ([k, column + WIDTHS[0]],)
            ring.fetch(at, places)
            at = at.next()


@gluon.jit
def zeros(ROWS: gl.constexpr, WIDTH: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [4, 1], [16, WIDTH, 16], cga_layout=split(gl.num_ctas(), 0)
    )
    return warpgroup_mma_init(gl.zeros([ROWS, WIDTH], gl.float32, layout))


@gluon.jit
def nothing(ROWS: gl.constexpr, WIDTHS: gl.constexpr):
    """Sums of no steps yet, side by side."""
    sums = ()
    for i in gl.static_range(len(WIDTHS)):
        sums = sums + (zeros(ROWS, WIDTHS[i]),)
    return sums


@gluon.jit
def multiplied(tiles, sums):
    """Start a step of each sum, and wait until the step before is over."""
    first = warpgroup_mma(tiles[0], tiles[1], sums[0], is_async=True)
    if len(sums) == 2:
        second = warpgroup_mma(tiles[0], tiles[2], sums[1], is_async=True)
        first, second = warpgroup_mma_wait(2, deps=[first, second])
        return warpgroup_mma_init(first), warpgroup_mma_init(second)
    else:
        return (warpgroup_mma_init(warpgroup_mma_wait(1, deps=[first])),)


@gluon.jit
def finished(sums):
    if len(sums) == 2:
        return warpgroup_mma_wait(0, deps=[sums[0], sums[1]])
    else:
        return (warpgroup_mma_wait(0, deps=[sums[0]]),)


@gluon.jit
def store(writers, sums, row, column):
    for i in gl.static_range(len(sums)):
        writers[i].store([row, column], sums[i])
        column += sums[i].shape[1]


@gluon.jit
def multiply_tiles(
    ring, tiles, order, writers, K, partition: gl.constexpr, BLOCK_K: gl.constexpr, WIDTHS: gl.constexpr
):  # fmt: skip
    """Every other tile of the program."""
    steps = gl.cdiv(K, BLOCK_K)
    at = ring.consumer().next(partition * steps)
    turn = order.first(partition)
    first = gl.program_id(0) + partition * gl.num_programs(0)
    for tile in range(first, tiles.count(), 2 * gl.num_programs(0)):
        sums = nothing(tiles.block[0], WIDTHS)
        order.wait(turn)
        for step in range(steps):
            sums = multiplied(ring.wait(at), sums)
            # The step before is over: its slot takes the tiles that come next.
            ring.release(at.before(), pred=step > 0)
            at = at.next()
        order.arrive(turn)
        turn = turn.next()
        sums = finished(sums)
        ring.release(at.before(), pred=steps > 0)
        at = at.next(steps)
        row, column = tiles.at(tile)
        store(writers, sums, row, column)
    writers[0].close()


@gluon.jit
def writers_for(c_desc, WIDTHS: gl.constexpr, BUFFERS: gl.constexpr):
    """One for each sum of a group."""
    BOX: gl.constexpr = c_desc.block_type.shape[1]
    writers = ()
    for i in gl.static_range(len(WIDTHS)):
        writers = writers + (tma_writer(c_desc, WIDTHS[i] // BOX, BUFFERS),)
    return writers


@gluon.jit
def matmul_pingpong(
    a_desc, b_descs, c_desc, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, BUFFERS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """`b_descs` are of the columns of a tile, BLOCK_N in all, from left to right: one, or two."""
    gl.static_assert(num_warps == 4, "a tile is multiplied by four warps")
    WIDTHS: gl.constexpr = widths(BLOCK_N)
    CTAS: gl.constexpr = gl.num_ctas()
    ring = tma_ring((a_desc,) + b_descs, STAGES, multicast=CTAS == 2)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    order = ordered_barrier(2)
    mine = writers_for(c_desc, WIDTHS, BUFFERS)
    others = writers_for(c_desc, WIDTHS, BUFFERS)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, tiles, order, mine, K, 0, BLOCK_K, WIDTHS)),
            (multiply_tiles, (ring, tiles, order, others, K, 1, BLOCK_K, WIDTHS)),
            (copy_tiles, (ring, tiles, K, BLOCK_K, WIDTHS)),
        ],
        [4, 1],
        [240, 24],
    )
    if CTAS == 2:
        gl.barrier(cluster=True)  # neither block is gone while the other uses its barriers


def describe(array, block, ctas=1, dim=None):
    dtype = DTYPES[str(array.dtype).split(".")[-1]]
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype, cga_layout=split(ctas, dim))
    return TensorDescriptor.from_tensor(array, block, layout)


def operands(args, config):
    m, n, k = (config[f"BLOCK_{x}"] for x in "MNK")
    ctas = config.get("num_ctas", 1)
    columns = tuple(describe(args["b"], [k, width], ctas) for width in widths(n))
    c = describe(args["c"], [m, 64 // config["BUFFERS"]], ctas, 0)
    return (describe(args["a"], [m, k], ctas, 0), columns, c, *(args[x] for x in "MNK"))


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, programs(args, tiles) // config.get("num_ctas", 1)),)


def config(warp_size, block=(128, 192, 32), stages=3, group=2, buffers=1, ctas=1):
    """`block` is what each block of a cluster multiplies; the cluster's tile has `ctas` times its rows."""
    m, n, k = block
    blocks = {"BLOCK_M": ctas * m, "BLOCK_N": n, "BLOCK_K": k}
    clusters = {"num_ctas": ctas} if ctas > 1 else {}
    return {
        **blocks,
        "STAGES": stages,
        "GROUP": group,
        "BUFFERS": buffers,
        "num_warps": 4,
        **clusters,
    }


def large_config(warp_size, block=(128, 192, 64), stages=4, group=8, buffers=1, ctas=1):
    return config(warp_size, block, stages, group, buffers, ctas)


def chosen_for(m, n, processors=132):
    """Choices for `large_config`: the width with which the fullest processor has the least to multiply."""

    def most(width):
        tiles = gluon.cdiv(m, 128) * gluon.cdiv(n, width)
        return gluon.cdiv(tiles, processors) * width

    if most(128) < most(192):
        return {"block": (128, 128, 64), "stages": 6}
    return {
        "block": (128, 192, 32),
        "stages": 8,
    }  # where K is small, short steps begin and end sooner


EXAMPLES = [
    Example(
        name="matmul, ping-pong",
        kernel=matmul_pingpong,
        arguments=lambda new, large, sizes=None: arguments(
            new, large, sizes or ((8192, 8192, 1024) if large else (320, 560, 144))
        ),
        operands=operands,
        grid=grid,
        config=config,
        large_config=large_config,
        **GEMM,
        flops=flops,
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=4e-3,
    )
]
