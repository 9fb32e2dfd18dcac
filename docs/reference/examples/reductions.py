import numpy as np

import gluon_core as gluon
from gluon_core import language as gl

ROW = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
TILE = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [1, 1], [1, 0]))


def run(kernel, *arguments):
    """Launch one program of one warp on the simulator, and return the last argument."""
    kernel[(1,)](*arguments, target="sim:hopper", num_warps=1)
    return arguments[-1]


# -- sum, max, min: along an axis; the result has a SliceLayout
@gluon.jit
def rows(out):
    r = gl.arange(0, 8, gl.SliceLayout(1, TILE))
    c = gl.arange(0, 16, gl.SliceLayout(0, TILE))
    v = r[:, None] * 16 + c[None, :]
    gl.store(out + r, gl.sum(v, 1) - gl.max(v, 1) - gl.min(v, axis=1))


print(run(rows, np.zeros(8, np.int32)))
#> [ 105  329  553  777 1001 1225 1449 1673]

# -- reduce_or, xor_sum
@gluon.jit
def bits(out):
    i = gl.arange(0, 32, ROW)
    gl.store(out, gl.reduce_or(i, 0))
    gl.store(out + 1, gl.xor_sum(i * i, 0))


print(run(bits, np.zeros(2, np.int32)))
#> [ 31 896]

# -- reduce: with a function of one's own
@gluon.jit
def larger(a, b):
    return gl.maximum(a, b)


@gluon.jit
def greatest(x, out):
    gl.store(out, gl.reduce(gl.load(x + gl.arange(0, 32, ROW)), 0, larger))


print(run(greatest, np.sin(np.arange(32, dtype=np.float32)), np.zeros(1, np.float32)).round(4))
#> [0.9906]

# -- cumsum, cumprod, associative_scan
@gluon.jit
def scans(out):
    i = gl.arange(0, 32, ROW)
    running = gl.associative_scan(i, 0, larger)
    gl.store(out + i, gl.cumsum(i, 0) + gl.cumprod(i * 0 + 1, 0) + running)


print(run(scans, np.zeros(32, np.int32))[:6])
#> [ 1  3  6 10 15 21]

# -- gather
@gluon.jit
def picked(x, out):
    i = gl.arange(0, 32, ROW)
    gl.store(out + i, gl.gather(gl.load(x + i), 31 - i, 0))


print(run(picked, np.arange(32, dtype=np.int32) ** 2, np.zeros(32, np.int32))[:4])
#> [961 900 841 784]

# -- argmax, argmin: the index of the extreme, the first of equal ones
@gluon.jit
def extremes(x, out):
    values = gl.load(x + gl.arange(0, 32, ROW))
    gl.store(out, gl.argmax(values, 0))
    gl.store(out + 1, gl.argmin(values, 0))


print(run(extremes, np.arange(32, dtype=np.int32) % 20, np.zeros(2, np.int32)))
#> [19  0]

# -- histogram
@gluon.jit
def counted(x, out):
    bins: gl.constexpr = 32
    counts = gl.histogram(gl.load(x + gl.arange(0, 32, ROW)), bins, layout=ROW)
    gl.store(out + gl.arange(0, bins, ROW), counts)


print(run(counted, np.arange(32, dtype=np.int32) % 5, np.zeros(32, np.int32))[:6])
#> [7 7 6 6 6 0]

# -- dot_fma: a matrix product where there is no matrix unit, or none for the dtype
@gluon.jit
def product(a, b, out):
    r = gl.arange(0, 16, gl.SliceLayout(1, TILE))[:, None]
    c = gl.arange(0, 16, gl.SliceLayout(0, TILE))[None, :]
    x = gl.convert_layout(gl.load(a + r * 16 + c), gl.DotOperandLayout(0, TILE, 0))
    y = gl.convert_layout(gl.load(b + r * 16 + c), gl.DotOperandLayout(1, TILE, 0))
    gl.store(out + r * 16 + c, gl.dot_fma(x, y, gl.zeros([16, 16], gl.float32, TILE)))


a, b = np.random.default_rng(0).standard_normal((2, 16, 16), dtype=np.float32)
print(np.abs(run(product, a, b, np.zeros((16, 16), np.float32)) - a @ b).max() < 1e-5)
#> True
