"""Sums, the smallest with its place, and running maxima along either dimension, by functions of our own,
in layouts of registers and of matrix instructions."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

FRAGMENTS = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
LAYOUTS = [
    gl.BlockedLayout([1, 4], [4, 8], warps_per_cta=[4, 1], order=[1, 0]),
    gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]),
    gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]),
    gl.DotOperandLayout(0, FRAGMENTS, 2),
]
SCANNED = gl.constexpr(gl.BlockedLayout([2, 2], [8, 4], warps_per_cta=[2, 2], order=[1, 0]))


@gluon.jit
def plus(one, other):
    return one + other


@gluon.jit
def larger(one, other):
    return gl.where(one < other, other, one)


@gluon.jit
def smaller(one, place, other, elsewhere):
    other_wins = (other < one) | (other == one) & (elsewhere < place)
    return gl.where(other_wins, other, one), gl.where(other_wins, elsewhere, place)


@gluon.jit
def along(
    x,
    sums,
    smallest,
    places,
    running,
    HIGH: gl.constexpr,
    WIDE: gl.constexpr,
    LAYOUT: gl.constexpr,
    AXIS: gl.constexpr,
):
    row = gl.arange(0, HIGH, gl.SliceLayout(1, LAYOUT))[:, None]
    column = gl.arange(0, WIDE, gl.SliceLayout(0, LAYOUT))[None, :]
    value = gl.load(x + row * WIDE + column)
    place = (row if AXIS == 0 else column) + gl.zeros([HIGH, WIDE], gl.int32, LAYOUT)
    total = gl.reduce(value, AXIS, plus)
    gl.static_assert(total.type.layout == gl.SliceLayout(AXIS, LAYOUT))
    least, where = gl.reduce((value, place), AXIS, smaller)
    rest = gl.arange(0, WIDE if AXIS == 0 else HIGH, total.type.layout)
    gl.store(sums + rest, total)
    gl.store(smallest + rest, least)
    gl.store(places + rest, where)
    scanned = gl.associative_scan(gl.convert_layout(value, SCANNED), AXIS, larger)
    gl.store(running + row * WIDE + column, gl.convert_layout(scanned, LAYOUT))


def data(axis, rng):
    x = rng.integers(-99, 99, (64, 32)).astype(np.float32)
    wanted = {
        "sums": x.sum(axis),
        "smallest": x.min(axis),
        "places": x.argmin(axis),
        "running": np.maximum.accumulate(x, axis),
    }
    places = np.zeros(x.shape[1 - axis], np.int32)
    sums, smallest = np.zeros((2, places.size), np.float32)
    return [x, sums, smallest, places, np.zeros_like(x)], wanted


LAUNCHES = [
    Launch(
        along,
        "sm_90",
        partial(data, axis),
        constants={"HIGH": 64, "WIDE": 32, "LAYOUT": layout, "AXIS": axis},
    )
    for layout in LAYOUTS
    for axis in (0, 1)
]
