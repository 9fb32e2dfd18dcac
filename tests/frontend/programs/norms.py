"""Norms of rows, relative to the largest, in layouts that the compiler finds, from the one that is set."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

TILE = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], warps_per_cta=[4, 1], order=[1, 0]))


@gluon.jit
def norms(x, out, HIGH: gl.constexpr, WIDE: gl.constexpr):
    row = gl.arange(0, HIGH, layout=gl.AutoLayout())
    column = gl.arange(0, WIDE, layout=gl.AutoLayout())
    value = gl.load(x + gl.set_auto_layout(row[:, None] * WIDE + column[None, :], TILE))
    norm = gl.sqrt(gl.sum(value * value, 1))
    gl.store(out + gl.set_auto_layout(row, norm.type.layout), norm / gl.max(norm, 0))


def data(rng):
    x = rng.standard_normal((32, 64)).astype(np.float32)
    values = np.linalg.norm(x.astype(float), axis=1)
    return [x, np.zeros(32, np.float32)], {"out": values / values.max()}


LAUNCHES = [Launch(norms, "sm_90", data, constants={"HIGH": 32, "WIDE": 64}, tolerance=1e-6)]
