"""Grouped GEMM and its gradient, written once: rows of groups that lie one behind the other."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.moe.groups import in_each_warp, place_of, tiles_of


@gluon.jit
def grouped_gemm(
    a, b, c, ends, groups, rows, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, WALK: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Multiply each group of rows with its matrix.

    `a` and `c` are [rows, K] and [rows, N], `b` [groups, K, N], contiguous; group i has the rows from ends[i - 1] to
    ends[i], int32, of up to MOST groups. Rows behind the last are not written.
    """
    dtype: gl.constexpr = a.dtype.element_ty
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N)
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [rows, K], [K, 1], [BLOCK_M, BLOCK_K], layouts.a_shared)
    b_tiles = gl.portable.descriptor(
        b, [groups * K, N], [N, 1], [BLOCK_K, BLOCK_N], layouts.b_shared
    )
    ring = gl.portable.pipeline([a_tiles, b_tiles], STAGES)
    flat: gl.constexpr = in_each_warp(MOST, gl.num_warps(), gl.target.warp_size())
    listed = tiles_of(ends, groups, N, flat, BLOCKS, MOST)
    count = gl.max(listed[2], 0)
    programs = gl.num_programs(0)
    coming = gl.program_id(0)
    group, row, column, _ = place_of(coming, listed, N, BLOCKS, WALK)
    k = 0
    for i in gl.static_range(STAGES - 1):
        # Where BLOCK_K does not divide K, rows of the next group's matrix are multiplied with zeros.
        ring.fetch(i, [[row, k], [group * K + k, column]], pred=coming < count)
        k += BLOCK_K
        if k >= K:
            k = 0
            coming += programs
            group, row, column, _ = place_of(coming, listed, N, BLOCKS, WALK)
    step = 0
    for tile in range(gl.program_id(0), count, programs):
        acc = gl.portable.accumulator(layouts)
        for _ in range(0, K, BLOCK_K):
            a_tile, b_tile = ring.wait(step)
            acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
            # The step before is over: its buffers are free for the tiles that come next.
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            ring.fetch(ahead, [[row, k], [group * K + k, column]], pred=coming < count)
            k += BLOCK_K
            if k >= K:
                k = 0
                coming += programs
                group, row, column, _ = place_of(coming, listed, N, BLOCKS, WALK)
            step += 1
        _, top, left, last = place_of(tile, listed, N, BLOCKS, WALK)
        result = gl.portable.read(acc)
        wide: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], c.dtype.element_ty)
        value = gl.convert_layout(result.to(c.dtype.element_ty), wide)
        down = top + gl.arange(0, BLOCK_M, gl.SliceLayout(1, wide))
        across = left + gl.arange(0, BLOCK_N, gl.SliceLayout(0, wide))
        to = c + down.to(gl.int64)[:, None] * N + across[None, :]
        gl.store(to, value, mask=(down < last)[:, None] & (across < N)[None, :])
    ring.close()


@gluon.jit
def grouped_gemm_wgrad(
    a, g, c, ends, groups, rows, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Store, for each group, its rows of `a`, transposed, times its rows of `g`: `a` is [rows, K], `g` [rows, N], `c` [groups, K,
    N], contiguous. The grid is [tiles of a matrix, groups]. A group without rows gets zeros."""
    dtype: gl.constexpr = a.dtype.element_ty
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="registers"
    )
    of_a: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_M], dtype)
    of_g: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_N], dtype)
    group = gl.program_id(1)
    across = gl.cdiv(N, BLOCK_N)
    top = gl.program_id(0) // across * BLOCK_M
    left = gl.program_id(0) % across * BLOCK_N
    begin = gl.load(ends + group - 1, mask=group > 0, other=0)
    end = gl.maximum(gl.load(ends + group), begin)
    a_columns = top + gl.arange(0, BLOCK_M, gl.SliceLayout(0, of_a))
    g_columns = left + gl.arange(0, BLOCK_N, gl.SliceLayout(0, of_g))
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, layouts.accumulator)
    for row in range(begin, end, BLOCK_K):
        a_rows = row + gl.arange(0, BLOCK_K, gl.SliceLayout(1, of_a))
        g_rows = row + gl.arange(0, BLOCK_K, gl.SliceLayout(1, of_g))
        a_inside = (a_rows < end)[:, None] & (a_columns < K)[None, :]
        g_inside = (g_rows < end)[:, None] & (g_columns < N)[None, :]
        x = gl.load(
            a + a_rows.to(gl.int64)[:, None] * K + a_columns[None, :], mask=a_inside, other=0.0
        )
        y = gl.load(
            g + g_rows.to(gl.int64)[:, None] * N + g_columns[None, :], mask=g_inside, other=0.0
        )
        x = gl.convert_layout(gl.permute(x, (1, 0)), layouts.a)
        acc = gl.portable.mma(x, gl.convert_layout(y, layouts.b), acc)
    wide: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], c.dtype.element_ty)
    value = gl.convert_layout(acc.to(c.dtype.element_ty), wide)
    down = top + gl.arange(0, BLOCK_M, gl.SliceLayout(1, wide))
    columns = left + gl.arange(0, BLOCK_N, gl.SliceLayout(0, wide))
    to = c + (group.to(gl.int64) * K + down)[:, None] * N + columns[None, :]
    gl.store(to, value, mask=(down < K)[:, None] & (columns < N)[None, :])
