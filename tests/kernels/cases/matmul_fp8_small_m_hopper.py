"""Few rows of 8-bit floats on Hopper, with a scale for 128 elements of a row and for each block of 128 x 128 of B.

The product of `matmul_fp8_hopper.py` turned: columns of B are the rows of `wgmma`, and the rows of A
its columns, of which 8 are enough. A tile of more rows than there are costs time: TMA fills the others
with zeros, and is slower at that than at copying.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma, warpgroup_mma_wait
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example
from tests.kernels.cases.matmul_cooperative_hopper import describe, programs
from tests.kernels.cases.matmul_fp8_hopper import NAMES, copy_steps, product
from tests.kernels.cases.matmul_fp8_hopper import arguments as arguments_of


@gluon.jit
def started(ring, at, of_b, nothing):
    """The product of a step, under way, and the scales of its columns."""
    ROWS: gl.constexpr = nothing.shape[1]
    by_block = gl.load(of_b)
    a_tile, b_tile, a_scales = ring.wait(at)
    a_tile = a_tile.permute((1, 0))
    part = warpgroup_mma(b_tile, a_tile, nothing, use_acc=False, is_async=True)
    flat = a_scales.reshape([a_scales.shape[1]]).slice(0, ROWS)
    return part, flat.load(gl.SliceLayout(0, nothing.type.layout)) * by_block


@gluon.jit
def multiply_turned(ring, tiles, c, b_scales, sizes):
    """Of each two steps, one is scaled while the other is multiplied."""
    M, N, K = sizes
    ROWS: gl.constexpr = tiles.block[0]
    COLUMNS: gl.constexpr = tiles.block[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, ROWS, 32])
    row_layout: gl.constexpr = gl.SliceLayout(0, layout)
    nothing = gl.zeros([COLUMNS, ROWS], gl.float32, layout)
    steps = gl.cdiv(K, 128)
    at = ring.consumer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        total = nothing
        of_b = b_scales + column // 128 * steps
        for pair in range(steps // 2):
            even, by_even = started(ring, at, of_b + 2 * pair, nothing)
            behind, at = at, at.next()
            odd, by_odd = started(ring, at, of_b + 2 * pair + 1, nothing)
            part = warpgroup_mma_wait(1, deps=[even])
            ring.release(behind)
            total += part * by_even[None, :]
            total = warpgroup_mma_wait(1, deps=[total])
            ring.wait(at)  # a branch: ptxas moves nothing across one
            part = warpgroup_mma_wait(0, deps=[odd])
            ring.release(at)
            at = at.next()
            total += part * by_odd[None, :]
        if steps % 2 == 1:
            last, by = started(ring, at, of_b + steps - 1, nothing)
            part = warpgroup_mma_wait(0, deps=[last])
            ring.release(at)
            at = at.next()
            total += part * by[None, :]
        rows = row + gl.arange(0, ROWS, row_layout)
        columns = column + gl.arange(0, COLUMNS, gl.SliceLayout(1, layout))
        inside = (rows < M)[None, :] & (columns < N)[:, None]
        to = c + rows.to(gl.int64)[None, :] * N + columns[:, None]
        gl.store(to, total.to(c.dtype.element_ty), mask=inside)


@gluon.jit
def matmul_scaled_small_m(
    a_desc, b_desc, scales_desc, c, b_scales, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The arguments are those of `matmul_scaled` with scales by block."""
    gl.static_assert(128 % BLOCK_N == 0, "a tile has the scales of one block")
    ring = tma_ring([a_desc, b_desc, scales_desc], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], 8)
    gl.warp_specialize(
        [
            (multiply_turned, (ring, tiles, c, b_scales, (M, N, K))),
            (copy_steps, (ring, tiles, K, True)),
        ],
        [1],
        [24],
    )


def operands(args, config):
    m, n = config["BLOCK_M"], config["BLOCK_N"]
    # Slots of 128 bytes at least, as TMA wants them.
    layout = gl.NVMMASharedLayout(0, 32, rank=2)
    described = (
        describe(args["a"], [m, 128]),
        describe(args["b"], [n, 128]),
        TensorDescriptor.from_tensor(args["a_scales"], [1, max(m, 32)], layout),
    )
    return (*described, *(args[x] for x in ("c", "b_scales", "M", "N", "K")))


def arguments(new, large, sizes=None):
    return arguments_of(True)(new, large, sizes or ((64, 4096, 4096) if large else (5, 200, 400)))


def config(warp_size, block=(8, 64), stages=2, num_warps=4):
    m, n = block
    return {"BLOCK_M": m, "BLOCK_N": n, "STAGES": stages, "num_warps": num_warps}


def large_config(warp_size, block=(64, 64), stages=6, num_warps=4):
    return config(warp_size, block, stages, num_warps)


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return (min(tiles, programs(args, tiles)),)


EXAMPLES = [
    Example(
        name="matmul fp8, small M",
        kernel=matmul_scaled_small_m,
        arguments=arguments,
        operands=operands,
        grid=grid,
        config=config,
        large_config=large_config,
        reference=lambda args: product(*(args[x].astype(np.float64) for x in NAMES)),
        device_reference=lambda args: product(*(args[x].float() for x in NAMES)),
        output="c",
        bytes_moved=lambda args: args["K"] * args["N"],
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=4e-3,
        large_tolerance=4e-2,
    )
]
