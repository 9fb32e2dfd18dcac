"""Kernels that the tests of bundles compile and launch."""

import gluon_core as gluon
from gluon_core import language as gl

L32 = gl.BlockedLayout([4], [32], [4], [0])
L64 = gl.BlockedLayout([4], [64], [4], [0])


@gluon.jit
def times(value, factor):
    return value * factor


@gluon.jit
def scale(x, y, n, factor, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    inside = offsets < n
    gl.store(y + offsets, times(gl.load(x + offsets, mask=inside), factor), mask=inside)


@gluon.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["y"])
def loose(x, y, n, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    inside = offsets < n
    gl.store(y + offsets, gl.load(x + offsets, mask=inside), mask=inside)


@gluon.jit
def many(y, a, b, c, d: gl.float16, e: gl.bfloat16, flag, pair):
    """One parameter of each width, so that the buffer has gaps."""
    value = a.to(gl.float32) + b.to(gl.float32) + c + d.to(gl.float32) + e.to(gl.float32)
    if flag:
        value += pair[0].to(gl.float32)
    gl.store(y, value + pair[1])


@gluon.jit
def ones(y, stride):
    gl.store(y, stride)


@gluon.jit
def paired(y, pair):
    gl.store(y + pair[0], gl.load(pair[1][0]) + pair[1][1])


@gluon.jit
def counted(y, items):
    gl.store(y, len(items))


@gluon.jit
def flagged(y, flag: gl.int1):
    if flag:
        gl.store(y, 1)


MANY = {
    "y": "*fp32:16",
    "a": "i8",
    "b": "i64",
    "c": "fp32",
    "d": "fp16",
    "e": "bf16",
    "flag": "u1",
    "pair": ("i16", "fp64"),
}
SCALE = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "factor": "fp32"}
HOPPER = {"BLOCK": 512, "LAYOUT": L32}
CDNA3 = {"BLOCK": 512, "LAYOUT": L64}
