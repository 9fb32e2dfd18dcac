"""Histogram of values, counted by every program for its part and added up."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
PAIRS = gl.constexpr(gl.BlockedLayout([2], [32], [4], [0]))


@gluon.jit
def count(x, counts, PART: gl.constexpr, VALUES: gl.constexpr):
    mine = gl.load(x + gl.program_id(0) * PART + gl.arange(0, PART, layout=PAIRS))
    histogram = gl.histogram(mine, VALUES, layout=LINE)
    gl.atomic_add(counts + gl.arange(0, VALUES, layout=LINE), histogram)


def data(rng):
    x = rng.integers(0, 32, 1024, dtype=np.int32)
    return [x, np.zeros(32, np.int32)], {"counts": np.bincount(x, minlength=32)}


LAUNCHES = [Launch(count, "sm_90", data, grid=(2,), constants={"PART": 512, "VALUES": 32})]
