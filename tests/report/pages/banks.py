"""A tile that is read along its columns: plain rows put all of them into one bank."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def transpose(x, out, N: gl.constexpr):
    row: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    column: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    i = gl.arange(0, N, gl.SliceLayout(1, row))
    j = gl.arange(0, N, gl.SliceLayout(0, row))
    tile = gl.load(x + i[:, None] * N + j[None, :])
    buffer = gl.allocate_shared_memory(gl.float32, [N, N], plain)
    buffer.store(tile)
    rotated = buffer.load(column)
    a = gl.arange(0, N, gl.SliceLayout(1, column))
    b = gl.arange(0, N, gl.SliceLayout(0, column))
    gl.store(out + b[None, :] * N + a[:, None], rotated)


x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
y = np.zeros_like(x)
transpose[(1,)](x, y, 64)
assert (y == x.T).all()
