"""Attention over packed sequences of any lengths, forward, on Hopper.

Heads share keys and values (GQA), a window bounds the keys that a query sees, and a cap bounds the scores. The roles are those of
`hopper.py`. A tile of queries looks at the keys from its first row's window to its last row's end, and only tiles that a
border crosses are masked. Programs take the tiles of all sequences in turn, those with much work first: the warp that copies counts and
passes what it finds to the others (`hopper_turns.py`).
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring
from gluon_kernels.attention.hopper_turns import (
    claim_turn,
    end_turn,
    pass_turn,
    take_turn,
    turns_of,
)
from gluon_kernels.attention.online import (
    add_tiles,
    finish_tiles,
    layouts_of,
    query_tile,
    skip_tiles,
    start_tiles,
    store_rows,
    writers_of,
)
from gluon_kernels.attention.packed import (
    fetch_rows,
    sequences,
    tiles_of_head,
    work_at,
)
from gluon_kernels.attention.tiles import hide
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def copy_tiles(
    rings, turns, walk, SHARED: gl.constexpr, MORE_VALUES: gl.constexpr, SETTINGS: gl.constexpr
):
    """Copy the queries of each tile, and keys and values from the last ones on; values have a second part from MORE_VALUES on.

    `walk` are the counter of tiles, the lists of sequences, and all heads with how many of them are walked together.
    """
    KEYS: gl.constexpr = SETTINGS[0][1]
    queries, keys, values = rings
    counter, lists, heads = walk
    known = sequences(lists, 1, SETTINGS)
    tiles = tiles_of_head(known)
    count = tiles * heads[0]
    position = keys.producer()
    query = queries[0].producer()
    number = gl.program_id(0)
    nth = 0
    while number < count:
        work = work_at(number, tiles, lists, known, heads, SETTINGS)
        pass_turn(turns, nth, work)
        nth += 1
        head, first, row, _, first_key, _, _, start, stop = work
        for i in gl.static_range(len(queries)):
            fetch_rows(queries[i], query, first + row + i * 64, head, SETTINGS[4])
        query = query.next()
        for j in range(start, stop):
            key = first_key + (stop - 1 - (j - start)) * KEYS
            fetch_rows(keys, position, key, head // SHARED, SETTINGS[4])
            fetch_rows(values, position, key, head // SHARED, MORE_VALUES)
            position = position.next()
        number = claim_turn(counter, count)  # not before: another program may be free earlier
    # No tile is left: a head past the last one.
    pass_turn(turns, nth, (heads[0], 0, 0, 0, 0, 0, 0, 0, 1))


@gluon.jit
def masked(score, tile, place, facts: gl.constexpr):
    """Return scores, capped or times log2(e) where that is no factor of their exponents; -inf where a row does not see a key.

    `place` are the key of row 0, the number of keys, the tiles of keys that no border crosses, and the scales.
    """
    low, length, whole, scale = place
    SETTINGS: gl.constexpr = facts[4]
    WINDOW: gl.constexpr = SETTINGS[1]
    if SETTINGS[2]:
        # cap tanh(s / cap); the first factor makes the exponent of tanh, the second is the cap
        score = scale[1] - 2 * scale[1] / (gl.exp2(score * scale[0]) + 1)
    elif not SETTINGS[5]:
        score = score * scale[0]
    if (tile < whole[0]) | (tile >= whole[1]):
        row = low - tile * facts[2][1] + gl.arange(0, facts[2][0], gl.SliceLayout(1, facts[0]))
        last = length - 1 - tile * facts[2][1] + gl.zeros_like(row)
        if WINDOW[1] is not None:
            last = gl.minimum(last, row + WINDOW[1])
        first = None
        if WINDOW[0] is not None:
            first = row - WINDOW[0]
        score = hide(score, first, last, float("-inf"))
    return score


@gluon.jit
def whole_tiles(low, length, SETTINGS: gl.constexpr, ROWS: gl.constexpr):
    """Return the first and the end of the tiles of keys that no border crosses."""
    KEYS: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    first = 0
    end = length // KEYS
    if WINDOW[1] is not None:
        end = gl.minimum(length, gl.maximum(low + WINDOW[1] + 1, 0)) // KEYS
    if WINDOW[0] is not None:
        first = gl.cdiv(gl.maximum(low + ROWS - 1 - WINDOW[0], 0), KEYS)
    return first, end


@gluon.jit
def attend(work, part: gl.constexpr, SETTINGS: gl.constexpr):
    """Compute the result of 64 rows of each tile."""
    rings, turns, outputs, heads, scale = work
    queries, keys, values = rings
    writers, (out, logsums, sinks, width) = outputs
    ROWS: gl.constexpr = 64
    KEYS: gl.constexpr = SETTINGS[0][1]
    COLUMNS: gl.constexpr = SETTINGS[7]
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    OVERLAP: gl.constexpr = COLUMNS[0] <= 64
    facts: gl.constexpr = (
        score_layout,
        LAYOUTS,
        (ROWS, KEYS),
        OVERLAP,
        SETTINGS,
        SETTINGS[6],
        SETTINGS[8],
    )
    # Exponents apply a positive factor: the largest product is the largest score.
    factor = scale[0] if SETTINGS[5] else 1.0
    of_keys = (keys, values)
    position, value = keys.consumer(), values.consumer()
    query = queries.consumer()
    nth = 0
    head, first, row, end, _, length, shift, start, stop = take_turn(turns, nth)
    while head < heads:
        row += part * ROWS
        low = row + shift
        place = (low, length, whole_tiles(low, length, SETTINGS, ROWS), scale)
        if SETTINGS[1][1] is not None and KEYS % SETTINGS[0][0] != 0:
            seen = gl.maximum(gl.cdiv(low + ROWS + SETTINGS[1][1], KEYS), start + 1)
            (value, position), stop = skip_tiles(of_keys, (value, position), stop, seen)
        q = query_tile(queries, query, 2 if SETTINGS[4] else 1, facts)
        state = start_tiles(q, of_keys, position, stop - 1, place, factor, facts, masked)
        if SETTINGS[6]:
            # An arrival does not wait for the loads before it; the product has their registers.
            queries.release(query)
        tiles = (stop - 1, start)
        places = (value, position.next())
        state, places = add_tiles(state, q, of_keys, places, tiles, place, factor, facts, masked)
        value, position = places
        if not SETTINGS[6]:
            queries.release(query)
        query = query.next()
        sink = None
        if sinks is not None:
            sink = gl.load(sinks + head)
        results, logsum = finish_tiles(state, of_keys, value, sink, facts)
        value = value.next()
        line = first + row
        if logsums is not None:
            rows = line + gl.arange(0, ROWS, gl.SliceLayout(1, score_layout))
            gl.store(logsums + rows.to(gl.int64) * heads + head, logsum, mask=rows < end)
        if line + ROWS <= end:
            for i in gl.static_range(len(COLUMNS)):
                writers[i].store([line, head, i * COLUMNS[0]], results[i])
        else:
            # Rows past the sequence's last belong to the next one.
            for i in gl.static_range(len(COLUMNS)):
                store_rows(out, results[i], i * COLUMNS[0], (line, end, head), heads, width)
        end_turn(turns, nth)
        nth += 1
        head, first, row, end, _, length, shift, start, stop = take_turn(turns, nth)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].close()


@gluon.constexpr_function
def first_of(count, *values):
    """Return the first ones of some values."""
    return values[:count]


@gluon.constexpr_function
def in_registers(columns, more):
    """Return True if registers suffice for the queries of a group: less is read from shared memory then."""
    return tuple(columns) == (128,) and not more or tuple(columns) in ((64, 32), (128, 64))


@gluon.jit
def attention_varlen(
    q_desc, k_desc, v_desc, out_desc, out, logsums, sinks, counter, of_queries, of_keys, count, heads, together,
    width, scale, cap, SHARED: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
    POSITIVE: gl.constexpr, COMPUTED: gl.constexpr,
):  # fmt: skip
    """Store softmax(scores) V of packed sequences.

    Q and the result are [tokens, heads, D], K and V [tokens, heads / SHARED, D]; the pointer `out` has `width` columns. `of_queries`
    and `of_keys` hold the first tokens of the `count` sequences, at most MOST, and the token past the last. With queries at the end of
    their sequence's keys, one at place i sees keys from i - WINDOW[0] to i + WINDOW[1]; None is no bound. `scale` is that of the scores
    times log2(e), POSITIVE or not, or, if CAPPED, times 2 log2(e) over the cap; `cap`, times log2(e), bounds the scores. `logsums` is [tokens, heads],
    logarithms of base 2, or None; `sinks` scores without values, one for each head, or None. Heads of 65 to 96 and more than 128 columns come as pairs of descriptors, of 64 and
    32 columns or of 128 and 64 or 128. Programs take tiles in turn by `counter`, a zero before the launch and behind it, `together` heads after `together`. COMPUTED is how many of 8 exponentials arithmetic computes. Values of other sequences are multiplied by zeros: they must be finite.
    """
    MORE: gl.constexpr = q_desc[0].block_type.shape[2] if len(q_desc) == 2 else 0
    MORE_VALUES: gl.constexpr = v_desc[0].block_type.shape[2] if len(v_desc) == 2 else 0
    COLUMNS: gl.constexpr = first_of(
        len(v_desc), v_desc[0].block_type.shape[2], v_desc[len(v_desc) - 1].block_type.shape[2]
    )
    IN_REGISTERS: gl.constexpr = in_registers(COLUMNS, MORE)
    SETTINGS: gl.constexpr = (
        (BLOCK_M, BLOCK_N), WINDOW, CAPPED, MOST, MORE, POSITIVE and not CAPPED, IN_REGISTERS, COLUMNS, COMPUTED,
    )  # fmt: skip
    wait_for_predecessor()
    GROUPS: gl.constexpr = BLOCK_M // 64
    gl.static_assert(GROUPS <= 3, "up to three groups of warps with 64 rows each")
    q0 = tma_ring(q_desc, 1)
    keys = tma_ring(k_desc, STAGES, consumers=GROUPS)
    values = tma_ring(v_desc, STAGES, consumers=GROUPS)
    turns = turns_of(GROUPS, 9)
    lists = (of_queries, of_keys, count)
    scales = (scale, cap)
    outs = (out, logsums, sinks, width)
    first = (writers_of(out_desc, COLUMNS), outs)
    walk = (counter, lists, (heads, together))
    a = ((q0, keys, values), turns, first, heads, scales)
    if GROUPS == 1:
        rings = ((q0,), keys, values)
        gl.warp_specialize(
            [
                (attend, (a, 0, SETTINGS)),
                (copy_tiles, (rings, turns, walk, SHARED, MORE_VALUES, SETTINGS)),
            ],
            [1],
            [40],
        )
    else:
        q1 = tma_ring(q_desc, 1)
        second = (writers_of(out_desc, COLUMNS), outs)
        b = ((q1, keys, values), turns, second, heads, scales)
        if GROUPS == 2:
            rings = ((q0, q1), keys, values)
            gl.warp_specialize(
                [
                    (attend, (a, 0, SETTINGS)),
                    (attend, (b, 1, SETTINGS)),
                    (copy_tiles, (rings, turns, walk, SHARED, MORE_VALUES, SETTINGS)),
                ],
                [4, 1],
                [232, 40],
            )
        else:
            q2 = tma_ring(q_desc, 1)
            third = (writers_of(out_desc, COLUMNS), outs)
            c = ((q2, keys, values), turns, third, heads, scales)
            rings = ((q0, q1, q2), keys, values)
            gl.warp_specialize(
                [
                    (attend, (a, 0, SETTINGS)),
                    (attend, (b, 1, SETTINGS)),
                    (attend, (c, 2, SETTINGS)),
                    (copy_tiles, (rings, turns, walk, SHARED, MORE_VALUES, SETTINGS)),
                ],
                [4, 4, 1],
                [160, 160, 32],
            )
