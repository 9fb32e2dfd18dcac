"""The gradients of attention of float32 on Hopper, by products of bfloat16 (`thirds.py`).

One kernel has tiles of queries and walks over keys, the other has tiles of keys and walks over queries: scores and their changes are computed twice, and no two programs
add to the same numbers, so that equal inputs have equal bits. The weighted sums of a step begin at zero, too.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma_wait
from gluon_kernels.attention.hopper_float32 import (
    added,
    matrices,
    places_of,
    product,
    scaled,
    store_rows,
    transposed,
    zeros_of,
)
from gluon_kernels.attention.thirds import converted, thirds
from gluon_kernels.attention.tiles import mask_scores
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["key_gradients", "query_gradients"]


@gluon.jit
def pair_of(head, heads, row):
    """Return where a tile of a head begins in the thirds of both tensors of a pair."""
    return places_of(head, heads, row) + places_of(head + 3 * heads, heads, row)


@gluon.jit
def copy_pairs(ring, position, head, heads, row):
    """Copy a tile of each tensor of a pair to the next two slots; return the position behind them."""
    ring.fetch(position, places_of(head, heads, row))
    position = position.next()
    ring.fetch(position, places_of(head + 3 * heads, heads, row))
    return position.next()


@gluon.jit
def query_place(sizes, SETTINGS: gl.constexpr):
    """Return the first row and the head of this program, those of the longest walks first, and the steps of its walk."""
    GROUPS: gl.constexpr = SETTINGS[0]
    heads, length, key_length, _ = sizes
    tiles = gl.cdiv(length, 64 * GROUPS)
    tile = tiles - 1 - gl.program_id(0) // heads
    end = key_length
    if SETTINGS[2]:
        end = gl.minimum(key_length, (tile + 1) * 64 * GROUPS)
    return tile * 64 * GROUPS, gl.program_id(0) % heads, gl.cdiv(end, SETTINGS[1])


@gluon.jit
def copy_for_queries(rings, keys, sizes, SETTINGS: gl.constexpr):
    """Copy the queries and gradients of a program, and keys and values tile by tile."""
    heads = sizes[0]
    of_keys = heads // SETTINGS[3]
    first, head, steps = query_place(sizes, SETTINGS)
    for i in gl.static_range(len(rings)):
        rings[i].fetch(rings[i].producer(), pair_of(head, heads, first + 64 * i))
    position = keys.producer()
    for step in range(steps):
        position = copy_pairs(keys, position, head // SETTINGS[3], of_keys, step * SETTINGS[1])


@gluon.jit
def gradients_of_queries(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    """Compute the gradients of 64 queries."""
    rings, out, strides, statistics, sizes, width, scale = work
    own, keys = rings
    heads, length, key_length, of_sequence = sizes
    STEP: gl.constexpr = SETTINGS[1]
    D: gl.constexpr = SETTINGS[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    nothing = gl.zeros([64, STEP], gl.float32, layout)
    first, head, steps = query_place(sizes, SETTINGS)
    first += part * 64
    rows = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    logsums = gl.load(statistics[0] + head * length + rows, mask=rows < length, other=0.0)
    deltas = gl.load(statistics[1] + head * length + rows, mask=rows < length, other=0.0)
    key = gl.arange(0, STEP, gl.SliceLayout(0, layout))
    tiles = own.wait(own.consumer())
    q = matrices(tiles)
    grad = matrices(tiles, 3)
    position = keys.consumer()
    sums = zeros_of(D, out_layout)
    for step in range(steps):
        behind = position.next()
        k = matrices(keys.wait(position))
        score = warpgroup_mma_wait(0, deps=[product(q, transposed(k), nothing)])
        v = matrices(keys.wait(behind))
        pending = product(grad, transposed(v), nothing)
        score = mask_scores(score, rows, step * STEP + key, key_length, SETTINGS[2])
        p = gl.exp2(score * (scale * 1.4426950408889634) - logsums[:, None])
        change = warpgroup_mma_wait(0, deps=[pending])
        keys.release(behind)
        changes = converted(thirds(p * (change - deltas[:, None])), left)
        sums = added(sums, changes, k, out_layout)
        keys.release(position)
        position = behind.next()
    factors = gl.full([64], 1.0, gl.float32, gl.SliceLayout(1, out_layout)) * scale
    store_rows(out, strides, head, of_sequence, first, length, width, scaled(sums, factors))


@gluon.jit
def query_gradients(
    q_desc, k_desc, out, strides, logsums, deltas, heads, length, key_length, of_sequence, width, scale,
    SHARED: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Store the gradients of queries, [batch, of_sequence, length, width].

    The thirds of queries and of the gradients of results are one tensor, [6 * heads, length, D], those of keys and values another, [6 * heads / SHARED, key_length,
    D]. A program has GROUPS groups of warps with 64 rows each; the grid has all tiles of all heads.
    """
    gl.static_assert(GROUPS == 1 or GROUPS == 2, "one or two groups of warps with 64 rows each")
    gl.assume(key_length > 0)
    wait_for_predecessor()
    keys = tma_ring([k_desc] * 3, STAGES, consumers=GROUPS)
    SETTINGS: gl.constexpr = (
        GROUPS,
        k_desc.block_type.shape[1],
        CAUSAL,
        SHARED,
        k_desc.block_type.shape[2],
    )
    sizes = (heads, length, key_length, of_sequence)
    statistics = (logsums, deltas)
    q0 = tma_ring([q_desc] * 6, 1)
    a = ((q0, keys), out, strides, statistics, sizes, width, scale)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (gradients_of_queries, (a, SETTINGS, 0)),
                (copy_for_queries, ((q0,), keys, sizes, SETTINGS)),
            ],
            [1],
            [24],
        )
    else:
        q1 = tma_ring([q_desc] * 6, 1)
        b = ((q1, keys), out, strides, statistics, sizes, width, scale)
        gl.warp_specialize(
            [
                (gradients_of_queries, (a, SETTINGS, 0)),
                (gradients_of_queries, (b, SETTINGS, 1)),
                (copy_for_queries, ((q0, q1), keys, sizes, SETTINGS)),
            ],
            [4, 1],
            [240, 24],
        )


@gluon.jit
def key_place(sizes, SETTINGS: gl.constexpr):
    """Return the first key and the head of keys of this program, those of the longest walks first, and the first step of its walk."""
    of_keys = sizes[0] // SETTINGS[3]
    first = gl.program_id(0) // of_keys * 64 * SETTINGS[0]
    begin = 0
    if SETTINGS[2]:
        begin = first // SETTINGS[1]
    return first, gl.program_id(0) % of_keys, begin


@gluon.jit
def copy_for_keys(rings, queries, sizes, SETTINGS: gl.constexpr):
    """Copy the keys and values of a program, and queries and gradients tile by tile, head by head."""
    heads, length = sizes[0], sizes[1]
    SHARED: gl.constexpr = SETTINGS[3]
    first, head, begin = key_place(sizes, SETTINGS)
    for i in gl.static_range(len(rings)):
        rings[i].fetch(rings[i].producer(), pair_of(head, heads // SHARED, first + 64 * i))
    position = queries.producer()
    for other in range(head * SHARED, head * SHARED + SHARED):
        for step in range(begin, gl.cdiv(length, SETTINGS[1])):
            position = copy_pairs(queries, position, other, heads, step * SETTINGS[1])


@gluon.jit
def gradients_of_keys(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    """Compute the gradients of 64 keys and values."""
    rings, outs, strides, statistics, sizes, width, scale = work
    own, queries = rings
    heads, length, key_length, of_sequence = sizes
    STEP: gl.constexpr = SETTINGS[1]
    SHARED: gl.constexpr = SETTINGS[3]
    D: gl.constexpr = SETTINGS[4]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    left: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    nothing = gl.zeros([64, STEP], gl.float32, layout)
    first, head, begin = key_place(sizes, SETTINGS)
    first += part * 64
    key = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    tiles = own.wait(own.consumer())
    k = matrices(tiles)
    v = matrices(tiles, 3)
    position = queries.consumer()
    for_keys = zeros_of(D, out_layout)
    for_values = zeros_of(D, out_layout)
    for other in range(head * SHARED, head * SHARED + SHARED):
        for step in range(begin, gl.cdiv(length, STEP)):
            query = step * STEP + gl.arange(0, STEP, gl.SliceLayout(0, layout))
            place = other * length + query
            # A query behind the last one has no weights.
            logsums = gl.load(statistics[0] + place, mask=query < length, other=float("inf"))
            deltas = gl.load(statistics[1] + place, mask=query < length, other=0.0)
            behind = position.next()
            q = matrices(queries.wait(position))
            score = warpgroup_mma_wait(0, deps=[product(k, transposed(q), nothing)])
            grad = matrices(queries.wait(behind))
            pending = product(v, transposed(grad), nothing)
            p = gl.exp2(score * (scale * 1.4426950408889634) - logsums[None, :])
            if SETTINGS[2]:
                p = gl.where(query[None, :] >= key[:, None], p, 0.0)
            change = warpgroup_mma_wait(0, deps=[pending])
            change = p * (change - deltas[None, :])
            for_values = added(for_values, converted(thirds(p), left), grad, out_layout)
            queries.release(behind)
            for_keys = added(for_keys, converted(thirds(change), left), q, out_layout)
            queries.release(position)
            position = behind.next()
    factors = gl.full([64], 1.0, gl.float32, gl.SliceLayout(1, out_layout)) * scale
    shared = of_sequence // SHARED
    store_rows(outs[0], strides, head, shared, first, key_length, width, scaled(for_keys, factors))
    store_rows(outs[1], strides, head, shared, first, key_length, width, for_values)


@gluon.jit
def key_gradients(
    q_desc, k_desc, to_keys, to_values, strides, logsums, deltas, heads, length, key_length, of_sequence, width, scale,
    SHARED: gl.constexpr, GROUPS: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, [batch, of_sequence / SHARED, key_length, width]; operands are those of `query_gradients`."""
    gl.static_assert(GROUPS == 1 or GROUPS == 2, "one or two groups of warps with 64 rows each")
    wait_for_predecessor()
    queries = tma_ring([q_desc] * 3, STAGES, consumers=GROUPS)
    SETTINGS: gl.constexpr = (
        GROUPS,
        q_desc.block_type.shape[1],
        CAUSAL,
        SHARED,
        q_desc.block_type.shape[2],
    )
    sizes = (heads, length, key_length, of_sequence)
    statistics = (logsums, deltas)
    outs = (to_keys, to_values)
    k0 = tma_ring([k_desc] * 6, 1)
    a = ((k0, queries), outs, strides, statistics, sizes, width, scale)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (gradients_of_keys, (a, SETTINGS, 0)),
                (copy_for_keys, ((k0,), queries, sizes, SETTINGS)),
            ],
            [1],
            [24],
        )
    else:
        k1 = tma_ring([k_desc] * 6, 1)
        b = ((k1, queries), outs, strides, statistics, sizes, width, scale)
        gl.warp_specialize(
            [
                (gradients_of_keys, (a, SETTINGS, 0)),
                (gradients_of_keys, (b, SETTINGS, 1)),
                (copy_for_keys, ((k0, k1), queries, sizes, SETTINGS)),
            ],
            [4, 1],
            [240, 24],
        )
