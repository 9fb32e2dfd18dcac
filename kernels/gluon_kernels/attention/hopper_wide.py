"""Attention of heads of 65 to 96 and of 129 to 256 columns, forward, on Hopper.

The roles are those of `hopper.py`. Heads have two parts, of 64 and 32 columns or of 128 and 64 or 128, so that those of 96 and 192 are not padded:
scores are the sum of two products, and a group of warps has two accumulators (`online.py`).
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from gluon_kernels.attention.hopper import places_of
from gluon_kernels.attention.online import (
    add_tiles,
    finish_tiles,
    layouts_of,
    query_tile,
    skip_tiles,
    start_tiles,
    writers_of,
)
from gluon_kernels.attention.parts import store_part
from gluon_kernels.attention.tiles import hide, rounds, work_at
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def copy_tiles(queries, keys, values, sizes, SETTINGS: gl.constexpr, COLUMNS: gl.constexpr):
    """Copy the queries of each tile, and keys and values from the last ones on; COLUMNS are those at which parts of a head begin."""
    KEYS: gl.constexpr = SETTINGS[1]
    position, value = keys.producer(), values.producer()
    query = queries[0].producer()
    for round in range(rounds(sizes, SETTINGS)):
        row, head, _, start, stop = work_at(round, sizes, SETTINGS)
        if head < sizes[0]:
            batch = head // sizes[3]
            head = head % sizes[3]
            for i in gl.static_range(len(queries)):
                queries[i].fetch(query, places_of(batch, head, row + i * 64, COLUMNS))
            query = query.next()
            for j in range(stop - start):
                place = places_of(batch, head // SETTINGS[3], (stop - 1 - j) * KEYS, COLUMNS)
                keys.fetch(position, place)
                values.fetch(value, place)
                position, value = position.next(), value.next()


@gluon.jit
def masked(score, tile, place, facts: gl.constexpr):
    """Put -inf where a key comes after its row, or after the last key; `place` are the first row and the number of keys."""
    first = tile * facts[2][1]
    rows = place[0] - first + gl.arange(0, facts[2][0], gl.SliceLayout(1, facts[0]))
    last = place[1] - 1 - first + 0 * rows
    if facts[4]:
        last = gl.minimum(last, rows)
    return hide(score, None, last, float("-inf"))


@gluon.jit
def unmasked(score, tile, place, facts: gl.constexpr):
    """Return the scores of a tile of keys that all rows see."""
    return score


@gluon.jit
def attend(work, SETTINGS: gl.constexpr, FACTS: gl.constexpr, part: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, writers, logsums, parts, sinks, sizes, scale = work
    queries, keys, values = rings
    heads, length, key_length, of_sequence, _, _ = sizes
    ROWS: gl.constexpr = FACTS[2][0]
    KEYS: gl.constexpr = FACTS[2][1]
    LAYOUTS: gl.constexpr = FACTS[1]
    of_keys = (keys, values)
    position, value = keys.consumer(), values.consumer()
    query = queries.consumer()
    for round in range(rounds(sizes, SETTINGS)):
        first, head, split, start, stop = work_at(round, sizes, SETTINGS)
        if head < heads:
            first += part * ROWS
            if SETTINGS[2]:
                seen = gl.maximum(gl.cdiv(gl.minimum(first + ROWS, key_length), KEYS), 1)
                (value, position), stop = skip_tiles(of_keys, (value, position), stop, seen)
            q = query_tile(queries, query, 2, FACTS)
            place = (first, key_length)
            state = start_tiles(q, of_keys, position, stop - 1, place, scale, FACTS, masked)
            if FACTS[5]:
                # An arrival does not wait for the loads before it; the product has their registers.
                queries.release(query)
            places = (value, position.next())
            tiles = (stop - 1, start)
            state, places = add_tiles(
                state, q, of_keys, places, tiles, place, scale, FACTS, unmasked
            )
            value, position = places
            if not FACTS[5]:
                queries.release(query)
            query = query.next()
            sink = None
            if sinks is not None:
                sink = gl.load(sinks + head % of_sequence)
                if SETTINGS[4]:
                    sink = gl.where(split < 0, sink.to(gl.float32), -float("inf"))
            results, logsum = finish_tiles(state, of_keys, value, sink, FACTS)
            value = value.next()
            tile = (head, first, results, logsum)
            if SETTINGS[4]:
                if split >= 0:
                    line = split * SETTINGS[0] + part * ROWS
                    store_part(parts, line, sizes, results, logsum, SETTINGS)
                else:
                    store_tile(writers, logsums, sizes, tile, FACTS)
            else:
                store_tile(writers, logsums, sizes, tile, FACTS)
    for i in gl.static_range(len(LAYOUTS)):
        writers[i].close()


@gluon.jit
def store_tile(writers, logsums, sizes, tile, FACTS: gl.constexpr):
    """Store the parts of the result's columns, and the logarithms of the rows' sums if these are wanted."""
    head, first, results, logsum = tile
    if logsums is not None:
        rows = first + gl.arange(0, FACTS[2][0], gl.SliceLayout(1, FACTS[0]))
        gl.store(logsums + head * sizes[1] + rows, logsum, mask=rows < sizes[1])
    column = 0
    for i in gl.static_range(len(results)):
        writers[i].store([head // sizes[3], head % sizes[3], first, column], results[i])
        column += FACTS[1][i].instr_shape[1]


@gluon.jit
def attention_wide(
    q_desc, k_desc, v_desc, out_desc, logsums, parts, sinks, heads, length, key_length, of_sequence, order, splits, scale,
    SHARED: gl.constexpr, CAUSAL: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, OVERLAP: gl.constexpr,
    IN_REGISTERS: gl.constexpr, COMPUTED: gl.constexpr,
):  # fmt: skip
    """Store softmax(Q K^T * scale) V.

    Arguments are those of `hopper.attention_hopper`, descriptors of operands pairs for both parts. STAGES are those of keys and of values. GROUPS of warps have 64 rows each. With OVERLAP the weighted
    sum of a tile goes on during the exponentials of the next one; with IN_REGISTERS a group holds its queries there; arithmetic computes
    COMPUTED of 8 exponentials.
    """
    gl.assume(key_length > 0)  # without keys, groups would wait for tiles that nobody copies
    wait_for_predecessor()
    KEYS: gl.constexpr = k_desc[0].block_type.shape[2]
    COLUMNS: gl.constexpr = (v_desc[0].block_type.shape[3], v_desc[1].block_type.shape[3])
    keys = tma_ring(k_desc, STAGES[0], consumers=GROUPS)
    values = tma_ring(v_desc, STAGES[1], consumers=GROUPS)
    SETTINGS: gl.constexpr = (64 * GROUPS, KEYS, CAUSAL, SHARED, parts is not None)
    FACTS: gl.constexpr = (
        gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16]), layouts_of(COLUMNS), (64, KEYS), OVERLAP, CAUSAL, IN_REGISTERS,
        COMPUTED,
    )  # fmt: skip
    sizes = (heads, length, key_length, of_sequence, order, splits)
    q0 = tma_ring(q_desc, 1)
    a = ((q0, keys, values), writers_of(out_desc, COLUMNS), logsums, parts, sinks, sizes, scale)
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, FACTS, 0)),
                (copy_tiles, ((q0,), keys, values, sizes, SETTINGS, (0, COLUMNS[0]))),
            ],
            [1],
            [24],
        )
    elif GROUPS == 2:
        q1 = tma_ring(q_desc, 1)
        b = ((q1, keys, values), writers_of(out_desc, COLUMNS), logsums, parts, sinks, sizes, scale)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, FACTS, 0)),
                (attend, (b, SETTINGS, FACTS, 1)),
                (copy_tiles, ((q0, q1), keys, values, sizes, SETTINGS, (0, COLUMNS[0]))),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        q1 = tma_ring(q_desc, 1)
        b = ((q1, keys, values), writers_of(out_desc, COLUMNS), logsums, parts, sinks, sizes, scale)
        q2 = tma_ring(q_desc, 1)
        c = ((q2, keys, values), writers_of(out_desc, COLUMNS), logsums, parts, sinks, sizes, scale)
        gl.warp_specialize(
            [
                (attend, (a, SETTINGS, FACTS, 0)),
                (attend, (b, SETTINGS, FACTS, 1)),
                (attend, (c, SETTINGS, FACTS, 2)),
                (copy_tiles, ((q0, q1, q2), keys, values, sizes, SETTINGS, (0, COLUMNS[0]))),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
