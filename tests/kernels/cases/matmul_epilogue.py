"""A linear layer, written once: a product, and the steps on it before it is stored.

`act(a @ b * scale of its row * scale of its column + bias) + residual`: each is left out where it is
None. An epilogue does it part by part of a tile, and a writer stores the parts: by TMA while the next
tile is multiplied, where there is TMA. Tiles come from a tile scheduler, which on hardware that can takes over
programs that have not begun (sm_100); a second position runs ahead, for the copies.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import flops, matrices
from tests.kernels.cases.matmul import choices as of_products
from tests.kernels.cases.matmul import grid


@gluon.jit
def gelu(x):
    """By tanh, which is a sigmoid of twice as much."""
    return x / (1 + gl.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))


@gluon.jit
def linear(
    a, b, c, row_scale, column_scale, bias, residual, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """`a` is [M, K], `b` [K, N], `c` and `residual` [M, N]; scales and bias are of rows and columns."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 4])
    end = gl.portable.epilogue(
        [M, N], row_scale=row_scale, column_scale=column_scale, bias=bias, activation=ACTIVATION,
        residual=residual,
    )  # fmt: skip
    out = gl.portable.writer(c_tiles, parts=4, epilogue=end)
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    work = gl.portable.tile_scheduler(tiles, partitions=2, slots=STAGES + 1)

    coming = work.first(0)
    row, column = work.at(coming)
    k = 0
    for i in gl.static_range(STAGES - 1):
        ring.fetch(i, [[row, k], [k, column]], pred=work.has(coming) & (K > 0))
        k += BLOCK_K
        if k >= K:
            k = 0
            coming = work.next(coming)
            if work.has(coming):
                row, column = work.at(coming)
    step = 0
    tile = work.first(1)
    while work.has(tile):
        acc = gl.portable.accumulator(layouts)
        for _ in range(0, K, BLOCK_K):
            a_tile, b_tile = ring.wait(step)
            acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
            acc = gl.portable.mma_wait(acc, pending=1)
            ring.fetch(step + STAGES - 1, [[row, k], [k, column]], pred=work.has(coming))
            k += BLOCK_K
            if k >= K:
                k = 0
                coming = work.next(coming)
                if work.has(coming):
                    row, column = work.at(coming)
            step += 1
        top, left = work.at(tile)
        out.store([top, left], gl.portable.read(acc))
        tile = work.next(tile)
    ring.close()
    out.close()


def arguments(new, large, sizes=None, dtype="float16"):
    m, n, k = sizes or ((4096, 4096, 4096) if large else (136, 80, 176))
    return matrices(
        new,
        (m, n, k),
        dtype,
        row_scale=None,
        column_scale=None,
        bias=new.random((n,), dtype),
        residual=new.random((m, n), dtype),
    )


def scaled_arguments(new, large, sizes=None, dtype="float16"):
    args = arguments(new, large, sizes, dtype)
    scales = {"row_scale": new.random((args["M"],)), "column_scale": new.random((args["N"],))}
    return {**args, **scales, "bias": None, "residual": None}


def configure(activation, block, num_warps):
    def config(warp_size, block=block, stages=3, num_warps=num_warps):
        m, n, k = block
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages, "GROUP": 8}
        return {**blocks, "ACTIVATION": activation, "num_warps": num_warps}

    return config


def choices(target):
    """Choose more warps where accumulators are in registers: an epilogue's operands take some, too."""
    wide = {"num_warps": 8} if target.has("nvidia.mma_v2") else {}
    return of_products(target) or wide


def reference(args):
    result = args["a"].astype(np.float64) @ args["b"].astype(np.float64)
    if args["row_scale"] is not None:
        scales = (args[name].astype(np.float64) for name in ("row_scale", "column_scale"))
        result *= np.multiply.outer(*scales)
    if args["bias"] is not None:
        x = result + args["bias"].astype(np.float64)
        result = x / (1 + np.exp(-1.5957691216057308 * x * (1 + 0.044715 * x * x)))
    if args["residual"] is not None:
        result += args["residual"].astype(np.float64)
    return result


def example(name, arguments, activation):
    return Example(
        name=name,
        kernel=linear,
        arguments=arguments,
        grid=grid,
        config=configure(activation, (64, 64, 32), 4),
        large_config=configure(activation, (128, 128, 32), 4),
        choices=choices,
        reference=reference,
        output="c",
        flops=flops,
        tolerance=4e-3,
    )


EXAMPLES = [example("linear layer with gelu and residual", arguments, gelu)]
# Not in the demo.
MORE = [example("product with scales of rows and columns", scaled_arguments, None)]
