"""The gradients of attention on Hopper in one kernel, which adds to those of queries as it goes.

A program has a tile of keys and values and walks over the queries of one head, or of several that share the keys (GQA). The values that `hopper_repeatable.py`
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
    add_last,
    add_step,
    columns_of,
    exchange_of,
    half_of,
    start_exchange,
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
def own_tile(deal):
    """Return the program's tile of keys, and its group of heads: `size` groups are walked together, the first tiles of each before the others."""
    tiles, groups, size = deal
    program = gl.program_id(0)
    block = program // (tiles * size)
    inside = program % (tiles * size)
    many = gl.minimum(groups - block * size, size)
    return inside // many, block * size + inside % many


@gluon.constexpr_function
def loops(settings, width):
    """Return in how many loops a program takes its steps.

    The mask takes registers: in heads of 64, where it is that of one step for each head of queries, the others have a loop without.
    """
    return 2 if settings[1] and width == 64 else 1


@gluon.jit
def steps_of(loop: gl.constexpr, first, last, masked, SETTINGS: gl.constexpr, D: gl.constexpr):
    """Return the first step of a loop, and the one past its last; the first of two loops has the `masked` steps."""
    middle = last
    if loops(SETTINGS, D) == 2:
        middle = gl.minimum(first + masked, last)
    if loop == 0:
        begin, end = first, middle
    else:
        begin, end = middle, last
    return begin, end


@gluon.jit
def walk(rings, place, deal, of_sequence, SETTINGS: gl.constexpr):
    """Copy the program's keys and values, then the queries that it walks over, head by head."""
    own, others = rings
    first, last, steps, _, padded = place
    CAUSAL: gl.constexpr = SETTINGS[1]
    HEADS: gl.constexpr = SETTINGS[3]
    SHARED: gl.constexpr = SETTINGS[4]
    tile, group = own_tile(deal)
    head = group * HEADS
    batch = head // of_sequence
    SIZE: gl.constexpr = own.block_shape[2]
    STEP: gl.constexpr = others.block_shape[2]
    key = [batch, head % of_sequence // SHARED, tile * SIZE, 0]
    own.fetch(own.producer(), [key, key])
    position = others.producer()
    for loop in gl.static_range(loops(SETTINGS, own.block_shape[3])):
        begin, end = steps_of(loop, first, last, SIZE // STEP, SETTINGS, own.block_shape[3])
        for of in range(head, head + HEADS):
            for i in range(begin, end):
                row = wrapped(i, steps, CAUSAL) * STEP
                statistic = 2 * of * padded + row
                query = [batch, of % of_sequence, row, 0]
                others.fetch(position, [query, query, [statistic], [statistic + padded]])
                position = position.next()


@gluon.jit
def gradients_of_half(
    rings, exchange, outs, place, deal, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of the keys, and half of each sum of queries."""
    own, others = rings
    writers, to_keys, sums = outs
    first, last, steps, length, padded = place
    SCALE: gl.constexpr = SETTINGS[0]
    CAUSAL: gl.constexpr = SETTINGS[1]
    WHOLE: gl.constexpr = SETTINGS[2]
    HEADS: gl.constexpr = SETTINGS[3]
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = own.block_shape[2]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = others.block_shape[2]
    D: gl.constexpr = own.block_shape[3]
    LOG_SCALE: gl.constexpr = SCALE * 1.4426950408889634
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    COLUMNS: gl.constexpr = SETTINGS[5]
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    tile, group = own_tile(deal)
    start = tile * SIZE + half * ROWS
    key = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
    for_keys = accumulators(zeros_of(ROWS, LAYOUTS))
    for_values = accumulators(zeros_of(ROWS, LAYOUTS))
    of_head = padded * D // 256  # rows of the sums; a step has 32, 16 for each half
    of_program = group * HEADS * of_head + half * 16
    previous = NOWHERE

    k_columns, k, v = half_of(own, half, SIZE, D, COLUMNS)
    buffer = gl.allocate_shared_memory(gl.float32, sums.block_type.shape, sums.layout)
    k, v = columns_of(k, COLUMNS), columns_of(v, COLUMNS)
    position = others.consumer()
    start_exchange(exchange, nothing, half)
    for loop in gl.static_range(loops(SETTINGS, D)):
        begin, end = steps_of(loop, first, last, SIZE // STEP, SETTINGS, D)
        to = of_program
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
                if not WHOLE:
                    p = gl.where((key < length)[:, None], p, 0.0)  # else perhaps infinite
                weights = operands(p.to(dtype), LAYOUTS)
                change = warpgroup_mma_wait(0, deps=[change])
                change = (p * (change + deltas.load(column)[None, :])).to(dtype)
                tiles = (q, grad, weights, change, k_columns)
                for_keys, for_values = add_step(
                    exchange, tiles, (for_keys, for_values), sums, buffer, position, previous, half
                )
                others.release(position)
                position = position.next()
                previous = to + wrapped(i, steps, CAUSAL) * 32
            to += of_head
    # Computed again: numbers that the loop does not need would take registers in it.
    tile, group = own_tile(deal)
    row = tile * SIZE + half * ROWS
    # TMA reads the first ones during the last addition.
    for_values = wait_sums(for_values)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].store([group, row, i * COLUMNS[0]], for_values[i])
    add_last(exchange, k_columns, sums, buffer, position, previous, STEP, D, half)
    for_keys = wait_sums(for_keys)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].store([group, row, i * COLUMNS[0]], for_keys[i] * SCALE, to_keys)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].close()


@gluon.jit(do_not_specialize=["groups", "size"])
def gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, statistics, to_keys, to_values, sums, last_sums, length, key_length, padded,
    of_sequence, groups, size, SCALE: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, HEADS: gl.constexpr,
    SHARED: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, and add to those of queries.

    Tensors are [batch, of_sequence, length, D] of queries and [batch, of_sequence / SHARED, key_length, D] of keys, the gradients of keys and
    values [batch * of_sequence / HEADS, key_length, D]: a program adds up those of HEADS heads of queries, a divisor of SHARED. `statistics` are
    what `prepare` has made, in a row. The grid has all tiles of keys of `groups` of HEADS heads, in the order of `own_tile`. `SCALE` is that of the scores; `WHOLE` says that no key past the last one is seen.
    COLUMNS are those that heads have of D: (64, 32) or all. `sums` and `last_sums` are the same memory, in blocks of the columns of either group.
    """
    SIZE: gl.constexpr = k_desc.block_type.shape[2]
    STEP: gl.constexpr = q_desc.block_type.shape[2]
    D: gl.constexpr = k_desc.block_type.shape[3]
    gl.static_assert(STEP * D == 64 * 128, "128 queries of 64 elements in a step, or 64 of 128")
    wait_for_predecessor()
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics, statistics], 2, consumers=2),
    )
    exchange = exchange_of(q_desc.dtype, SIZE, STEP)
    upper = (writers_of(to_values, COLUMNS), to_keys, sums)
    lower = (writers_of(to_values, COLUMNS), to_keys, last_sums)
    steps = gl.cdiv(length, STEP)
    deal = (gl.cdiv(key_length, SIZE), groups, size)
    first = own_tile(deal)[0] * SIZE // STEP
    if not CAUSAL:
        first = first % steps
    place = (first, steps if CAUSAL else first + steps, steps, key_length, padded)
    SETTINGS: gl.constexpr = (SCALE, CAUSAL, WHOLE, HEADS, SHARED, COLUMNS)
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, upper, place, deal, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, lower, place, deal, 1, SETTINGS)),
            (walk, (rings, place, deal, of_sequence, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
