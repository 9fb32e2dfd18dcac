"""Groups of rows and sequences packed one behind the other: who works on what, and what attention over them
is.

Programs walk over the tiles of all of them. How many tiles one has is known only when the kernel runs; with
the numbers summed up, a tile is of the group or sequence that so many sums are not above.
"""

import math

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.kernels.cases.attention_tiles import dealt


@gluon.jit
def add(a, b):
    return a + b


@gluon.constexpr_function
def in_each_warp(most, warps, lanes=32):
    """A layout of a list that every warp has whole, so that sums over it wait for no other warp."""
    return gl.BlockedLayout([max(1, most // lanes)], [lanes], [warps], [0])


@gluon.jit
def groups_of(
    starts, counts, groups, N, layout: gl.constexpr, BLOCKS: gl.constexpr, MOST: gl.constexpr
):
    """Of each group, up to MOST: its first row, its rows, and the tiles of all groups up to it."""
    group = gl.arange(0, MOST, layout)
    start = gl.load(starts + group, mask=group < groups, other=0)
    count = gl.load(counts + group, mask=group < groups, other=0)
    tiles = gl.cdiv(count, BLOCKS[0]) * gl.cdiv(N, BLOCKS[1])
    return start, count, gl.associative_scan(tiles, 0, add)


@gluon.jit
def group_tile_at(tile, tiling, N, BLOCKS: gl.constexpr, GROUP: gl.constexpr):
    """A tile's group, its first row and column, and where the group's rows end. Within a group, GROUP
    rows of tiles are walked at a time, column by column."""
    start, count, tiles = tiling
    group = gl.sum((tiles <= tile).to(gl.int32), 0)
    index = gl.arange(0, tiles.shape[0], tiles.type.layout)
    first = gl.sum(gl.where(index == group, start, 0), 0)
    rows = gl.sum(gl.where(index == group, count, 0), 0)
    inside = tile - gl.sum(gl.where(index == group - 1, tiles, 0), 0)
    width = GROUP * gl.cdiv(N, BLOCKS[1])
    before = inside // width * GROUP
    height = gl.minimum(gl.cdiv(rows, BLOCKS[0]) - before, GROUP)
    inside = inside % width
    row = first + (before + inside % height) * BLOCKS[0]
    return group, row, inside // height * BLOCKS[1], first + rows


@gluon.jit
def bounds(lists, index):
    """Where the sequences of `index` begin and end, their queries and their keys; past the last, nowhere."""
    of_queries, of_keys, count = lists
    there = index < count
    first = gl.load(of_queries + index, mask=there, other=0)
    last = gl.load(of_queries + index + 1, mask=there, other=0)
    first_key = gl.load(of_keys + index, mask=there, other=0)
    last_key = gl.load(of_keys + index + 1, mask=there, other=0)
    return first, last, first_key, last_key


@gluon.jit
def levels(packed, spread, BLOCK_M: gl.constexpr):
    """Tiles stand on levels, those with more work higher: here a sequence's highest and how many it has."""
    first, last, first_key, last_key = packed
    return gl.cdiv(last_key - first_key, BLOCK_M) * spread, gl.cdiv(last - first, BLOCK_M)


@gluon.jit
def sequences(lists, warps: gl.constexpr, SETTINGS: gl.constexpr):
    """Of each sequence: the level above its longest tile's and that of its shortest one, and how many
    tiles, of all sequences, stand above these.

    Under a mask that falls to the right each tile has a level less than the one behind it, and one level
    has the tiles of many sequences. Otherwise all tiles of a sequence have equal work, and its levels are
    below those of any with more keys.
    """
    BLOCK_M: gl.constexpr = SETTINGS[0][0]
    WINDOW: gl.constexpr = SETTINGS[1]
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    both: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [warps, 1], [1, 0])
    packed = bounds(lists, gl.arange(0, SETTINGS[3], flat))
    spread = 1
    if WINDOW[1] is None:
        spread += gl.max(levels(packed, 1, BLOCK_M)[1], 0)
    high, tiles = levels(packed, spread, BLOCK_M)
    low = high - tiles
    from_high = gl.convert_layout(high, gl.SliceLayout(1, both))[:, None]
    from_low = gl.convert_layout(low, gl.SliceLayout(1, both))[:, None]
    above_high = gl.zeros([SETTINGS[3]], gl.int32, gl.SliceLayout(1, both))
    above_low = above_high
    for base in range(0, lists[2], 8):
        others = bounds(lists, base + gl.arange(0, 8, gl.SliceLayout(0, both)))
        top, most = levels(others, spread, BLOCK_M)
        top, most = top[None, :], most[None, :]
        above_high += gl.sum(gl.minimum(gl.maximum(top - from_high, 0), most), 1)
        above_low += gl.sum(gl.minimum(gl.maximum(top - from_low, 0), most), 1)
    return high, low, gl.convert_layout(above_high, flat), gl.convert_layout(above_low, flat)


@gluon.jit
def turns(packed, heads):
    return gl.cdiv(gl.max(packed[3], 0) * heads, gl.num_programs(0))


@gluon.jit
def picked(values, mask):
    return gl.sum(gl.where(mask, values, 0), 0)


@gluon.jit
def tile_at(nth, packed):
    """The sequence of the tile that so many are above, and the tile's number in it."""
    high, low, above_high, above_low = packed
    begun, over = above_high <= nth, above_low <= nth
    # Between two of these levels, sequences neither begin nor end: each has a tile on every level.
    before = gl.max(gl.where(over, above_low, gl.where(begun, above_high, 0)), 0)
    least = gl.minimum(gl.where(over, low, 2**30), gl.where(begun, high, 2**30))
    there = begun & (above_low > nth)
    many = gl.maximum(gl.sum(there.to(gl.int32), 0), 1)
    level = gl.min(least, 0) - 1 - (nth - before) // many
    here = there & (gl.associative_scan(there.to(gl.int32), 0, add) == (nth - before) % many + 1)
    index = gl.arange(0, here.shape[0], here.type.layout)
    return picked(index, here), level - picked(low, here)


@gluon.jit
def work_at(turn, lists, packed, heads, SETTINGS: gl.constexpr):
    """The head, where the tile's queries begin and their sequence's end, where its keys begin, how many
    those are, the difference between a key's and a query's place, and the first tile of keys and the
    one behind the last. All programs get equal work, as in `attention_tiles.py`."""
    BLOCKS: gl.constexpr = SETTINGS[0]
    WINDOW: gl.constexpr = SETTINGS[1]
    total = gl.maximum(gl.max(packed[3], 0), 1)
    m, head = dealt(turn, total, heads, SETTINGS[5])
    index, m = tile_at(total - 1 - m, packed)
    first, end, first_key, last_key = bounds(lists, index)
    length = last_key - first_key
    row = m * BLOCKS[0]
    shift = length - (end - first)
    start = 0
    stop = length
    if WINDOW[0] is not None:
        start = gl.maximum(row + shift - WINDOW[0], 0) // BLOCKS[1]
    if WINDOW[1] is not None:
        stop = gl.minimum(row + BLOCKS[0] + shift + WINDOW[1], length)
    stop = gl.maximum(
        gl.cdiv(stop, BLOCKS[1]), start + 1
    )  # where no key is seen, one tile all masked
    return head, first, row, end, first_key, length, shift, start, stop


@gluon.jit
def fetch_rows(ring, at, row, head, MORE: gl.constexpr):
    """Rows of a head's queries or keys: in two parts, if MORE says where the second one begins."""
    if MORE:
        ring.fetch(at, [[row, head, 0], [row, head, MORE]])
    else:
        ring.fetch(at, [[row, head, 0]])


@gluon.jit
def product(queries, keys, acc, use_acc: gl.constexpr):
    D: gl.constexpr = queries.shape[2]
    k_tile = keys.reshape([keys.shape[0], D]).permute((1, 0))
    q_tile = queries.reshape([queries.shape[0], D])
    mma: gl.constexpr = gl.nvidia.hopper.warpgroup_mma
    return mma(q_tile, k_tile, acc, use_acc=use_acc, is_async=True)


@gluon.jit
def score_products(queries, keys, nothing, MORE: gl.constexpr):
    """Start to multiply queries with keys, of one part or of two."""
    if MORE:
        coming = product(queries[0], keys[0], nothing, False)
        coming = product(queries[1], keys[1], coming, True)
    else:
        coming = product(queries, keys, nothing, False)
    return coming


def reference(args):
    """In float64, sequence by sequence."""
    q, k, v = (args[name].astype(np.float64) for name in "qkv")
    shared, (left, right) = q.shape[1] // k.shape[1], args["window"]
    out = np.zeros((*q.shape[:2], v.shape[2]))
    bounds = [list(zip(args[name], args[name][1:])) for name in ("of_queries", "of_keys")]
    for (begin, end), (first, last) in zip(*bounds):
        if begin == end or first == last:
            continue
        mine, (of_k, of_v) = q[begin:end], (t[first:last].repeat(shared, axis=1) for t in (k, v))
        score = np.einsum("qhd,khd->hqk", mine, of_k) / math.sqrt(q.shape[-1])
        if args["cap"]:
            score = args["cap"] * np.tanh(score / args["cap"])
        away = (
            np.arange(last - first)
            - (np.arange(end - begin) + (last - first - end + begin))[:, None]
        )
        seen = np.ones_like(away, dtype=bool)
        seen &= away >= -left if left is not None else True
        seen &= away <= right if right is not None else True
        p = np.exp(score - score.max()) * seen
        total = p.sum(axis=2, keepdims=True)
        p = np.divide(p, total, out=np.zeros_like(p), where=total > 0)
        out[begin:end] = np.einsum("hqk,khd->qhd", p, of_v)
    return out


def pairs(args):
    """How many a query and a key see of each other, over all sequences, for one head."""
    left, right = args["window"]
    count = 0
    for queries, keys in zip(
        np.diff(args["of_queries"].tolist()), np.diff(args["of_keys"].tolist())
    ):
        place = np.arange(queries) + keys - queries
        low = 0 if left is None else np.maximum(place - left, 0)
        high = keys if right is None else np.minimum(place + right + 1, keys)
        count += int(np.maximum(high - low + 0 * place, 0).sum())
    return count
