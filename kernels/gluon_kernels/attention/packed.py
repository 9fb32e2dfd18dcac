"""Sequences packed one behind the other: the tile of queries that a program works on, and the keys that the tile sees.

How many tiles a sequence has is known only when the kernel runs. The warp that copies reads where the sequences begin,
and finds a tile of some number from sums over all sequences. The settings are a tuple: (BLOCK_M, BLOCK_N), the window
(keys before, keys after; None is no bound), True for a soft cap, the power of two that bounds the sequences, and where the second
part of wide queries begins (0: one part).
"""

import gluon_core as gluon
from gluon_core import language as gl

__all__ = [
    "add",
    "bounds",
    "fetch_rows",
    "place_of",
    "select",
    "sequences",
    "tiles_of_head",
    "work_at",
]


@gluon.jit
def add(a, b):
    """Return the sum, for scans."""
    return a + b


@gluon.jit
def bounds(lists, index):
    """Return where the queries and the keys of the sequences `index` begin and end; 0 past the last sequence."""
    of_queries, of_keys, count = lists
    valid = index < count
    first = gl.load(of_queries + index, mask=valid, other=0)
    last = gl.load(of_queries + index + 1, mask=valid, other=0)
    first_key = gl.load(of_keys + index, mask=valid, other=0)
    last_key = gl.load(of_keys + index + 1, mask=valid, other=0)
    return first, last, first_key, last_key


@gluon.jit
def levels(packed, spread, BLOCK_M: gl.constexpr):
    """Return the level above a sequence's longest tile, and its number of tiles; tiles with more work have higher levels."""
    first, last, first_key, last_key = packed
    return gl.cdiv(last_key - first_key, BLOCK_M) * spread, gl.cdiv(last - first, BLOCK_M)


@gluon.jit
def sequences(lists, warps: gl.constexpr, SETTINGS: gl.constexpr):
    """Return for each sequence the level above its longest tile, the level of its shortest one, and how many tiles of all
    sequences are above each.

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
def tiles_of_head(packed):
    """Return how many tiles all sequences have, for each head."""
    return gl.max(packed[3], 0)


@gluon.jit
def place_of(number, tiles, heads, together):
    """Return which tile of a head has this number, and the head: those with much work come first, of so many heads together, whose operands stay in the cache."""
    group = number // (tiles * together)
    many = gl.minimum(heads - group * together, together)
    inside = number - group * (tiles * together)
    return inside // many, group * together + inside % many


@gluon.jit
def select(values, mask):
    """Return the only value under a mask."""
    return gl.sum(gl.where(mask, values, 0), 0)


@gluon.jit
def tile_at(nth, packed):
    """Return the sequence of the tile that `nth` tiles are above, and the tile's number in it."""
    high, low, above_high, above_low = packed
    begun, over = above_high <= nth, above_low <= nth
    # Between two of these levels no sequence begins or ends: each has a tile on every level.
    before = gl.max(gl.where(over, above_low, gl.where(begun, above_high, 0)), 0)
    least = gl.minimum(gl.where(over, low, 2**30), gl.where(begun, high, 2**30))
    valid = begun & (above_low > nth)
    many = gl.maximum(gl.sum(valid.to(gl.int32), 0), 1)
    level = gl.min(least, 0) - 1 - (nth - before) // many
    here = valid & (gl.associative_scan(valid.to(gl.int32), 0, add) == (nth - before) % many + 1)
    index = gl.arange(0, here.shape[0], here.type.layout)
    return select(index, here), level - select(low, here)


@gluon.jit
def work_at(number, tiles, lists, packed, heads, SETTINGS: gl.constexpr):
    """Return the work of the tile of this number; `heads` are all heads, and how many of them are walked together.

    The results are: the head; the first token of the sequence, the tile's first row in it, and the token past its last; the first
    token of its keys and how many they are; the key of row 0; the first tile of keys and the one past the last.
    """
    BLOCKS: gl.constexpr = SETTINGS[0]
    WINDOW: gl.constexpr = SETTINGS[1]
    nth, head = place_of(number, tiles, heads[0], heads[1])
    index, m = tile_at(nth, packed)
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
def fetch_rows(ring, position, row, head, MORE: gl.constexpr):
    """Copy rows of a head's queries or keys: in two parts, if MORE says where the second one begins."""
    if MORE:
        ring.fetch(position, [[row, head, 0], [row, head, MORE]])
    else:
        ring.fetch(position, [[row, head, 0]])
