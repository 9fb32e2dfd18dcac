"""The rows, heads and keys that a program of attention works on, and the mask of scores.

SETTINGS are the rows and the keys of a tile, whether the mask is causal, and how many heads are walked
together; `sizes` are all heads, the lengths of queries and keys, and the heads of a sequence.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def dealt(round, tiles, heads, GROUP: gl.constexpr):
    """Return which of the `tiles` of a head this program works on, and the head, one past the last for none.

    Tiles of higher numbers have more work.
    Programs that run together work on few heads, whose keys and values stay in the cache. The last group
    of heads begins with its longest tiles, the one before it with its shortest, and so on: where lengths do
    not jump, directions that turn from round to round give all programs equal work.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    tile = round * programs + gl.where(round % 2 == 0, program, programs - 1 - program)
    group = tile // (GROUP * tiles)
    inside = tile % (GROUP * tiles)
    size = gl.maximum(gl.minimum(heads - group * GROUP, GROUP), 1)  # the last may be smaller
    m = inside // size
    head = gl.where(m < tiles, group * GROUP + inside % size, heads)
    m = gl.where((gl.cdiv(heads, GROUP) - group) % 2 == 1, tiles - 1 - m, m)
    return m, head


@gluon.jit
def work_at(round, sizes, SETTINGS: gl.constexpr):
    """Return the first row and the head that this program works on, and how many tiles of keys it looks at.

    The head is past the last one where nothing is left.
    """
    BLOCK_M: gl.constexpr = SETTINGS[0]
    GROUP: gl.constexpr = SETTINGS[3]
    heads, length, keys, _ = sizes
    tiles = gl.cdiv(length, BLOCK_M)
    if SETTINGS[2]:
        m, head = dealt(round, tiles, heads, GROUP)
        end = gl.minimum((m + 1) * BLOCK_M, keys)
    else:
        tile = round * gl.num_programs(0) + gl.program_id(0)
        m = tile % tiles
        head = tile // tiles
        end = keys
    return m * BLOCK_M, head, gl.cdiv(end, SETTINGS[1])


@gluon.jit
def rounds(sizes, SETTINGS: gl.constexpr):
    """Return how many tiles a program works on at most."""
    return gl.cdiv(gl.cdiv(sizes[1], SETTINGS[0]) * sizes[0], gl.num_programs(0))


@gluon.jit
def mask_scores(score, rows, keys, length, CAUSAL: gl.constexpr):
    """Put -inf where a key comes after its row, or after the last key."""
    inside = (keys < length)[None, :] & (rows >= 0)[:, None]
    if CAUSAL:
        inside = inside & (rows[:, None] >= keys[None, :])
    return gl.where(inside, score, float("-inf"))


@gluon.jit
def sums_of_lanes(x):
    """Return the share of each of the four threads that hold a row of a `wgmma` result, [rows, 4].

    The threads are added up once, at the end.
    """
    pairs = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
    return gl.sum(gl.sum(pairs, 3), 1)
