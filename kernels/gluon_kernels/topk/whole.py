"""The largest or smallest elements of rows that the registers of a program hold: radix select, then a bitonic sort.

An element and its column become one unsigned integer, so no two are equal: the order of integers is that of elements, and among equal
ones the lower column comes first. Two bits of the bound are settled at a time, until at most MOST elements reach it; these are
listed and sorted. Where few of many are wanted, the bound is that of the largest of groups, which are fewer: all elements are looked at once, unless
too many reach it. Memory is read once, whatever the row contains.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.topk.portable import add, bound_of, keys_of


@gluon.jit
def packed(x, column, inside, BITS: gl.constexpr, LARGEST: gl.constexpr, WIDE: gl.constexpr):
    """Return integers that compare as elements and columns do, 0 where there is no element: 64 bits if WIDE, else 32."""
    key = keys_of(x, inside, BITS, LARGEST)
    if WIDE:
        last = (0xFFFFFFFF - column.to(gl.uint32)).to(gl.uint64)
        both = (key.to(gl.uint64) << 32) | last
    else:
        both = (key << 16) | (0xFFFF - column).to(gl.uint32)
    return gl.where(inside, both, 0)


@gluon.jit
def exchanged(x, place, SIZE: gl.constexpr, FAR: gl.constexpr, LENGTH: gl.constexpr):
    """Return integers [SIZE] with those that are FAR apart in order: descending and ascending by turns of LENGTH."""
    pairs = x.reshape([SIZE // (2 * FAR), 2, FAR])
    both = gl.sum(pairs, 1)
    other = gl.convert_layout((both[:, None, :] - pairs).reshape([SIZE]), x.type.layout)
    first = (place & FAR) == 0
    down = (place & LENGTH) == 0
    return gl.where(first == down, gl.maximum(x, other), gl.minimum(x, other))


@gluon.jit
def sorted_down(x, SIZE: gl.constexpr, LOG: gl.constexpr):
    """Return integers [SIZE], of 2**LOG, in descending order (Batcher's bitonic sort, 1968)."""
    place = gl.arange(0, SIZE, x.type.layout)
    for phase in gl.static_range(1, LOG + 1):
        for step in gl.static_range(1, phase + 1):
            x = exchanged(x, place, SIZE, 2 ** (phase - step), 2**phase)
    return x


@gluon.jit
def largest_of(keys, TILES: gl.constexpr, GROUP: gl.constexpr):
    """Return tiles of the largest of GROUP keys each, which one thread has: of a tile's row and of several tiles."""
    VECTOR: gl.constexpr = keys[0].shape[1]
    TOGETHER: gl.constexpr = max(1, GROUP // VECTOR)
    tiles = ()
    for i in gl.static_range(0, TILES, TOGETHER):
        best = keys[i]
        for j in gl.static_range(1, min(TOGETHER, TILES - i)):
            best = gl.maximum(best, keys[i + j])
        if VECTOR > GROUP:
            best = best.reshape([best.shape[0], VECTOR // GROUP, GROUP])
            tiles = tiles + (gl.max(best, 2),)
        else:
            tiles = tiles + (gl.max(best, 1),)
    return tiles


@gluon.jit
def reaching(keys, bound, TILES: gl.constexpr):
    """Return how many keys of each row of the tiles reach a bound."""
    number = (keys[0] >= bound).to(gl.int32)
    for i in gl.static_range(1, TILES):
        number += (keys[i] >= bound).to(gl.int32)
    return gl.sum(number, 1)


@gluon.jit
def topk_whole(
    src, values, indices, lists, rows, columns, stride, count, BITS: gl.constexpr,
    LARGEST: gl.constexpr, ALIGN: gl.constexpr, WIDE: gl.constexpr, PIECES: gl.constexpr, LANES: gl.constexpr,
    VECTOR: gl.constexpr, GROUP: gl.constexpr, MOST: gl.constexpr, LOG: gl.constexpr,
    layout: gl.constexpr, flat: gl.constexpr, ranked: gl.constexpr,
):  # fmt: skip
    """Store the `count` largest elements of each row to `values`, and their columns to `indices`, descending; programs walk over rows.

    Args:
        lists: of integers as `packed` returns, MOST for each program.
        PIECES: tiles of a row, of LANES times VECTOR elements.
        GROUP: elements whose largest one is looked at first.
        MOST: 2**LOG, at least `count`, at most 2048.
    """
    signed: gl.constexpr = gl.int64 if WIDE else gl.int32
    end = columns // ALIGN * ALIGN
    lane = gl.arange(0, LANES, gl.SliceLayout(1, layout))
    near = gl.arange(0, VECTOR, gl.SliceLayout(0, layout))
    place = gl.arange(0, MOST, ranked)
    lists += gl.program_id(0) * MOST
    for row in range(gl.program_id(0), rows, gl.num_programs(0)):
        start = src + gl.to_tensor(row).to(gl.int64) * (stride // ALIGN * ALIGN)
        keys = ()
        for i in gl.static_range(PIECES):
            column = (i * LANES + lane[:, None]) * VECTOR + near[None, :]
            x = gl.portable.load(start, column, column < end, 0)
            keys = keys + (packed(x, column, column < end, BITS, LARGEST, WIDE),)
        if GROUP > 1:
            best = largest_of(keys, PIECES, GROUP)
            bound = bound_of(best, count, count + count // 2, 64 if WIDE else 32, len(best))
        else:
            bound = bound_of(keys, count, MOST, 64 if WIDE else 32, PIECES)
        number = reaching(keys, bound, PIECES)
        total = gl.sum(number, 0)
        if GROUP > 1:
            if total > MOST:  # the largest of all are in few groups
                bound = bound_of(keys, count, MOST, 64 if WIDE else 32, PIECES)
                number = reaching(keys, bound, PIECES)
                total = gl.sum(number, 0)
        before = gl.convert_layout(number, flat)  # a layout that scans take
        before = gl.associative_scan(before, 0, add)
        index = gl.convert_layout(before, number.type.layout) - number
        for i in gl.static_range(PIECES):
            chosen = keys[i] >= bound
            inner = gl.associative_scan(chosen.to(gl.int32), 1, add)
            gl.store(
                lists + index[:, None] + inner - 1, keys[i].to(signed, bitcast=True), mask=chosen
            )
            index += gl.sum(chosen.to(gl.int32), 1)
        gl.barrier()
        order = gl.load(lists + place, mask=place < total, other=0)
        order = sorted_down(order.to(keys[0].dtype, bitcast=True), MOST, LOG)
        if WIDE:
            column = (0xFFFFFFFF - (order & 0xFFFFFFFF)).to(gl.int32)
        else:
            column = 0xFFFF - (order & 0xFFFF).to(gl.int32)
        best = place < count
        value = gl.load(start + column, mask=best, other=0.0)
        of_row = gl.to_tensor(row).to(gl.int64) * count + place
        gl.store(values + of_row, value, mask=best)
        gl.store(indices + of_row, column.to(indices.dtype.element_ty), mask=best)
        gl.barrier()  # the list is read before the next row's is written
