"""The walk over chunks of the delta rule on Hopper: TMA, `wgmma` and warp specialization.

It computes `portable.recur`. A group of four warps has 64 columns of a head's values. Its state, transposed, stays in registers: it is
the sum of one product and the left operand of the next ones, as are the values of a chunk, so that nothing but results passes through
shared memory. One warp copies tiles of keys, queries, values, P and T ahead; two groups share them.
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
from gluon_kernels.dependent import wait_for_predecessor
from gluon_kernels.linear_attention.portable import decay_size

__all__ = ["first_state", "place_of", "recur", "share_columns", "writers_of"]


@gluon.jit
def place_of(sizes, GROUPS: gl.constexpr):
    """Return the batch, the head, the tile of columns, the first chunk and the one past the last, and the segment."""
    heads, chunks, per_segment, _, _ = sizes
    head = gl.program_id(1) % heads
    segment = gl.program_id(1) // heads
    first = segment * per_segment
    last = gl.minimum(first + per_segment, chunks)
    return gl.program_id(2), head, gl.program_id(0) * (64 * GROUPS), first, last, segment


@gluon.jit
def first_state(initial, sizes, group: gl.constexpr, K: gl.constexpr, GROUPS: gl.constexpr):
    """Return the transposed state of a group's 64 columns, [64, K], zeros without `initial`; the head, the segment, and the offsets of the state in one."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    batch, head, first_column, _, _, segment = place_of(sizes, GROUPS)
    of_head = batch * sizes[0] + head
    of_segment = (of_head * (gl.num_programs(1) // sizes[0]) + segment).to(gl.int64)
    row = first_column + group * 64 + gl.arange(0, 64, gl.SliceLayout(1, layout))
    offsets = row[:, None] * K + gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    state = gl.zeros([64, K], gl.float32, layout)
    if initial is not None:
        state = gl.load(initial + of_segment * (K * sizes[4]) + offsets)
    return state, of_head, of_segment, offsets


@gluon.jit
def writers_of(descriptors):
    """Return a writer for each descriptor."""
    writers = ()
    for i in gl.static_range(len(descriptors)):
        writers = writers + (tma_writer(descriptors[i]),)
    return writers


@gluon.jit
def share_columns(
    walk: gl.constexpr, copy: gl.constexpr, ring, descriptors, states, sizes, scale, SHARED: gl.constexpr, GROUPS: gl.constexpr, SETTINGS: gl.constexpr,
):  # fmt: skip
    """Let one or two groups of warps `walk`, each over 64 columns, and a warp `copy` tiles to their ring.

    `descriptors` are of what is stored.
    """
    first = writers_of(descriptors)
    if GROUPS == 2:
        second = writers_of(descriptors)
        gl.warp_specialize(
            [
                (walk, (ring, first, states, sizes, scale, 0, SETTINGS)),
                (walk, (ring, second, states, sizes, scale, 1, SETTINGS)),
                (copy, (ring, sizes, SHARED, SETTINGS)),
            ],
            [4, 1],
            [232, 40],
        )
    else:
        gl.warp_specialize(
            [
                (walk, (ring, first, states, sizes, scale, 0, SETTINGS)),
                (copy, (ring, sizes, SHARED, SETTINGS)),
            ],
            [1],
            [40],
        )


@gluon.jit
def copy_chunks(ring, sizes, SHARED: gl.constexpr, SETTINGS: gl.constexpr):
    """Copy the tiles of each chunk; columns of the map get values past the last column, which are zeros."""
    C: gl.constexpr = SETTINGS[0]
    batch, head, first_column, first, last, _ = place_of(sizes, SETTINGS[3])
    position = ring.producer()
    place = (batch * sizes[0] + head) * sizes[1]
    of_keys = head // SHARED
    for chunk in range(first, last):
        row = chunk * C
        matrix = (place + chunk) * C
        key = [batch, row, of_keys, 0]
        value = [batch, row, head, first_column]
        decay = [(place + chunk) * (4 * C) + C]
        if SETTINGS[4]:
            decay = [(place + chunk) * decay_size(ring.block_shape[3], C)]
            if SETTINGS[1]:
                square = [matrix, 0]
                ring.fetch(position, [key, value, decay, key, square, square, key])
            else:
                ring.fetch(position, [key, value, decay, [matrix, 0], key])
        elif SETTINGS[1]:
            ring.fetch(position, [key, value, decay, key, [matrix, 0], [matrix, 0]])
        else:
            ring.fetch(position, [key, value, decay, [matrix, 0]])
        position = position.next()


@gluon.jit
def walk(ring, writers, states, sizes, scale, group: gl.constexpr, SETTINGS: gl.constexpr):
    """Compute 64 columns of each chunk."""
    C: gl.constexpr = SETTINGS[0]
    OUTPUT: gl.constexpr = SETTINGS[1]
    SAVE: gl.constexpr = SETTINGS[2]
    GROUPS: gl.constexpr = SETTINGS[3]
    CHANNELS: gl.constexpr = SETTINGS[4]
    NEWS: gl.constexpr = 1 if OUTPUT else 0  # the writer of N, and of states behind it
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = ring.block_shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, C, 16])
    state_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    state_operand: gl.constexpr = gl.DotOperandLayout(0, state_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    initial, final, rows = states
    heads, chunks, _, _, width = sizes
    batch, head, first_column, first, last, segment = place_of(sizes, GROUPS)
    first_column += group * 64
    mapped = first_column >= width
    state, of_head, of_segment, offsets = first_state(initial, sizes, group, K, GROUPS)
    if mapped:
        state = gl.where(offsets // K - width == offsets % K, 1.0, 0.0)
    zeros = gl.zeros([64, C], gl.float32, layout)
    near = gl.arange(0, C, column)
    left = gl.convert_layout(state.to(dtype), operand)
    done = zeros.to(dtype)  # what the chunk before left to be stored
    news = done
    position = ring.consumer()
    # Each product waits for the one before: what none waits for follows it, so that the conversions between them take no time of the unit.
    for chunk in range(first, last):
        tiles = ring.wait(position)
        k = tiles[0].reshape([C, K])
        keys = tiles[6 if OUTPUT else 4].reshape([C, K]) if CHANNELS else k
        seen = warpgroup_mma(left, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)
        v = tiles[1].reshape([C, 64 * GROUPS]).slice(group * 64, 64, dim=1).permute((1, 0))
        inverse = tiles[5 if OUTPUT else 3].permute((1, 0))
        fresh = warpgroup_mma(v, inverse, zeros, use_acc=False, is_async=True)
        # In this order a writer is behind all others of its last turn, in the first chunks, too.
        if OUTPUT or SAVE:
            if chunk > first:
                before = [batch, (chunk - 1) * C, head, first_column]
                if OUTPUT:
                    writers[0].store(before, done.permute((1, 0)), turns=writers)
                if SAVE:
                    writers[NEWS].store(before, news.permute((1, 0)), turns=writers)
        if SAVE:
            place = [(of_head * chunks + chunk) * width + first_column, 0]
            writers[NEWS + 1].store(place, state, turns=writers)
        if CHANNELS:
            whole = tiles[2].load(gl.SliceLayout(0, state_layout))[None, :]
        else:
            from_first = tiles[2].slice(0, C).load(column)
            to_last = tiles[2].slice(C, C).load(column)[None, :]
            whole = gl.sum(gl.where(near == C - 1, from_first, 0.0), 0)
        state = state * whole
        seen = warpgroup_mma_wait(1, deps=[seen])
        seen = -seen if CHANNELS else seen * -from_first[None, :]
        seen = gl.convert_layout(seen.to(dtype), operand)
        fresh = warpgroup_mma(seen, inverse, fresh, is_async=True)
        if OUTPUT:
            q = tiles[3].reshape([C, K]).permute((1, 0))
            result = warpgroup_mma(left, q, zeros, use_acc=False, is_async=True)
            fresh = warpgroup_mma_wait(1, deps=[fresh])
        else:
            fresh = warpgroup_mma_wait(0, deps=[fresh])
        decayed = fresh if CHANNELS else fresh * to_last
        decayed = gl.convert_layout(decayed.to(dtype), state_operand)
        sums = warpgroup_mma(decayed, k, warpgroup_mma_init(state), is_async=True)
        if SAVE:
            news = fresh.to(dtype)
        if OUTPUT:
            value = gl.convert_layout(fresh.to(dtype), operand)
            result = warpgroup_mma_wait(1, deps=[result])
            if not CHANNELS:
                result = result * (from_first * scale)[None, :]
            weights = tiles[4].permute((1, 0))
            result = warpgroup_mma(value, weights, warpgroup_mma_init(result), is_async=True)
            state = warpgroup_mma_wait(1, deps=[sums])
            left = gl.convert_layout(state.to(dtype), operand)
            done = warpgroup_mma_wait(0, deps=[result]).to(dtype)
            ring.release(position)
        else:
            state = warpgroup_mma_wait(0, deps=[sums])
            ring.release(position)
            left = gl.convert_layout(state.to(dtype), operand)
        position = position.next()
    before = [batch, (last - 1) * C, head, first_column]
    if OUTPUT:
        writers[0].store(before, done.permute((1, 0)), turns=writers)
    if SAVE:
        writers[NEWS].store(before, news.permute((1, 0)), turns=writers)
    if final is not None:
        gl.store(final + of_segment * (K * rows) + offsets, state)
    if OUTPUT or SAVE:
        writers[0].close()


@gluon.jit
def recur(
    q_desc, k_desc, v_desc, decays, weights, inverses, seen_desc, out_desc, news_desc, states_desc, initial, final, heads,
    chunks, per_segment, rows, width, scale, SHARED: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Walk over the chunks of a segment; the grid has tiles of columns, heads x segments, and batches.

    Descriptors are of blocks [1, C, 1, K] of keys and queries, [1, C, 1, 64 GROUPS] of values, [2 C] of decays, [C, C] of P and T, and
    [1, C, 1, 64] of the result; None leaves out what needs them. If `seen_desc`, [1, C, 1, K], is not None, operands are the results of
    `prepare_channels`, and decays have blocks [K]. With `states_desc`, [64, K], and `news_desc`, [1, C, 1, 64], the states before each chunk
    and N are stored, too. `initial` and `final` are those of `portable.recur`, `width` is V, a multiple of 64, and `rows` those of a final state.
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    OUTPUT: gl.constexpr = q_desc is not None
    SAVE: gl.constexpr = states_desc is not None
    CHANNELS: gl.constexpr = seen_desc is not None
    SETTINGS: gl.constexpr = (C, OUTPUT, SAVE, GROUPS, CHANNELS)
    if CHANNELS and OUTPUT:
        ring = tma_ring(
            [k_desc, v_desc, decays, q_desc, weights, inverses, seen_desc], STAGES, consumers=GROUPS
        )
    elif CHANNELS:
        ring = tma_ring([k_desc, v_desc, decays, inverses, seen_desc], STAGES, consumers=GROUPS)
    elif OUTPUT:
        ring = tma_ring(
            [k_desc, v_desc, decays, q_desc, weights, inverses], STAGES, consumers=GROUPS
        )
    else:
        ring = tma_ring([k_desc, v_desc, decays, inverses], STAGES, consumers=GROUPS)
    wait_for_predecessor()
    sizes = (heads, chunks, per_segment, rows, width)
    states = (initial, final, rows)
    descriptors = (out_desc,) if OUTPUT else ()
    if SAVE:
        descriptors = descriptors + (news_desc, states_desc)
    share_columns(
        walk, copy_chunks, ring, descriptors, states, sizes, scale, SHARED, GROUPS, SETTINGS
    )
