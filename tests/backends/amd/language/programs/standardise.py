"""Rows of mean 0 and variance 1, weighted and rounded to steps that fp8 holds: CDNA3's buffer loads with
cache policies, a reduction of our own, a function of the device library, programs that take rows in turn."""

import ml_dtypes
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna3 import buffer_load, buffer_store
from gluon_core.language.extra import libdevice
from tests.programs import Launch


@gluon.jit
def widest(one, other):
    return gl.maximum(one, other)


@gluon.jit
def standardise(
    x,
    weights,
    out,
    steps,
    rows,
    columns,
    smallest,
    WIDTH: gl.constexpr,
    PROGRAMS: gl.constexpr,
    MOST: gl.constexpr,
):
    ROW: gl.constexpr = gl.BlockedLayout([8], [64], [4], [0])
    column = gl.arange(0, WIDTH, layout=ROW)
    there = column < columns
    weight = buffer_load(weights, column, mask=there, other=0.0, cache=".ca").to(gl.float32)
    for row in range(gl.program_id(0), rows, PROGRAMS):
        offsets = row * columns + column
        value = buffer_load(x, offsets, mask=there, other=0.0, cache=".cg").to(gl.float32)
        value = gl.where(there, value - gl.sum(value, axis=-1) / columns, 0.0)
        value *= gl.rsqrt(gl.sum(value * value, axis=-1) / columns + smallest) * weight
        step = gl.maximum(gl.reduce(gl.abs(value), 0, widest), smallest) / MOST
        rounded = libdevice.nearbyint(value * (1.0 / step))
        buffer_store(rounded.to(out.dtype.element_ty), out, offsets, mask=there)
        gl.store(steps + row, step)


def data(rng):
    fp8 = ml_dtypes.float8_e4m3fnuz
    x = (3 + rng.standard_normal((11, 1000))).astype(ml_dtypes.bfloat16)
    weights = rng.standard_normal(1000).astype(ml_dtypes.bfloat16)
    wide = x.astype(float)
    normal = (
        (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True) * weights.astype(float)
    )
    step = np.abs(normal).max(1) / 16
    arguments = [x, weights, np.zeros((11, 1000), fp8), np.zeros(11, np.float32), 11, 1000, 1e-6]
    return arguments, {"steps": step, "out": np.rint(normal / step[:, None])}


LAUNCHES = [
    Launch(
        standardise,
        "gfx942",
        data,
        grid=(3,),
        constants={"WIDTH": 2048, "PROGRAMS": 3, "MOST": 16.0, "num_warps": 4},
        tolerance=1e-5,
    )
]
