"""Attention of float32 on Hopper by products of bfloat16 (`thirds.py`).

Hopper multiplies bfloat16 fifteen times as fast as float32 without its matrix unit, and, unlike with tf32, an operand may have its rows or its columns
contiguous (PTX ISA 9.7.15.5.1), so that values are not transposed.

The matrix unit cuts off the bits of a sum that are beyond its accumulator's. The weighted sum of a tile of keys therefore begins at zero, and is added to that of the
tiles before by float32 arithmetic, which rounds.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma, warpgroup_mma_wait
from gluon_kernels.attention.thirds import ORDER, converted, thirds
from gluon_kernels.attention.tiles import (
    mask_scores,
    rounds,
    sums_of_lanes,
    with_sink,
    work_at,
)
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["attention_float32", "split"]


@gluon.jit
def split_rows(
    x, parts, first_part, strides, of_sequence, heads, length, width, ROWS: gl.constexpr, D: gl.constexpr
):  # fmt: skip
    """Store the thirds of some rows of a head from `first_part` on, with columns of zeros behind the last one."""
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, D], gl.float32)
    head = gl.program_id(1)
    first = gl.program_id(0) * ROWS
    if first < length and head < heads:
        row = first + gl.arange(0, ROWS, gl.SliceLayout(1, layout)).to(gl.int64)
        column = gl.arange(0, D, gl.SliceLayout(0, layout))
        inside = (row < length)[:, None]
        x += (head // of_sequence).to(gl.int64) * strides[0]
        x += (head % of_sequence).to(gl.int64) * strides[1]
        offsets = row[:, None] * strides[2] + column.to(gl.int64)[None, :] * strides[3]
        tile = gl.load(x + offsets, mask=inside & (column < width)[None, :], other=0.0)
        pieces = thirds(tile)
        for i in gl.static_range(3):
            place = (first_part + i * heads + head).to(gl.int64) * length * D
            offsets = place + row[:, None] * D + column[None, :]
            gl.store(parts + offsets, pieces[i], mask=inside)


@gluon.jit
def split(
    tensors, queries, keys, strides, of_sequences, heads, lengths, width, ROWS: gl.constexpr, D: gl.constexpr
):  # fmt: skip
    """Store the thirds of [batch, of_sequence, length, width] as bfloat16: those of keys, of values, and of one or more tensors of queries.

    The results are [2, 3, heads, length, D], and of queries [their tensors, 3, heads, length, D]. The grid has tiles of ROWS rows, heads and
    tensors. Numbers in tuples are those of keys and of queries.
    """
    wait_for_predecessor()
    for i in gl.static_range(len(tensors)):
        if gl.program_id(2) == i:
            QUERIES: gl.constexpr = min(i // 2, 1)
            parts = queries if i >= 2 else keys
            before = 3 * heads[QUERIES] * (i - 2 * QUERIES)
            split_rows(
                tensors[i], parts, before, strides[i], of_sequences[QUERIES], heads[QUERIES], lengths[QUERIES], width,
                ROWS, D,
            )  # fmt: skip


@gluon.jit
def places_of(head, heads, row):
    """Return where a tile begins in each third."""
    return [head, row, 0], [heads + head, row, 0], [2 * heads + head, row, 0]


@gluon.jit
def copy_tiles(queries, keys, sizes, SETTINGS: gl.constexpr):
    """Copy the queries of each tile, and by turns keys and values from the last ones on."""
    BLOCK_N: gl.constexpr = SETTINGS[1]
    SHARED: gl.constexpr = SETTINGS[3]
    heads = sizes[0]
    of_keys = heads // SHARED
    position = keys.producer()
    query = queries[0].producer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            for i in gl.static_range(len(queries)):
                queries[i].fetch(query, places_of(head, heads, row + i * 64))
            query = query.next()
            for j in range(stop - start):
                key = (stop - 1 - j) * BLOCK_N
                keys.fetch(position, places_of(head // SHARED, of_keys, key))
                position = position.next()
                keys.fetch(position, places_of(head // SHARED + 3 * of_keys, of_keys, key))
                position = position.next()


@gluon.jit
def skip_unseen(keys, position, stop, end, SIZE: gl.constexpr):
    """Release the tiles of keys and values that no row of this group sees, as these see keys before `end`; return the position and the end of those left."""
    seen = gl.maximum(gl.cdiv(end, SIZE), 1)
    for _ in range(2 * (stop - gl.minimum(seen, stop))):
        keys.wait(position)
        keys.release(position)
        position = position.next()
    return position, gl.minimum(stop, seen)


@gluon.jit
def matrices(tiles, first: gl.constexpr = 0):
    """Return the thirds of a tile, those from `first` on, as matrices."""
    results = ()
    for i in gl.static_range(3):
        tile = tiles[first + i]
        results = results + (tile.reshape([tile.shape[1], tile.shape[2]]),)
    return results


@gluon.jit
def held(tiles, LAYOUT: gl.constexpr, HELD: gl.constexpr):
    """Return the thirds of a tile as left operands, the first HELD of them in registers."""
    results = ()
    for i in gl.static_range(3):
        tile = tiles[i]
        if i < HELD:
            tile = tile.load(LAYOUT)
        results = results + (tile,)
    return results


@gluon.jit
def transposed(tiles):
    """Return the thirds of a tile as right operands."""
    return tiles[0].permute((1, 0)), tiles[1].permute((1, 0)), tiles[2].permute((1, 0))


@gluon.jit
def columns_of(tiles, first: gl.constexpr):
    """Return 64 columns of the thirds of a tile."""
    results = ()
    for i in gl.static_range(3):
        results = results + (tiles[i].slice(first, 64, dim=1),)
    return results


@gluon.jit
def product(a, b, nothing):
    """Start the six products of thirds whose sum is a b."""
    result = nothing
    for i in gl.static_range(6):
        left, right = a[ORDER[i][0]], b[ORDER[i][1]]
        result = warpgroup_mma(left, right, result, use_acc=i > 0, is_async=True)
    return result


@gluon.jit
def zeros_of(D: gl.constexpr, layout: gl.constexpr):
    """Return 64 rows of zeros, 64 columns at a time."""
    results = ()
    for _ in gl.static_range(D // 64):
        results = results + (gl.zeros([64, 64], gl.float32, layout),)
    return results


@gluon.jit
def added(sums, a, b, layout: gl.constexpr):
    """Return the sums, 64 columns each, once the products of thirds `a` in registers and `b` in shared memory are added."""
    nothing = gl.zeros([64, 64], gl.float32, layout)
    results = ()
    # One after the other: all together take too many registers.
    for i in gl.static_range(len(sums)):
        pending = product(a, columns_of(b, 64 * i), nothing)
        results = results + (sums[i] + warpgroup_mma_wait(0, deps=[pending]),)
    return results


@gluon.jit
def scaled(sums, factors):
    """Return the sums with a factor for each row."""
    results = ()
    for i in gl.static_range(len(sums)):
        results = results + (sums[i] * factors[:, None],)
    return results


@gluon.jit
def store_rows(out, strides, head, of_sequence, first, length, width, sums):
    """Store the sums of rows from `first` on in [batch, of_sequence, length, width]."""
    layout: gl.constexpr = sums[0].type.layout
    line = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    place = (head // of_sequence).to(gl.int64) * strides[0]
    place += (head % of_sequence).to(gl.int64) * strides[1]
    for i in gl.static_range(len(sums)):
        column = 64 * i + gl.arange(0, 64, gl.SliceLayout(0, layout))
        offsets = line.to(gl.int64)[:, None] * strides[2] + column[None, :]
        inside = (line < length)[:, None] & (column < width)[None, :]
        gl.store(out + place + offsets, sums[i], mask=inside)


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, part: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, out, strides, logsums, sinks, sizes, width, scale = work
    queries, keys = rings
    heads, length, key_length, of_sequence, _, _ = sizes
    CAUSAL: gl.constexpr = SETTINGS[2]
    BLOCK_N: gl.constexpr = SETTINGS[1]
    HELD: gl.constexpr = SETTINGS[5]
    D: gl.constexpr = SETTINGS[6]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    q_layout: gl.constexpr = gl.DotOperandLayout(0, score_layout, 2)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    row: gl.constexpr = gl.SliceLayout(1, score_layout)
    of_results: gl.constexpr = gl.SliceLayout(1, out_layout)

    position = keys.consumer()
    query = queries.consumer()
    no_scores = gl.zeros([64, BLOCK_N], gl.float32, score_layout)
    key = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, score_layout))
    for round in range(rounds(sizes, SETTINGS)):
        first, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            first += part * 64
            rows = first + gl.arange(0, 64, layout=row)
            if CAUSAL and BLOCK_N % SETTINGS[0] != 0:
                position, stop = skip_unseen(
                    keys, position, stop, gl.minimum(first + 64, key_length), BLOCK_N
                )
            q = held(matrices(queries.wait(query)), q_layout, HELD)
            top = gl.full([64], -1e30, gl.float32, row)  # finite even where no key is seen
            total = sums_of_lanes(no_scores)
            lanes: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            results = zeros_of(D, out_layout)
            for j in range(stop - start):
                k = matrices(keys.wait(position))
                pending = product(q, transposed(k), no_scores)
                score = warpgroup_mma_wait(0, deps=[pending])
                keys.release(position)
                position = position.next()
                tile = (stop - 1 - j) * BLOCK_N
                score = mask_scores(score, rows, tile + key, key_length, CAUSAL)
                higher = gl.maximum(top, gl.max(score, 1) * scale)
                kept = gl.exp2(top - higher)
                p = gl.exp2(score * scale - higher[:, None])
                total = total * gl.convert_layout(kept, lanes)[:, None] + sums_of_lanes(p)
                top = higher
                weights = converted(thirds(p), p_layout)
                v = matrices(keys.wait(position))
                results = scaled(results, gl.convert_layout(kept, of_results))
                results = added(results, weights, v, out_layout)
                keys.release(position)
                position = position.next()
            queries.release(query)
            query = query.next()
            whole = gl.convert_layout(gl.sum(total, 1), row)
            kept = 1.0
            if sinks is not None:
                top, whole, kept = with_sink(gl.load(sinks + head % of_sequence), top, whole)
            share = gl.convert_layout(kept / whole, of_results)
            if logsums is not None:
                gl.store(logsums + head * length + rows, top + gl.log2(whole), mask=rows < length)
            results = scaled(results, share)
            store_rows(out, strides, head, of_sequence, first, length, width, results)


@gluon.jit
def attention_float32(
    q_desc, k_desc, out, strides, logsums, sinks, heads, length, key_length, of_sequence, order, width,
    scale, SHARED: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    """Store softmax(Q K^T * scale) V in float32.

    Q is the thirds of `heads` heads, [3 * heads, length, D]; those of K and V are one tensor, [6 * heads / SHARED, key_length, D], so that tiles of both
    take turns in the STAGES slots of one ring. The result, [batch, of_sequence, length, width], has `strides`. `logsums`, `sinks`, `scale` and `order` are those of `hopper.attention_hopper`. The first HELD thirds of queries are in
    registers, the others in shared memory.
    """
    gl.assume(key_length > 0)  # without keys, groups would wait for tiles that nobody copies
    wait_for_predecessor()
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[1]
    D: gl.constexpr = k_desc.block_type.shape[2]
    keys = tma_ring([k_desc, k_desc, k_desc], STAGES, consumers=2)
    q0 = tma_ring([q_desc, q_desc, q_desc], 1)
    q1 = tma_ring([q_desc, q_desc, q_desc], 1)
    SETTINGS: gl.constexpr = (128, BLOCK_N, CAUSAL, SHARED, False, HELD, D)
    sizes = (heads, length, key_length, of_sequence, order, 1)
    a = ((q0, keys), out, strides, logsums, sinks, sizes, width, scale)
    b = ((q1, keys), out, strides, logsums, sinks, sizes, width, scale)
    gl.warp_specialize(
        [
            (attend, (a, SETTINGS, 0)),
            (attend, (b, SETTINGS, 1)),
            (copy_tiles, ((q0, q1), keys, sizes, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
