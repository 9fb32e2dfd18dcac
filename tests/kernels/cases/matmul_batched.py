"""Products of matrices side by side: one order over the tiles of all of them.

Tensors have a dimension more, and tiles one that is 1 there: elements behind the end of a matrix are zero,
not the next matrix. The stream of instructions is that of `matmul.py`, across the border between two
tiles and between two matrices.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM
from tests.kernels.cases.matmul import choices, config, large_config
from tests.kernels.cases.matmul import grid as tiles_grid


@gluon.constexpr_function
def deep(layout):
    """The layout of a tile in shared memory with a dimension of 1 in front."""
    if isinstance(layout, gl.SwizzledSharedLayout):
        order = [dim + 1 for dim in layout.order] + [0]
        return gl.SwizzledSharedLayout(layout.vec, layout.per_phase, layout.max_phase, order)
    return None  # the one that the unit that copies takes by itself


@gluon.jit
def place(tile, tiles, most):
    """The matrix of a tile, and where the tile begins in it; behind the last matrix is none."""
    row, column = tiles.at(tile % tiles.count())
    return gl.minimum(tile // tiles.count(), most - 1), row, column


@gluon.jit
def matmul_batched(
    a, b, c, matrices, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """`a` is [matrices, M, K], `b` [matrices, K, N], `c` [matrices, M, N]."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(
        a, [matrices, M, K], [M * K, K, 1], [1, BLOCK_M, BLOCK_K], deep(layouts.a_shared)
    )
    b_tiles = gl.portable.descriptor(
        b, [matrices, K, N], [K * N, N, 1], [1, BLOCK_K, BLOCK_N], deep(layouts.b_shared)
    )
    c_tiles = gl.portable.descriptor(c, [matrices, M, N], [M * N, N, 1], [1, BLOCK_M, BLOCK_N // 4])
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    count = tiles.count() * matrices
    programs = gl.num_programs(0)
    coming = gl.program_id(0)
    matrix, row, column = place(coming, tiles, matrices)
    k = 0
    for i in gl.static_range(STAGES - 1):
        ring.fetch(i, [[matrix, row, k], [matrix, k, column]], pred=coming < count)
        k += BLOCK_K
        if k >= K:
            k = 0
            coming += programs
            matrix, row, column = place(coming, tiles, matrices)
    step = 0
    for tile in range(gl.program_id(0), count, programs):
        acc = gl.portable.accumulator(layouts)
        for _ in range(0, K, BLOCK_K):
            a_tile, b_tile = ring.wait(step)
            a_tile = a_tile.reshape([BLOCK_M, BLOCK_K])
            acc = gl.portable.mma(a_tile, b_tile.reshape([BLOCK_K, BLOCK_N]), acc, is_async=True)
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            ring.fetch(ahead, [[matrix, row, k], [matrix, k, column]], pred=coming < count)
            k += BLOCK_K
            if k >= K:
                k = 0
                coming += programs
                matrix, row, column = place(coming, tiles, matrices)
            step += 1
        result = gl.portable.read(acc)
        here, top, left = place(tile, tiles, matrices)
        gl.portable.store(c_tiles, [here, top, left], result.reshape([1, BLOCK_M, BLOCK_N]))
    ring.close()


def arguments(new, large, sizes=None):
    matrices, m, n, k = sizes or ((64, 1024, 1024, 1024) if large else (3, 72, 80, 112))
    return {
        "a": new.random((matrices, m, k), "bfloat16"),
        "b": new.random((matrices, k, n), "bfloat16"),
        "c": new.empty((matrices, m, n), "bfloat16"),
        "matrices": matrices,
        "M": m,
        "N": n,
        "K": k,
    }


def grid(args, config):
    """As many programs as run at a time; as `matmul.py` has them for the rows of all matrices."""
    rows = -(-args["M"] // config["BLOCK_M"]) * config["BLOCK_M"] * args["matrices"]
    return tiles_grid({**args, "M": rows}, config)


EXAMPLES = [
    Example(
        name="matmul, batched",
        kernel=matmul_batched,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        **GEMM,
        flops=lambda args: 2 * args["a"].shape[0] * args["M"] * args["N"] * args["K"],
        tolerance=4e-3,
    )
]
