"""Tiles of groups of rows, of which only memory says how many rows they have."""

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def add(a, b):
    return a + b


@gluon.constexpr_function
def in_each_warp(most, warps, lanes=32):
    """Return a layout of `most` numbers that every warp has all of, so that no warp waits for another."""
    return gl.BlockedLayout([max(1, most // lanes)], [lanes], [warps], [0])


@gluon.jit
def tiles_of(ends, groups, N, layout: gl.constexpr, BLOCKS: gl.constexpr, MOST: gl.constexpr):
    """Return where the rows of each group begin and end, and how many tiles there are up to its last."""
    number = gl.arange(0, MOST, layout)
    end = gl.load(ends + number, mask=number < groups, other=0)
    begin = gl.load(ends + number - 1, mask=(number > 0) & (number < groups), other=0)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), BLOCKS[0]) * gl.cdiv(N, BLOCKS[1])
    return begin, end, gl.associative_scan(gl.where(number < groups, tiles, 0), 0, add)


@gluon.jit
def place_of(tile, listed, N, BLOCKS: gl.constexpr, WALK: gl.constexpr):
    """Return the group of a tile, its first row and column, and the end of the group's rows."""
    begin, end, sums = listed
    group = gl.sum((sums <= tile).to(gl.int32), 0)
    number = gl.arange(0, begin.shape[0], begin.type.layout)
    mine = number == group
    first = gl.sum(gl.where(mine, begin, 0), 0)
    last = gl.sum(gl.where(mine, end, 0), 0)
    before = gl.max(gl.where(number < group, sums, 0), 0)
    across = gl.cdiv(N, BLOCKS[1])
    down = gl.cdiv(gl.maximum(last - first, 1), BLOCKS[0])
    inside = tile - before
    top = inside // (WALK * across) * WALK
    height = gl.maximum(gl.minimum(down - top, WALK), 1)
    inside = inside % (WALK * across)
    row = first + (top + inside % height) * BLOCKS[0]
    return group, row, inside // height * BLOCKS[1], last
