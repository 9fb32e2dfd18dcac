"""The rows, heads and keys that a program of attention works on, and the mask of scores.

SETTINGS are the rows and the keys of a tile, True for a causal mask, how many heads share keys, and True if the last tiles have parts of the keys;
`sizes` are all heads, the lengths of queries and keys, the heads of a sequence, the order of tiles, and the parts of a tile.
"""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def dealt(round, tiles, heads, order):
    """Return which of the `tiles` of a head this program works on, and the head, one past the last for none.

    Tiles of higher numbers have more work. `order` is a code of `order.py`: how many heads are walked together, so that their keys and
    values stay in the cache; if the tiles of each other group ascend; if each other round begins with the last program.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    size = order // 8
    backwards = (order // 2 % 2) * (round % 2)
    tile = round * programs + gl.where(backwards == 1, programs - 1 - program, program)
    group = tile // (size * tiles)
    inside = tile % (size * tiles)
    many = gl.maximum(gl.minimum(heads - group * size, size), 1)  # the last group may be smaller
    m = inside // many
    head = gl.where(m < tiles, group * size + inside % many, heads)
    ascending = (order // 4 % 2) * ((gl.cdiv(heads, size) - group + 1) % 2)
    m = gl.where(ascending == 1, m, tiles - 1 - m)
    return m, head


@gluon.jit
def work_at(round, sizes, SETTINGS: gl.constexpr):
    """Return the first row and the head that this program works on, the number of the part or -1 for all keys, and its first tile and the one past
    its last.

    The head is past the last one where nothing is left.
    """
    BLOCK_M: gl.constexpr = SETTINGS[0]
    heads, length, keys, _, order, splits = sizes
    tiles = gl.cdiv(length, BLOCK_M)
    part = gl.to_tensor(-1)
    start = gl.to_tensor(0)
    if SETTINGS[2]:
        m, head = dealt(round, tiles, heads, order)
        stop = gl.cdiv(gl.minimum((m + 1) * BLOCK_M, keys), SETTINGS[1])
    else:
        tile = round * gl.num_programs(0) + gl.program_id(0)
        stop = gl.cdiv(keys, SETTINGS[1])
        if SETTINGS[4]:
            whole = whole_tiles(order)
            part = gl.maximum(tile - whole, -1)
            if part >= 0:
                tile = whole + part // splits
                nth = part % splits
                start = nth * stop // splits
                stop = (nth + 1) * stop // splits
        m = tile % tiles
        head = tile // tiles
    return m * BLOCK_M, head, part, start, stop


@gluon.jit
def whole_tiles(order):
    """Return how many tiles have all keys, where `order` says that, since the others have parts of them; it is odd as codes are."""
    return (order - 3) // 2


@gluon.jit
def rounds(sizes, SETTINGS: gl.constexpr):
    """Return how many tiles a program works on at most."""
    tiles = gl.cdiv(sizes[1], SETTINGS[0]) * sizes[0]
    if SETTINGS[4]:
        whole = whole_tiles(sizes[4])
        tiles = whole + (tiles - whole) * sizes[5]
    return gl.cdiv(tiles, gl.num_programs(0))


@gluon.constexpr_function
def power_of_two(size):
    """Return the least power of two that is no less."""
    return 1 << (size - 1).bit_length()


@gluon.jit
def skip_unseen(keys, values, position, stop, end, SIZE: gl.constexpr):
    """Release the tiles of SIZE keys that other groups' rows see and this one's do not, which see keys before `end`: the first tile left alone
    needs a mask. Return the position and the end of those left."""
    seen = gl.maximum(gl.cdiv(end, SIZE), 1)
    for _ in range(seen, stop):
        keys.wait(position)
        keys.release(position)
        values.wait(position)
        values.release(position)
        position = position.next()
    return position, gl.minimum(stop, seen)


@gluon.jit
def mask_scores(score, rows, keys, length, CAUSAL: gl.constexpr):
    """Put -inf where a key comes after its row, or after the last key."""
    inside = (keys < length)[None, :] & (rows >= 0)[:, None]
    if CAUSAL:
        inside = inside & (rows[:, None] >= keys[None, :])
    return gl.where(inside, score, float("-inf"))


@gluon.jit
def with_sink(sink, top, total):
    """Return the power of 2 that weights are relative to, their sum, and the factor of results, once a score without a value has joined them.

    `sink` is that score; `total` is the sum of weights relative to `top`.
    """
    sink = sink.to(gl.float32) * 1.4426950408889634
    higher = gl.maximum(top, sink)
    kept = gl.exp2(top - higher)
    return higher, total * kept + gl.exp2(sink - higher), kept


@gluon.jit
def sums_of_lanes(x):
    """Return the share of each of the four threads that hold a row of a `wgmma` result, [rows, 4].

    The threads are added up once, at the end.
    """
    pairs = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
    return gl.sum(gl.sum(pairs, 3), 1)


@gluon.jit
def hide(score, first, last, hidden: gl.constexpr):
    """Put `hidden` where a column is before its row's `first` or after its `last`, one of which may be None.

    A thread's columns of a `wgmma` result are constants but for its place in a group of four. Compared with bounds relative to that place they
    are immediate operands, and no loop carries them in registers.
    """
    KEYS: gl.constexpr = score.shape[1]
    x = score.reshape([score.shape[0], KEYS // 8, 4, 2])
    LAYOUT: gl.constexpr = x.type.layout
    by_row: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
    by_eight: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
    by_lane: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, LAYOUT)))
    by_pair: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    eight = 8 * gl.arange(0, KEYS // 8, by_eight)[None, :][:, :, None][:, :, :, None]
    column = eight + gl.arange(0, 2, by_pair)[None, :][:, None, :][:, :, None, :]
    place = 2 * gl.arange(0, 4, by_lane)[None, :][:, None, :][:, :, :, None]
    if last is not None:
        bound = gl.convert_layout(last, by_row)[:, None][:, :, None][:, :, :, None] - place
        x = gl.where(column <= bound, x, hidden)
    if first is not None:
        bound = gl.convert_layout(first, by_row)[:, None][:, :, None][:, :, :, None] - place
        x = gl.where(column >= bound, x, hidden)
    return gl.convert_layout(x.reshape(score.shape), score.type.layout)


@gluon.jit
def polynomial_power(x):
    """Return 2^x for x up to 0 by arithmetic alone, to 1e-4 of its value: Cody and Waite's reduction, a cubic polynomial, and a shifted exponent.

    The polynomial is 1 at 0, so that powers below 2^-127 are 0: their exponent cancels that of 1.
    """
    SHIFT: gl.constexpr = 12582912.0  # 1.5 * 2^23: the sum's last bits are the nearest integer
    x = gl.maximum(x, -127.0)
    shifted = x + SHIFT
    rest = x - (shifted - SHIFT)
    power = ((0.05500878 * rest + 0.24221083) * rest + 0.69328293) * rest + 1.0
    exponent = shifted.to(gl.int32, bitcast=True) << 23
    return (power.to(gl.int32, bitcast=True) + exponent).to(gl.float32, bitcast=True)


@gluon.jit
def powers(x, COMPUTED: gl.constexpr):
    """Return 2^x, x up to 0: that of COMPUTED columns of 8 times 8 by arithmetic, while the unit for exponentials has the others."""
    if COMPUTED == 0:
        result = gl.exp2(x)
    else:
        y = x.reshape([x.shape[0], x.shape[1] // 8, 4, 2])
        LAYOUT: gl.constexpr = y.type.layout
        by_eight: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
        # A constant of each register: the compiler leaves one of both ways.
        eight = gl.arange(0, x.shape[1] // 8, by_eight)[None, :][:, :, None][:, :, :, None]
        y = gl.where(eight * COMPUTED % 8 < COMPUTED, polynomial_power(y), gl.exp2(y))
        result = gl.convert_layout(y.reshape(x.shape), x.type.layout)
    return result
