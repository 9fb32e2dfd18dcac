"""Gathers along other dimensions than the first are written as such along the first."""

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once
M, N, P = 4, 8, 16
SIGNATURE = {"x": "*fp32:16", "index": "*i32:16", "out": "*fp32:16"}


@gluon.jit(layouts="auto")
def places(A: gl.constexpr, B: gl.constexpr, C: gl.constexpr):
    a, b, c = gl.arange(0, A), gl.arange(0, B), gl.arange(0, C)
    return (a * B * C)[:, None, None] + (b * C)[None, :, None] + c[None, None, :]


@gluon.jit(layouts="auto")
def gathered(x, index, out, AXIS: gl.constexpr, A: gl.constexpr, B: gl.constexpr, C: gl.constexpr):
    source = gl.load(x + places(4, 8, 16))
    where = gl.load(index + places(A, B, C))
    if AXIS == 0:
        result = gl.gather(source, where, 0)
    elif AXIS == 1:
        result = gl.gather(source, where, axis=1)
    else:
        result = gl.gather(source, where, -1)
    gl.store(out + places(A, B, C), result)


@gluon.jit(layouts="auto")
def columns(x, index, out):
    place = gl.arange(0, 16)[:, None] * 32 + gl.arange(0, 32)[None, :]
    gl.store(out + place, gl.gather(gl.load(x + place), gl.load(index + place), 1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_axis(axis):
    rng = np.random.default_rng(0)
    shape = [M, N, P]
    x = rng.standard_normal(shape).astype(np.float32)
    size, shape[axis] = shape[axis], 32
    index = rng.integers(0, size, shape).astype(np.int32)
    out = np.zeros(shape, np.float32)
    gathered[(1,)](x, index, out, axis, *shape, target="sim:hopper")
    assert np.array_equal(out, np.take_along_axis(x, index, axis))


def test_neighbours_of_a_row_are_neighbours_in_shared_memory():
    text = gluon.compile(columns, target="sm_90", signature=SIGNATURE).asm["ttgir"]
    assert re.findall(r"tt\.gather .*axis = (\d)", text) == ["0"]
    assert "convert_layout" not in text
