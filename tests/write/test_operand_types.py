"""Products whose operands have other types than the tiles that are loaded for them."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def rectified(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, SECOND: gl.constexpr):  # fmt: skip
    """Multiply a tile and a maximum with a float, which is a float32."""
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        along = k + gl.arange(0, BK)
        x = gl.load(a + rows[:, None] * K + along[None, :])
        y = gl.load(b + along[:, None] * N + columns[None, :])
        if SECOND:
            acc = gl.portable.mma(x, gl.maximum(y, 0.0), acc)
        else:
            acc = gl.portable.mma(gl.maximum(x, 0.0), y, acc)
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@pytest.mark.parametrize("second", [False, True])
def test_a_maximum_with_a_float(second):
    """Units of 16 bits take no such product: no operand is copied for one."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 64), (64, 32)))
    c = np.zeros((64, 32), np.float32)
    rectified[(1,)](a, b, c, 32, 64, 64, 32, 32, second, num_stages=3, target="sim:sm_90")
    x, y = a.astype(np.float32), b.astype(np.float32)
    wanted = x @ np.maximum(y, 0) if second else np.maximum(x, 0) @ y
    assert np.allclose(c, wanted, rtol=1e-5, atol=1e-5)  # exact but for the order of sums
