"""A layout-free kernel and its functions call one function, although some of them have a new text."""

import pytest

import gluon_core as gluon
from gluon_core import language as gl

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.once


@gluon.jit
def pointers(base, stride, B: gl.constexpr):
    return base + gl.arange(0, B)[:, None] * stride + gl.arange(0, B)[None, :]


@gluon.jit
def summed(acc, a, b, K, B: gl.constexpr):
    for k in range(0, K, B):
        x = gl.load(pointers(a + k, K, B))
        y = gl.load(pointers(b + k * B, B, B))
        acc = gl.portable.mma(x, y, acc)
    return acc


@gluon.jit(layouts="auto")
def product(a, b, c, K, B: gl.constexpr):
    begin = gl.load(pointers(c, B, B)).to(gl.float32)
    acc = summed(begin, a, b, K, B)
    gl.store(pointers(c, B, B), acc.to(c.dtype.element_ty))


def test_calls_of_one_type(monkeypatch):
    """`pointers` knows the name of `summed`, whose loop is pipelined, and does not call it."""
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    a, b, c = torch.randn(16, 48).half(), torch.randn(48, 16).half(), torch.randn(16, 16).half()
    wanted = c.float() + a.float() @ b.float()
    product[(1,)](a, b, c, 48, B=16, num_stages=3)
    assert (c.float() - wanted).abs().max() < 0.05
