"""The walk over chunks of linear attention without the delta rule on Hopper: TMA, `wgmma` and warp specialization.

It computes `portable.recur`, and P of each chunk, which passes through shared memory only. A group of four warps has 64 columns of a head's
values, whose state, transposed, stays in registers; one warp copies tiles ahead, and two groups share them. Decays and P need no
state: other warps compute those of the next chunk meanwhile.

Segments of a sequence walk at a time. A first launch stores what each takes in, and its decay. In a second one the program of a segment adds up those of the
segments before, or, where there are many, takes what `combine.add_segments` made of them in between. The walk behind is placed meanwhile: the warps
that have the state wait.
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
from gluon_kernels.dependent import allow_successor, wait_for_predecessor
from gluon_kernels.linear_attention.decays import load_gates, store_decays
from gluon_kernels.linear_attention.hopper import place_of, writers_of

__all__ = ["recur_decaying"]

DECAYS = gl.constexpr(4)  # chunks with decays in shared memory
ON = gl.constexpr(0)  # ways of walks
BACK = gl.constexpr(1)
BOTH = gl.constexpr(2)  # as programs of one launch


@gluon.constexpr_function
def workers_of(groups, output):
    """Return the warps and the registers of a thread of each partition but the first: P takes four warps, decays take two, copies one."""
    weighing = (4, 104 if groups == 2 else 168) if output else (1, 40)
    warps = [4] * (groups - 1) + [weighing[0], 1, 1, 1]
    registers = [184] * (groups - 1) + [weighing[1], 40, 40, 40]
    return warps, registers


@gluon.jit
def part_of(sizes, GROUPS: gl.constexpr, WAY: gl.constexpr):
    """Return what `place_of` does, and whether the walk is one back, whose first segment is that of the last chunks."""
    batch, head, first_column, first, last, segment = place_of(sizes, GROUPS)
    back = WAY == BACK
    if WAY == BOTH:
        back = batch % 2 == 1
        batch = batch // 2
    if back:
        first = (gl.cdiv(sizes[1], sizes[2]) - 1 - segment) * sizes[2]
        last = gl.minimum(first + sizes[2], sizes[1])
    return batch, head, first_column, first, last, segment, back


@gluon.jit
def row_of(batch, head, heads, back, WAY: gl.constexpr):
    """Return the place of a head among those of both walks."""
    row = batch * heads + head
    if WAY == BOTH:
        row += gl.where(back, gl.num_programs(2) // 2 * heads, 0)
    return row


@gluon.jit
def chunk_of(first, last, nth, back):
    """Return the n-th chunk of a walk."""
    chunk = first + nth
    if back:
        chunk = gl.maximum(last - 1 - nth, 0)
    return chunk


@gluon.jit
def copy_tiles(ring, descriptors, place, sizes, SHARED: gl.constexpr, C: gl.constexpr):
    """Copy the tiles of each chunk by the descriptors of a walk."""
    batch, head, first_column, first, last, _, back = place
    position = ring.producer()
    for nth in range(last - first):
        chunk = chunk_of(first, last, nth, back)
        ring.part(0, descriptors[0]).fetch(position, [[batch, chunk * C, head // SHARED, 0]])
        ring.part(1, descriptors[1]).fetch(position, [[batch, chunk * C, head, first_column]])
        position = position.next()


@gluon.jit
def copy_decaying(ring, descriptors, sizes, SHARED: gl.constexpr, SETTINGS: gl.constexpr):
    """Copy the tiles of each chunk."""
    C: gl.constexpr = SETTINGS[0]
    WAY: gl.constexpr = SETTINGS[7]
    if WAY == BOTH:
        place = part_of(sizes, SETTINGS[2], WAY)
        if place[6]:
            copy_tiles(ring, descriptors[2:], place, sizes, SHARED, C)
        else:
            copy_tiles(ring, descriptors[:2], place, sizes, SHARED, C)
    else:
        batch, head, first_column, first, last, _, back = part_of(sizes, SETTINGS[2], WAY)
        position = ring.producer()
        for nth in range(last - first):
            chunk = chunk_of(first, last, nth, back)
            key = [batch, chunk * C, head // SHARED, 0]
            value = [batch, chunk * C, head, first_column]
            if SETTINGS[1]:
                ring.fetch(position, [key, value, key])
            else:
                ring.fetch(position, [key, value])
            position = position.next()


@gluon.jit
def slot_of(slots, number):
    """Return the decays of a slot: logarithms of e, then e, e_C / e and rates."""
    return (
        slots[0].index(number),
        slots[1].index(number),
        slots[2].index(number),
        slots[3].index(number),
    )


@gluon.jit
def state_before(
    states, sizes, group: gl.constexpr, K: gl.constexpr, GROUPS: gl.constexpr, WAY: gl.constexpr
):
    """Return the transposed state before the segment, [64, K], and the offsets of its elements in a state."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    fresh, totals, initial, last, _ = states
    batch, head, first_column, _, _, segment, back = part_of(sizes, GROUPS, WAY)
    of_head = (batch * sizes[0] + head).to(gl.int64)
    size = K * sizes[4]
    row = first_column + group * 64 + gl.arange(0, 64, gl.SliceLayout(1, layout))
    offsets = row[:, None] * K + gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    state = gl.zeros([64, K], gl.float32, layout)
    if back:
        if last is not None:
            state = gl.load(last + of_head * size + offsets)
    elif initial is not None:
        state = gl.load(initial + of_head * size + offsets)
    if fresh is not None:
        parts = gl.num_programs(1) // sizes[0] - 1
        place = row_of(batch, head, sizes[0], back, WAY).to(gl.int64) * parts
        if totals is None:
            place += gl.maximum(segment - 1, 0)
            state = gl.where(segment > 0, gl.load(fresh + place * size + offsets), state)
        else:
            # The load of a step is under way during the two before.
            second = place + gl.minimum(1, parts - 1)
            taken = gl.load(fresh + place * size + offsets)
            kept = gl.load(totals + place)
            coming = gl.load(fresh + second * size + offsets)
            coming_kept = gl.load(totals + second)
            for step in range(segment):
                now = taken
                total = kept
                taken = coming
                kept = coming_kept
                following = place + gl.minimum(step + 2, parts - 1)
                coming = gl.load(fresh + following * size + offsets)
                coming_kept = gl.load(totals + following)
                state = state * total + now
    return state, offsets


@gluon.jit
def scores_of(tiles, zeros):
    """Start the product of a chunk's queries and keys."""
    C: gl.constexpr = tiles[0].shape[1]
    K: gl.constexpr = tiles[0].shape[3]
    q = tiles[2].reshape([C, K])
    k = tiles[0].reshape([C, K]).permute((1, 0))
    return warpgroup_mma(q, k, zeros, use_acc=False, is_async=True)


@gluon.jit
def store_weights(buffer, scores, decays, bounds, skips, scale, RATED: gl.constexpr):
    """Store P of a chunk from the products of its queries and keys; `bounds` of exponents are infinite, below zero for later keys."""
    layout: gl.constexpr = scores.type.layout
    logs = decays[0]
    away = logs.load(gl.SliceLayout(1, layout))[:, None] - logs.load(gl.SliceLayout(0, layout))[None, :]  # fmt: skip
    weights = scores * gl.exp2(gl.minimum(away, bounds)) * scale
    if RATED:
        weights = weights * decays[3].load(gl.SliceLayout(0, layout))[None, :]
    if skips is not None:
        weights = weights + skips
    buffer.store(weights.to(buffer.dtype))
    fence_async_shared()


@gluon.jit
def barriers_of(SLOTS: gl.constexpr, consumers: gl.constexpr, producers: gl.constexpr = 1):
    """Allocate the barriers of slots that so many partitions write and use, before `gl.warp_specialize`."""
    written = mbarrier.allocate_mbarrier(batch=SLOTS)
    used = mbarrier.allocate_mbarrier(batch=SLOTS)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(written.index(slot), producers)
        mbarrier.init(used.index(slot), consumers)
    return written, used


@gluon.jit
def wait_for(barriers, nth, SLOTS: gl.constexpr, earlier: gl.constexpr = 0):
    """Wait for the n-th phase of slots in turn, or, `earlier` is 1, for the one SLOTS before; return the slot."""
    slot = nth % SLOTS
    mbarrier.wait(barriers.index(slot), nth // SLOTS % 2 ^ earlier)
    return slot


@gluon.jit
def fill_decays(slots, sources, sizes, PART: gl.constexpr, SETTINGS: gl.constexpr):
    """Compute the decays of every second chunk: one warp takes almost as long for a chunk as the walk does."""
    C: gl.constexpr = SETTINGS[0]
    gates, slopes, biases, length = sources
    decays, written, used = slots
    batch, head, _, first, last, _, back = part_of(sizes, SETTINGS[2], SETTINGS[7])
    slope = None if slopes is None else gl.load(slopes + head).to(gl.float32)
    bias = None if biases is None else gl.load(biases + head).to(gl.float32)
    # Memory takes longer than a chunk: loads are ahead of their use.
    ahead = chunk_of(first, last, PART, back)
    gate = load_gates(gates, batch, head, sizes[0], length, ahead, C)
    ahead = chunk_of(first, last, PART + 2, back)
    later = load_gates(gates, batch, head, sizes[0], length, ahead, C)
    for nth in range(PART, last - first, 2):
        chunk = chunk_of(first, last, nth, back)
        now = gate
        gate = later
        ahead = chunk_of(first, last, nth + 4, back)
        later = load_gates(gates, batch, head, sizes[0], length, ahead, C)
        slot = wait_for(used, nth, DECAYS, 1)
        store_decays(slot_of(decays, slot), now, slope, bias, length - chunk * C, C, SETTINGS[5])
        mbarrier.arrive(written.index(slot))


@gluon.jit
def weigh_chunks(ring, slots, own, skip, sizes, scale, SETTINGS: gl.constexpr):
    """Compute P of each chunk, while the queries and keys of the next one are multiplied."""
    if SETTINGS[1]:
        C: gl.constexpr = SETTINGS[0]
        RATED: gl.constexpr = SETTINGS[6]
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, C, 16])
        decays, decays_written, decays_used = slots
        weights, written, used = own
        _, head, _, first, last, _ = place_of(sizes, SETTINGS[2])
        i = gl.arange(0, C, gl.SliceLayout(1, layout))[:, None]
        j = gl.arange(0, C, gl.SliceLayout(0, layout))[None, :]
        bounds = gl.where(i >= j, float("inf"), -float("inf"))
        if SETTINGS[2] == 1:  # registers suffice: the compiler would compare in each chunk
            bounds = gl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=f,f", [bounds], gl.float32, False, 1
            )
        skips = None
        if skip is not None:
            skips = gl.where(i == j, gl.load(skip + head).to(gl.float32), 0.0)
        zeros = gl.zeros([C, C], gl.float32, layout)
        position = ring.consumer()
        scores = warpgroup_mma_wait(0, deps=[scores_of(ring.wait(position), zeros)])
        for chunk in range(first, last):
            # Once more behind the last chunk, whose slot is there.
            ahead = position.next((chunk + 1 < last).to(gl.int32))
            coming = scores_of(ring.wait(ahead), zeros)
            of_decays = wait_for(decays_written, chunk - first, DECAYS)
            slot = wait_for(used, chunk - first, 2, 1)
            store_weights(
                weights.index(slot), scores, slot_of(decays, of_decays), bounds, skips, scale, RATED
            )
            mbarrier.arrive(written.index(slot))
            mbarrier.arrive(decays_used.index(of_decays))
            scores = warpgroup_mma_wait(0, deps=[coming])
            ring.release(position)
            position = ahead


@gluon.jit
def walk_decaying(
    ring, slots, own, writers, states, sizes, scale, group: gl.constexpr, SETTINGS: gl.constexpr
):  # fmt: skip
    """Compute 64 columns of each chunk."""
    C: gl.constexpr = SETTINGS[0]
    OUTPUT: gl.constexpr = SETTINGS[1]
    GROUPS: gl.constexpr = SETTINGS[2]
    SAVE: gl.constexpr = SETTINGS[3]
    MAPPED: gl.constexpr = SETTINGS[4]
    WAY: gl.constexpr = SETTINGS[7]
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = ring.block_shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, C, 16])
    state_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    state_operand: gl.constexpr = gl.DotOperandLayout(0, state_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    fresh, totals, _, _, final = states
    heads, chunks, _, _, width = sizes
    batch, head, first_column, first, last, segment, back = part_of(sizes, GROUPS, WAY)
    of_head = batch * heads + head
    row = row_of(batch, head, heads, back, WAY)
    first_column += group * 64
    total = gl.to_tensor(1.0)
    zeros = gl.zeros([64, C], gl.float32, layout)
    position = ring.consumer()
    if fresh is not None:
        wait_for_predecessor()  # which stores it: nothing else here is younger than the walk before
    if MAPPED:
        nothing: gl.constexpr = (None, None, None, None, None)
        state, offsets = state_before(nothing, sizes, group, K, GROUPS, WAY)
    else:
        state, offsets = state_before(states, sizes, group, K, GROUPS, WAY)
    left = gl.convert_layout(state.to(dtype), operand)
    done = zeros.to(dtype)  # what the chunk before left to be stored
    for nth in range(last - first):
        chunk = chunk_of(first, last, nth, back)
        tiles = ring.wait(position)
        k = tiles[0].reshape([C, K])
        v = tiles[1].reshape([C, 64 * GROUPS]).slice(group * 64, 64, dim=1).permute((1, 0))
        if OUTPUT:
            q = tiles[2].reshape([C, K]).permute((1, 0))
            result = warpgroup_mma(left, q, zeros, use_acc=False, is_async=True)
            if nth > 0:
                before = [batch, (chunk - 1) * C, head, first_column]
                writers[0].store(before, done.permute((1, 0)), turns=writers)
        if SAVE:
            place = [(row * chunks + chunk) * width + first_column, 0]
            writers[1 if OUTPUT else 0].store(place, state, turns=writers)
        of_decays = wait_for(slots[1], nth, DECAYS)
        decays = slot_of(slots[0], of_decays)
        whole = gl.sum(decays[1].slice(C - 1, 1).load(one), 0)
        if back:
            to_last = decays[1].load(gl.SliceLayout(0, state_operand))[None, :] * scale
        else:
            to_last = decays[2].load(gl.SliceLayout(0, state_operand))[None, :]
        taken = (v.load(state_operand).to(gl.float32) * to_last).to(dtype)
        sums = warpgroup_mma(taken, k, warpgroup_mma_init(state * whole), is_async=True)
        if OUTPUT:
            result = warpgroup_mma_wait(1, deps=[result])
            from_first = decays[1].load(column) * scale
            result = warpgroup_mma_init(result * from_first[None, :])
            slot = wait_for(own[1], nth, 2)
            weights = own[0].index(slot).permute((1, 0))
            result = warpgroup_mma(v, weights, result, is_async=True)
            state = warpgroup_mma_wait(1, deps=[sums])
            left = gl.convert_layout(state.to(dtype), operand)
            done = warpgroup_mma_wait(0, deps=[result]).to(dtype)
        else:
            state = warpgroup_mma_wait(0, deps=[sums])
        ring.release(position)
        if OUTPUT:
            mbarrier.arrive(own[2].index(slot))
        mbarrier.arrive(slots[2].index(of_decays))
        total = total * whole
        position = position.next()
    if OUTPUT:
        before = [batch, (last - 1) * C, head, first_column]
        writers[0].store(before, done.permute((1, 0)), turns=writers)
    segments = gl.num_programs(1) // heads
    if MAPPED:
        of_segment = (row * segments + segment).to(gl.int64)
        gl.store(final + of_segment * (K * width) + offsets, state)
        if first_column == 0:
            gl.store(totals + of_segment, total)
    elif final is not None:
        if segment == segments - 1 and (back or WAY == ON):
            gl.store(final + of_head.to(gl.int64) * (K * width) + offsets, state)
    if OUTPUT or SAVE:
        writers[0].close()


@gluon.jit
def recur_decaying(
    q_desc, k_desc, v_desc, grad_desc, gates, slopes, bias, out_desc, states_desc, fresh, totals, initial, last, final, skip,
    length, heads, chunks, per_segment, width, scale, SHARED: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
    MAPPED: gl.constexpr, SOFTPLUS: gl.constexpr, WAY: gl.constexpr,
):  # fmt: skip
    """Walk over the chunks of a segment; the grid has tiles of columns, heads x segments, and batches.

    Descriptors are of blocks [1, C, 1, K] of keys and queries, [1, C, 1, 64 GROUPS] of values, [1, C, 1, 64] of the result,
    and [64, K] of the states before chunks; None leaves out what needs them. Decays are made of `gates`, or steps, with `slopes`, `bias` and
    SOFTPLUS, as `store_decays` says; with steps, columns of P have rates. States are float32, transposed: `initial` and `final`, of
    heads, [batch, heads, V, K], and `fresh`, [batch, heads, segments - 1, V, K], None where there is one segment: what all segments but the last take in, with
    their decays, `totals`, or, if that is None, the states before all but the first. MAPPED, the grid has all segments but the last; what they
    take in is stored as `final`, with `totals`. `width` is V, a multiple of 64; `skip` [heads], if not None, is added to P's diagonal.

    A walk BACK goes from the last chunk to the first, with `last` for `initial`, over queries and gradients of results in place of keys and values; what
    a state, now a gradient of one, takes in has e times `scale` in place of e_C / e. For BOTH ways the grid has two programs for each batch, of which
    the second walks back, over `q_desc` and `grad_desc`; states, `fresh` and `totals` are those of the walks on, then of those back; `final` is of those back.
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    OUTPUT: gl.constexpr = out_desc is not None
    SAVE: gl.constexpr = states_desc is not None
    SETTINGS: gl.constexpr = (
        C, OUTPUT, GROUPS, SAVE, MAPPED, SOFTPLUS, slopes is not None, WAY,
    )  # fmt: skip
    if fresh is None and not OUTPUT:
        allow_successor()
    own = None
    if OUTPUT:
        ring = tma_ring([k_desc, v_desc, q_desc], STAGES, consumers=GROUPS + 1)
        squared: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
        weights = gl.allocate_shared_memory(k_desc.dtype, [2, C, C], squared)
        own = (weights,) + barriers_of(2, GROUPS)
    elif WAY == BOTH:
        ring = tma_ring([k_desc, v_desc], STAGES, consumers=GROUPS, producers=2)
    else:
        ring = tma_ring([k_desc, v_desc], STAGES, consumers=GROUPS)
    descriptors = (k_desc, v_desc, q_desc, grad_desc)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    filled = ()
    for _ in gl.static_range(4):
        filled = filled + (gl.allocate_shared_memory(gl.float32, [DECAYS, C], plain),)
    slots = (filled,) + barriers_of(DECAYS, GROUPS + 1 if OUTPUT else GROUPS)
    sizes = (heads, chunks, per_segment, width, width)
    states = (fresh, totals, initial, last, final)
    sources = (gates, slopes, bias, length)
    stored = (out_desc,) if OUTPUT else ()
    if SAVE:
        stored = stored + (states_desc,)
    first = writers_of(stored)
    WORKERS: gl.constexpr = workers_of(GROUPS, OUTPUT)
    # Partitions that have nothing to do take warps that come with those of the copies.
    if GROUPS == 2:
        second = writers_of(stored)
        gl.warp_specialize(
            [
                (walk_decaying, (ring, slots, own, first, states, sizes, scale, 0, SETTINGS)),
                (walk_decaying, (ring, slots, own, second, states, sizes, scale, 1, SETTINGS)),
                (weigh_chunks, (ring, slots, own, skip, sizes, scale, SETTINGS)),
                (fill_decays, (slots, sources, sizes, 0, SETTINGS)),
                (fill_decays, (slots, sources, sizes, 1, SETTINGS)),
                (copy_decaying, (ring, descriptors, sizes, SHARED, SETTINGS)),
            ],
            WORKERS[0],
            WORKERS[1],
        )
    else:
        gl.warp_specialize(
            [
                (walk_decaying, (ring, slots, own, first, states, sizes, scale, 0, SETTINGS)),
                (weigh_chunks, (ring, slots, own, skip, sizes, scale, SETTINGS)),
                (fill_decays, (slots, sources, sizes, 0, SETTINGS)),
                (fill_decays, (slots, sources, sizes, 1, SETTINGS)),
                (copy_decaying, (ring, descriptors, sizes, SHARED, SETTINGS)),
            ],
            WORKERS[0],
            WORKERS[1],
        )
