"""Parameters `*name` of kernels and of their functions."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import KernelSyntaxError
from gluon_core.testing import triton_at_least

LAYOUT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def total(*values):
    result = values[0]
    for i in gl.static_range(1, len(values)):
        result += values[i]
    return result


@gluon.jit
def kernel(out, factor, *inputs):
    places = gl.arange(0, 128, LAYOUT)
    gl.store(out + places, factor * (gl.load(inputs[0] + places) + gl.load(inputs[1] + places)))


@gluon.jit
def of_function(out):
    gl.store(out + gl.arange(0, 128, LAYOUT), total(1.0, 2.0, 3.0))


@pytest.mark.once
def test_kernels_and_functions_take_any_number():
    out, x = np.zeros(128, np.float32), np.arange(128, dtype=np.float32)
    if not triton_at_least(3, 8):
        with pytest.raises(KernelSyntaxError, match=r"`\*inputs` needs Triton >= 3.8.*a tuple"):
            kernel[(1,)](out, 2.0, x, x, target="sim:sm_90")
        with pytest.raises(KernelSyntaxError, match=r"`\*values` needs Triton >= 3.8"):
            of_function[(1,)](out, target="sim:sm_90")
        return
    for target in ("sim:sm_90", "emu:sm_90"):
        for factor in (2.0, 3.0):  # a launch that is known
            kernel[(1,)](out, factor, x, x + 1, target=target)
            np.testing.assert_array_equal(out, factor * (2 * x + 1))
        of_function[(1,)](out, target=target)
        assert (out == 6).all()
