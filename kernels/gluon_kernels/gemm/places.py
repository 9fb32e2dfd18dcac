"""Places of tiles: the order of `gl.portable.swizzled_tiles`, whose divisions are multiplications.

A program divides by the tiles of a matrix, of a group of rows, and of a column of the group. Each division takes some hundred cycles, which the first copy of a
program waits for, and each of its tiles between the products of two. The divisors are the same for all programs, so that a
launch brings their reciprocals (Granlund and Montgomery, Division by Invariant Integers using Multiplication).
"""

from __future__ import annotations

from typing import NamedTuple

import gluon_core as gluon
from gluon_core import language as gl

__all__ = ["Reciprocals", "place_of", "quotient", "reciprocals"]


class Reciprocals(NamedTuple):
    """The arguments of a kernel by which it divides numbers below 2^31, in 32 bits.

    Args:
        matrix, group, last: reciprocals of the tiles of a matrix, of the tiles of a group of rows, and of the rows of the last group.
        shifts: of the quotients by these, 8 bits each.
    """

    matrix: int
    group: int
    last: int
    shifts: int


def _reciprocal(divisor: int) -> tuple[int, int]:
    """Return the reciprocal of a divisor below 2^31 as a signed number of 32 bits, and the shift."""
    shift = (divisor - 1).bit_length()
    number = -(-(1 << 31 + shift) // divisor)
    return number - (number >> 31 << 32), shift


def reciprocals(rows: int, columns: int, group: int) -> Reciprocals:
    """Return the reciprocals for a matrix of so many rows and columns of tiles, of which `group` rows are walked together."""
    divisors = rows * columns, group * columns, (rows - 1) % group + 1
    of_matrix, of_group, of_last = map(_reciprocal, divisors)
    shifts = of_matrix[1] | of_group[1] << 8 | of_last[1] << 16
    return Reciprocals(of_matrix[0], of_group[0], of_last[0], shifts)


@gluon.jit
def quotient(number, reciprocal, shift):
    """Return `number` divided by what the reciprocal is of, rounded down."""
    twice = (number * 2).to(gl.uint32, bitcast=True)
    high = gl.umulhi(twice, reciprocal.to(gl.uint32, bitcast=True))
    return (high >> shift.to(gl.uint32, bitcast=True)).to(gl.int32, bitcast=True)


@gluon.jit
def place_of(tile, tiles, order, GROUP: gl.constexpr):
    """Return the matrix, the row and the column at which a tile begins.

    Args:
        tile: its number; those of one matrix follow those of another.
        tiles: the tiles of a matrix, by `gl.portable.swizzled_tiles` with GROUP.
        order: rows and columns of tiles, and the numbers of `Reciprocals`.
    """
    rows, columns, of_matrix, of_group, of_last, shifts = order
    matrix = quotient(tile, of_matrix, shifts & 255)
    inside = tile - matrix * (rows * columns)
    group = quotient(inside, of_group, (shifts >> 8) & 255)
    inside -= group * (GROUP * columns)
    height = gl.minimum(rows - group * GROUP, GROUP)
    across = quotient(inside, of_last, shifts >> 16)
    across = gl.where(height == GROUP, inside // GROUP, across)
    row = group * GROUP + inside - across * height
    return matrix, row * tiles.block[0], across * tiles.block[1]
