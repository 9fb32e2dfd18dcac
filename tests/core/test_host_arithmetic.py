"""Sizes of grids and blocks: the same functions in host code and in kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, NotInKernelError


@gluon.jit
def sizes(out, n, N: gl.constexpr):
    gl.store(out, gluon.cdiv(n, 64))
    gl.store(out + 1, gl.cdiv(N, 64))
    gl.store(out + 2, gluon.next_power_of_2(N))


def test_in_host_code():
    assert [gluon.cdiv(n, 64) for n in (0, 1, 64, 65)] == [0, 1, 1, 2]
    assert gl.cdiv(1000, 512) == 2
    assert [gluon.next_power_of_2(n) for n in (0, 1, 2, 3, 1000)] == [1, 1, 2, 4, 1024]
    for wrong in (-1, 1.5):
        with pytest.raises(ArgumentError, match="non-negative integer"):
            gluon.next_power_of_2(wrong)
    assert gluon.multiprocessors(np.zeros(1)) is gluon.multiprocessors(torch.zeros(1)) is None


def test_in_kernels():
    out = np.zeros(3, np.int32)
    sizes[lambda args: (gluon.cdiv(args["N"], 128),)](out, 130, 100, target="sim:sm_90")
    assert out.tolist() == [3, 2, 128]


@pytest.mark.parametrize("name", ["sum", "zeros", "zeros_like", "max"])
def test_kernel_functions_refuse_host_calls(name):
    with pytest.raises(NotInKernelError, match=f"gl.{name} was called outside a kernel"):
        getattr(gl, name)(np.zeros(4), 0)
