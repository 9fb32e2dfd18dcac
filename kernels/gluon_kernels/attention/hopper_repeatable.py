"""The gradients of attention on Hopper, in two kernels, without atomics: equal inputs, equal bits.

`key_gradients` has a tile of keys and values for each program and walks over the queries;
`query_gradients` has a tile of queries and walks over the keys. Both recompute the weights from what
the forward pass has kept of each row: the logarithm (base 2) of its sum. Everything is transposed in
the first, so that what is computed in registers is at once the left operand of the next product.

One warp copies tiles into a ring; two groups of four warps have half of the program's tile each, and
one's exponentials run while the other multiplies.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)


@gluon.jit
def walk(ring, tile, first, last, own_head, heads):
    """Copy the program's own tiles, then those that it walks over, of all `heads`: the first one and the one past the last."""
    own, others = ring
    SIZE: gl.constexpr = own.block_shape[1]
    STEP: gl.constexpr = others.block_shape[1]
    own.fetch(own.producer(), [[own_head, tile * SIZE, 0], [own_head, tile * SIZE, 0]])
    position = others.producer()
    for head in range(heads[0], heads[1]):
        for i in range(first, last):
            others.fetch(position, [[head, i * STEP, 0], [head, i * STEP, 0]])
            position = position.next()


@gluon.jit
def key_gradients_of_half(
    rings, writers, statistics, place, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    own, others = rings
    to_keys, to_values = writers
    logsums, deltas, length = statistics
    tile, of_keys, first, last = place
    CAUSAL: gl.constexpr = SETTINGS[0]
    SHARED: gl.constexpr = SETTINGS[1]
    scale, log_scale = scales
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = own.block_shape[1]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = others.block_shape[1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    start = tile * SIZE + half * ROWS
    key = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
    for_keys = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
    for_values = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))

    k, v = own.wait(own.consumer())
    k = k.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
    v = v.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
    position = others.consumer()
    # Only the first queries need the mask. With 128 columns two loops have too few registers.
    LOOPS: gl.constexpr = 2 if CAUSAL and D == 64 else 1
    middle = gl.minimum(first + SIZE // STEP, last) if LOOPS == 2 else last
    for head in range(of_keys * SHARED, (of_keys + 1) * SHARED):
        for loop in gl.static_range(LOOPS):
            for i in range(first if loop == 0 else middle, middle if loop == 0 else last):
                query = i * STEP + gl.arange(0, STEP, gl.SliceLayout(0, layout))
                there = query < length
                # The weights of queries that are not there are 0.
                logsum = gl.load(logsums + head * length + query, mask=there, other=float("inf"))
                delta = gl.load(deltas + head * length + query, mask=there, other=0.0)
                q, grad = others.wait(position)
                q, grad = q.reshape([STEP, D]), grad.reshape([STEP, D])
                score = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
                change = warpgroup_mma(
                    v, grad.permute((1, 0)), nothing, use_acc=False, is_async=True
                )
                score = warpgroup_mma_wait(1, deps=[score])
                p = gl.exp2(score * log_scale - logsum[None, :])
                if CAUSAL and loop == 0:
                    if i * STEP < start + ROWS:
                        p = gl.where(query[None, :] >= key[:, None], p, 0.0)
                weights = gl.convert_layout(p.to(dtype), operand)
                change = warpgroup_mma_wait(0, deps=[change])
                for_values = warpgroup_mma(weights, grad, for_values, is_async=True)
                change = gl.convert_layout((p * (change - delta[None, :])).to(dtype), operand)
                for_keys = warpgroup_mma(change, q, for_keys, is_async=True)
                for_values, for_keys = warpgroup_mma_wait(0, deps=[for_values, for_keys])
                for_values = warpgroup_mma_init(for_values)
                for_keys = warpgroup_mma_init(for_keys)
                others.release(position)
                position = position.next()
    done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
    to_values.store([of_keys, start, 0], done[0])
    to_keys.store([of_keys, start, 0], done[1] * scale)
    to_values.close()


@gluon.jit
def key_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, logsums, deltas, length, scale, log_scale,
    STAGES: gl.constexpr, CAUSAL: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values.

    Tensors are [heads, length, D] of queries and [heads / SHARED, key_length, D] of keys, `logsums` and `deltas` [heads, length]; `scale`
    is that of the scores, `log_scale` the same times log2(e).
    """
    SIZE: gl.constexpr = k_desc.block_type.shape[1]
    STEP: gl.constexpr = q_desc.block_type.shape[1]
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc], STAGES, consumers=2),
    )
    upper = (tma_writer(to_keys), tma_writer(to_values))
    lower = (tma_writer(to_keys), tma_writer(to_values))
    tile = gl.program_id(0)
    head = gl.program_id(1)
    first = 0
    if CAUSAL:
        first = tile * SIZE // STEP
    last = gl.cdiv(length, STEP)
    place = (tile, head, first, last)
    statistics = (logsums, deltas, length)
    scales = (scale, log_scale)
    heads = (head * SHARED, (head + 1) * SHARED)
    SETTINGS: gl.constexpr = (CAUSAL, SHARED)
    gl.warp_specialize(
        [
            (key_gradients_of_half, (rings, upper, statistics, place, scales, 0, SETTINGS)),
            (key_gradients_of_half, (rings, lower, statistics, place, scales, 1, SETTINGS)),
            (walk, (rings, tile, first, last, head, heads)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def query_gradients_of_half(
    rings, writer, statistics, place, scales, half: gl.constexpr, CAUSAL: gl.constexpr
):
    own, others = rings
    logsums, deltas, length = statistics
    tile, head, last = place
    scale, log_scale = scales
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = own.block_shape[1]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = others.block_shape[1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    start = tile * SIZE + half * ROWS
    query = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    there = query < length
    logsum = gl.load(logsums + head * length + query, mask=there, other=float("inf"))[:, None]
    delta = gl.load(deltas + head * length + query, mask=there, other=0.0)[:, None]
    nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
    acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))

    q, grad = own.wait(own.consumer())
    q = q.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
    grad = grad.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
    position = others.consumer()
    for i in range(last):
        k, v = others.wait(position)
        k = k.reshape([STEP, D])
        v = v.reshape([STEP, D]).permute((1, 0))
        score = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
        change = warpgroup_mma(grad, v, nothing, use_acc=False, is_async=True)
        score = warpgroup_mma_wait(1, deps=[score])
        power = score * log_scale - logsum
        # A key that does not exist is 0, and must not meet an infinity.
        p = gl.exp2(gl.minimum(power, 64.0))
        if CAUSAL:
            if (i + 1) * STEP > start:
                key = i * STEP + gl.arange(0, STEP, gl.SliceLayout(0, layout))
                p = gl.where(query[:, None] >= key[None, :], p, 0.0)
        change = warpgroup_mma_wait(0, deps=[change])
        change = gl.convert_layout((p * (change - delta)).to(dtype), operand)
        acc = warpgroup_mma(change, k, acc, is_async=True)
        acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
        others.release(position)
        position = position.next()
    writer.store([head, start, 0], warpgroup_mma_wait(0, deps=[acc]) * scale)
    writer.close()


@gluon.jit
def query_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_queries, logsums, deltas, length, key_length, scale,
    log_scale,
    STAGES: gl.constexpr, CAUSAL: gl.constexpr, SHARED: gl.constexpr,
):  # fmt: skip
    """Store the gradient of queries; see `key_gradients`."""
    SIZE: gl.constexpr = q_desc.block_type.shape[1]
    STEP: gl.constexpr = k_desc.block_type.shape[1]
    rings = (
        tma_ring([q_desc, grad_desc], 1, consumers=2),
        tma_ring([k_desc, v_desc], STAGES, consumers=2),
    )
    upper = tma_writer(to_queries)
    lower = tma_writer(to_queries)
    # The last tiles have the most keys: they come first.
    tile = gl.num_programs(0) - 1 - gl.program_id(0)
    head = gl.program_id(1)
    end = key_length
    if CAUSAL:
        end = gl.minimum((tile + 1) * SIZE, key_length)
    last = gl.cdiv(end, STEP)
    of_keys = head // SHARED
    place = (tile, head, last)
    statistics = (logsums, deltas, length)
    scales = (scale, log_scale)
    gl.warp_specialize(
        [
            (query_gradients_of_half, (rings, upper, statistics, place, scales, 0, CAUSAL)),
            (query_gradients_of_half, (rings, lower, statistics, place, scales, 1, CAUSAL)),
            (walk, (rings, tile, 0, last, head, (of_keys, of_keys + 1))),
        ],
        [4, 1],
        [240, 24],
    )
