"""A matrix product whose rows have the same bits whatever the number of rows is.

K is cut into parts of CHUNK, always the same ones. A part's sum starts at zero, and the parts are
added in order. With many rows a program does all parts of its tile and keeps the sum in registers;
with few, where tiles are fewer than processors, programs share a tile: each leaves its part in memory,
and who comes last adds them up in the same order. Both give the same bits, so which one is taken may
depend on the number of rows; the unit that multiplies and CHUNK may not.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def along_k(item, shares, K, SPAN: gl.constexpr):
    """Return the begin and end of an item along K: one of `shares` of a tile, each SPAN long."""
    first = item % shares * SPAN
    return first, gl.minimum(first + SPAN, K)


@gluon.jit
def gemm_batch_invariant(
    a, b, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    CHUNK: gl.constexpr, SHARED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """CHUNK is a multiple of BLOCK_K. Where programs share tiles, `sums` is [tiles, parts of K, BLOCK_M,
    BLOCK_N], float32, and `counters` has a zero for each tile; they are zero again at the end."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BLOCK_M, BLOCK_N // 2])
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N])
    # An item is a part of a tile, or all of it.
    SPAN: gl.constexpr = CHUNK if SHARED else 2**30
    shares = gl.cdiv(K, SPAN)
    items = tiles.count() * shares
    programs = gl.num_programs(0)

    item = gl.program_id(0)
    k, end = along_k(item, shares, K, SPAN)
    for i in gl.static_range(STAGES - 1):
        row, column = tiles.at(item // shares)
        ring.fetch(i, [[row, k], [k, column]], pred=item < items)
        k += BLOCK_K
        if k >= end:
            item += programs
            k, end = along_k(item, shares, K, SPAN)
    row, column = tiles.at(item // shares)
    step = 0
    for now in range(gl.program_id(0), items, programs):
        from_k, to_k = along_k(now, shares, K, SPAN)
        total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layouts.accumulator)
        for start in range(from_k, to_k, CHUNK):
            acc = gl.portable.accumulator(layouts)
            for _ in range(start, gl.minimum(start + CHUNK, to_k), BLOCK_K):
                a_tile, b_tile = ring.wait(step)
                acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
                acc = gl.portable.mma_wait(acc, pending=1)
                ahead = step + STAGES - 1
                ring.fetch(ahead, [[row, k], [k, column]], pred=item < items)
                k += BLOCK_K
                if k >= end:
                    item += programs
                    k, end = along_k(item, shares, K, SPAN)
                    row, column = tiles.at(item // shares)
                step += 1
            total += gl.portable.read(acc)
        here, there = tiles.at(now // shares)
        whole = True
        if SHARED:
            tile = now // shares
            of_tile = sums + tile.to(gl.int64) * shares * (BLOCK_M * BLOCK_N)
            total, whole = gl.portable.split_k_reduce(
                total, of_tile, counters + tile, now % shares, shares
            )
        if whole:
            gl.portable.store(c_tiles, [here, there], total)
    ring.close()
