"""Split-K: several programs share a tile of C, each along a part of K.

    python examples/gemm/split_k.py

Small M has too few tiles for the processors. The program that comes last adds the partial sums in the order of K, so
that equal inputs give equal bits.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def split_k_kernel(
    a, b, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    ring = gl.portable.pipeline([a_tiles, b_tiles], 2)
    part, tile = gl.program_id(0), gl.program_id(1)
    across = gl.cdiv(N, BLOCK_N)
    row, column = tile // across * BLOCK_M, tile % across * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    first, last = steps * part // SPLITS, steps * (part + 1) // SPLITS

    ring.fetch(0, [[row, first * BLOCK_K], [first * BLOCK_K, column]], pred=first < last)
    acc = gl.portable.accumulator(layouts)
    for i in range(last - first):
        a_tile, b_tile = ring.wait(i)
        acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=0)
        k = (first + i + 1) * BLOCK_K
        ring.fetch(i + 1, [[row, k], [k, column]], pred=first + i + 1 < last)
    result = gl.portable.read(acc)
    ring.close()  # before ops that may need the memory of the ring
    of_tile = sums + tile * SPLITS * BLOCK_M * BLOCK_N
    total, complete = gl.portable.split_k_reduce(result, of_tile, counters + tile, part, SPLITS)
    if complete:
        gl.portable.store(c_tiles, [row, column], total)


def main():
    place = gluon.testing.place()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, 400), (400, 80)))
    c, splits, tiles = place.empty((8, 80), np.float16), 3, gluon.cdiv(80, 64)
    sums = place.empty((tiles, splits, 64, 64), np.float32)
    arrays = (place.array(a), place.array(b), c, sums, place.empty(tiles, np.int32))
    split_k_kernel[(splits, tiles)](
        *arrays, 8, 80, 400, 64, 64, 32, SPLITS=splits, target=place.target
    )
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(place.numpy(c), wanted, rtol=0.01, atol=0.05)
    print(f"split-K GEMM on {place.target}: 8 x 80 x 400, 3 programs for each tile")


if __name__ == "__main__":
    main()
