"""Vectors that a loop moves on and that two operands want in two layouts: each layout has its own."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once]


@gluon.jit(layouts="auto")
def moved_on(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    along = gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, gl.cdiv(K, BK)):
        inside = along < K
        x = gl.load(a + rows[:, None] * K + along[None, :], mask=inside[None, :], other=0.0)
        y = gl.load(b + along[:, None] * N + columns[None, :], mask=inside[:, None], other=0.0)
        acc = gl.portable.mma(x, y, acc)
        along += BK
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@gluon.jit(layouts="auto")
def moved_two_ways(a, b, c, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    """Move the vector on in a branch: it has no twin."""
    rows, columns = gl.arange(0, BM), gl.arange(0, BN)
    along = gl.arange(0, BK)
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, gl.cdiv(K, BK)):
        x = gl.load(a + rows[:, None] * K + along[None, :], mask=along[None, :] < K, other=0.0)
        y = gl.load(b + along[:, None] * N + columns[None, :], mask=along[:, None] < K, other=0.0)
        acc = gl.portable.mma(x, y, acc)
        if k >= 0:
            along += BK
    gl.store(c + rows[:, None] * N + columns[None, :], acc)


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
@pytest.mark.parametrize("kernel", [moved_on, moved_two_ways])
def test_results(kernel, target):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((32, 80), (80, 64)))
    c = np.zeros((32, 64), np.float32)
    kernel[(1,)](a, b, c, 64, 80, 32, 64, 32, target=target)
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


def test_no_step_converts_a_vector():
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "N": "i32:16", "K": "i32:16"}
    sizes = {"BM": 32, "BN": 64, "BK": 32}
    text = gluon.compile(moved_on, target="sm_90", signature=signature, constexprs=sizes).asm[
        "ttgir"
    ]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    converted = [line for line in loop.splitlines() if "ttg.convert_layout" in line]
    assert not [line for line in converted if "tensor<32xi" in line]
