"""Returns under compile-time conditions: nothing behind them is traced."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ShapeError

LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def total(values):
    if len(values) == 1:
        return values[0]
    return values[0] + total(values[1:])


@gluon.jit
def chosen(x, WAY: gl.constexpr):
    if WAY == "one":
        if x.dtype.is_floating():
            return x
        else:
            return x.to(gl.float32)
    elif WAY == "two":
        x = 2.0 * x
        return x
    gl.static_assert(WAY == "three", "traced only where nothing has returned")
    return 3.0 * x


@gluon.jit
def kernel(x, out, WAY: gl.constexpr):
    places = gl.arange(0, 128, LAYOUT)
    value = gl.load(x + places)
    gl.store(out + places, total((value, value, chosen(value, WAY))))


@pytest.mark.once
@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sim:sm_90", "emu:sm_90", "emu:gfx1100"])
@pytest.mark.parametrize("way, times", [("one", 3), ("two", 4), ("three", 5)])
def test_functions_return_early(way, times, target):
    x = np.arange(128, dtype=np.float32)
    out = np.zeros_like(x)
    kernel[(1,)](x, out, way, target=target)
    np.testing.assert_array_equal(out, times * x)


@gluon.jit
def beyond(x, out, WAY: gl.constexpr):
    places = gl.arange(0, 128, LAYOUT)
    if WAY == "nothing":
        return
    gl.store(out + places, ()[0])


@pytest.mark.once
def test_a_kernel_returns_before_a_mistake():
    x = np.zeros(128, np.float32)
    beyond[(1,)](x, x, "nothing", target="sim:sm_90")
    with pytest.raises(ShapeError, match="an index of a tuple with items"):
        beyond[(1,)](x, x, "something", target="sim:sm_90")


kept = np.zeros(1, np.float32)  # has the name of a buffer, and no `store`


@gluon.jit
def negative(x, sign):
    places = gl.arange(0, 128, LAYOUT)
    kept = gl.allocate_shared_memory(
        gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, order=[0]), gl.load(x + places)
    )
    if sign < 0:
        kept.store(-kept.load(LAYOUT))
    gl.store(x + places, kept.load(LAYOUT))


def test_a_method_of_a_variable_with_the_name_of_a_global():
    """A branch that does not return is no question to the global."""
    x = np.arange(128, dtype=np.float32)
    negative[(1,)](x, -1.5, target="sim:sm_90")
    assert x.tolist() == [-float(i) for i in range(128)]
