"""The gradients of attention with heads of up to 256 elements on Hopper, in one kernel for keys and values and one for queries.

Sums of 64 keys by 256 columns leave registers for few scores. So two groups of four warps share a tile of 64 keys: one computes the weights and adds to the
gradients of values, the other one the changes of scores, for which it takes the weights from shared memory, and adds to the gradients of keys. Both multiply
their weights or changes from registers: shared memory, whose rate is the bound, is read for 64 x 64 products only. Sums of queries in memory, as
`hopper_backward.py` has them, would be added to twice as often as with tiles of 128 keys: each group of the other kernel has 64 queries instead, and computes the weights
again. Tiles, weights and statistics are those of `hopper_varlen_gradients.py`. Equal inputs give equal bits.

Heads are in two parts: of 128 columns and of 64 or 128, values of up to 128 columns in halves.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    mbarrier,
    tma_ring,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.hopper_turns import (
    end_turn,
    next_turn,
    pass_turn,
    take_turn,
    turns_of,
)
from gluon_kernels.attention.hopper_varlen_gradients import (
    own_tile,
    place_of_program,
    tile_of,
    weights_of,
)
from gluon_kernels.attention.online import (
    accumulators,
    layouts_of,
    matrices,
    operands,
    start_product,
    start_sums,
    store_rows,
    wait_sums,
    zeros_of,
)
from gluon_kernels.attention.packed import place_of
from gluon_kernels.attention.varlen_sums import padded_start
from gluon_kernels.dependent import end_behind_predecessor, wait_for_predecessor


@gluon.jit
def fetch_own(own, position, line, head, COLUMNS: gl.constexpr, pred=True):
    """Copy both parts of keys and values, or of queries and gradients of results."""
    keys = [line, head, COLUMNS[0][0]]
    values = [line, head, COLUMNS[1][0]]
    own.fetch(position, [[line, head, 0], keys, [line, head, 0], values], pred)


@gluon.jit
def copied_from(first, row, sequence, head, heads, SETTINGS: gl.constexpr):
    """Return the line and the head that descriptors have for a row of a sequence: a token's, or, where heads are apart, the row's and those of all sequences."""
    if SETTINGS[7]:
        line, of = row, sequence * heads + head
    else:
        line, of = first + row, head
    return line, of


@gluon.jit
def rows_of(blocks, FIRST: gl.constexpr, ROWS: gl.constexpr):
    """Return some rows of both parts of a tile, as matrices."""
    left = blocks[0].reshape([blocks[0].shape[0], blocks[0].shape[2]])
    right = blocks[1].reshape([blocks[1].shape[0], blocks[1].shape[2]])
    return left.slice(FIRST, ROWS, dim=0), right.slice(FIRST, ROWS, dim=0)


@gluon.jit
def store_head(out, result, column, place, heads, sequence, length, width):
    """Store some columns of the rows of a head; tensors are [tokens, heads, width], or [sequences, heads, length, width] where `length` is not 0."""
    line, end, head = place
    out += (sequence * (heads - 1) + head).to(gl.int64) * length * width
    apart = length > 0
    place = (line, end, gl.where(apart, 0, head))
    store_rows(out, result, column, place, gl.where(apart, 1, heads), width)


@gluon.jit
def steps_of(start, stop, SETTINGS: gl.constexpr):
    """Return the steps of a program: one for keys that no query sees, which leave the result alone, since ptxas serializes products in a branch."""
    return gl.maximum(SETTINGS[5] * (stop - start), 1)


@gluon.jit
def walk_queries(rings, copied, turns, counter, lists, deal, SETTINGS: gl.constexpr):
    """Find the program's tiles of keys; copy these, their values, and the queries that it walks over, of each head.

    `copied` are the descriptors of both parts of queries, and of the statistics; these come from the kernel before, which the first tile does not wait for; a later kernel needs not wait.
    """
    own, queries, results = rings
    left, right, known = (
        queries.part(0, copied[0]),
        queries.part(1, copied[1]),
        queries.part(2, copied[2]),
    )
    tiles, heads, together, rows = deal
    STEP: gl.constexpr = SETTINGS[0][1]
    COLUMNS: gl.constexpr = SETTINGS[6]
    mine = own.producer()
    query = queries.producer()
    result = results.producer()
    number = gl.program_id(0)
    nth = 0
    while number < tiles * heads:
        place, head = place_of(number, tiles, heads, together)
        work = tile_of(lists, place, heads, 1, SETTINGS)
        (sequence, row), (first, end), (other, length), (start, stop) = work
        if sequence < lists[2]:
            low = row + length - (end - first)
            pass_turn(turns, nth, (head, sequence, first + row, end, low, start, stop))
            nth += 1
            of = head * SETTINGS[5]
            i = start
            pending = True
            for _ in range(steps_of(start, stop, SETTINGS)):
                begin = 2 * (of * rows + padded_start(other, sequence, STEP))
                line, its_head = copied_from(
                    other, i * STEP, sequence, of, heads * SETTINGS[5], SETTINGS
                )
                left.fetch(query, [[line, its_head, 0]])
                right.fetch(query, [[line, its_head, COLUMNS[0][0]]])
                results.fetch(result, [[line, its_head, 0], [line, its_head, COLUMNS[1][0]]])
                # The slots of queries are free while those of keys still serve the last tile.
                line, its_head = copied_from(
                    first, row, sequence, head // SETTINGS[9], heads // SETTINGS[9], SETTINGS
                )
                fetch_own(own, mine, line, its_head, COLUMNS, pending)
                pending = False
                if not SETTINGS[8]:
                    wait_for_predecessor()
                known.fetch(query, [[begin + 2 * i * STEP]])
                query = query.next()
                result = result.next()
                last_step = i + 1 >= stop
                of += gl.where(last_step, 1, 0)
                i = gl.where(last_step, start, i + 1)
            mine = mine.next()
        if not SETTINGS[8]:
            wait_for_predecessor()
        number = next_turn(counter)  # not before: another program may be free earlier
    pass_turn(turns, nth, (heads, 0, 0, 0, 0, 0, 0))


@gluon.jit
def step_operand(
    product, statistics, exchange, n, place, scale, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Return the weights of a step, or with `half` 1 the changes, of the product of keys with queries or of values with gradients of results.

    Args:
        n: the step's number; the first group passes the weights (their derivatives with a cap) to the second one.
        place: where row 0 is, the step's tile of queries, and the number of keys or None.
    """
    buffers, written, used = exchange
    STEP: gl.constexpr = SETTINGS[0][1]
    dtype: gl.constexpr = buffers.dtype
    layout: gl.constexpr = product.type.layout
    column: gl.constexpr = gl.SliceLayout(0, layout)
    slot = n % 2
    known = statistics.slice(half * STEP, STEP).load(column)[None, :]
    if half == 0:
        low, tile, valid = place
        p, slope = weights_of(product, known, low, tile, valid, scale, SETTINGS)
        mbarrier.wait(used.index(slot), n // 2 % 2 ^ 1)
        buffers.index(slot).store(slope.to(dtype))
        mbarrier.arrive(written.index(slot))
        result = p.to(dtype)
    else:
        mbarrier.wait(written.index(slot), n // 2 % 2)
        slope = buffers.index(slot).load(layout).to(gl.float32)
        result = (slope * (product - known)).to(dtype)
    return result


@gluon.jit
def gradients_of(
    rings, exchange, turns, out, deal, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of the program's tiles of values, or with `half` 1 of keys.

    A step multiplies the next queries (or gradients of results) with the tile, and adds the last ones to the gradients meanwhile.
    """
    own, queries, results = rings
    used = exchange[2]
    heads = deal[1]
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    COLUMNS: gl.constexpr = SETTINGS[6][1 - half]
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    nothing = gl.zeros([SIZE, STEP], gl.float32, layout)
    if half == 0:
        ahead, behind = queries, results
    else:
        ahead, behind = results, queries
    mine, here, last = own.consumer(), ahead.consumer(), behind.consumer()
    n = 0
    nth = 0
    head, sequence, line, end, low, start, stop = take_turn(turns, nth)
    while head < heads:
        # Keys that are not there must not add to gradients of queries; a causal mask hides them.
        valid = None
        if SETTINGS[1][0] is None or SETTINGS[1][0] != 0:
            valid = end - line
        accs = accumulators(zeros_of(SIZE, LAYOUTS))
        blocks = own.wait(mine)
        tile = rows_of((blocks[2 * half], blocks[2 * half + 1]), 0, SIZE)
        coming = ahead.wait(here)
        pending = start_product(tile, rows_of((coming[0], coming[1]), 0, STEP), nothing)
        product = warpgroup_mma_wait(0, deps=[pending])
        if half == 0:
            known = coming[2]
        else:
            known = queries.wait(last)[2]
        place = (low, start, valid)
        change = step_operand(product, known, exchange, n, place, scales[1], half, SETTINGS)
        operand = operands(change, LAYOUTS)
        ahead.release(here)
        here = here.next()
        i = start
        for _ in range(1, steps_of(start, stop, SETTINGS)):
            n += 1
            i = gl.where(i + 1 < stop, i + 1, start)  # of the next head
            coming = ahead.wait(here)
            pending = start_product(tile, rows_of((coming[0], coming[1]), 0, STEP), nothing)
            accs = start_sums(accs, operand, matrices(behind.wait(last), STEP, 2))
            product = warpgroup_mma_wait(2, deps=[pending])
            if half == 0:
                known = coming[2]
            else:
                ahead.release(here)
                known = queries.wait(last.next())[2]
            place = (low, i, valid)
            change = step_operand(product, known, exchange, n, place, scales[1], half, SETTINGS)
            if half == 0:
                ahead.release(here)
            done = wait_sums(accs)
            behind.release(last)
            if half == 1:
                mbarrier.arrive(used.index((n - 1) % 2))
            accs = accumulators(done)
            operand = operands(change, LAYOUTS)
            here, last = here.next(), last.next()
        accs = start_sums(accs, operand, matrices(behind.wait(last), STEP, 2))
        done = wait_sums(accs)
        behind.release(last)
        last = last.next()
        if half == 1:
            mbarrier.arrive(used.index(n % 2))
        n += 1
        own.release(mine)
        mine = mine.next()
        # Taken again: numbers that the loop does not need would take registers in it.
        head, sequence, line, end, _, start, stop = take_turn(turns, nth)
        factor = scales[0] if half == 1 else 1.0
        to, length, width = out
        seen = start < stop
        left = gl.where(seen, done[0] * factor, 0.0)
        right = gl.where(seen, done[1] * factor, 0.0)
        place = (line, end, head)
        store_head(to, left, 0, place, heads, sequence, length, width)
        store_head(to, right, COLUMNS[0], place, heads, sequence, length, width)
        end_turn(turns, nth)  # all numbers have been used
        nth += 1
        head, sequence, line, end, low, start, stop = take_turn(turns, nth)


@gluon.jit
def wide_key_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, statistics, counter, tiles, heads, together, rows, of_queries, of_keys,
    count, scale, log_scale, cap, length, depth, width, SHARED: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    MOST: gl.constexpr, APART: gl.constexpr, LATER: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, [tokens, heads, depth] and [tokens, heads, width]; [sequences, heads, length, ...] where `length` is not 0.

    The programs, as many as run at once, take all tiles in turn: so many `tiles` of each of the `heads`, those of some heads `together`; `counter` is 0.
    PARTS of these heads, one behind the other, are one of keys, which SHARED heads of queries have for each part.
    Operands are those of `varlen_key_gradients`, their descriptors pairs: of 128 columns of queries and keys and of the 64 or 128 behind, and of two parts of
    values and of the gradients of results. Where heads are APART, each in a row, descriptors have the rows of a sequence and the heads of all.

    One of this kernel and that of queries is LATER: launched with `launch_pdl` behind the other, it fills the processors that the last programs of that one leave idle.
    """
    SIZE: gl.constexpr = k_desc[0].block_type.shape[0]
    STEP: gl.constexpr = q_desc[0].block_type.shape[0]
    COLUMNS: gl.constexpr = (
        (k_desc[0].block_type.shape[2], k_desc[1].block_type.shape[2]),
        (v_desc[0].block_type.shape[2], v_desc[1].block_type.shape[2]),
    )
    gl.static_assert(SIZE == 64 and STEP == 64, "64 keys and queries")
    REVERSED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SETTINGS: gl.constexpr = (
        (SIZE, STEP),
        REVERSED,
        CAPPED,
        MOST,
        True,
        SHARED,
        COLUMNS,
        APART,
        LATER,
        PARTS,
    )
    SLOTS: gl.constexpr = slots_of_queries(COLUMNS)
    copied = (q_desc[0], q_desc[1], statistics)
    rings = (
        tma_ring([k_desc[0], k_desc[1], v_desc[0], v_desc[1]], 1, consumers=2),
        tma_ring([q_desc[0], q_desc[1], statistics], SLOTS, consumers=2, producers=3),
        tma_ring(grad_desc, SLOTS, consumers=2),
    )
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    weights = gl.allocate_shared_memory(q_desc[0].dtype, [2, SIZE, STEP], layout)
    written = mbarrier.allocate_mbarrier(batch=2)
    used = mbarrier.allocate_mbarrier(batch=2)
    for slot in gl.static_range(2):
        mbarrier.init(written.index(slot), 1)
        mbarrier.init(used.index(slot), 1)
    exchange = (weights, written, used)
    turns = turns_of(2, 7)
    lists = (of_keys, of_queries, count)
    deal = (tiles, heads, together, rows)
    scales = (scale, (log_scale, cap))
    values = (to_values, length, width)
    keys = (to_keys, length, depth)
    gl.warp_specialize(
        [
            (gradients_of, (rings, exchange, turns, values, deal, scales, 0, SETTINGS)),
            (gradients_of, (rings, exchange, turns, keys, deal, scales, 1, SETTINGS)),
            (walk_queries, (rings, copied, turns, counter, lists, deal, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
    if LATER:
        end_behind_predecessor()


@gluon.constexpr_function
def slots_of_queries(columns):
    """Return how many steps of queries and gradients of results fit the shared memory with a tile of keys and values."""
    return 3 if sum(columns[0]) + sum(columns[1]) <= 384 else 2


@gluon.constexpr_function
def slots_of_tiles(columns):
    """Return how many tiles of keys and of values fit the shared memory with 128 rows of queries and gradients of results."""
    both = sum(columns[0]) + sum(columns[1])
    return (3, 2) if both <= 384 else (2, 2) if both <= 448 else (2, 1)


@gluon.jit
def walk_keys(rings, lists, SETTINGS: gl.constexpr):
    """Copy the program's queries and the gradients of their results, then the keys and values that they see."""
    own, keys, values = rings
    STEP: gl.constexpr = SETTINGS[0][1]
    COLUMNS: gl.constexpr = SETTINGS[6]
    (sequence, row), (first, _), (other, _), (start, stop) = own_tile(lists, 1, SETTINGS)
    _, head = place_of_program()
    heads = gl.num_programs(1)
    if sequence < lists[2]:
        line, of = copied_from(first, row, sequence, head, heads, SETTINGS)
        fetch_own(own, own.producer(), line, of, COLUMNS)
        key = keys.producer()
        value = values.producer()
        head //= SETTINGS[5]
        heads //= SETTINGS[5]
        for i in range(start, gl.maximum(stop, start + 1)):
            line, of = copied_from(other, i * STEP, sequence, head, heads, SETTINGS)
            keys.fetch(key, [[line, of, 0], [line, of, COLUMNS[0][0]]])
            values.fetch(value, [[line, of, 0], [line, of, COLUMNS[1][0]]])
            key = key.next()
            value = value.next()


@gluon.jit
def start_query_step(tiles, keys, values, key, value, nothing):
    """Start to multiply queries with a tile of keys, and gradients of results with one of values."""
    k = rows_of(keys.wait(key), 0, nothing.shape[1])
    score = start_product(tiles[0], k, nothing)
    v = rows_of(values.wait(value), 0, nothing.shape[1])
    return score, start_product(tiles[1], v, nothing)


@gluon.jit
def changes_of(products, known, place, outstanding: gl.constexpr, scale, SETTINGS: gl.constexpr):
    """Return the changes of scores; so many products begun since the two are not waited for."""
    low, tile, length = place
    score = warpgroup_mma_wait(outstanding + 2, deps=[products[0]])
    p, slope = weights_of(score, known[0][:, None], low, tile, length, scale, SETTINGS)
    change = warpgroup_mma_wait(outstanding, deps=[products[1]])
    return slope * (change - known[1][:, None])


@gluon.jit
def query_gradients_of_half(
    rings, out, known, lists, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of a tile of queries; where shared memory has two tiles of values, the products of the next step are under way meanwhile."""
    own, keys, values = rings
    statistics, rows, size, depth = known
    COLUMNS: gl.constexpr = SETTINGS[6][0]
    LAYOUTS: gl.constexpr = layouts_of(COLUMNS)
    dtype: gl.constexpr = keys.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    (sequence, row), (first, end), (_, length), (start, stop) = own_tile(lists, 4, SETTINGS)
    row += half * ROWS
    low = row + length - (end - first)
    _, head = place_of_program()
    if sequence < lists[2]:
        near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        to = statistics + 2 * (head * rows + padded_start(first, sequence, 64) + row) + near - row
        valid = near < end - first
        logsum = gl.load(to, mask=valid, other=float("inf"))
        delta = gl.load(to + 64, mask=valid, other=0.0)
        nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
        accs = accumulators(zeros_of(ROWS, LAYOUTS))
        blocks = own.wait(own.consumer())
        q = rows_of((blocks[0], blocks[1]), half * ROWS, ROWS)
        grad = rows_of((blocks[2], blocks[3]), half * ROWS, ROWS)
        key, value = keys.consumer(), values.consumer()
        tiles = (q, grad)
        if SETTINGS[8]:
            place = (low, start, length)
            products = start_query_step(tiles, keys, values, key, value, nothing)
            change = changes_of(products, (logsum, delta), place, 0, scales[1], SETTINGS)
            operand = operands(change.to(dtype), LAYOUTS)
            values.release(value)
            for i in range(start + 1, stop):
                value = value.next()
                products = start_query_step(tiles, keys, values, key.next(), value, nothing)
                accs = start_sums(accs, operand, matrices(keys.tiles(key), STEP, 2))
                place = (low, i, length)
                change = changes_of(products, (logsum, delta), place, 2, scales[1], SETTINGS)
                values.release(value)
                keys.wait(key)  # a branch behind the changes; see `online.add_tiles`
                accs = accumulators(wait_sums(accs))
                keys.release(key)
                key = key.next()
                operand = operands(change.to(dtype), LAYOUTS)
            done = wait_sums(start_sums(accs, operand, matrices(keys.tiles(key), STEP, 2)))
        else:
            for i in range(start, gl.maximum(stop, start + 1)):
                products = start_query_step(tiles, keys, values, key, value, nothing)
                place = (low, i, length)
                change = changes_of(products, (logsum, delta), place, 0, scales[1], SETTINGS)
                values.release(value)
                operand = operands(change.to(dtype), LAYOUTS)
                accs = start_sums(accs, operand, matrices(keys.tiles(key), STEP, 2))
                accs = accumulators(wait_sums(accs))
                keys.release(key)
                key, value = key.next(), value.next()
            done = wait_sums(accs)
        place = (first + row, end, head)
        seen = start < stop  # the step of queries that see no key is dropped, as in `steps_of`
        left = gl.where(seen, done[0] * scales[0], 0.0)
        right = gl.where(seen, done[1] * scales[0], 0.0)
        store_head(out, left, 0, place, gl.num_programs(1), sequence, size, depth)
        store_head(out, right, COLUMNS[0], place, gl.num_programs(1), sequence, size, depth)


@gluon.jit
def wide_query_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_queries, statistics, rows, of_queries, of_keys, count, scale, log_scale, cap,
    length, depth, SHARED: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
    APART: gl.constexpr, LATER: gl.constexpr,
):  # fmt: skip
    """Store the gradients of queries, [tokens, heads, depth] or [sequences, heads, length, depth]; operands are those of `wide_key_gradients`, `statistics` a pointer."""
    SIZE: gl.constexpr = q_desc[0].block_type.shape[0]
    STEP: gl.constexpr = k_desc[0].block_type.shape[0]
    COLUMNS: gl.constexpr = (
        (k_desc[0].block_type.shape[2], k_desc[1].block_type.shape[2]),
        (v_desc[0].block_type.shape[2], v_desc[1].block_type.shape[2]),
    )
    SLOTS: gl.constexpr = slots_of_tiles(COLUMNS)
    AHEAD: gl.constexpr = SLOTS[1] > 1
    SETTINGS: gl.constexpr = (
        (SIZE, STEP), WINDOW, CAPPED, MOST, False, SHARED, COLUMNS, APART, AHEAD,
    )  # fmt: skip
    rings = (
        tma_ring([q_desc[0], q_desc[1], grad_desc[0], grad_desc[1]], 1, consumers=2),
        tma_ring(k_desc, SLOTS[0], consumers=2),
        tma_ring(v_desc, SLOTS[1], consumers=2),
    )
    if not LATER:
        wait_for_predecessor()
    known = (statistics, rows, length, depth)
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
    if LATER:
        end_behind_predecessor()
