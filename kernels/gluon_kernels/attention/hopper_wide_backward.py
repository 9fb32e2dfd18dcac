"""The gradients of attention with heads of up to 256 elements on Hopper in one kernel, which adds to those of queries as it goes.

Sums of 64 keys by 256 columns leave registers for few scores. So two groups of four warps share a tile of 64 keys: each computes the
weights and changes of half of a step's queries, sees those of the other group in shared memory, and multiplies them all for its
half of the columns: of the gradients of keys, of values, and of queries, which TMA adds to float32 sums in the order of registers
(see `sums.py`). Tiles, weights and statistics are those of `hopper_varlen_gradients.py`. In which order programs add is not known, so that
equal inputs have nearly equal bits only.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.hopper_exchange import add_to_sums
from gluon_kernels.attention.hopper_varlen_gradients import own_tile, weights_of
from gluon_kernels.attention.varlen_sums import padded_start
from gluon_kernels.dependent import wait_for_predecessor


@gluon.jit
def walk(rings, lists, rows, SETTINGS: gl.constexpr):
    """Copy the program's keys and values, then the queries that it walks over, of each head."""
    own, queries, results = rings
    STEP: gl.constexpr = SETTINGS[0][1]
    (sequence, row), (first, _), (other, _), (start, stop) = own_tile(lists, 1, SETTINGS)
    head = gl.program_id(1)
    if sequence < lists[2]:
        own.fetch(own.producer(), [[first + row, head, 0], [first + row, head, 0]])
        query = queries.producer()
        result = results.producer()
        for of in range(head * SETTINGS[5], (head + 1) * SETTINGS[5]):
            begin = 2 * (of * rows + padded_start(other, sequence, STEP))
            for i in range(start, stop):
                line = other + i * STEP
                queries.fetch(query, [[line, of, 0], [begin + 2 * i * STEP]])
                results.fetch(result, [[line, of, 0]])
                query = query.next()
                result = result.next()


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
def gradients_of_half(
    rings, exchange, outs, lists, scales, rows, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the weights of half of the queries, and half of the columns of all gradients."""
    own, queries, results = rings
    weights, changes, written, used = exchange
    (to_keys, to_values), (depth, width), sums = outs
    dtype: gl.constexpr = weights.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    PART: gl.constexpr = STEP // 2
    D: gl.constexpr = SETTINGS[6]
    V: gl.constexpr = results.block_shape[2]
    OF_PART: gl.constexpr = (
        (SIZE, PART),
        SETTINGS[1],
        SETTINGS[2],
        SETTINGS[3],
        SETTINGS[4],
        SETTINGS[5],
    )
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    key_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D // 2, 16])
    value_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, V // 2, 16])
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    column: gl.constexpr = gl.SliceLayout(0, layout)
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
        zeros = gl.zeros([STEP, 64], gl.float32, square)
        for_keys = warpgroup_mma_init(gl.zeros([SIZE, D // 2], gl.float32, key_layout))
        for_values = warpgroup_mma_init(gl.zeros([SIZE, V // 2], gl.float32, value_layout))
        buffer = gl.allocate_shared_memory(gl.float32, [16, 256], sums.layout)
        k, v = own.wait(own.consumer())
        k = k.reshape([SIZE, D])
        v = v.reshape([SIZE, V])
        query = queries.consumer()
        result = results.consumer()
        i = start
        # Where a step's sums lie, 16 rows for 64 columns of them.
        to = gl.program_id(1) * SETTINGS[5] * rows + padded_start(work[2][0], sequence, STEP)
        to = (to // STEP + start) * (D // 4) + half * (D // 8)
        for n in range(SETTINGS[5] * (stop - start)):
            q, statistics = queries.wait(query)
            grad = results.wait(result)
            q, grad = q.reshape([STEP, D]), grad.reshape([STEP, V])
            own_queries = q.slice(half * PART, PART, dim=0).permute((1, 0))
            own_results = grad.slice(half * PART, PART, dim=0).permute((1, 0))
            score = warpgroup_mma(k, own_queries, nothing, use_acc=False, is_async=True)
            change = warpgroup_mma(v, own_results, nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1, deps=[score])
            logsum = statistics.slice(half * PART, PART).load(column)[None, :]
            p, slope = weights_of(score, logsum, low, 2 * i + half, valid, scales[1], OF_PART)
            change = warpgroup_mma_wait(0, deps=[change])
            delta = statistics.slice(STEP + half * PART, PART).load(column)[None, :]
            change = slope * (change - delta)
            mbarrier.wait(used, n % 2 ^ 1)
            weights.slice(half * PART, PART, dim=1).store(p.to(dtype))
            changes.slice(half * PART, PART, dim=1).store(change.to(dtype))
            fence_async_shared()
            mbarrier.arrive(written)
            mbarrier.wait(written, n % 2)
            every = changes.permute((1, 0))
            first = k.slice(half * (D // 2), 64, dim=1)
            second = k.slice(half * (D // 2) + 64, 64, dim=1)
            one = warpgroup_mma(every, first, zeros, use_acc=False, is_async=True)
            other = warpgroup_mma(every, second, zeros, use_acc=False, is_async=True)
            columns = grad.slice(half * (V // 2), V // 2, dim=1)
            for_values = warpgroup_mma(weights, columns, for_values, is_async=True)
            columns = q.slice(half * (D // 2), D // 2, dim=1)
            for_keys = warpgroup_mma(changes, columns, for_keys, is_async=True)
            add_to_sums(sums, buffer, warpgroup_mma_wait(3, deps=[one]), to)
            add_to_sums(sums, buffer, warpgroup_mma_wait(2, deps=[other]), to + 16)
            for_values, for_keys = warpgroup_mma_wait(0, deps=[for_values, for_keys])
            for_values = warpgroup_mma_init(for_values)
            for_keys = warpgroup_mma_init(for_keys)
            mbarrier.arrive(used)
            queries.release(query)
            results.release(result)
            query = query.next()
            result = result.next()
            last_step = i + 1 == stop  # the next head's
            to += gl.where(last_step, rows // STEP - (stop - start) + 1, 1) * (D // 4)
            i = gl.where(last_step, start, i + 1)
        tma.store_wait(0)
        done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
        # Computed again: numbers that the loop does not need would take registers in it.
        tile = own_tile(lists, 4, SETTINGS)
        place = (tile[1][0] + tile[0][1], tile[1][1], gl.program_id(1))
        store_columns(to_values, done[0], half * (V // 2), width, place)
        store_columns(to_keys, done[1] * scales[0], half * (D // 2), depth, place)


@gluon.jit
def wide_gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, statistics, sums, rows, of_queries, of_keys, count, scale,
    log_scale, cap, depth, width, SHARED: gl.constexpr, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    MOST: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values, [tokens, heads, depth] and [tokens, heads, width], and add to those of queries.

    Operands are those of `varlen_gradients_atomic`; blocks of queries and keys have 256 columns, those of values and of the result's gradients
    128 or 256.
    """
    SIZE: gl.constexpr = k_desc.block_type.shape[0]
    STEP: gl.constexpr = q_desc.block_type.shape[0]
    D: gl.constexpr = k_desc.block_type.shape[2]
    gl.static_assert(SIZE == 64 and STEP == 64 and D == 256, "64 keys and queries of 256 columns")
    REVERSED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SETTINGS: gl.constexpr = ((SIZE, STEP), REVERSED, CAPPED, MOST, True, SHARED, D)
    wait_for_predecessor()
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, statistics], 2, consumers=2),
        tma_ring(grad_desc, 1, consumers=2),
    )
    by_half: gl.constexpr = gl.NVMMASharedLayout(64, 16, rank=2)  # 32 columns are contiguous
    weights = gl.allocate_shared_memory(q_desc.dtype, [SIZE, STEP], by_half)
    changes = gl.allocate_shared_memory(q_desc.dtype, [SIZE, STEP], by_half)
    written = mbarrier.allocate_mbarrier()
    used = mbarrier.allocate_mbarrier()
    mbarrier.init(written, 2)
    mbarrier.init(used, 2)
    exchange = (weights, changes, written, used)
    outs = ((to_keys, to_values), (depth, width), sums)
    lists = (of_keys, of_queries, count)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, outs, lists, scales, rows, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, outs, lists, scales, rows, 1, SETTINGS)),
            (walk, (rings, lists, rows, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
