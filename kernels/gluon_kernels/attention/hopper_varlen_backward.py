"""The gradients of attention over packed sequences on Hopper in one kernel, which adds to those of queries as it goes.

The roles are those of `hopper_backward.py`, their exchange that of `hopper_exchange.py`; tiles, weights and rows that end within a tile those of
`hopper_varlen_gradients.py`. The sums have the rows of the statistics: each sequence's begin with a step of their own. In which
order programs add is not known, so that equal inputs have nearly equal bits only.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, warpgroup_mma_wait
from gluon_kernels.attention.hopper_exchange import (
    NOWHERE,
    add_step,
    add_to_sums,
    columns_of,
    columns_of_half,
    exchange_of,
    last_product,
    rows_of_half,
    slots_of_keys,
    start_exchange,
)
from gluon_kernels.attention.hopper_turns import (
    end_turn,
    next_turn,
    pass_turn,
    take_turn,
    turns_of,
)
from gluon_kernels.attention.hopper_varlen_gradients import tile_of, weights_of
from gluon_kernels.attention.online import (
    accumulators,
    layouts_of,
    operands,
    start_product,
    store_rows,
    wait_sums,
    writers_of,
    zeros_of,
)
from gluon_kernels.attention.packed import place_of
from gluon_kernels.attention.varlen_sums import padded_start
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def store_parts(writers, outputs, results, factor, place, COLUMNS: gl.constexpr):
    """Store the rows of a head that the sequence has, times a factor."""
    desc, out = outputs
    line, end, head = place
    for i in gl.static_range(len(COLUMNS)):
        result = results[i] * factor
        if line + result.shape[0] <= end:
            writers[i].store([line, head, i * COLUMNS[0]], result, desc)
        else:
            # Rows past the sequence's last belong to the next one.
            store_rows(out, result, i * COLUMNS[0], place, desc.shape[1], desc.shape[2])


@gluon.constexpr_function
def loops(settings):
    """Return in how many loops a program takes its steps.

    A mask takes registers, and a branch around it holds products up: the steps that no border crosses have a loop without. Those of both borders of a
    causal window have loops of their own, unless some step is crossed by both. Where a program goes from head to head, ptxas spills more with several.
    """
    (size, step), window = settings[:2]
    if settings[5] > 1:
        return 1
    # In a kernel a None is wrapped: it is equal to None, but not None itself.
    causal = None not in window and window[0] == 0
    return 3 if causal and window[1] >= size + step - 2 else 2


@gluon.constexpr_function
def masks(loop, count):
    """Return if the steps of one of `count` loops have masks; None where each step finds out."""
    return loop != 1 if count > 1 else None


@gluon.jit
def weights_of_loop(
    loop: gl.constexpr, score, logsum, low, i, valid, scale, SETTINGS: gl.constexpr
):  # fmt: skip
    """Return the weights of a step and their derivatives, with the borders that cross the steps of its loop."""
    COUNT: gl.constexpr = loops(SETTINGS)
    S: gl.constexpr = SETTINGS
    NEAR: gl.constexpr = (S[0], (S[1][0], None), S[2], S[3], S[4])
    FAR: gl.constexpr = (S[0], (None, S[1][1]), S[2], S[3], S[4])
    if COUNT < 3:
        p, slope = weights_of(score, logsum, low, i, valid, scale, SETTINGS, masks(loop, COUNT))
    elif loop == 0:
        p, slope = weights_of(score, logsum, low, i, valid, scale, NEAR, True)
    else:
        p, slope = weights_of(score, logsum, low, i, valid, scale, FAR, masks(loop, COUNT))
    return p, slope


@gluon.jit
def whole_steps(low, missing, start, stop, SETTINGS: gl.constexpr):
    """Return the first of the steps that no border crosses, and the one past the last; the tile lacks some of its last keys if `missing`."""
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    middle, after = start, stop
    if WINDOW[0] is not None:
        first = gl.cdiv(gl.maximum(low + SIZE - 1 - WINDOW[0], 0), STEP)
        middle = gl.minimum(gl.maximum(first, start), stop)
    if WINDOW[1] is not None:
        past = gl.maximum(low + WINDOW[1] + 1, 0) // STEP
        after = gl.minimum(gl.maximum(past, middle), stop)
    if WINDOW[0] is None or WINDOW[0] != 0:  # a causal mask hides keys that are not there
        middle = gl.where(missing, stop, middle)
        after = gl.where(missing, stop, after)
    return middle, after


@gluon.jit
def steps_of(loop: gl.constexpr, steps, SETTINGS: gl.constexpr):
    """Return the first step of a loop, how many it has, and the step before which it turns to another one, and to which.

    The first of two loops has the steps that a border crosses, before and behind those of the second; a single loop has all, of head after head.
    Three have those of the near border, those of none, and those of the far one.
    """
    start, middle, after, stop = steps
    if loops(SETTINGS) == 1:
        first, many, turn, to = start, SETTINGS[5] * (stop - start), stop, start
    elif loop == 2:
        first, many, turn, to = after, stop - after, stop, stop
    elif loops(SETTINGS) == 3 and loop == 0:
        first, many, turn, to = start, middle - start, middle, middle
    elif loop == 0:
        first = gl.where(start < middle, start, after)
        many, turn, to = middle - start + stop - after, middle, after
    else:
        first, many, turn, to = middle, after - middle, after, after
    return first, many, turn, to


@gluon.jit
def walk(rings, copied, turns, counter, lists, deal, SETTINGS: gl.constexpr, PARTS: gl.constexpr):
    """Find the program's tiles of keys; copy these, their values, and the queries that it walks over, of each head. PARTS programs share a head of keys.

    `copied` are the descriptors of queries, gradients of results and statistics; the last ones come from the kernel before, which the first tile does not wait for.
    """
    keys, values, others = rings
    queries, grads, known = (
        others.part(0, copied[0]),
        others.part(1, copied[1]),
        others.part(2, copied[2]),
    )
    tiles, heads, together, rows = deal
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    key_position, value_position = keys.producer(), values.producer()
    position = others.producer()
    number = gl.program_id(0)
    nth = 0
    while number < tiles * heads:
        place, head = place_of(number, tiles, heads, together)
        work = tile_of(lists, place, heads, 1, SETTINGS)
        (sequence, row), (first, end), (other, length), (start, stop) = work
        if sequence < lists[2]:
            low = row + length - (end - first)
            middle, after = whole_steps(low, first + row + SIZE > end, start, stop, SETTINGS)
            begin = padded_start(other, sequence, STEP)
            steps = (start, middle, after, stop)
            pass_turn(turns, nth, (head, first + row, end, low, begin, start, middle, after, stop))
            nth += 1
            key = [first + row, head // PARTS, 0]
            pending = True
            for loop in gl.static_range(loops(SETTINGS)):
                i, many, turn, to = steps_of(loop, steps, SETTINGS)
                of = head * SETTINGS[5]
                for _ in range(many):
                    statistic = 2 * (of * rows + begin + i * STEP)
                    query = [other + i * STEP, of, 0]
                    queries.fetch(position, [query])
                    grads.fetch(position, [query])
                    if pending & (nth == 1):
                        keys.fetch(key_position, [key])
                        values.fetch(value_position, [key])
                        wait_for_predecessor()
                        pending = False
                    known.fetch(position, [[statistic]])
                    # The slots of queries are free while those of values still serve the last tile.
                    keys.fetch(key_position, [key], pending)
                    values.fetch(value_position, [key], pending)
                    pending = False
                    position = position.next()
                    at_turn = i + 1 == turn
                    i = gl.where(at_turn, to, i + 1)
                    if SETTINGS[5] > 1:
                        of += gl.where(at_turn, 1, 0)
            steps = gl.where(start < stop, 1, 0)
            key_position, value_position = key_position.next(steps), value_position.next(steps)
        wait_for_predecessor()
        number = next_turn(counter)  # not before: another program may be free earlier
    pass_turn(turns, nth, (heads, 0, 0, 0, 0, 0, 0, 0, 0))


@gluon.jit
def gradients_of_half(
    rings, exchange, turns, outs, deal, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of the keys of the program's tiles, and half of each sum of queries."""
    keys, values, others = rings
    writers, to_keys, to_values, sums = outs
    _, heads, _, rows = deal
    dtype: gl.constexpr = keys.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = keys.block_shape[2]
    KEPT: gl.constexpr = slots_of_keys(D) > 1
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    COLUMNS: gl.constexpr = SETTINGS[6]
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    COUNT: gl.constexpr = loops(SETTINGS)
    # With 128 columns registers are too few for both products at a time, and for one in addition to a cap's slope.
    ORDER: gl.constexpr = 2 if SETTINGS[2] else 1 if D == 128 else 0
    zeros = gl.zeros([ROWS, STEP], gl.float32, layout)
    buffer = gl.allocate_shared_memory(gl.float32, sums.block_type.shape, sums.layout)
    key_position, value_position = keys.consumer(), values.consumer()
    position = others.consumer()
    start_exchange(exchange, zeros, half)
    before = key_position  # the keys of the last changes
    previous = NOWHERE  # and where these are added
    nth = 0
    head, line, end, low, begin, start, middle, after, stop = take_turn(turns, nth)
    while head < heads:
        low += half * ROWS
        # Keys that are not there must not add to gradients of queries; a causal mask hides them.
        valid = None
        if SETTINGS[1][0] is None or SETTINGS[1][0] != 0:
            valid = end - line - half * ROWS
        for_keys = accumulators(zeros_of(ROWS, LAYOUTS))
        for_values = accumulators(zeros_of(ROWS, LAYOUTS))
        if start < stop:
            keys.wait(key_position)
            values.wait(value_position)
        k = columns_of(rows_of_half(keys.tiles(key_position), half, SIZE, D), COLUMNS)
        v = columns_of(rows_of_half(values.tiles(value_position), half, SIZE, D), COLUMNS)
        # Where the sums of the first head's first step lie, 16 rows for half of them.
        sums_of = (head * SETTINGS[5] * rows + begin) // STEP * 32 + half * 16
        for loop in gl.static_range(COUNT):
            steps = (start, middle, after, stop)
            i, many, turn, to = steps_of(loop, steps, SETTINGS)
            for _ in range(many):
                q, grad, statistics = others.wait(position)
                q = columns_of(q.reshape([STEP, D]), COLUMNS)
                grad = columns_of(grad.reshape([STEP, D]), COLUMNS)
                score = start_product(k, q, zeros)
                change = zeros
                if ORDER == 0:
                    change = start_product(v, grad, zeros)
                score = warpgroup_mma_wait(1 if ORDER == 0 else 0, deps=[score])
                if ORDER == 1:
                    change = start_product(v, grad, zeros)
                logsum = statistics.slice(0, STEP).load(column)[None, :]
                p, slope = weights_of_loop(loop, score, logsum, low, i, valid, scales[1], SETTINGS)
                weights = operands(p.to(dtype), LAYOUTS)
                if ORDER == 2:
                    change = start_product(v, grad, zeros)
                change = warpgroup_mma_wait(0, deps=[change])
                delta = statistics.slice(STEP, STEP).load(column)[None, :]
                change = (slope * (change - delta)).to(dtype)
                k_columns = columns_of_half(keys.tiles(before), half, SIZE, D, COLUMNS)
                tiles = (q, grad, weights, change, k_columns)
                for_keys, for_values = add_step(
                    exchange, tiles, (for_keys, for_values), sums, buffer, position, previous, half
                )
                others.release(position)
                if KEPT:
                    keys.release(before, before.index != key_position.index)
                    before = key_position
                position = position.next()
                previous = sums_of + i * 32
                at_turn = i + 1 == turn
                i = gl.where(at_turn, to, i + 1)
                if SETTINGS[5] > 1:
                    sums_of += gl.where(at_turn, rows // STEP * 32, 0)
        # Taken again: numbers that the loop does not need would take registers in it.
        head, line, end, _, _, start, _, _, stop = take_turn(turns, nth)
        # The next tile comes while the results of this one are stored.
        seen = start < stop
        if not KEPT:
            if seen:
                k_columns = columns_of_half(keys.tiles(key_position), half, SIZE, D, COLUMNS)
                product = last_product(exchange, k_columns, position, STEP, D, half)
                keys.release(key_position)
                add_to_sums(sums, buffer, product, previous)
            previous = NOWHERE
        values.release(value_position, seen)
        steps = gl.where(seen, 1, 0)
        key_position, value_position = key_position.next(steps), value_position.next(steps)
        for_values, for_keys = wait_sums(for_values), wait_sums(for_keys)
        place = (line + half * ROWS, end, head)
        store_parts(writers, to_values, for_values, 1.0, place, COLUMNS)
        store_parts(writers, to_keys, for_keys, scales[0], place, COLUMNS)
        end_turn(turns, nth)  # all numbers have been used
        nth += 1
        head, line, end, low, begin, start, middle, after, stop = take_turn(turns, nth)
    if KEPT:
        if previous < NOWHERE:
            k_columns = columns_of_half(keys.tiles(before), half, SIZE, D, COLUMNS)
            product = last_product(exchange, k_columns, position, STEP, D, half)
            add_to_sums(sums, buffer, product, previous)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].close()


@gluon.jit
def varlen_gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, keys, values, statistics, counter, sums, last_sums, tiles, heads, together, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr, COLUMNS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, and add to those of queries.

    A tile has those of SHARED heads of queries added up. The programs, as many as run at once, take all tiles in turn: so many `tiles` of each of the `heads`, those of some heads `together`, PARTS
    for each head of keys, whose gradients are next to each other. `counter` is 0.
    Operands are those of `varlen_key_gradients`; `statistics` have STEP rows at a time, and `sums` [heads, rows, D] are 64 x 64
    elements after each other in the order of registers, `last_sums` the same memory in blocks of the second group's columns. COLUMNS are those that heads have of D:
    (64, 32) or all.
    """
    SIZE: gl.constexpr = k_desc.block_type.shape[0]
    STEP: gl.constexpr = q_desc.block_type.shape[0]
    D: gl.constexpr = k_desc.block_type.shape[2]
    gl.static_assert(STEP * D == 64 * 128, "128 queries of 64 elements in a step, or 64 of 128")
    gl.static_assert(STAGES == 2, "as many slots as there are of changes")
    REVERSED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SETTINGS: gl.constexpr = ((SIZE, STEP), REVERSED, CAPPED, MOST, True, SHARED, COLUMNS)
    copied = (q_desc, grad_desc, statistics)
    rings = (
        tma_ring([k_desc], slots_of_keys(D), consumers=2),
        tma_ring([v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics], STAGES, consumers=2, producers=3),
    )
    exchange = exchange_of(q_desc.dtype, SIZE, STEP)
    upper = (writers_of(to_values, COLUMNS), (to_keys, keys), (to_values, values), sums)
    lower = (writers_of(to_values, COLUMNS), (to_keys, keys), (to_values, values), last_sums)
    turns = turns_of(2, 9)
    lists = (of_keys, of_queries, count)
    deal = (tiles, heads, together, rows)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, turns, upper, deal, scales, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, turns, lower, deal, scales, 1, SETTINGS)),
            (walk, (rings, copied, turns, counter, lists, deal, SETTINGS, PARTS)),
        ],
        [4, 1],
        [240, 24],
    )
