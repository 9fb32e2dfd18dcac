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
    add_last,
    add_step,
    columns_of,
    exchange_of,
    half_of,
    start_exchange,
)
from gluon_kernels.attention.hopper_varlen_gradients import (
    own_tile,
    place_of_program,
    walk,
    weights_of,
)
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
            store_rows(out, result, i * COLUMNS[0], place, gl.num_programs(1), desc.shape[2])


@gluon.jit
def gradients_of_half(
    rings, exchange, outs, lists, scales, rows, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of the keys, and half of each sum of queries."""
    own, others = rings
    writers, to_keys, to_values, sums = outs
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    COLUMNS: gl.constexpr = SETTINGS[6]
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    work = own_tile(lists, 4, SETTINGS)
    sequence = work[0][0]
    start, stop = work[3]
    row = work[0][1] + half * ROWS
    low = row + work[2][1] - (work[1][1] - work[1][0])
    # Keys that are not there must not add to gradients of queries; a causal mask hides them.
    valid = None
    if SETTINGS[1][0] is None or SETTINGS[1][0] != 0:
        valid = work[1][1] - work[1][0] - row
    if sequence < lists[2]:
        zeros = gl.zeros([ROWS, STEP], gl.float32, layout)
        for_keys = accumulators(zeros_of(ROWS, LAYOUTS))
        for_values = accumulators(zeros_of(ROWS, LAYOUTS))
        k_columns, k, v = half_of(own, half, SIZE, D, COLUMNS)
        buffer = gl.allocate_shared_memory(gl.float32, sums.block_type.shape, sums.layout)
        k, v = columns_of(k, COLUMNS), columns_of(v, COLUMNS)
        position = others.consumer()
        start_exchange(exchange, zeros, half)
        i = start
        # Where a step's sums lie, 16 rows for half of them.
        to = place_of_program()[1] * SETTINGS[5] * rows + padded_start(work[2][0], sequence, STEP)
        to = to // STEP * 32 + start * 32 + half * 16
        previous = NOWHERE
        for _ in range(SETTINGS[5] * (stop - start)):
            q, grad, statistics = others.wait(position)
            q = columns_of(q.reshape([STEP, D]), COLUMNS)
            grad = columns_of(grad.reshape([STEP, D]), COLUMNS)
            # With 128 columns registers are too few for both products at a time, and for one in addition
            # to a cap's slope.
            ORDER: gl.constexpr = 2 if SETTINGS[2] else 1 if D == 128 else 0
            score = start_product(k, q, zeros)
            change = zeros
            if ORDER == 0:
                change = start_product(v, grad, zeros)
            score = warpgroup_mma_wait(1 if ORDER == 0 else 0, deps=[score])
            if ORDER == 1:
                change = start_product(v, grad, zeros)
            logsum = statistics.slice(0, STEP).load(column)[None, :]
            p, slope = weights_of(score, logsum, low, i, valid, scales[1], SETTINGS)
            weights = operands(p.to(dtype), LAYOUTS)
            if ORDER == 2:
                change = start_product(v, grad, zeros)
            change = warpgroup_mma_wait(0, deps=[change])
            delta = statistics.slice(STEP, STEP).load(column)[None, :]
            change = (slope * (change - delta)).to(dtype)
            tiles = (q, grad, weights, change, k_columns)
            for_keys, for_values = add_step(
                exchange, tiles, (for_keys, for_values), sums, buffer, position, previous, half
            )
            others.release(position)
            position = position.next()
            previous = to
            last_step = i + 1 == stop  # the next head's
            to += gl.where(last_step, rows // STEP - (stop - start) + 1, 1) * 32
            i = gl.where(last_step, start, i + 1)
        if start < stop:
            add_last(exchange, k_columns, sums, buffer, position, previous, STEP, D, half)
        for_values, for_keys = wait_sums(for_values), wait_sums(for_keys)
        # Computed again: numbers that the loop does not need would take registers in it.
        tile = own_tile(lists, 4, SETTINGS)
        place = (tile[1][0] + tile[0][1] + half * ROWS, tile[1][1], place_of_program()[1])
        store_parts(writers, to_values, for_values, 1.0, place, COLUMNS)
        store_parts(writers, to_keys, for_keys, scales[0], place, COLUMNS)
    for i in gl.static_range(len(COLUMNS)):
        writers[i].close()


@gluon.jit
def varlen_gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, keys, values, statistics, sums, last_sums, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr, COLUMNS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, and add to those of queries.

    A program adds up SHARED heads of queries. The second dimension of the grid has PARTS programs for each head of keys, whose gradients are next to each other.
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
    wait_for_predecessor()
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics], STAGES, consumers=2),
    )
    exchange = exchange_of(q_desc.dtype, SIZE, STEP)
    upper = (writers_of(to_values, COLUMNS), (to_keys, keys), (to_values, values), sums)
    lower = (writers_of(to_values, COLUMNS), (to_keys, keys), (to_values, values), last_sums)
    lists = (of_keys, of_queries, count)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, upper, lists, scales, rows, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, lower, lists, scales, rows, 1, SETTINGS)),
            (walk, (rings, lists, rows, SETTINGS, PARTS)),
        ],
        [4, 1],
        [240, 24],
    )
