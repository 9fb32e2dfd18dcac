"""Differences and smaller ones of pairs, by a function of scalars that branches and returns two values."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch


@gluon.jit
def apart(one, other):
    if one < other:
        low = one
        distance = other - one
    else:
        low = other
        distance = one - other
    return distance, low


@gluon.jit
def distances(x, y, out, low, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.arange(0, SIZE, LAYOUT)
    distance, smaller = gl.map_elementwise(apart, gl.load(x + offsets), gl.load(y + offsets))
    gl.store(out + offsets, distance)
    gl.store(low + offsets, smaller)


def data(rng):
    x, y = rng.integers(-99, 99, (2, 256), dtype=np.int32)
    arguments = [x, y, np.zeros_like(x), np.zeros_like(x)]
    return arguments, {"out": np.abs(x - y), "low": np.minimum(x, y)}


LAUNCHES = [
    Launch(
        distances,
        "sm_90",
        data,
        constants={"SIZE": 256, "LAYOUT": gl.BlockedLayout([2], [32], [4], [0])},
    )
]
