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
from gluon_core.cli.example import Example, main
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

try:
    from .matmul_hopper import copy_tiles, describe, grid
except ImportError:  # run as a program
    from matmul_hopper import copy_tiles, describe, grid


@gluon.jit
def started(ring, at, nothing, half: gl.constexpr):
    """The product of a step's tiles, under way."""
    ROWS: gl.constexpr = nothing.shape[0]
    a_tile, b_tile = ring.wait(at)
    a_tile = a_tile.slice(half * ROWS, ROWS, dim=0)
    return warpgroup_mma(a_tile, b_tile.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def scales_at(step, of_a, of_b, there, steps, M):
    """Those of a step, or of the last one."""
    step = gl.minimum(step, steps - 1)
    return gl.load(of_a + step * M, mask=there, other=0.0), gl.load(of_b + step)


@gluon.jit
def multiply_by_blocks(
    ring, tiles, writer, scales, sizes, half: gl.constexpr, layout: gl.constexpr
):
    """Scales by block. Of each two steps, one is scaled while the other is multiplied; the scales of the
    next two are on their way."""
    a_scales, b_scales = scales
    M, _, K = sizes
    ROWS: gl.constexpr = tiles.block[0] // 2
    COLUMNS: gl.constexpr = tiles.block[1]
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    steps = gl.cdiv(K, 128)
    nothing = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        rows = row + half * ROWS + gl.arange(0, ROWS, row_layout)
        of_a = a_scales + rows
        of_b = b_scales + column // 128 * steps
        there = rows < M
        a_even, b_even = scales_at(0, of_a, of_b, there, steps, M)
        a_odd, b_odd = scales_at(1, of_a, of_b, there, steps, M)
        total = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
        for pair in range(steps // 2):
            by_even = (a_even * b_even)[:, None]
            by_odd = (a_odd * b_odd)[:, None]
            a_even, b_even = scales_at(2 * pair + 2, of_a, of_b, there, steps, M)
            a_odd, b_odd = scales_at(2 * pair + 3, of_a, of_b, there, steps, M)
            even = started(ring, at, nothing, half)
            behind, at = at, at.next()
            odd = started(ring, at, nothing, half)
            part = warpgroup_mma_wait(1, deps=[even])
            ring.release(behind)
            total += part * by_even
            # ptxas waits for loads in the last block of instructions: this begins another one.
            ring.wait(at)
            part = warpgroup_mma_wait(0, deps=[odd])
            ring.release(at)
            at = at.next()
            total += part * by_odd
        if steps % 2 == 1:
            last = started(ring, at, nothing, half)
            part = warpgroup_mma_wait(0, deps=[last])
            ring.release(at)
            at = at.next()
            total += part * (a_even * b_even)[:, None]
        writer.store([row + half * ROWS, column], total)
    writer.close()


@gluon.jit
def multiply_by_rows(
    ring, tiles, writer, scales, sizes, half: gl.constexpr, layout: gl.constexpr,
    FAST: gl.constexpr,
):  # fmt: skip
    """Scales by row, at the end."""
    a_scales, b_scales = scales
    M, N, K = sizes
    ROWS: gl.constexpr = tiles.block[0] // 2
    COLUMNS: gl.constexpr = tiles.block[1]
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        row += half * ROWS
        rows = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        columns = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
        nothing = gl.zeros([ROWS, COLUMNS], gl.float32, layout)
        if FAST:
            acc = warpgroup_mma_init(nothing)
            for k in range(0, K, 128):
                a_tile, b_tile = ring.wait(at)
                a_tile = a_tile.slice(half * ROWS, ROWS, dim=0)
                acc = warpgroup_mma(a_tile, b_tile.permute((1, 0)), acc, is_async=True)
                acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
                ring.release(at.before(), pred=k > 0)
                at = at.next()
            total = warpgroup_mma_wait(0, deps=[acc])
            ring.release(at.before())
        else:
            total = nothing
            for _ in range(0, K, 128):
                a_tile, b_tile = ring.wait(at)
                a_tile = a_tile.slice(half * ROWS, ROWS, dim=0)
                b_tile = b_tile.permute((1, 0))
                part = warpgroup_mma(a_tile, b_tile, nothing, use_acc=False, is_async=True)
                total += warpgroup_mma_wait(0, deps=[part])
                ring.release(at)
                at = at.next()
        of_rows = gl.load(a_scales + rows, mask=rows < M, other=0.0)
        of_columns = gl.load(b_scales + columns, mask=columns < N, other=0.0)
        writer.store([row, column], total * of_rows[:, None] * of_columns[None, :])
    writer.close()


@gluon.jit
def multiply_tiles(
    ring, tiles, writer, scales, sizes, half: gl.constexpr, layout: gl.constexpr, KIND: gl.constexpr
):
    if KIND[0]:
        multiply_by_blocks(ring, tiles, writer, scales, sizes, half, layout)
    else:
        multiply_by_rows(ring, tiles, writer, scales, sizes, half, layout, KIND[1])


@gluon.jit
def matmul_scaled(
    a_desc, b_desc, c_desc, a_scales, b_scales, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    BY_BLOCK: gl.constexpr, FAST: gl.constexpr,
):  # fmt: skip
    """`a` is [M, K] and `b` [N, K], 8-bit floats; their scales, float32, are [K / 128, M] and
    [N / 128, K / 128], both rounded up, or [M] and [N] unless BY_BLOCK."""
    gl.static_assert(BLOCK_N == 128 or not BY_BLOCK, "a tile has the scales of one block")
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 32])
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    tiles = gl.portable.grouped_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    upper = tma_writer(c_desc, parts=BLOCK_N // 64)
    lower = tma_writer(c_desc, parts=BLOCK_N // 64)
    scales = (a_scales, b_scales)
    sizes = (M, N, K)
    KIND: gl.constexpr = (BY_BLOCK, FAST)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, tiles, upper, scales, sizes, 0, layout, KIND)),
            (multiply_tiles, (ring, tiles, lower, scales, sizes, 1, layout, KIND)),
            (copy_tiles, (ring, tiles, K, 128, True)),
        ],
        [4, 1],
        [232, 24],
    )


def operands(args, config):
    m, n = config["BLOCK_M"], config["BLOCK_N"]
    described = (
        describe(args["a"], [m, 128]),
        describe(args["b"], [n, 128]),
        describe(args["c"], [m // 2, 64]),
    )
    return (*described, *(args[x] for x in ("a_scales", "b_scales", "M", "N", "K")))


def arguments(by_block):
    def make(new, large, sizes=None):
        m, n, k = sizes or ((4096, 7168, 16384) if large else (200, 272, 400))
        blocks = -(-n // 128), -(-k // 128)
        shapes = ((blocks[1], m), blocks) if by_block else ((m,), (n,))
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
    def make(warp_size, block, stages, group):
        m, n = block
        return {
            "BLOCK_M": m,
            "BLOCK_N": n,
            "STAGES": stages,
            "GROUP": group,
            "BY_BLOCK": by_block,
            "FAST": fast,
            "num_warps": 4,
        }

    def config(warp_size, block=(128, 128), stages=2, group=2):
        return make(warp_size, block, stages, group)

    def large_config(warp_size, block=(128, 256 if fast else 128), stages=4, group=8):
        return make(warp_size, block, stages, group)

    return config, large_config


def product(a, b, a_scales, b_scales):
    """In the precision of the arguments, arrays or tensors."""
    if a_scales.ndim == 1:
        return (a @ b.T) * a_scales[:, None] * b_scales[None, :]
    total = 0
    for i in range(0, a.shape[1], 128):
        across = b_scales[:, i // 128][[n // 128 for n in range(b.shape[0])]]
        part = a[:, i : i + 128] @ b[:, i : i + 128].T
        total = total + part * a_scales[i // 128][:, None] * across[None, :]
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

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
