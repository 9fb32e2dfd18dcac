"""Kernels that the runtime tests launch and compile."""

import gluon_core as gluon
from gluon_core import language as gl

L32 = gl.BlockedLayout([4], [32], [4], [0])
L64 = gl.BlockedLayout([4], [64], [4], [0])


@gluon.jit
def scale(x, y, n, factor, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    inside = offsets < n
    gl.store(y + offsets, gl.load(x + offsets, mask=inside) * factor, mask=inside)


@gluon.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["y"])
def loose(x, y, n, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    inside = offsets < n
    gl.store(y + offsets, gl.load(x + offsets, mask=inside), mask=inside)


@gluon.jit
def put(y, VALUE: gl.constexpr):
    gl.store(y, VALUE)


@gluon.jit
def put_runtime(y, value):
    gl.store(y, value)


@gluon.jit
def pair(y, both):
    gl.store(y, both[0] + both[1])


@gluon.jit
def big_shared(x, N: gl.constexpr, LAYOUT: gl.constexpr, SHARED: gl.constexpr):
    first = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    second = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    offsets = gl.arange(0, N, layout=LAYOUT)
    value = gl.load(x + offsets)
    first.store(value)
    second.store(value + 1)
    gl.store(x + offsets, first.load(LAYOUT) + second.load(LAYOUT))


@gluon.jit
def warps_told(y, num_warps: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    gl.store(y + gl.arange(0, 256, layout=layout), num_warps * 10 + gl.num_warps())


BIAS = gl.constexpr(3)


@gluon.jit
def biased(y):
    gl.store(y, BIAS)
