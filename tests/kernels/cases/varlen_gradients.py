"""The roles of the gradients of varlen attention: who copies, and who multiplies half of a tile's rows.

SETTINGS are the own rows and the others of a tile, the window of an own row over others, whether scores are
capped, for how many sequences there is room, whether own rows are keys, and how many heads share these.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from tests.kernels.cases.varlen import add, bounds, picked
from tests.kernels.cases.varlen_statistics import room


@gluon.jit
def own_tile(lists, warps: gl.constexpr, SETTINGS: gl.constexpr):
    """The tile of its own that a program has, and what it walks over, sequence by sequence: the sequence, past
    the last for none, and where the tile's rows begin in it; its first row and its end; the first of its
    others and how many; the first tile of others that is seen and the one behind the last.

    `lists` have the own rows first; own row i sees others from i - WINDOW[0] to i + WINDOW[1].
    """
    SIZE: gl.constexpr = SETTINGS[0][0]
    STEP: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    index = gl.arange(0, SETTINGS[3], flat)
    first, end, _, _ = bounds(lists, index)
    tiles = gl.cdiv(end - first, SIZE)
    above = gl.associative_scan(tiles, 0, add)
    nth = gl.program_id(0)
    sequence = gl.sum((above <= nth).to(gl.int32), 0)
    here = index == sequence
    nth = picked(above, here) - 1 - nth  # the sequence's last tiles come first
    if WINDOW[1] is None:  # but here the first ones see most
        nth = picked(tiles, here) - 1 - nth
    first, end, first_other, last_other = bounds(lists, sequence)
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
    head = gl.program_id(1)
    if sequence < lists[2]:
        own.fetch(own.producer(), [[first + row, head, 0], [first + row, head, 0]])
        at = others.producer()
        if SETTINGS[4]:
            for of in range(head * SETTINGS[5], (head + 1) * SETTINGS[5]):
                begin = 2 * (of * rows + room(other, sequence, STEP))
                for i in range(start, stop):
                    line = other + i * STEP
                    others.fetch(at, [[line, of, 0], [line, of, 0], [begin + 2 * i * STEP]])
                    at = at.next()
        else:
            of = head // SETTINGS[5]
            for i in range(start, stop):
                line = other + i * STEP
                others.fetch(at, [[line, of, 0], [line, of, 0]])
                at = at.next()


@gluon.jit
def weights_of(score, logsums, low, tile, length, scale, SETTINGS: gl.constexpr):
    """The weights of a tile of scores, 0 out of sight, and what a score changes by where a weight's logarithm
    does: less than these if capped. The first row stands at the others' place `low`. `length`, if not None: how many
    of the rows there are, if these are keys, else how many others; queries that are not there have an infinite
    logarithm."""
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
    crossed = False
    if length is not None:
        crossed = (p.shape[0] if SETTINGS[4] else last + 1) > length
    if WINDOW[0] is not None:
        crossed = crossed | (first < low + p.shape[0] - 1 - WINDOW[0])
    if WINDOW[1] is not None:
        crossed = crossed | (last > low + WINDOW[1])
    if crossed:
        other = (first + gl.arange(0, STEP, gl.SliceLayout(0, p.type.layout)))[None, :]
        place = low + gl.arange(0, p.shape[0], gl.SliceLayout(1, p.type.layout))[:, None]
        inside = other >= 0
        if length is not None:
            inside = inside & ((place - low if SETTINGS[4] else other) < length)
        if WINDOW[0] is not None:
            inside = inside & (other >= place - WINDOW[0])
        if WINDOW[1] is not None:
            inside = inside & (other <= place + WINDOW[1])
        p = gl.where(inside, p, 0.0)
    if away is not None:
        slope = p * (4 * away * (1 - away))
    else:
        slope = p
    return p, slope


@gluon.jit
def put(writer, outputs, result, place, SETTINGS: gl.constexpr):
    """Store a head's rows, as many as the sequence has."""
    desc, out = outputs
    line, end, head = place
    ROWS: gl.constexpr = result.shape[0]
    D: gl.constexpr = result.shape[1]
    if line + ROWS <= end:
        writer.store([line, head, 0], result, desc)
    else:
        # What comes behind the sequence's last row is another's.
        lines = line + gl.arange(0, ROWS, gl.SliceLayout(1, result.type.layout))
        columns = gl.arange(0, D, gl.SliceLayout(0, result.type.layout))
        rows = lines.to(gl.int64) * gl.num_programs(1) + head
        to = out + rows[:, None] * D + columns[None, :]
        gl.store(to, result.to(out.dtype.element_ty), mask=(lines < end)[:, None])


@gluon.jit
def key_gradients_of_half(
    rings, writer, outputs, lists, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
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
    # With 128 columns registers are too few for a cap's slope beside two products.
    LATE: gl.constexpr = SETTINGS[2] and D == 128
    if sequence < lists[2]:
        nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
        for_keys = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        for_values = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        k, v = own.wait(own.consumer())
        k = k.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        v = v.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        at = others.consumer()
        i = start
        for _ in range(SETTINGS[5] * (stop - start)):
            q, grad, sums = others.wait(at)
            q, grad = q.reshape([STEP, D]), grad.reshape([STEP, D])
            grad_turned = grad.permute((1, 0))
            score = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
            change = nothing
            if not LATE:
                change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(0 if LATE else 1, deps=[score])
            logsum = sums.slice(0, STEP).load(column)[None, :]
            p, slope = weights_of(score, logsum, low, i, None, log_scale, SETTINGS)
            weights = gl.convert_layout(p.to(dtype), operand)
            if LATE:
                change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
            change = warpgroup_mma_wait(0, deps=[change])
            for_values = warpgroup_mma(weights, grad, for_values, is_async=True)
            change = slope * (change - sums.slice(STEP, STEP).load(column)[None, :])
            change = gl.convert_layout(change.to(dtype), operand)
            for_keys = warpgroup_mma(change, q, for_keys, is_async=True)
            for_values, for_keys = warpgroup_mma_wait(0, deps=[for_values, for_keys])
            for_values = warpgroup_mma_init(for_values)
            for_keys = warpgroup_mma_init(for_keys)
            others.release(at)
            at = at.next()
            i = gl.where(i + 1 < stop, i + 1, start)  # of the next head
        done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
        # Found again: numbers that a loop does not need take registers in it.
        again = own_tile(lists, 4, SETTINGS)
        line = again[1][0] + again[0][1] + half * ROWS
        place = (line, again[1][1], gl.program_id(1))
        put(writer, to_values, done[0], place, SETTINGS)
        put(writer, to_keys, done[1] * scale, place, SETTINGS)
    writer.close()


@gluon.jit
def query_gradients_of_half(
    rings, writer, output, lists, known, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
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
    head = gl.program_id(1)
    if sequence < lists[2]:
        near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        at_row = statistics + 2 * (head * rows + room(first, sequence, 64) + row) + near - row
        there = near < end - first
        logsum = gl.load(at_row, mask=there, other=float("inf"))
        delta = gl.load(at_row + 64, mask=there, other=0.0)[:, None]
        nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
        acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        q, grad = own.wait(own.consumer())
        q = q.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        grad = grad.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        at = others.consumer()
        for i in range(start, stop):
            k, v = others.wait(at)
            k = k.reshape([STEP, D])
            v = v.reshape([STEP, D]).permute((1, 0))
            score = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
            change = warpgroup_mma(grad, v, nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1, deps=[score])
            p, slope = weights_of(score, logsum[:, None], low, i, length, log_scale, SETTINGS)
            change = warpgroup_mma_wait(0, deps=[change])
            change = gl.convert_layout((slope * (change - delta)).to(dtype), operand)
            acc = warpgroup_mma(change, k, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
            others.release(at)
            at = at.next()
        done = warpgroup_mma_wait(0, deps=[acc])
        put(writer, output, done * scale, (first + row, end, head), SETTINGS)
    writer.close()
