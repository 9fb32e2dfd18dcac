"""A matrix product whose tiles do not divide among the processors: what is left is cut along K.

137 tiles on 132 processors take as long as 264 where each tile is one program's. Here programs share some
tiles and do the others whole, such that all have as much to do: `gl.portable.stream_k_tiles` says who does
what, `gl.portable.split_k_reduce` adds up the parts of a tile, in order, in the program that comes last.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def matmul_stream_k(
    a, b, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Multiply, with tiles cut along K. `sums` has room for two tiles of float32 for each program, `counters` two zeros, which are zero
    again at the end."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 4])
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    work = gl.portable.stream_k_tiles([M, N, K], [BLOCK_M, BLOCK_N, BLOCK_K])

    coming = 0  # the piece that is fetched for
    row, column, k, end, _, _, _ = work.at(coming)
    for i in gl.static_range(STAGES - 1):
        ring.fetch(i, [[row, k], [k, column]], pred=k < end)
        k += BLOCK_K
        if k >= end:
            coming += 1
            row, column, k, end, _, _, _ = work.at(coming)
    step = 0
    for piece in range(work.count()):
        here, there, first, last, slot, part, parts = work.at(piece)
        acc = gl.portable.accumulator(layouts)
        for _ in range(first, last, BLOCK_K):
            a_tile, b_tile = ring.wait(step)
            acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
            acc = gl.portable.mma_wait(acc, pending=1)
            ring.fetch(step + STAGES - 1, [[row, k], [k, column]], pred=k < end)
            k += BLOCK_K
            if k >= end:
                coming += 1
                row, column, k, end, _, _, _ = work.at(coming)
            step += 1
        result = gl.portable.read(acc)
        whole = parts == 1
        if parts > 1:
            of_tile = sums + slot * (BLOCK_M * BLOCK_N)
            result, whole = gl.portable.split_k_reduce(
                result, of_tile, counters + slot, part, parts
            )
        if whole:
            gl.portable.store(c_tiles, [here, there], result)
    ring.close()
