"""Helpers of the tests of the TMA on the simulator: layouts, descriptors, and reports of launches."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import TRITON_VERSION
from gluon_sim.settings import using

F16 = gl.NVMMASharedLayout(128, 16, 2)
F16_ = gl.constexpr(F16)
F32 = gl.NVMMASharedLayout(128, 32, 2)
CUBE = gl.NVMMASharedLayout(128, 16, 3)
FLAT = gl.NVMMASharedLayout(0, 16, 1)
REGISTERS = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
SCHEDULES = [("latest", 0), ("eager", 0), ("random", 0), ("random", 1), ("random", 2)]
since_38 = pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")


def numbers(*shape, dtype=np.float16):
    return np.random.default_rng(0).integers(-99, 99, shape).astype(dtype)


def describe(array, block, layout=F16, **more):
    return TensorDescriptor.from_tensor(array, list(block), layout, **more)


def report(error, kernel, *args, match, line, grid=(1,), schedules=SCHEDULES):
    """The error of a launch, the same under every schedule, at the line that contains `line`."""
    for schedule, seed in schedules:
        with using(schedule=schedule, seed=seed), pytest.raises(error, match=match) as caught:
            kernel[grid](*args)
        assert line in caught.value.span.text, caught.value.span.text
    return caught.value
