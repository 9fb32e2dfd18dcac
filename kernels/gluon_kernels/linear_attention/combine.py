"""The first states of segments of linear attention, from what each takes in and the map that it applies to its first state, on any device."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["add_segments", "combine"]


@gluon.constexpr_function
def part_layout(REVERSE):
    """Return a layout of float32 parts whose elements an operand of 8 x 8 tiles loads without conflicts of banks."""
    if REVERSE:
        return gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    return gl.SwizzledSharedLayout(8, 1, 4, [1, 0])


@gluon.jit
def fetch_part(
    buffers, maps, number, total, width, K: gl.constexpr, PART: gl.constexpr, STAGES: gl.constexpr, REVERSE: gl.constexpr
):  # fmt: skip
    """Start copying a part of a map to its slot: PART of its rows, or columns; none past the last one."""
    PARTS: gl.constexpr = K // PART
    ROWS: gl.constexpr = buffers.shape[1]
    COLUMNS: gl.constexpr = buffers.shape[2]
    layout: gl.constexpr = gl.portable.blocked_layout([ROWS, COLUMNS], gl.float32)
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    if REVERSE:
        column += number % PARTS * PART
    else:
        row += number % PARTS * PART
    inside = (row < width)[:, None] & (column < width)[None, :] & (number < total)
    gl.portable.async_copy(
        buffers.index(number % STAGES), maps, row[:, None] * width + column[None, :], inside
    )
    gl.portable.commit()


@gluon.jit
def decay_of(decays, segment, head, per_segment, chunks, C: gl.constexpr):
    """Return the product of the decays of a segment's chunks."""
    flat: gl.constexpr = gl.portable.blocked_layout([128], gl.float32)
    end = gl.minimum((segment + 1) * per_segment, chunks)
    total = gl.to_tensor(0.0)
    for begin in range(segment * per_segment, end, 128):
        chunk = begin + gl.arange(0, 128, flat)
        place = (head * chunks + chunk) * (4 * C) + C - 1
        total += gl.sum(gl.load(decays + place, mask=chunk < end, other=0.0), 0)
    return gl.exp2(total)


@gluon.jit
def combine(
    fresh, maps, decays, initial, firsts, final, sizes, widths, K: gl.constexpr, C: gl.constexpr, BV: gl.constexpr,
    PART: gl.constexpr, STAGES: gl.constexpr, DELTA: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """Store the first state of each segment, and the last one; the grid has column tiles and heads of batches.

    `sizes` are the segments, the chunks of one, all chunks, and the rows of a state in `fresh`, [heads, segments, rows, K]: the final states of
    segments that began with zeros. `maps` [heads, segments, V + K, K] have, with the delta rule, the transposed maps of first states
    in their last K rows; without it a segment multiplies its first state by its decays. `initial` and `final` are [heads, V, K], `firsts`
    [heads, segments, V, K]; `initial` may be None. REVERSE walks from the last segment to the first, with maps of gradients. Maps are
    copied PART rows at a time, STAGES parts ahead.
    """
    PARTS: gl.constexpr = K // PART
    products: gl.constexpr = gl.portable.mma_layouts(
        BV, K, PART, gl.float32, gl.float32, input_precision="tf32"
    )
    layout: gl.constexpr = products.accumulator
    segments, per_segment, chunks, rows = sizes
    head = gl.program_id(1).to(gl.int64)
    row = gl.program_id(0) * BV + gl.arange(0, BV, gl.SliceLayout(1, layout))
    column = gl.arange(0, K, gl.SliceLayout(0, layout))
    inside = (row < widths[1])[:, None] & (column < widths[0])[None, :]
    offsets = row[:, None] * widths[0] + column[None, :]
    size = widths[0] * widths[1]
    state = gl.zeros([BV, K], gl.float32, layout)
    if initial is not None:
        state = gl.load(initial + head * size + offsets, mask=inside, other=0.0)
    fresh += head * segments * (rows * widths[0])
    # The loads of a step are under way during the one before.
    begin = gl.to_tensor(0).to(gl.int64)
    if REVERSE:
        begin += segments - 1
    taken = gl.load(fresh + begin * (rows * widths[0]) + offsets, mask=inside, other=0.0)
    if DELTA:
        map_size = (widths[1] + widths[0]) * widths[0]
        maps += head * segments * map_size + size
        shape: gl.constexpr = [STAGES, K, PART] if REVERSE else [STAGES, PART, K]
        buffers = gl.allocate_shared_memory(gl.float32, shape, part_layout(REVERSE))
        plain: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
        state_smem = gl.allocate_shared_memory(gl.float32, [BV, K], plain)
        total = segments * PARTS
        for i in gl.static_range(STAGES - 1):
            number = gl.to_tensor(i)
            ahead = number // PARTS
            if REVERSE:
                ahead = segments - 1 - ahead
            source = maps + gl.maximum(ahead, 0).to(gl.int64) * map_size
            fetch_part(buffers, source, number, total, widths[0], K, PART, STAGES, REVERSE)
    for step in range(segments):
        segment = step
        following = gl.minimum(step + 1, segments - 1)
        if REVERSE:
            segment = segments - 1 - step
            following = gl.maximum(segment - 1, 0)
        gl.store(firsts + (head * segments + segment) * size + offsets, state, mask=inside)
        now = taken
        source = fresh + following.to(gl.int64) * (rows * widths[0])
        taken = gl.load(source + offsets, mask=inside, other=0.0)
        if DELTA:
            state_smem.store(state)
            state = now
            for part in gl.static_range(PARTS):
                number = step * PARTS + part
                gl.portable.wait(STAGES - 2)
                left = state_smem.slice(part * PART, PART, dim=1).load(products.a)
                slot = buffers.index(number % STAGES)
                if REVERSE:
                    right = slot.permute((1, 0)).load(products.b)
                else:
                    right = slot.load(products.b)
                later = number + STAGES - 1
                ahead = later // PARTS
                if REVERSE:
                    ahead = segments - 1 - ahead
                ahead = gl.minimum(gl.maximum(ahead, 0), segments - 1)
                source = maps + ahead.to(gl.int64) * map_size
                fetch_part(buffers, source, later, total, widths[0], K, PART, STAGES, REVERSE)
                state = gl.portable.mma(left, right, state, input_precision="tf32")
        else:
            state = state * decay_of(decays, segment, head, per_segment, chunks, C) + now
    gl.portable.wait(0)
    gl.store(final + head * size + offsets, state, mask=inside)


@gluon.jit
def add_segments(
    fresh, totals, before, behind, parts, heads, size, N: gl.constexpr, AHEAD: gl.constexpr
):  # fmt: skip
    """Replace what segments take in by the states behind them; the grid has N elements of a state, and heads.

    `fresh` are [heads, parts, size], with the decays of segments, `totals`, [heads, parts]. The first `heads` begin with the states `before`, [heads, size],
    others with those `behind`; None is zero. Loads of AHEAD segments are under way at a time.
    """
    layout: gl.constexpr = gl.portable.blocked_layout([N], gl.float32)
    wait_for_predecessor()
    head = gl.program_id(1)
    element = gl.program_id(0) * N + gl.arange(0, N, layout)
    state = gl.zeros([N], gl.float32, layout)
    if before is not None:
        if head < heads:
            state = gl.load(before + head.to(gl.int64) * size + element)
    if behind is not None:
        if head >= heads:
            state = gl.load(behind + (head - heads).to(gl.int64) * size + element)
    first = head.to(gl.int64) * parts
    for begin in range(0, parts, AHEAD):
        taken = ()
        kept = ()
        for i in gl.static_range(AHEAD):
            place = first + gl.minimum(begin + i, parts - 1)
            taken = taken + (gl.load(fresh + place * size + element),)
            kept = kept + (gl.load(totals + place),)
        for i in gl.static_range(AHEAD):
            state = state * kept[i] + taken[i]
            place = first + begin + i
            gl.store(fresh + place * size + element, state, mask=begin + i < parts)
