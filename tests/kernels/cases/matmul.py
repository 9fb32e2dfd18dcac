"""Matrix multiplication, written once.

`gl.portable` picks the matrix unit, the way tiles travel into shared memory and the layouts that go
with them, for whatever the kernel is compiled for: `wgmma` or `tcgen05` fed by TMA, `mma.sync` fed
by `cp.async`, MFMA or WMMA fed by buffer loads, multiply-add where there is no matrix unit. `gluon
explain examples/matmul.py --target gfx942` shows the choices and their reasons.

Each program walks over many tiles. While one step is multiplied, tiles for the next ones are under
way, across the border between two tiles of the result, too.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_report.example import Example
from tests.kernels.cases.gemm_parts import GEMM, flops, matrices


@gluon.jit
def tile_at(tile, tiles_m, tiles_n, GROUP: gl.constexpr):
    """Row and column of a tile: programs that run together share rows of A and columns of B."""
    width = GROUP * tiles_n
    first = tile // width * GROUP
    height = gl.minimum(tiles_m - first, GROUP)
    inside = tile % width
    return first + inside % height, inside // height


@gluon.jit
def matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 4])
    tiles = gl.portable.pipeline([a_tiles, b_tiles], STAGES)

    tiles_m = gl.cdiv(M, BLOCK_M)
    tiles_n = gl.cdiv(N, BLOCK_N)
    steps = gl.cdiv(K, BLOCK_K)
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    total = (tiles_m * tiles_n - program + programs - 1) // programs * steps

    for i in gl.static_range(STAGES - 1):
        m, n = tile_at(program + i // steps * programs, tiles_m, tiles_n, GROUP)
        k = i % steps * BLOCK_K
        tiles.fetch(i, [[m * BLOCK_M, k], [k, n * BLOCK_N]], pred=i < total)

    step = 0
    next_tile = program + (STAGES - 1) // steps * programs
    next_m, next_n = tile_at(next_tile, tiles_m, tiles_n, GROUP)
    next_k = (STAGES - 1) % steps * BLOCK_K
    for tile in range(program, tiles_m * tiles_n, programs):
        m, n = tile_at(tile, tiles_m, tiles_n, GROUP)
        acc = gl.portable.accumulator(layouts)
        for _ in range(steps):
            a_tile, b_tile = tiles.wait(step)
            acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
            # The step before is over: its buffers are free for the tiles that come next.
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            row = next_m * BLOCK_M
            column = next_n * BLOCK_N
            tiles.fetch(ahead, [[row, next_k], [next_k, column]], pred=ahead < total)
            next_k += BLOCK_K
            if next_k >= K:
                next_k = 0
                next_tile += programs
                next_m, next_n = tile_at(next_tile, tiles_m, tiles_n, GROUP)
            step += 1
        result = gl.portable.read(acc)
        gl.portable.store(c_tiles, [m * BLOCK_M, n * BLOCK_N], result)
    tiles.close()


def arguments(new, large, sizes=None, dtype="float16"):
    return matrices(new, sizes or ((4096, 4096, 4096) if large else (136, 80, 176)), dtype)


def config(warp_size, block=(64, 64, 32), stages=3, num_warps=4):
    m, n, k = block
    return {
        "BLOCK_M": m,
        "BLOCK_N": n,
        "BLOCK_K": k,
        "STAGES": stages,
        "GROUP": 8,
        "num_warps": num_warps,
    }


def large_config(warp_size, block=(128, 128, 32), stages=3, num_warps=4):
    return config(warp_size, block, stages, num_warps)


def choices(target):
    """Units that read shared memory on their own, or are fast, want large tiles where they have room."""
    if target.has("nvidia.wgmma"):
        return {"block": (128, 256, 64), "stages": 4, "num_warps": 8}
    if target.has("nvidia.tcgen05"):
        return {"block": (256, 128, 64), "stages": 4, "num_warps": 8}
    if target.has("amd.mfma_double_rate"):
        return {"block": (256, 128, 64), "stages": 2, "num_warps": 8}
    if target.has("amd.wmma_v3"):
        return {"block": (128, 128, 64), "stages": 2}
    if target.has("amd.wmma_v1") or target.has("amd.wmma_v2"):  # of 256 registers
        return {"num_warps": 8}
    return {}


def at_a_time(a, tiles, simulated, config):
    """As many programs as run at a time on the device of `a`, or as are simulated, but no more than tiles."""
    here = gluon.multiprocessors(a)
    return (min(tiles, here * max(1, 8 // config["num_warps"]) if here else simulated),)


def grid(args, config):
    tiles = -(-args["M"] // config["BLOCK_M"]) * -(-args["N"] // config["BLOCK_N"])
    return at_a_time(args["a"], tiles, max(3, tiles // 4), config)


EXAMPLES = [
    Example(
        name="matmul",
        kernel=matmul,
        arguments=arguments,
        grid=grid,
        config=config,
        large_config=large_config,
        choices=choices,
        **GEMM,
        flops=flops,
        tolerance=4e-3,
    )
]
