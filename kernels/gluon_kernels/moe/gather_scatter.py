"""Products of a mixture of experts with the permutations in them, for every matrix unit: rows are read where
they stand, and written where they belong, times a weight.

A list of the rows of all groups, one group behind the other, says where in `a` each row is read
(`sources`), where in `c` its result goes (`targets`) and what it is multiplied with (`weights`); any of
them may be None. With `ids` the places of (token, choice) pairs sorted by expert, the first layer reads
`ids // choices` and the second one writes to `ids`, from where choices are summed.

Groups and tiles are those of `grouped_gemm.py`. Rows that stand anywhere are copied with an address for
each; what is in no group is neither read nor written.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.moe.groups import add, in_each_warp


@gluon.jit
def groups_of(
    starts, counts, groups, N, layout: gl.constexpr, BLOCKS: gl.constexpr, MOST: gl.constexpr
):
    """Return for each group, up to MOST: its first row, its rows, and the tiles of all groups up to it."""
    group = gl.arange(0, MOST, layout)
    start = gl.load(starts + group, mask=group < groups, other=0)
    count = gl.load(counts + group, mask=group < groups, other=0)
    tiles = gl.cdiv(count, BLOCKS[0]) * gl.cdiv(N, BLOCKS[1])
    return start, count, gl.associative_scan(tiles, 0, add)


@gluon.jit
def group_tile_at(tile, tiling, N, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    """Return a tile's group, its first row and column, and where the group's rows end. Within a group, GROUP
    rows of tiles are walked at a time, column by column."""
    start, count, tiles = tiling
    group = gl.sum((tiles <= tile).to(gl.int32), 0)
    index = gl.arange(0, tiles.shape[0], tiles.type.layout)
    first = gl.sum(gl.where(index == group, start, 0), 0)
    rows = gl.sum(gl.where(index == group, count, 0), 0)
    inside = tile - gl.sum(gl.where(index == group - 1, tiles, 0), 0)
    width = GROUP * gl.cdiv(N, BLOCKS[1])
    before = inside // width * GROUP
    height = gl.minimum(gl.cdiv(rows, BLOCKS[0]) - before, GROUP)
    inside = inside % width
    row = first + (before + inside % height) * BLOCKS[0]
    return group, row, inside // height * BLOCKS[1], first + rows


@gluon.jit
def rows_at(rows, end, places):
    """Return the places of `rows` of the list; those from `end` on are another group's."""
    if places is not None:
        rows = gl.load(places + rows, mask=rows < end, other=0)
    return rows


@gluon.jit
def weighted(result, row, end, weights):
    if weights is not None:
        layout: gl.constexpr = gl.SliceLayout(1, result.type.layout)
        rows = row + gl.arange(0, result.shape[0], layout)
        weight = gl.load(weights + rows, mask=rows < end, other=0)
        result = result * weight.to(gl.float32)[:, None]
    return result


@gluon.jit
def copy_step(slots, matrices, places, k, K, N):
    """Start copying a step along K of a tile's rows of A, and of its columns of B."""
    a, b = matrices
    a_at, b_at, there, columns = places
    if k < K:
        k_of_a = k + gl.arange(0, a_at.shape[1], gl.SliceLayout(0, a_at.type.layout))
        k_of_b = k + gl.arange(0, b_at.shape[0], gl.SliceLayout(1, b_at.type.layout))
        gl.portable.async_copy(slots[0], a + k, a_at, there[:, None] & (k_of_a < K)[None, :])
        inside = (k_of_b < K)[:, None] & (columns < N)[None, :]
        gl.portable.async_copy(slots[1], b + k.to(gl.int64) * N, b_at, inside)
    gl.portable.commit()


@gluon.jit
def matmul_gather_scatter(
    a, b, c, starts, counts, sources, targets, weights, groups, N, K,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, GROUP: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Multiply groups of gathered rows. `a` is [any, K], `b` [groups, K, N], `c` [any, N]; N and K are multiples of 8. `starts` and `counts`
    give the groups' places in the lists, up to MOST; no two rows have the same target."""
    dtype: gl.constexpr = a.dtype.element_ty
    BLOCKS: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    layouts: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK_N, BLOCK_K, dtype, dtype, operands="shared"
    )
    of_a: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_K], dtype)
    of_b: gl.constexpr = gl.portable.blocked_layout([BLOCK_K, BLOCK_N], dtype)
    of_c: gl.constexpr = gl.portable.blocked_layout([BLOCK_M, BLOCK_N], dtype)
    flat: gl.constexpr = in_each_warp(MOST, gl.num_warps(), gl.target.warp_size())
    a_slots = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_M, BLOCK_K], layouts.a_shared)
    b_slots = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_K, BLOCK_N], layouts.b_shared)
    K = K // 8 * 8  # what copies of 16 bytes need, said to the compiler
    N = N // 8 * 8
    tiling = groups_of(starts, counts, groups, N, flat, BLOCKS, MOST)
    steps = gl.cdiv(K, BLOCK_K)
    for tile in range(gl.program_id(0), gl.max(tiling[2], 0), gl.num_programs(0)):
        group, row, column, end = group_tile_at(tile, tiling, N, BLOCKS, GROUP)
        rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, of_a))
        k_of_a = gl.arange(0, BLOCK_K, gl.SliceLayout(0, of_a))
        k_of_b = gl.arange(0, BLOCK_K, gl.SliceLayout(1, of_b))
        columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, of_b))
        a_at = rows_at(rows, end, sources).to(gl.int64)[:, None] * K + k_of_a[None, :]
        b_at = (group.to(gl.int64) * K + k_of_b)[:, None] * N + columns[None, :]
        places = (a_at, b_at, rows < end, columns)
        for i in gl.static_range(STAGES - 1):
            slots = (a_slots.index(i), b_slots.index(i))
            copy_step(slots, (a, b), places, gl.to_tensor(i * BLOCK_K), K, N)
        acc = gl.portable.accumulator(layouts)
        for step in range(steps):
            gl.portable.wait(STAGES - 2)
            gl.portable.fence()
            slot = step % STAGES
            acc = gl.portable.mma(a_slots.index(slot), b_slots.index(slot), acc, is_async=True)
            # The step before is over: its slots are free for what comes next.
            acc = gl.portable.mma_wait(acc, pending=1)
            ahead = step + STAGES - 1
            slots = (a_slots.index(ahead % STAGES), b_slots.index(ahead % STAGES))
            copy_step(slots, (a, b), places, ahead * BLOCK_K, K, N)
        result = weighted(gl.portable.read(acc), row, end, weights)
        rows = row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, of_c))
        columns = column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, of_c))
        at = rows_at(rows, end, targets).to(gl.int64)[:, None] * N + columns[None, :]
        value = gl.convert_layout(result.to(c.dtype.element_ty), of_c)
        gl.store(c + at, value, mask=(rows < end)[:, None] & (columns < N)[None, :])
