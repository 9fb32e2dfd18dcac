"""Which rows, heads and keys a program of attention works on, and the parts of them that it sees.

SETTINGS are the rows and the keys of a tile, whether the mask is causal, and how many heads are walked
together; `sizes` are the heads and the length of their sequences.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def dealt(round, tiles, heads, GROUP: gl.constexpr):
    """Return the tile that this program works on, of `tiles` of each head, those of higher numbers with more
    work, and the head, one past the last for none.

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
    """The first row and the head that this program works on, a head past the last for none; and how many
    tiles of keys it looks at."""
    BLOCK_M: gl.constexpr = SETTINGS[0]
    GROUP: gl.constexpr = SETTINGS[3]
    heads, length = sizes
    tiles = gl.cdiv(length, BLOCK_M)
    if SETTINGS[2]:
        m, head = dealt(round, tiles, heads, GROUP)
        end = gl.minimum((m + 1) * BLOCK_M, length)
    else:
        tile = round * gl.num_programs(0) + gl.program_id(0)
        m = tile % tiles
        head = tile // tiles
        end = length
    return m * BLOCK_M, head, gl.cdiv(end, SETTINGS[1])


@gluon.jit
def rounds(sizes, SETTINGS: gl.constexpr):
    return gl.cdiv(gl.cdiv(sizes[1], SETTINGS[0]) * sizes[0], gl.num_programs(0))


@gluon.jit
def mask_scores(score, rows, keys, length, CAUSAL: gl.constexpr):
    """-inf where a key comes after its row, or after the last one."""
    if CAUSAL:
        inside = rows[:, None] >= keys[None, :]
    else:
        inside = (keys < length)[None, :] & (rows >= 0)[:, None]
    return gl.where(inside, score, float("-inf"))


@gluon.jit
def sums_of_lanes(x):
    """Return the sums, [rows, 4], that each of the four threads that share a row of `wgmma`'s result has: the
    threads are added up once, at the end."""
    pairs = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
    return gl.sum(gl.sum(pairs, 3), 1)
