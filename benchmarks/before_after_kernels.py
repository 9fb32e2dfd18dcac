"""The kernels that before_after.py launches and compiles; both checkouts read the same file."""

import gluon_core as gluon
from gluon_core import language as gl

LAYOUT = gl.BlockedLayout([4], [32], [4], [0])


@gluon.jit
def scale(x, y, n, factor, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    inside = offsets < n
    gl.store(y + offsets, gl.load(x + offsets, mask=inside) * factor, mask=inside)


@gluon.jit
def described(a, b, c, out, n):
    if n < 0:
        gl.store(out, a.shape[0] + b.shape[0] + c.shape[0])


@gluon.jit
def softmax(x, y, n, ROWS: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    rows = gl.program_id(0) * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT))
    offsets = rows[:, None] * n + columns[None, :]
    inside = (columns < n)[None, :]
    values = gl.load(x + offsets, mask=inside, other=-float("inf"))
    values = gl.exp(values - gl.max(values, 1)[:, None])
    gl.store(y + offsets, values / gl.sum(values, 1)[:, None], mask=inside)
