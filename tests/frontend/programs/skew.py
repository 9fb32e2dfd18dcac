"""Rows or columns rotated, each by another amount: a gather inside a tensor."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

TILE = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.jit
def skewed(x, amounts, out, HIGH: gl.constexpr, WIDE: gl.constexpr, AXIS: gl.constexpr):
    row = gl.arange(0, HIGH, gl.SliceLayout(1, TILE))
    column = gl.arange(0, WIDE, gl.SliceLayout(0, TILE))
    offsets = row[:, None] * WIDE + column[None, :]
    if AXIS == 1:
        source = (column[None, :] + gl.load(amounts + row)[:, None]) % WIDE
    else:
        source = (row[:, None] + gl.load(amounts + column)[None, :]) % HIGH
    gl.store(out + offsets, gl.gather(gl.load(x + offsets), source, AXIS))


def data(axis, rng):
    x = rng.standard_normal((32, 64)).astype(np.float32)
    amounts = rng.integers(0, 99, x.shape[1 - axis], dtype=np.int32)
    lines = np.moveaxis(x, axis, 1)
    rolled = np.stack([np.roll(line, -amount) for line, amount in zip(lines, amounts)])
    return [x, amounts, np.zeros_like(x)], {"out": np.moveaxis(rolled, 1, axis)}


LAUNCHES = [
    Launch(skewed, "sm_90", partial(data, axis), constants={"HIGH": 32, "WIDE": 64, "AXIS": axis})
    for axis in (0, 1)
]
