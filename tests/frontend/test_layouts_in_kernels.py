"""Static methods of layouts in kernels: computed at compile time, as in host code."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import LayoutError
from gluon_core.language.nvidia.ampere import mbarrier
from tests.frontend.oracle import compare

L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))

SOURCE = """
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
@gluon.jit
def kernel():
    S: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
    P: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 8]], [64, 64], order=[1, 0])
    x = gl.full([64, 64], 1, gl.float16, layout=L)
    gl.allocate_shared_memory(gl.float16, [64, 64], S, x)
    gl.allocate_shared_memory(gl.float16, [64, 64], P, x)
"""


@pytest.mark.once
def test_the_same_module():
    compare(SOURCE)


@gluon.jit
def through(a, out):
    S: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], a.dtype.element_ty)
    P: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 8]], [64, 64], order=[1, 0])
    B: gl.constexpr = mbarrier.MBarrierLayout.multicta(1)
    gl.static_assert(B == mbarrier.MBarrierLayout())
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    offsets = rows[:, None] * 64 + columns[None, :]
    x = gl.allocate_shared_memory(gl.float16, [64, 64], S, gl.load(a + offsets))
    y = gl.allocate_shared_memory(gl.float16, [64, 64], P, x.load(L))
    gl.store(out + offsets, y.load(L))


def test_in_a_launch():
    a = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    out = np.zeros_like(a)
    through[(1,)](a, out, target="sim:sm_90")
    np.testing.assert_array_equal(out, a)


@pytest.mark.parametrize("where", [gl.NVMMASharedLayout.get_default_for])
def test_in_host_code(where):
    layout = where([64, 64], gl.float16)
    assert isinstance(layout, gl.NVMMASharedLayout)


PLAIN = gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def line(count: gl.constexpr, layout: gl.constexpr):
    return gl.arange(0, count, layout)


@gluon.jit
def counted(out):
    gl.store(out + line(128, PLAIN), line(128, layout=PLAIN))


def test_a_layout_of_the_module_is_an_argument_of_another_kernel():
    out = np.zeros(128, np.int32)
    counted[(1,)](out, target="sim:sm_90")
    assert (out == np.arange(128)).all()


def test_the_dimension_of_a_slice_is_the_one_that_an_index_adds():
    @gluon.jit
    def kernel(out):
        rows = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
        gl.store(out + rows[:, None], 1)

    with pytest.raises(LayoutError, match=r"got 1\. Make the operand with dim=1, or add") as error:
        kernel[(1,)](np.zeros(64, np.int32), target="sim:sm_90")
    assert error.value.span.text.strip() == "gl.store(out + rows[:, None], 1)"
