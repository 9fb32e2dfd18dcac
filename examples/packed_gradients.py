"""What the gradients of packed attention share: whose tiles a program walks over, weights that are computed
again, rows that end within a tile; and the gradients in float64.

SETTINGS are the own rows and the others of a tile, the window of an own row over others, whether scores are
capped, for how many sequences there is room, whether own rows are keys, and how many heads share these.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.tune import numpy_of

try:
    from .attention_paged import placed
    from .packed import add, bounds, picked
except ImportError:  # run as a program
    from attention_paged import placed
    from packed import add, bounds, picked


@gluon.jit
def room(begin, sequence):
    """Where a sequence's statistics begin: those of 64 rows are of one sequence."""
    return (begin + 64 * sequence) // 64 * 64


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
                begin = 2 * (of * rows + room(other, sequence))
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
    does: less than these if capped. The first row stands at the others' place `low`; where it is not the sums
    that say how many others there are, they are `length`."""
    STEP: gl.constexpr = SETTINGS[0][1]
    WINDOW: gl.constexpr = SETTINGS[1]
    if SETTINGS[2]:
        # tanh(s / cap) is 1 - 2 away, and its derivative 4 away (1 - away)
        away = 1 / (gl.exp2(score * scale[0]) + 1)
        p = gl.exp2(scale[1] - 2 * scale[1] * away - logsums)
    else:
        p = gl.exp2(score * scale[0] - logsums)
    first = tile * STEP
    last = first + STEP - 1
    crossed = False
    if length is not None:
        crossed = last >= length
    if WINDOW[0] is not None:
        crossed = crossed | (first < low + p.shape[0] - 1 - WINDOW[0])
    if WINDOW[1] is not None:
        crossed = crossed | (last > low + WINDOW[1])
    if crossed:
        other = (first + gl.arange(0, STEP, gl.SliceLayout(0, p.type.layout)))[None, :]
        place = low + gl.arange(0, p.shape[0], gl.SliceLayout(1, p.type.layout))[:, None]
        inside = other >= 0
        if length is not None:
            inside = inside & (other < length)
        if WINDOW[0] is not None:
            inside = inside & (other >= place - WINDOW[0])
        if WINDOW[1] is not None:
            inside = inside & (other <= place + WINDOW[1])
        p = gl.where(inside, p, 0.0)
    if SETTINGS[2]:
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
def prepare(
    out, grad, logsums, statistics, lists, count, heads, D: gl.constexpr, MOST: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Statistics are [heads, rows / 64, 2, 64]: of each query the logarithm of its sum, and the sum of
    `out * grad`; infinite and 0 where there is none. `out` and `grad` are [tokens, heads, D], `logsums` [tokens, heads],
    `lists` where the sequences begin."""
    here: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    base = gl.program_id(0) * 64
    head = gl.program_id(1)
    index = gl.arange(0, MOST, here)
    ends = gl.load(lists + index + 1, mask=index < count, other=0)
    past = (index < count) & (room(ends, index + 1) <= base)
    sequence = gl.sum(past.to(gl.int32), 0)
    begin = gl.load(lists + sequence, mask=sequence < count, other=0)
    end = gl.load(lists + sequence + 1, mask=sequence < count, other=0)
    near = base + gl.arange(0, 64, here)
    line = begin + near - room(begin, sequence)
    there = line < end
    place = line.to(gl.int64) * heads + head
    column = gl.arange(0, D, gl.SliceLayout(0, LAYOUT))
    at = place[:, None] * D + column[None, :]
    x = gl.load(out + at, mask=there[:, None], other=0.0).to(gl.float32)
    y = gl.load(grad + at, mask=there[:, None], other=0.0).to(gl.float32)
    logsum = gl.load(logsums + place, mask=there, other=float("inf"))
    rows = gl.num_programs(0) * 64
    to = statistics + 2 * (head * rows + base) + near - base
    gl.store(to, gl.where(logsum == float("-inf"), float("inf"), logsum))
    gl.store(to + 64, gl.sum(x * y, 1))


def rows_of(tokens, sequences):
    """How many rows the statistics of so many have."""
    return (tokens // 64 + sequences) * 64


def rows_at(args):
    """Where each token's statistics are."""
    begins = np.asarray(args["of_queries"])
    index = np.arange(len(begins) - 1)
    each = (begins[:-1] + 64 * index) // 64 * 64 - begins[:-1]
    return np.repeat(each, np.diff(begins)) + np.arange(begins[-1])


def statistics_of(new, args):
    """Any for the queries that are there."""
    (tokens, heads, _), sequences = args["q"].shape, args["of_queries"].shape[0] - 1
    made = np.zeros((heads, rows_of(tokens, sequences) // 64, 2, 64), np.float32)
    made[:, :, 0] = np.inf
    if hasattr(args["of_queries"], "__getitem__"):
        at = rows_at({"of_queries": numpy_of(args["of_queries"])})
        drawn = np.random.default_rng(0).standard_normal((tokens, heads, 2))
        made[:, at // 64, :, at % 64] = drawn
    return placed(new, made.reshape(-1))


def gradients(args):
    """Of queries, keys and values in float64, sequence by sequence, for the statistics that are given."""
    q, k, v, grad = (args[name].astype(np.float64) for name in ("q", "k", "v", "grad"))
    statistics = args["statistics"].astype(np.float64).reshape(q.shape[1], -1, 2, 64)
    at = rows_at(args)
    logsums, deltas = statistics[:, at // 64, :, at % 64].transpose(2, 1, 0)
    shared, (left, right), cap = q.shape[1] // k.shape[1], args["window"], args["cap"]
    scale = 1 / math.sqrt(q.shape[2])
    made = [np.zeros_like(x) for x in (q, k, v)]
    ends = [list(zip(args[name], args[name][1:])) for name in ("of_queries", "of_keys")]
    for (begin, end), (first, last) in zip(*ends):
        own, theirs = slice(begin, end), slice(first, last)
        of_k, of_v = (t[theirs].repeat(shared, axis=1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", q[own], of_k) * scale
        slope = 1.0
        if cap:
            slope = 1 - np.tanh(score / cap) ** 2
            score = cap * np.tanh(score / cap)
        place = np.arange(end - begin)[:, None] + (last - first) - (end - begin)
        away = np.arange(last - first) - place
        seen = away >= (-left if left is not None else -np.inf)
        seen &= away <= (right if right is not None else np.inf)
        power = np.where(seen, score * math.log2(math.e) - logsums[:, own, None], -np.inf)
        p = np.exp2(power)
        change = np.einsum("qhd,khd->hqk", grad[own], of_v) - deltas[:, own, None]
        change = p * slope * change * scale
        made[0][own] = np.einsum("hqk,khd->qhd", change, of_k)
        for to, weights, of in ((1, change, q), (2, p, grad)):
            whole = np.einsum("hqk,qhd->khd", weights, of[own])
            made[to][theirs] = whole.reshape(last - first, -1, shared, q.shape[2]).sum(axis=2)
    return dict(zip(("for_queries", "for_keys", "for_values"), made))
