"""The gradients of attention with heads of up to 256 elements on Hopper, in one kernel for keys and values and one for queries.

Sums of 64 keys by 256 columns leave registers for few scores. So two groups of four warps share a tile of 64 keys: each computes the
weights and changes of half of a step's queries, sees those of the other group in shared memory, and multiplies them all for its
half of the columns. Sums of queries in memory, as `hopper_backward.py` has them, would be added to twice as often as with tiles of 128 keys, which bounds the rate:
each group of the other kernel has 64 queries instead, and computes the weights again. Tiles, weights and statistics are those of
`hopper_varlen_gradients.py`. Equal inputs give equal bits.

Heads are in two parts: of 128 columns and of 64 or 128, values of up to 128 columns in halves. A group of the first kernel computes the gradients of a
part.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.hopper_varlen_gradients import (
    own_tile,
    place_of_program,
    weights_of,
)
from gluon_kernels.attention.varlen_sums import padded_start
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def fetch_own(own, line, head, COLUMNS: gl.constexpr):
    """Copy both parts of the program's keys and values, or queries and gradients of results."""
    keys = [line, head, COLUMNS[0][0]]
    values = [line, head, COLUMNS[1][0]]
    own.fetch(own.producer(), [[line, head, 0], keys, [line, head, 0], values])


@gluon.jit
def rows_of(blocks, FIRST: gl.constexpr, ROWS: gl.constexpr):
    """Return some rows of both parts of a tile, as matrices."""
    left = blocks[0].reshape([blocks[0].shape[0], blocks[0].shape[2]])
    right = blocks[1].reshape([blocks[1].shape[0], blocks[1].shape[2]])
    return left.slice(FIRST, ROWS, dim=0), right.slice(FIRST, ROWS, dim=0)


@gluon.jit
def walk_queries(rings, lists, rows, SETTINGS: gl.constexpr):
    """Copy the program's keys and values, then the queries that it walks over, of each head."""
    own, queries, results = rings
    STEP: gl.constexpr = SETTINGS[0][1]
    (sequence, row), (first, _), (other, _), (start, stop) = own_tile(lists, 1, SETTINGS)
    _, head = place_of_program()
    if sequence < lists[2]:
        fetch_own(own, first + row, head, SETTINGS[6])
        query = queries.producer()
        result = results.producer()
        COLUMNS: gl.constexpr = SETTINGS[6]
        of = head * SETTINGS[5]
        i = start
        # Consumers that are a product ahead start one more, of any queries.
        for _ in range(SETTINGS[5] * (stop - start) + SETTINGS[7]):
            begin = 2 * (of * rows + padded_start(other, sequence, STEP))
            line = other + i * STEP
            behind = [line, of, COLUMNS[0][0]]
            queries.fetch(query, [[line, of, 0], behind, [begin + 2 * i * STEP]])
            results.fetch(result, [[line, of, 0], [line, of, COLUMNS[1][0]]])
            query = query.next()
            result = result.next()
            last_step = i + 1 >= stop
            of += gl.where(last_step, 1, 0)
            i = gl.where(last_step, start, i + 1)


@gluon.jit
def store_columns(out, result, first_column, end_column, place):
    """Store some columns of the rows of a head that the sequence has."""
    line, end, head = place
    layout: gl.constexpr = result.type.layout
    lines = line + gl.arange(0, result.shape[0], gl.SliceLayout(1, layout))
    columns = first_column + gl.arange(0, result.shape[1], gl.SliceLayout(0, layout))
    rows = lines.to(gl.int64) * gl.num_programs(1) + head
    inside = (lines < end)[:, None] & (columns < end_column)[None, :]
    target = out + rows[:, None] * end_column + columns[None, :]
    gl.store(target, result.to(out.dtype.element_ty), mask=inside)


@gluon.jit
def start_product(a, b, nothing):
    """Start to multiply both parts of `a` with those of `b`, [rows, rows of b]."""
    part = warpgroup_mma(a[0], b[0].permute((1, 0)), nothing, use_acc=False, is_async=True)
    return warpgroup_mma(a[1], b[1].permute((1, 0)), part, is_async=True)


@gluon.jit
def start_step(k, v, queries, results, nothing, first: gl.constexpr):
    """Start to multiply keys and values with some rows of a step."""
    PART: gl.constexpr = nothing.shape[1]
    score = start_product(k, rows_of((queries[0], queries[1]), first, PART), nothing)
    return score, start_product(v, rows_of(results, first, PART), nothing)


@gluon.jit
def half_step(
    pending,
    statistics,
    place,
    scale,
    dtype: gl.constexpr,
    half: gl.constexpr,
    AFTER: gl.constexpr,
    SETTINGS: gl.constexpr,
):
    """Return the weights and changes of half of a step's queries.

    Args:
        pending: both products of `start_step`, with AFTER others begun since.
        place: where row 0 is, the step, and the number of keys or None.
    """
    low, step, valid = place
    STEP: gl.constexpr = SETTINGS[0][1]
    PART: gl.constexpr = STEP // 2
    OF_PART: gl.constexpr = (
        (SETTINGS[0][0], PART),
        SETTINGS[1],
        SETTINGS[2],
        SETTINGS[3],
        SETTINGS[4],
        SETTINGS[5],
    )
    score = warpgroup_mma_wait(AFTER + 2, deps=[pending[0]])
    column: gl.constexpr = gl.SliceLayout(0, score.type.layout)
    logsum = statistics.slice(half * PART, PART).load(column)[None, :]
    p, slope = weights_of(score, logsum, low, 2 * step + half, valid, scale, OF_PART)
    change = warpgroup_mma_wait(AFTER, deps=[pending[1]])
    delta = statistics.slice(STEP + half * PART, PART).load(column)[None, :]
    return p.to(dtype), (slope * (change - delta)).to(dtype)


@gluon.jit
def exchanged(exchange, slot, use, p, change, half: gl.constexpr):
    """Store this group's weights and changes, and return those of both groups."""
    weights, changes, written, used = exchange
    PART: gl.constexpr = p.shape[1]
    mbarrier.wait(used.index(slot), use % 2 ^ 1)
    weights.index(slot).slice(half * PART, PART, dim=1).store(p)
    changes.index(slot).slice(half * PART, PART, dim=1).store(change)
    fence_async_shared()
    mbarrier.arrive(written.index(slot))
    mbarrier.wait(written.index(slot), use % 2)
    return weights.index(slot), changes.index(slot)


@gluon.jit
def add_step(gradients, tiles, grad, weights, changes, half: gl.constexpr):
    """Start to add a step to the gradients of a part of keys and values."""
    for_keys, for_values = gradients
    columns = grad[half].reshape([grad[half].shape[0], grad[half].shape[2]])
    for_values = warpgroup_mma(weights, columns, for_values, is_async=True)
    columns = tiles[half].reshape([tiles[half].shape[0], tiles[half].shape[2]])
    return warpgroup_mma(changes, columns, for_keys, is_async=True), for_values


@gluon.jit
def key_gradients_of_half(
    rings, exchange, outs, lists, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the weights of half of the queries, and half of the columns of the gradients of keys and values."""
    own, queries, results = rings
    used = exchange[3]
    (to_keys, to_values), (depth, width) = outs
    dtype: gl.constexpr = exchange[0].dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    PART: gl.constexpr = STEP // 2
    COLUMNS: gl.constexpr = SETTINGS[6]
    KEYS_FROM: gl.constexpr = half * COLUMNS[0][0]
    KEYS_OF: gl.constexpr = COLUMNS[0][half]
    VALUES_FROM: gl.constexpr = half * COLUMNS[1][0]
    VALUES_OF: gl.constexpr = COLUMNS[1][half]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    key_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS_OF, 16])
    value_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, VALUES_OF, 16])
    work = own_tile(lists, 4, SETTINGS)
    sequence, row = work[0]
    start, stop = work[3]
    low = row + work[2][1] - (work[1][1] - work[1][0])
    # Keys that are not there must not add to gradients of queries; a causal mask hides them.
    valid = None
    if SETTINGS[1][0] is None or SETTINGS[1][0] != 0:
        valid = work[1][1] - work[1][0] - row
    if sequence < lists[2]:
        nothing = gl.zeros([SIZE, PART], gl.float32, layout)
        for_keys = warpgroup_mma_init(gl.zeros([SIZE, KEYS_OF], gl.float32, key_layout))
        for_values = warpgroup_mma_init(gl.zeros([SIZE, VALUES_OF], gl.float32, value_layout))
        mine = own.wait(own.consumer())
        k = rows_of((mine[0], mine[1]), 0, SIZE)
        v = rows_of((mine[2], mine[3]), 0, SIZE)
        query = queries.consumer()
        result = results.consumer()
        i = start
        if SETTINGS[7]:
            tiles = queries.wait(query)
            grad = results.wait(result)
            pending = start_step(k, v, tiles, grad, nothing, half * PART)
            p, change = half_step(
                pending, tiles[2], (low, i, valid), scales[1], dtype, half, 0, SETTINGS
            )
            behind, behind_result = query, result
            for n in range(SETTINGS[5] * (stop - start)):
                i = gl.where(i + 1 < stop, i + 1, start)  # of the next head
                coming = queries.wait(query.next())
                coming_grad = results.wait(result.next())
                pending = start_step(k, v, coming, coming_grad, nothing, half * PART)
                for_values, for_keys = warpgroup_mma_wait(4, deps=[for_values, for_keys])
                for_values = warpgroup_mma_init(for_values)
                for_keys = warpgroup_mma_init(for_keys)
                slot = n % 2
                if n > 0:
                    mbarrier.arrive(used.index(slot ^ 1))
                    queries.release(behind)
                    results.release(behind_result)
                every = exchanged(exchange, slot, n // 2, p, change, half)
                for_keys, for_values = add_step(
                    (for_keys, for_values), tiles, grad, every[0], every[1], half
                )
                behind, query = query, query.next()
                behind_result, result = result, result.next()
                tiles, grad = coming, coming_grad
                p, change = half_step(
                    pending, tiles[2], (low, i, valid), scales[1], dtype, half, 2, SETTINGS
                )
        else:
            for n in range(SETTINGS[5] * (stop - start)):
                tiles = queries.wait(query)
                grad = results.wait(result)
                pending = start_step(k, v, tiles, grad, nothing, half * PART)
                p, change = half_step(
                    pending, tiles[2], (low, i, valid), scales[1], dtype, half, 0, SETTINGS
                )
                every = exchanged(exchange, 0, n, p, change, half)
                for_keys, for_values = add_step(
                    (for_keys, for_values), tiles, grad, every[0], every[1], half
                )
                for_values, for_keys = warpgroup_mma_wait(0, deps=[for_values, for_keys])
                for_values = warpgroup_mma_init(for_values)
                for_keys = warpgroup_mma_init(for_keys)
                mbarrier.arrive(used.index(0))
                queries.release(query)
                results.release(result)
                query = query.next()
                result = result.next()
                i = gl.where(i + 1 < stop, i + 1, start)  # of the next head
        done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
        # Computed again: numbers that the loop does not need would take registers in it.
        tile = own_tile(lists, 4, SETTINGS)
        place = (tile[1][0] + tile[0][1], tile[1][1], place_of_program()[1])
        store_columns(to_values, done[0], VALUES_FROM, width, place)
        store_columns(to_keys, done[1] * scales[0], KEYS_FROM, depth, place)


@gluon.jit
def wide_key_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, statistics, rows, of_queries, of_keys, count, scale,
    log_scale, cap, depth, width, SHARED: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    MOST: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, [tokens, heads, depth] and [tokens, heads, width].

    Operands are those of `varlen_key_gradients`, their descriptors pairs: of 128 columns of queries and keys and of the 64 or 128 behind, and of two parts of
    values and of the gradients of results.
    """
    SIZE: gl.constexpr = k_desc[0].block_type.shape[0]
    STEP: gl.constexpr = q_desc[0].block_type.shape[0]
    COLUMNS: gl.constexpr = (
        (k_desc[0].block_type.shape[2], k_desc[1].block_type.shape[2]),
        (v_desc[0].block_type.shape[2], v_desc[1].block_type.shape[2]),
    )
    gl.static_assert(SIZE == 64 and STEP == 64, "64 keys and queries")
    REVERSED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SLOTS: gl.constexpr = 3 if AHEAD else 2
    SETTINGS: gl.constexpr = ((SIZE, STEP), REVERSED, CAPPED, MOST, True, SHARED, COLUMNS, AHEAD)
    wait_for_predecessor()
    rings = (
        tma_ring([k_desc[0], k_desc[1], v_desc[0], v_desc[1]], 1, consumers=2),
        tma_ring([q_desc[0], q_desc[1], statistics], SLOTS, consumers=2),
        tma_ring(grad_desc, SLOTS, consumers=2),
    )
    by_half: gl.constexpr = gl.NVMMASharedLayout(64, 16, rank=2)  # 32 columns are contiguous
    weights = gl.allocate_shared_memory(q_desc[0].dtype, [SLOTS - 1, SIZE, STEP], by_half)
    changes = gl.allocate_shared_memory(q_desc[0].dtype, [SLOTS - 1, SIZE, STEP], by_half)
    written = mbarrier.allocate_mbarrier(batch=SLOTS - 1)
    used = mbarrier.allocate_mbarrier(batch=SLOTS - 1)
    for slot in gl.static_range(SLOTS - 1):
        mbarrier.init(written.index(slot), 2)
        mbarrier.init(used.index(slot), 2)
    exchange = (weights, changes, written, used)
    outs = ((to_keys, to_values), (depth, width))
    lists = (of_keys, of_queries, count)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (key_gradients_of_half, (rings, exchange, outs, lists, scales, 0, SETTINGS)),
            (key_gradients_of_half, (rings, exchange, outs, lists, scales, 1, SETTINGS)),
            (walk_queries, (rings, lists, rows, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.constexpr_function
def slots_of_values(columns):
    """Return how many tiles of values fit the shared memory with 128 rows of queries and two tiles of keys."""
    return 2 if sum(columns[0]) + sum(columns[1]) <= 448 else 1


@gluon.jit
def walk_keys(rings, lists, SETTINGS: gl.constexpr):
    """Copy the program's queries and the gradients of their results, then the keys and values that they see."""
    own, keys, values = rings
    STEP: gl.constexpr = SETTINGS[0][1]
    (sequence, row), (first, _), (other, _), (start, stop) = own_tile(lists, 1, SETTINGS)
    _, head = place_of_program()
    if sequence < lists[2]:
        fetch_own(own, first + row, head, SETTINGS[6])
        key = keys.producer()
        value = values.producer()
        of = head // SETTINGS[5]
        for i in range(start, stop):
            line = other + i * STEP
            COLUMNS: gl.constexpr = SETTINGS[6]
            keys.fetch(key, [[line, of, 0], [line, of, COLUMNS[0][0]]])
            values.fetch(value, [[line, of, 0], [line, of, COLUMNS[1][0]]])
            key = key.next()
            value = value.next()


@gluon.jit
def query_gradients_of_half(
    rings, out, known, lists, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of a tile of queries."""
    own, keys, values = rings
    statistics, rows, depth = known
    FIRST: gl.constexpr = SETTINGS[6][0][0]
    SECOND: gl.constexpr = SETTINGS[6][0][1]
    dtype: gl.constexpr = keys.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, FIRST, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SECOND, 16])
    rest_operand: gl.constexpr = gl.DotOperandLayout(0, rest_layout, 2)
    (sequence, row), (first, end), (_, length), (start, stop) = own_tile(lists, 4, SETTINGS)
    row += half * ROWS
    low = row + length - (end - first)
    _, head = place_of_program()
    if sequence < lists[2]:
        near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        place = (
            statistics + 2 * (head * rows + padded_start(first, sequence, 64) + row) + near - row
        )
        valid = near < end - first
        logsum = gl.load(place, mask=valid, other=float("inf"))[:, None]
        delta = gl.load(place + 64, mask=valid, other=0.0)[:, None]
        zeros = gl.zeros([ROWS, STEP], gl.float32, layout)
        acc = warpgroup_mma_init(gl.zeros([ROWS, FIRST], gl.float32, out_layout))
        rest = warpgroup_mma_init(gl.zeros([ROWS, SECOND], gl.float32, rest_layout))
        tiles = own.wait(own.consumer())
        q = rows_of((tiles[0], tiles[1]), half * ROWS, ROWS)
        grad = rows_of((tiles[2], tiles[3]), half * ROWS, ROWS)
        key = keys.consumer()
        value = values.consumer()
        for i in range(start, stop):
            k = rows_of(keys.wait(key), 0, STEP)
            score = start_product(q, k, zeros)
            change = start_product(grad, rows_of(values.wait(value), 0, STEP), zeros)
            score = warpgroup_mma_wait(2, deps=[score])
            p, slope = weights_of(score, logsum, low, i, length, scales[1], SETTINGS)
            change = warpgroup_mma_wait(0, deps=[change])
            values.release(value)
            change = (slope * (change - delta)).to(dtype)
            left = gl.convert_layout(change, operand)
            acc = warpgroup_mma(left, k[0], acc, is_async=True)
            right = gl.convert_layout(change, rest_operand)
            rest = warpgroup_mma(right, k[1], rest, is_async=True)
            acc, rest = warpgroup_mma_wait(0, deps=[acc, rest])
            acc, rest = warpgroup_mma_init(acc), warpgroup_mma_init(rest)
            keys.release(key)
            key = key.next()
            value = value.next()
        place = (first + row, end, head)
        done, last = warpgroup_mma_wait(0, deps=[acc, rest])
        store_columns(out, done * scales[0], 0, depth, place)
        store_columns(out, last * scales[0], FIRST, depth, place)


@gluon.jit
def wide_query_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_queries, statistics, rows, of_queries, of_keys, count, scale, log_scale, cap,
    depth, SHARED: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Store the gradients of queries, [tokens, heads, depth]; operands are those of `wide_key_gradients`, `statistics` a pointer."""
    SIZE: gl.constexpr = q_desc[0].block_type.shape[0]
    STEP: gl.constexpr = k_desc[0].block_type.shape[0]
    COLUMNS: gl.constexpr = (
        (k_desc[0].block_type.shape[2], k_desc[1].block_type.shape[2]),
        (v_desc[0].block_type.shape[2], v_desc[1].block_type.shape[2]),
    )
    SETTINGS: gl.constexpr = ((SIZE, STEP), WINDOW, CAPPED, MOST, False, SHARED, COLUMNS)
    wait_for_predecessor()
    rings = (
        tma_ring([q_desc[0], q_desc[1], grad_desc[0], grad_desc[1]], 1, consumers=2),
        tma_ring(k_desc, 2, consumers=2),
        tma_ring(v_desc, slots_of_values(COLUMNS), consumers=2),
    )
    known = (statistics, rows, depth)
    lists = (of_queries, of_keys, count)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (query_gradients_of_half, (rings, to_queries, known, lists, scales, 0, SETTINGS)),
            (query_gradients_of_half, (rings, to_queries, known, lists, scales, 1, SETTINGS)),
            (walk_keys, (rings, lists, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
