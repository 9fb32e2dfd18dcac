"""A persistent kernel: as many programs as run at a time, and a tile scheduler that gives each its tiles.

    python examples/patterns/persistent.py

`gl.portable.swizzled_tiles` orders the tiles so that programs that run together share rows of A and columns of B in the
L2 cache. The ring of tiles stays filled across the border between two tiles of C.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def gemm_kernel(
    a, b, c, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP)
    coming, k = gl.program_id(0), 0  # the tile and the step to fetch next
    step = 0
    for _ in range(STAGES - 1):
        row, column = tiles.at(coming)
        ring.fetch(step, [[row, k], [k, column]], pred=coming < tiles.count())
        step, k = step + 1, k + BLOCK_K
        if k >= K:
            coming, k = coming + gl.num_programs(0), 0
    done = 0
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        acc = gl.portable.accumulator(layouts)
        for _ in range(0, K, BLOCK_K):
            a_tile, b_tile = ring.wait(done)
            acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
            acc = gl.portable.mma_wait(acc, pending=1)
            row, column = tiles.at(coming)
            ring.fetch(step, [[row, k], [k, column]], pred=coming < tiles.count())
            done, step, k = done + 1, step + 1, k + BLOCK_K
            if k >= K:
                coming, k = coming + gl.num_programs(0), 0
        row, column = tiles.at(tile)
        gl.portable.store(c_tiles, [row, column], gl.portable.read(acc))
    ring.close()


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 80), (80, 264)))
    arrays = place.array(a), place.array(b), place.empty((200, 264), np.float16)
    programs = gluon.multiprocessors(arrays[0]) or 4  # where it is simulated
    gemm_kernel[(programs,)](*arrays, 200, 264, 80, 64, 64, 32, 3, 4, target=place.target)
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(place.numpy(arrays[2]), wanted, rtol=0.01, atol=0.05)
    print(f"persistent GEMM on {place.target}: 20 tiles for {programs} programs")


if __name__ == "__main__":
    main()
