"""Mean and variance of everything up to each moment: an associative scan of three tensors, its last row
carried from chunk to chunk."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from tests.programs import Launch

SERIES = gl.constexpr(16)
CHUNK = gl.constexpr(64)


@gluon.jit
def pool(count, mean, spread, more, other, wider):
    """Two samples as one: how many, their mean, and the sum of squares around it."""
    both = count + more
    part = gl.where(both > 0, more / gl.maximum(both, 1), 0.0)
    apart = other - mean
    return both, mean + apart * part, spread + wider + apart * apart * count * part


@gluon.jit
def moments(x, means, variances, length):
    TILE: gl.constexpr = gl.BlockedLayout([4, 1], [16, 4], [1, 4], [0, 1])
    moment = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, TILE))[:, None]
    series = gl.arange(0, SERIES, layout=gl.SliceLayout(0, TILE))[None, :]
    last = moment == CHUNK - 1
    count = gl.full([SERIES], 0.0, gl.float32, gl.SliceLayout(0, TILE))
    mean, spread = count, count
    for start in range(0, length, CHUNK):
        there = start + moment < length
        offsets = (start + moment) * SERIES + series
        one = gl.where(there, 1.0, 0.0) + gl.zeros([CHUNK, SERIES], gl.float32, TILE)
        values = gl.load(x + offsets, mask=there, other=0.0)
        n, m, s = gl.associative_scan((one, values, gl.zeros_like(values)), 0, pool)
        n, m, s = pool(count[None, :], mean[None, :], spread[None, :], n, m, s)
        gl.store(means + offsets, m, mask=there)
        gl.store(variances + offsets, s / n, mask=there)
        count = gl.sum(gl.where(last, n, 0.0), axis=0)
        mean = gl.sum(gl.where(last, m, 0.0), axis=0)
        spread = gl.sum(gl.where(last, s, 0.0), axis=0)


def data(rng):
    x = (2 + rng.standard_normal((200, 16))).astype(np.float32)
    count = np.arange(1, 201)[:, None]
    mean = np.cumsum(x.astype(float), axis=0) / count
    variance = np.cumsum(x.astype(float) ** 2, axis=0) / count - mean**2
    arguments = [x, np.zeros_like(x), np.zeros_like(x), 200]
    return arguments, {"means": mean, "variances": variance}


LAUNCHES = [Launch(moments, "gfx942", data, constants={"num_warps": 4}, tolerance=1e-6)]
