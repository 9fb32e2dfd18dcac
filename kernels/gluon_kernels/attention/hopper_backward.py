"""The gradients of attention on Hopper in one kernel, which adds to those of queries as it goes.

Programs take tiles of keys and values in turn (`hopper_turns.py`), and walk with each over the queries of one head, or of several that share the keys (GQA). The values that `hopper_repeatable.py`
computes twice are computed once here: two groups of four warps compute the changes of the scores, each
for half of the keys, and exchange them as `hopper_exchange.py` says. In which order programs add is not known, so that
equal inputs have nearly equal bits only.

The steps before and after are in `sums.py`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma_wait,
)
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
from gluon_kernels.attention.online import (
    accumulators,
    layouts_of,
    operands,
    start_product,
    wait_sums,
    writers_of,
    zeros_of,
)
from gluon_kernels.attention.sums import wrapped
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def tile_at(deal, number):
    """Return a tile of keys, and its group of heads: `size` groups are walked together, the first tiles of each before the others."""
    tiles, groups, size, _, _ = deal
    block = number // (tiles * size)
    inside = number % (tiles * size)
    many = gl.minimum(groups - block * size, size)
    return inside // many, block * size + inside % many


@gluon.jit
def piece_at(deal, number, first_steps, fewer):
    """Return the tile of keys of a number, its group of heads, and which part of its steps: tiles of more than `deal[4]` steps have as many parts as that takes.

    The first tile has `first_steps`, each one behind it `fewer` less.
    """
    piece, group = number // deal[1], number % deal[1]
    tile = gl.to_tensor(0)
    steps = first_steps
    parts = gl.cdiv(steps, deal[4])
    while piece >= parts:
        piece -= parts
        tile += 1
        steps = gl.maximum(steps - fewer, 1)
        parts = gl.cdiv(steps, deal[4])
    return tile, group, piece


@gluon.jit
def part_of_steps(first, last, part, most):
    """Return the first step of a part of those of a tile, and the one past its last: equal parts of `most` steps at most."""
    steps = last - first
    share = gl.cdiv(steps, gl.cdiv(steps, most))
    begin = first + part * share
    return begin, gl.minimum(begin + share, last)


@gluon.jit
def numbers_at(
    deal, number, lengths, SIZE: gl.constexpr, STEP: gl.constexpr, SETTINGS: gl.constexpr
):
    """Return the numbers of a tile that are passed to the groups of warps: its own, and where steps are in parts the tile's and the part's."""
    numbers = (number,)
    if SETTINGS[6]:
        first, last, _ = steps_at(0, lengths[0], SIZE, STEP, SETTINGS[1])
        tile, _, part = piece_at(deal, number, last - first, SIZE // STEP if SETTINGS[1] else 0)
        numbers = (number, tile, part)
    return numbers


@gluon.jit
def work_at(deal, numbers):
    """Return the tile of keys, the group of heads and the part of the steps that numbers stand for."""
    part = 0
    if len(numbers) == 3:
        tile, group, part = numbers[1], numbers[0] % deal[1], numbers[2]
    else:
        tile, group = tile_at(deal, numbers[0])
    return tile, group, part


@gluon.constexpr_function
def loops(settings, width):
    """Return in how many loops a program takes its steps.

    Masks take registers: in heads of 64 the causal one is that of one step for each head of queries, and only the last tile lacks keys, so that most
    steps have a loop without. Where a program goes from head to head, ptxas spills more with two.
    """
    _, causal, whole, heads = settings[:4]
    return 2 if (width == 64 if causal else not whole and heads == 1) else 1


@gluon.jit
def steps_of(
    loop: gl.constexpr, first, last, missing, part, most, SIZE: gl.constexpr, STEP: gl.constexpr, SETTINGS: gl.constexpr,
    D: gl.constexpr,
):  # fmt: skip
    """Return the first step of a loop, and the one past its last; the first of two loops has those with masks, all if keys are missing. Where steps are in
    parts, others than those of `part` are left out."""
    middle = last
    if loops(SETTINGS, D) == 2:
        middle = first
        if SETTINGS[1]:
            middle = gl.minimum(first + SIZE // STEP, last)
        if not SETTINGS[2]:
            middle = gl.where(missing, last, middle)
    if loop == 0:
        begin, end = first, middle
    else:
        begin, end = middle, last
    if SETTINGS[6]:
        low, high = part_of_steps(first, last, part, most)
        begin, end = gl.maximum(begin, low), gl.minimum(end, high)
    return begin, end


@gluon.jit
def steps_at(tile, length, SIZE: gl.constexpr, STEP: gl.constexpr, CAUSAL: gl.constexpr):
    """Return the first step of a tile of keys, the one past its last, and the steps of all queries."""
    steps = gl.cdiv(length, STEP)
    first = tile * SIZE // STEP
    last = steps
    if not CAUSAL:
        first = first % steps
        last = first + steps
    return first, last, steps


@gluon.jit
def walk(rings, copied, turns, counter, lengths, deal, of_sequence, SETTINGS: gl.constexpr):
    """Copy the keys and values of the program's tiles, and the queries that it walks over, head by head.

    `copied` are the descriptors of queries, gradients of results and statistics; the last ones come from the kernel before, which the first tile does not wait for.
    """
    keys, values, others = rings
    queries, grads = others.part(0, copied[0]), others.part(1, copied[1])
    logsums, deltas = others.part(2, copied[2]), others.part(3, copied[2])
    length, of_keys, padded = lengths
    CAUSAL: gl.constexpr = SETTINGS[1]
    HEADS: gl.constexpr = SETTINGS[3]
    SHARED: gl.constexpr = SETTINGS[4]
    SIZE: gl.constexpr = keys.block_shape[2]
    STEP: gl.constexpr = others.block_shape[2]
    key_position, value_position = keys.producer(), values.producer()
    position = others.producer()
    number = gl.program_id(0)
    nth = 0
    while number < deal[0] * deal[1]:
        numbers = numbers_at(deal, number, lengths, SIZE, STEP, SETTINGS)
        pass_turn(turns, nth, numbers)
        tile, group, part = work_at(deal, numbers)
        first, last, steps = steps_at(tile, length, SIZE, STEP, CAUSAL)
        missing = (tile + 1) * SIZE > of_keys
        head = group * HEADS
        batch = head // of_sequence
        key = [batch, head % of_sequence // SHARED, tile * SIZE, 0]
        pending = True
        for loop in gl.static_range(loops(SETTINGS, keys.block_shape[3])):
            begin, end = steps_of(
                loop, first, last, missing, part, deal[4], SIZE, STEP, SETTINGS, keys.block_shape[3]
            )
            for of in range(head, head + HEADS):
                for i in range(begin, end):
                    row = wrapped(i, steps, CAUSAL) * STEP
                    statistic = 2 * of * padded + row
                    query = [batch, of % of_sequence, row, 0]
                    queries.fetch(position, [query])
                    grads.fetch(position, [query])
                    if pending & (nth == 0):
                        keys.fetch(key_position, [key])
                        values.fetch(value_position, [key])
                        wait_for_predecessor()
                        pending = False
                    logsums.fetch(position, [[statistic]])
                    deltas.fetch(position, [[statistic + padded]])
                    # The slots of queries are free while those of values still serve the last tile.
                    keys.fetch(key_position, [key], pending)
                    values.fetch(value_position, [key], pending)
                    pending = False
                    position = position.next()
        key_position, value_position = key_position.next(), value_position.next()
        # Not before: another program may be free earlier.
        number = next_turn(counter)
        nth += 1
    numbers = (number,)
    if SETTINGS[6]:
        numbers = (number, 0, 0)
    pass_turn(turns, nth, numbers)


@gluon.jit
def gradients_of_half(
    rings, exchange, turns, outs, lengths, deal, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of the keys of the program's tiles, and half of each sum of queries."""
    keys, values, others = rings
    writers, to_keys, sums = outs
    of_queries, length, padded = lengths
    SCALE: gl.constexpr = SETTINGS[0]
    CAUSAL: gl.constexpr = SETTINGS[1]
    WHOLE: gl.constexpr = SETTINGS[2]
    HEADS: gl.constexpr = SETTINGS[3]
    dtype: gl.constexpr = keys.dtype
    SIZE: gl.constexpr = keys.block_shape[2]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = others.block_shape[2]
    D: gl.constexpr = keys.block_shape[3]
    KEPT: gl.constexpr = slots_of_keys(D) > 1
    LOG_SCALE: gl.constexpr = SCALE * 1.4426950408889634
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    COLUMNS: gl.constexpr = SETTINGS[5]
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
    of_head = padded * D // 256  # rows of the sums; a step has 32, 16 for each half
    buffer = gl.allocate_shared_memory(gl.float32, sums.block_type.shape, sums.layout)
    key_position, value_position = keys.consumer(), values.consumer()
    position = others.consumer()
    start_exchange(exchange, nothing, half)
    before = key_position  # the keys of the last changes
    previous = NOWHERE  # and where these are added
    nth = 0
    numbers = take_turn(turns, nth)
    while numbers[0] < deal[0] * deal[1]:
        tile, group, piece = work_at(deal, numbers)
        first, last, steps = steps_at(tile, of_queries, SIZE, STEP, CAUSAL)
        missing = (tile + 1) * SIZE > length
        start = tile * SIZE + half * ROWS
        key = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        for_keys = accumulators(zeros_of(ROWS, LAYOUTS))
        for_values = accumulators(zeros_of(ROWS, LAYOUTS))
        of_tile = group * HEADS * of_head + half * 16
        k = columns_of(rows_of_half(keys.wait(key_position), half, SIZE, D), COLUMNS)
        v = columns_of(rows_of_half(values.wait(value_position), half, SIZE, D), COLUMNS)
        for loop in gl.static_range(loops(SETTINGS, D)):
            begin, end = steps_of(
                loop, first, last, missing, piece, deal[4], SIZE, STEP, SETTINGS, D
            )
            to = of_tile
            for _ in range(HEADS):
                for i in range(begin, end):
                    q, grad, logsums, deltas = others.wait(position)
                    q = columns_of(q.reshape([STEP, D]), COLUMNS)
                    grad = columns_of(grad.reshape([STEP, D]), COLUMNS)
                    # With 128 columns registers are too few for both products at a time.
                    score = start_product(k, q, nothing)
                    if D == 64:
                        change = start_product(v, grad, nothing)
                        score = warpgroup_mma_wait(1, deps=[score])
                        p = gl.exp2(score * LOG_SCALE + logsums.load(column)[None, :])
                    else:
                        score = warpgroup_mma_wait(0, deps=[score])
                        score = score * LOG_SCALE + logsums.load(column)[None, :]
                        change = start_product(v, grad, nothing)
                        p = gl.exp2(score)
                    if CAUSAL and loop == 0:
                        if i * STEP < start + ROWS:
                            query = i * STEP + gl.arange(0, STEP, column)
                            p = gl.where(query[None, :] >= key[:, None], p, 0.0)
                    if not WHOLE and loop == 0:
                        p = gl.where((key < length)[:, None], p, 0.0)  # else perhaps infinite
                    weights = operands(p.to(dtype), LAYOUTS)
                    change = warpgroup_mma_wait(0, deps=[change])
                    change = (p * (change + deltas.load(column)[None, :])).to(dtype)
                    k_columns = columns_of_half(keys.tiles(before), half, SIZE, D, COLUMNS)
                    tiles = (q, grad, weights, change, k_columns)
                    both = (for_keys, for_values)
                    for_keys, for_values = add_step(
                        exchange, tiles, both, sums, buffer, position, previous, half
                    )
                    others.release(position)
                    if KEPT:
                        keys.release(before, before.index != key_position.index)
                        before = key_position
                    position = position.next()
                    previous = to + wrapped(i, steps, CAUSAL) * 32
                to += of_head
        # Computed again: numbers that the loop does not need would take registers in it.
        tile, group, piece = work_at(deal, take_turn(turns, nth))
        row = tile * SIZE + half * ROWS
        if SETTINGS[6]:
            group = group * deal[3] + piece
        if not KEPT:
            k_columns = columns_of_half(keys.tiles(key_position), half, SIZE, D, COLUMNS)
            product = last_product(exchange, k_columns, position, STEP, D, half)
            keys.release(key_position)
            add_to_sums(sums, buffer, product, previous)
            previous = NOWHERE
        # The next tile comes while the results of this one are stored.
        values.release(value_position)
        key_position, value_position = key_position.next(), value_position.next()
        for_values, for_keys = wait_sums(for_values), wait_sums(for_keys)
        for i in gl.static_range(len(COLUMNS)):
            writers[i].store([group, row, i * COLUMNS[0]], for_values[i])
        for i in gl.static_range(len(COLUMNS)):
            writers[i].store([group, row, i * COLUMNS[0]], for_keys[i] * SCALE, to_keys)
        end_turn(turns, nth)  # all numbers have been used
        nth += 1
        numbers = take_turn(turns, nth)
    if KEPT:
        k_columns = columns_of_half(keys.tiles(before), half, SIZE, D, COLUMNS)
        product = last_product(exchange, k_columns, position, STEP, D, half)
        add_to_sums(sums, buffer, product, previous)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].close()


@gluon.jit(do_not_specialize=["groups", "size", "pieces", "parts", "most"])
def gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, statistics, counter, to_keys, to_values, sums, last_sums, length, key_length, padded,
    of_sequence, groups, size, pieces, parts, most, SCALE: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, HEADS: gl.constexpr,
    SHARED: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, and add to those of queries.

    Tensors are [batch, of_sequence, length, D] of queries and [batch, of_sequence / SHARED, key_length, D] of keys, the gradients of keys and
    values [batch * of_sequence / HEADS, key_length, D]: a tile has those of HEADS heads of queries, a divisor of SHARED, added up. `statistics` are
    what `prepare` has made, in a row, and `counter` is 0. The programs, as many as run at once, take all tiles of keys of `groups` of HEADS heads, in the order of `tile_at`. `SCALE` is that of the scores; `WHOLE` says that no key past the last one is seen.
    If `parts` is not None, tiles of more than `most` steps are in parts, `parts` at most and `pieces` for a group of heads in all; the gradients of keys and values are those of
    all parts, of a group one after the other.
    COLUMNS are those that heads have of D: (64, 32) or all. `sums` and `last_sums` are the same memory, in blocks of the columns of either group.
    """
    SIZE: gl.constexpr = k_desc.block_type.shape[2]
    STEP: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = k_desc.block_type.shape[3]
    gl.static_assert(STEP * D == 64 * 128, "128 queries of 64 elements in a step, or 64 of 128")
    copied = (q_desc, grad_desc, statistics)
    rings = (
        tma_ring([k_desc], slots_of_keys(D), consumers=2),
        tma_ring([v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics, statistics], 2, consumers=2, producers=4),
    )
    exchange = exchange_of(q_desc.dtype, SIZE, STEP)
    upper = (writers_of(to_values, COLUMNS), to_keys, sums)
    lower = (writers_of(to_values, COLUMNS), to_keys, last_sums)
    DIVIDED: gl.constexpr = parts is not None
    turns = turns_of(2, 3 if DIVIDED else 1)
    deal = (pieces if DIVIDED else gl.cdiv(key_length, SIZE), groups, size, parts, most)
    lengths = (length, key_length, padded)
    SETTINGS: gl.constexpr = (SCALE, CAUSAL, WHOLE, HEADS, SHARED, COLUMNS, DIVIDED)
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, turns, upper, lengths, deal, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, turns, lower, lengths, deal, 1, SETTINGS)),
            (walk, (rings, copied, turns, counter, lengths, deal, of_sequence, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
