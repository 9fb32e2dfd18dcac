"""A matrix product with few rows: bound by how fast B comes, which every processor must read a part of.

A program takes a block of columns and a part of K. Where several programs share a block, each leaves
its sum in memory and counts itself; who comes last adds up what all have left, in order, so that
equal inputs have equal results. The counters are zero again at the end.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def matmul_split_k(
    a, b, c, sums, counters, M, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Multiply along parts of K. `sums` is [blocks of columns * blocks of rows, SPLITS, BLOCK_M, BLOCK_N], float32; `counters` has
    a zero for each block."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared)
    tiles = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    column = gl.program_id(0) * BLOCK_N
    split = gl.program_id(1)
    row = gl.program_id(2) * BLOCK_M
    steps = gl.cdiv(K, BLOCK_K)
    share = gl.cdiv(steps, SPLITS)
    first = split * share
    count = gl.minimum(share, steps - first)

    for i in gl.static_range(STAGES - 1):
        k = (first + i) * BLOCK_K
        tiles.fetch(i, [[row, k], [k, column]], pred=i < count)
    acc = gl.portable.accumulator(layouts)
    for step in range(count):
        a_tile, b_tile = tiles.wait(step)
        acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
        acc = gl.portable.mma_wait(acc, pending=1)
        k = (first + step + STAGES - 1) * BLOCK_K
        tiles.fetch(step + STAGES - 1, [[row, k], [k, column]], pred=step + STAGES - 1 < count)
    result = gl.portable.read(acc)
    tiles.close()

    rows = gl.arange(0, BLOCK_M, gl.SliceLayout(1, layouts.accumulator))
    columns = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layouts.accumulator))
    inside = (row + rows < M)[:, None] & (column + columns < N)[None, :]
    if SPLITS > 1:
        block = gl.program_id(2) * gl.num_programs(0) + gl.program_id(0)
        offsets = rows[:, None] * BLOCK_N + columns[None, :]
        sums += block * SPLITS * BLOCK_M * BLOCK_N
        gl.store(sums + split * BLOCK_M * BLOCK_N + offsets, result, mask=inside)
        gl.barrier()  # all of the block have stored before one counts
        before = gl.atomic_add(counters + block, 1, sem="acq_rel")
        if before == SPLITS - 1:
            total = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layouts.accumulator)
            for other in gl.static_range(SPLITS):
                part = sums + other * BLOCK_M * BLOCK_N + offsets
                total += gl.load(part, mask=inside, other=0.0)
            store(c, total, row + rows, column + columns, N, inside)
            gl.store(counters + block, 0)
    else:
        store(c, result, row + rows, column + columns, N, inside)


@gluon.jit
def store(c, value, rows, columns, N, inside):
    offsets = rows.to(gl.int64)[:, None] * N + columns[None, :]
    gl.store(c + offsets, value.to(c.dtype.element_ty), mask=inside)
