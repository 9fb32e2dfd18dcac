"""Products of 8-bit floats with scales on Hopper: one for each row of A and of B, or one for 128
elements of a row of A and one for each block of 128 x 128 of B.

`wgmma` adds up products of 8-bit floats with about 14 bits. After 128 elements of K the sum is scaled
and added to one in float32 (promoted), which scales by block need anyway; two groups of four warps have
half a tile each, and one promotes while the other multiplies. With scales by row the whole of K may be
multiplied at once (FAST), which is quicker and less exact.
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
from gluon_report.example import Example
from tests.kernels.cases.matmul_cooperative_hopper import describe, programs


@gluon.jit
def copy_steps(ring, tiles, K, BY_BLOCK: gl.constexpr):
    """Tiles of A and B, of 128 elements of K each, and the scales of A's rows where they are theirs."""
    at = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for step in range(gl.cdiv(K, 128)):
            if BY_BLOCK:
                ring.fetch(at, [[row, step * 128], [column, step * 128], [step, row]])
            else:
                ring.fetch(at, [[row, step * 128], [column, step * 128]])
            at = at.next()


@gluon.jit
def multiplied(a_tile, b_tile, layout: gl.constexpr):
    """A step's product."""
    nothing = gl.zeros([a_tile.shape[0], b_tile.shape[0]], gl.float32, layout)
    part = warpgroup_mma(a_tile, b_tile.permute((1, 0)), nothing, use_acc=False, is_async=True)
    return warpgroup_mma_wait(0, deps=[part])


@gluon.jit
def promoted(total, part, by):
    """`total` and a step's product, scaled where `by` is something."""
    if by is None:
        total += part
    else:
        total += part * by[:, None]
    # The next product begins behind this sum, so that it may use the registers of `part`.
    return warpgroup_mma_wait(0, deps=[total])


@gluon.jit
def scaled(total, row, column, scales, sizes):
    """`total` with the scales of its rows and columns."""
    rows = row + gl.arange(0, total.shape[0], gl.SliceLayout(1, total.type.layout))
    columns = column + gl.arange(0, total.shape[1], gl.SliceLayout(0, total.type.layout))
    of_rows = gl.load(scales[0] + rows, mask=rows < sizes[0], other=0.0)
    of_columns = gl.load(scales[1] + columns, mask=columns < sizes[1], other=0.0)
    return total * of_rows[:, None] * of_columns[None, :]


@gluon.jit
def multiply_promoted(
    ring, tiles, writer, scales, sizes, half: gl.constexpr, layout: gl.constexpr,
    BY_BLOCK: gl.constexpr,
):  # fmt: skip
    """Columns of one block of B or of two, one after the other, with registers for the product of one:
    while one group of warps promotes, the other one multiplies."""
    _, N, K = sizes
    COLUMNS: gl.constexpr = tiles.block[1]
    WIDTH: gl.constexpr = min(COLUMNS, 128)
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    steps = gl.cdiv(K, 128)
    last = gl.cdiv(N, 128) - 1
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        row += half * 64
        left = gl.zeros([64, WIDTH], gl.float32, layout)
        right = left
        for step in range(steps):
            if BY_BLOCK:
                block = column // 128
                of_left = gl.load(scales[1] + block * steps + step)
                of_right = gl.load(scales[1] + gl.minimum(block + 1, last) * steps + step)
                a_tile, b_tile, a_scales = ring.wait(at)
                by_row = a_scales.reshape([128]).slice(half * 64, 64).load(row_layout)
                by_left = by_row * of_left
                by_right = by_row * of_right
            else:
                a_tile, b_tile = ring.wait(at)
                by_left, by_right = None, None
            a_tile = a_tile.slice(half * 64, 64, dim=0)
            part = multiplied(a_tile, b_tile.slice(0, WIDTH, dim=0), layout)
            if COLUMNS > WIDTH:
                left = promoted(left, part, by_left)
                ring.wait(at)  # a branch: ptxas moves nothing across one
                part = multiplied(a_tile, b_tile.slice(WIDTH, WIDTH, dim=0), layout)
                ring.release(at)
                right = promoted(right, part, by_right)
            else:
                ring.release(at)
                left = promoted(left, part, by_left)
            at = at.next()
        if not BY_BLOCK:
            left = scaled(left, row, column, scales, sizes)
            right = scaled(right, row, column + WIDTH, scales, sizes)
        writer.store([row, column], left)
        if COLUMNS > WIDTH:
            writer.store([row, column + WIDTH], right)
    writer.close()


@gluon.jit
def multiply_fast(ring, tiles, writer, scales, sizes, half: gl.constexpr, layout: gl.constexpr):
    """Scales by row, at the end."""
    COLUMNS: gl.constexpr = tiles.block[1]
    K = sizes[2]
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        row += half * 64
        acc = warpgroup_mma_init(gl.zeros([64, COLUMNS], gl.float32, layout))
        for k in range(0, K, 128):
            a_tile, b_tile = ring.wait(at)
            a_tile = a_tile.slice(half * 64, 64, dim=0)
            acc = warpgroup_mma(a_tile, b_tile.permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
            ring.release(at.before(), pred=k > 0)
            at = at.next()
        total = warpgroup_mma_wait(0, deps=[acc])
        ring.release(at.before())
        writer.store([row, column], scaled(total, row, column, scales, sizes))
    writer.close()


@gluon.jit
def multiply_tiles(
    ring, tiles, writer, scales, sizes, half: gl.constexpr, BY_BLOCK: gl.constexpr,
    FAST: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = tiles.block[1] if FAST else min(tiles.block[1], 128)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 32])
    if FAST:
        multiply_fast(ring, tiles, writer, scales, sizes, half, layout)
    else:
        multiply_promoted(ring, tiles, writer, scales, sizes, half, layout, BY_BLOCK)


@gluon.jit
def matmul_scaled(
    a_desc, b_desc, c_desc, scales_desc, a_scales, b_scales, M, N, K,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    BY_BLOCK: gl.constexpr, FAST: gl.constexpr,
):  # fmt: skip
    """`a` is [M, K] and `b` [N, K], 8-bit floats; their scales, float32, are [K / 128, M] and
    [N / 128, K / 128], all rounded up, M to a multiple of 4, or [M] and [N] unless BY_BLOCK."""
    WIDTH: gl.constexpr = BLOCK_N if FAST else min(BLOCK_N, 128)
    if BY_BLOCK:
        ring = tma_ring([a_desc, b_desc, scales_desc], STAGES, consumers=2)
    else:
        ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    tiles = gl.portable.swizzled_tiles([M, N], [128, BLOCK_N], GROUP)
    upper = tma_writer(c_desc, parts=max(WIDTH // 64, 1), buffers=1)
    lower = tma_writer(c_desc, parts=max(WIDTH // 64, 1), buffers=1)
    scales = (a_scales, b_scales)
    sizes = (M, N, K)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, tiles, upper, scales, sizes, 0, BY_BLOCK, FAST)),
            (multiply_tiles, (ring, tiles, lower, scales, sizes, 1, BY_BLOCK, FAST)),
            (copy_steps, (ring, tiles, K, BY_BLOCK)),
        ],
        [4, 1],
        [232, 24],
    )


def operands(args, config):
    n, scales = config["BLOCK_N"], args["a_scales"]
    if config["BY_BLOCK"]:
        layout = gl.NVMMASharedLayout(0, 32, rank=2)
        of_rows = TensorDescriptor.from_tensor(scales, [1, 128], layout)
    else:
        of_rows = scales
    described = (
        describe(args["a"], [128, 128]),
        describe(args["b"], [n, 128]),
        describe(args["c"], [64, min(n, 64)]),
        of_rows,
    )
    return (*described, *(args[x] for x in ("a_scales", "b_scales", "M", "N", "K")))


def arguments(by_block):
    def make(new, large, sizes=None):
        m, n, k = sizes or ((4096, 7168, 16384) if large else (200, 272, 400))
        blocks = -(-n // 128), -(-k // 128)
        shapes = ((blocks[1], -(-m // 4) * 4), blocks) if by_block else ((m,), (n,))
        return {
            "a": new.random((m, k), "float8_e4m3fn"),
            "b": new.random((n, k), "float8_e4m3fn"),
            "c": new.empty((m, n), "bfloat16"),
            "a_scales": new.random(shapes[0]),
            "b_scales": new.random(shapes[1]),
            "M": m,
            "N": n,
            "K": k,
        }

    return make


def configure(by_block, fast):
    def make(warp_size, columns, stages, group):
        return {
            "BLOCK_N": columns,
            "STAGES": stages,
            "GROUP": group,
            "BY_BLOCK": by_block,
            "FAST": fast,
            "num_warps": 4,
        }

    def config(warp_size, columns=256, stages=2, group=2):
        return make(warp_size, columns, stages, group)

    def large_config(warp_size, columns=256, stages=4, group=16):
        return make(warp_size, columns, stages, group)

    return config, large_config


def grid(args, config):
    tiles = -(-args["M"] // 128) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, programs(args, tiles)),)


def product(a, b, a_scales, b_scales):
    """In the precision of the arguments, arrays or tensors."""
    if a_scales.ndim == 1:
        return (a @ b.T) * a_scales[:, None] * b_scales[None, :]
    total = 0
    for i in range(0, a.shape[1], 128):
        across = b_scales[:, i // 128][[n // 128 for n in range(b.shape[0])]]
        part = a[:, i : i + 128] @ b[:, i : i + 128].T
        of_rows = a_scales[i // 128][: len(a)]
        total = total + part * of_rows[:, None] * across[None, :]
    return total


NAMES = ("a", "b", "a_scales", "b_scales")


def example(name, by_block, fast, tolerance):
    config, large_config = configure(by_block, fast)
    return Example(
        name=f"matmul fp8, {name}",
        kernel=matmul_scaled,
        arguments=arguments(by_block),
        operands=operands,
        grid=grid,
        config=config,
        large_config=large_config,
        reference=lambda args: product(*(args[x].astype(np.float64) for x in NAMES)),
        device_reference=lambda args: product(*(args[x].float() for x in NAMES)),
        output="c",
        flops=lambda args: 2 * args["M"] * args["N"] * args["K"],
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=tolerance,
        large_tolerance=4e-2,
    )


EXAMPLES = [
    example("scales by block", True, False, 4e-3),
    example("scales by row", False, False, 4e-3),
]
# Not in the demo.
MORE = [example("scales by row, fast", False, True, 4e-3)]
