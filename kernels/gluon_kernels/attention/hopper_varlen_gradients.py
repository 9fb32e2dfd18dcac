"""The roles of the gradients of attention over packed sequences: the producer, and the consumers of half of a tile's rows.

SETTINGS are the own rows and the others of a tile, the window of an own row over others, True for a soft cap, the power of two
that bounds the sequences, True where own rows are keys, and how many heads share these.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.online import store_rows as store_masked
from gluon_kernels.attention.packed import add, bounds, place_of, select
from gluon_kernels.attention.tiles import hide
from gluon_kernels.attention.varlen_sums import padded_start

HEADS = gl.constexpr(8)  # that are walked together


@gluon.jit
def place_of_program():
    """Return the number of a program's tile, and its head; the grid has tiles and heads.

    Programs begin in the order of their numbers.
    """
    tiles = gl.num_programs(0)
    number = gl.program_id(1) * tiles + gl.program_id(0)
    return place_of(number, tiles, gl.num_programs(1), HEADS)


@gluon.jit
def levels_together(heads):
    """Return how many tiles of a sequence are walked together: more where there are few heads, so that fewer sequences are in the cache."""
    return 4 * gl.maximum(4 // gl.minimum(heads, HEADS), 1)


@gluon.jit
def tiles_above(packed, level, SETTINGS: gl.constexpr):
    """Return how many tiles of each sequence have this level or a higher one, and with it as much work or more.

    Where a mask falls to the right, the last tile of a sequence has the highest level and each one before it one less; where it falls
    to the left, the first tile has. Without a mask all tiles of a sequence have the level of its others.
    """
    first, end, first_other, last_other = packed
    SIZE: gl.constexpr = SETTINGS[0][0]
    WINDOW: gl.constexpr = SETTINGS[1]
    tiles = gl.cdiv(end - first, SIZE)
    others = gl.cdiv(last_other - first_other, SIZE)
    if WINDOW[0] is None and WINDOW[1] is None:
        count = gl.where(others >= level, tiles, 0)
    else:
        high = tiles if WINDOW[1] is None else others
        count = gl.minimum(gl.maximum(high - level, 0), tiles)
    return count


@gluon.jit
def level_of(nth, heads, packed, SETTINGS: gl.constexpr):
    """Return the lowest one of the levels that are walked together and have the n-th tile of all sequences, highest levels first."""
    first, end, first_other, last_other = packed
    SIZE: gl.constexpr = SETTINGS[0][0]
    tiles = gl.cdiv(end - first, SIZE)
    others = gl.cdiv(last_other - first_other, SIZE)
    lowest = gl.minimum(gl.min(others - tiles, 0), 0)
    highest = gl.max(gl.maximum(others, tiles), 0)
    group = 0
    together = levels_together(heads)
    past = (highest - lowest) // together + 1
    while past - group > 1:
        middle = (group + past) // 2
        enough = gl.sum(tiles_above(packed, lowest + middle * together, SETTINGS), 0) > nth
        group = gl.where(enough, middle, group)
        past = gl.where(enough, past, middle)
    return lowest + group * together


@gluon.jit
def own_tile(lists, warps: gl.constexpr, SETTINGS: gl.constexpr):
    """Return the tile of a program and the others that it walks over, as `tile_of`."""
    nth, _ = place_of_program()
    return tile_of(lists, nth, gl.num_programs(1), warps, SETTINGS)


@gluon.jit
def tile_of(lists, nth, heads, warps: gl.constexpr, SETTINGS: gl.constexpr):
    """Return the n-th tile of each of the heads, and the others that are walked over.

    The results are: the sequence, past the last for none, and the tile's first row in it; the sequence's first token and the one
    past its last; the first token of its others and how many they are; the first tile of others that is seen and the one past the
    last.

    `lists` have the own rows first; own row i sees others from i - WINDOW[0] to i + WINDOW[1].
    """
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    # Each warp has all sequences.
    flat: gl.constexpr = gl.BlockedLayout([SETTINGS[3] // 32], [32], [warps], [0])
    packed = bounds(lists, gl.arange(0, SETTINGS[3], flat))
    level = level_of(nth, heads, packed, SETTINGS)
    above = tiles_above(packed, level + levels_together(heads), SETTINGS)
    here = tiles_above(packed, level, SETTINGS) - above
    nth -= gl.sum(above, 0)
    last = gl.associative_scan(here, 0, add)
    sequence = gl.sum((last <= nth).to(gl.int32), 0)
    mine = gl.arange(0, SETTINGS[3], flat) == sequence
    first, end = select(packed[0], mine), select(packed[1], mine)
    first_other, last_other = select(packed[2], mine), select(packed[3], mine)
    nth -= select(last - here - above, mine)  # tiles of the sequence that come before
    if WINDOW[1] is not None:
        nth = gl.cdiv(end - first, SIZE) - 1 - nth
    length = last_other - first_other
    row = nth * SIZE
    low = row + length - (end - first)
    start = 0
    stop = length
    if WINDOW[0] is not None:
        start = gl.maximum(low - WINDOW[0], 0) // STEP
    if WINDOW[1] is not None:
        stop = gl.minimum(low + SIZE + WINDOW[1], length)
    stop = gl.maximum(gl.cdiv(stop, STEP), start)
    return (sequence, row), (first, end), (first_other, length), (start, stop)


@gluon.jit
def walk(rings, lists, rows, SETTINGS: gl.constexpr):
    """Copy the program's own tiles, then those that it walks over, of each head."""
    own, others = rings
    STEP: gl.constexpr = SETTINGS[0][1]
    (sequence, row), (first, _), (other, _), (start, stop) = own_tile(lists, 1, SETTINGS)
    _, head = place_of_program()
    if sequence < lists[2]:
        mine = [first + row, head, 0]
        own.fetch(own.producer(), [mine, mine])
        position = others.producer()
        if SETTINGS[4]:
            for of in range(head * SETTINGS[5], (head + 1) * SETTINGS[5]):
                begin = 2 * (of * rows + padded_start(other, sequence, STEP))
                for i in range(start, stop):
                    line = other + i * STEP
                    others.fetch(position, [[line, of, 0], [line, of, 0], [begin + 2 * i * STEP]])
                    position = position.next()
        else:
            of = head // SETTINGS[5]
            for i in range(start, stop):
                line = other + i * STEP
                others.fetch(position, [[line, of, 0], [line, of, 0]])
                position = position.next()


@gluon.jit
def weights_of(
    score, logsums, low, tile, length, scale, SETTINGS: gl.constexpr, MASKED: gl.constexpr = None
):
    """Return the weights of a tile of scores, and their derivatives by the scores; both are 0 where nothing is seen.

    MASKED says if a border crosses the tile; None finds out.

    Row 0 is at the others' place `low`. `length`, if not None, is the number of rows where these are keys, else that of others;
    rows of statistics without a query have an infinite logarithm.
    """
    STEP: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    if SETTINGS[2]:
        # tanh(s / cap) is 1 - 2 away, and its derivative 4 away (1 - away)
        away = 1 / (gl.exp2(score * scale[0]) + 1)
        p = gl.exp2(scale[1] - 2 * scale[1] * away - logsums)
    else:
        away = None
        p = gl.exp2(score * scale[0] - logsums)
    first = tile * STEP
    last = first + STEP - 1
    crossed = MASKED
    if MASKED is None:
        crossed = False
        if length is not None:
            crossed = (p.shape[0] if SETTINGS[4] else last + 1) > length
        if WINDOW[0] is not None:
            crossed = crossed | (first < low + p.shape[0] - 1 - WINDOW[0])
        if WINDOW[1] is not None:
            crossed = crossed | (last > low + WINDOW[1])
    if crossed:
        row = gl.arange(0, p.shape[0], gl.SliceLayout(1, p.type.layout))
        begin, end = None, None
        if WINDOW[0] is not None:
            begin = low + row - WINDOW[0] - first
        if WINDOW[1] is not None:
            end = low + row + WINDOW[1] - first
        if length is not None:
            stop = gl.where(row < length, STEP, 0) if SETTINGS[4] else length - first + 0 * row
            end = stop - 1 if end is None else gl.minimum(end, stop - 1)
        p = hide(p, begin, end, 0.0)
    if away is not None:
        slope = p * (4 * away * (1 - away))
    else:
        slope = p
    return p, slope


@gluon.jit
def store_rows(writer, outputs, result, place, SETTINGS: gl.constexpr):
    """Store the rows of a head that the sequence has."""
    desc, out = outputs
    width = desc.shape[2]
    line, end, head = place
    ROWS: gl.constexpr = result.shape[0]
    if line + ROWS <= end:
        writer.store([line, head, 0], result, desc)
    else:
        # Rows past the sequence's last belong to the next one.
        store_masked(out, result, 0, place, gl.num_programs(1), width)


@gluon.jit
def key_gradients_of_half(
    rings, writer, outputs, lists, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of a tile of keys."""
    own, others = rings
    to_keys, to_values = outputs
    scale, log_scale = scales
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    (sequence, row), (first, end), (_, length), (start, stop) = own_tile(lists, 4, SETTINGS)
    row += half * ROWS
    low = row + length - (end - first)
    # With 128 columns registers are too few for a cap's slope in addition to two products.
    LATE: gl.constexpr = SETTINGS[2] and D == 128
    if sequence < lists[2]:
        zeros = gl.zeros([ROWS, STEP], gl.float32, layout)
        for_keys = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        for_values = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        k, v = own.wait(own.consumer())
        k = k.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        v = v.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        position = others.consumer()
        i = start
        for _ in range(SETTINGS[5] * (stop - start)):
            q, grad, sums = others.wait(position)
            q, grad = q.reshape([STEP, D]), grad.reshape([STEP, D])
            grad_transposed = grad.permute((1, 0))
            score = warpgroup_mma(k, q.permute((1, 0)), zeros, use_acc=False, is_async=True)
            change = zeros
            if not LATE:
                change = warpgroup_mma(v, grad_transposed, zeros, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0 if LATE else 1, deps=[score])
            logsum = sums.slice(0, STEP).load(column)[None, :]
            p, slope = weights_of(score, logsum, low, i, None, log_scale, SETTINGS)
            weights = gl.convert_layout(p.to(dtype), operand)
            if LATE:
                change = warpgroup_mma(v, grad_transposed, zeros, use_acc=False, is_async=True)
            change = warpgroup_mma_wait(0, deps=[change])
            for_values = warpgroup_mma(weights, grad, for_values, is_async=True)
            change = slope * (change - sums.slice(STEP, STEP).load(column)[None, :])
            change = gl.convert_layout(change.to(dtype), operand)
            for_keys = warpgroup_mma(change, q, for_keys, is_async=True)
            for_values, for_keys = warpgroup_mma_wait(0, deps=[for_values, for_keys])
            for_values = warpgroup_mma_init(for_values)
            for_keys = warpgroup_mma_init(for_keys)
            others.release(position)
            position = position.next()
            i = gl.where(i + 1 < stop, i + 1, start)  # of the next head
        done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
        # Computed again: numbers that the loop does not need would take registers in it.
        tile = own_tile(lists, 4, SETTINGS)
        line = tile[1][0] + tile[0][1] + half * ROWS
        place = (line, tile[1][1], place_of_program()[1])
        store_rows(writer, to_values, done[0], place, SETTINGS)
        store_rows(writer, to_keys, done[1] * scale, place, SETTINGS)
    writer.close()


@gluon.jit
def query_gradients_of_half(
    rings, writer, output, lists, known, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    """Compute the gradients of half of a tile of queries."""
    own, others = rings
    statistics, rows = known
    scale, log_scale = scales
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    (sequence, row), (first, end), (_, length), (start, stop) = own_tile(lists, 4, SETTINGS)
    row += half * ROWS
    low = row + length - (end - first)
    _, head = place_of_program()
    if sequence < lists[2]:
        near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        row_position = (
            statistics + 2 * (head * rows + padded_start(first, sequence, 64) + row) + near - row
        )
        valid = near < end - first
        logsum = gl.load(row_position, mask=valid, other=float("inf"))
        delta = gl.load(row_position + 64, mask=valid, other=0.0)[:, None]
        zeros = gl.zeros([ROWS, STEP], gl.float32, layout)
        acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        q, grad = own.wait(own.consumer())
        q = q.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        grad = grad.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        position = others.consumer()
        for i in range(start, stop):
            k, v = others.wait(position)
            k = k.reshape([STEP, D])
            v = v.reshape([STEP, D]).permute((1, 0))
            score = warpgroup_mma(q, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
            change = warpgroup_mma(grad, v, zeros, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1, deps=[score])
            p, slope = weights_of(score, logsum[:, None], low, i, length, log_scale, SETTINGS)
            change = warpgroup_mma_wait(0, deps=[change])
            change = gl.convert_layout((slope * (change - delta)).to(dtype), operand)
            acc = warpgroup_mma(change, k, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
            others.release(position)
            position = position.next()
        done = warpgroup_mma_wait(0, deps=[acc])
        store_rows(writer, output, done * scale, (first + row, end, head), SETTINGS)
    writer.close()
