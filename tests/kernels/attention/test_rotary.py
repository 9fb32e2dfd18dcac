"""`gluon_kernels.rotary` through its public door."""

from __future__ import annotations

import importlib

import pytest
import torch

from gluon_core.errors import ArgumentError, DtypeError, ShapeError
from gluon_kernels import rotary

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


def rotated(x, cos, sin):
    one, two = x.chunk(2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


@pytest.mark.parametrize("heads, width", [(3, 64), (4, 80), (1, 6)])
def test_heads_of_any_width_and_strides(heads, width):
    angles = torch.randn(5, width // 2)
    cos, sin = angles.cos(), angles.sin()
    whole = torch.randn(2, 5, 3, heads, width)
    for x in (whole[:, :, 0], whole[:, :, 1], torch.randn(2, heads, 5, width).transpose(1, 2)):
        result = rotary(x, cos, sin)
        torch.testing.assert_close(result, rotated(x, cos, sin))
        torch.testing.assert_close(rotary(result, cos, sin, inverse=True), x)


@pytest.mark.parametrize("way", ["operator", "function"])
def test_gradients_of_gradients(way, monkeypatch):
    if way == "function":  # calls with gradients on a GPU
        module = importlib.import_module("gluon_kernels.attention.rotary")
        monkeypatch.setattr(module, "wants_gradient", lambda *tensors: torch.is_grad_enabled())
    cos, sin = torch.randn(5, 8), torch.randn(5, 8)
    x = torch.randn(2, 5, 3, 16, requires_grad=True)
    results = []
    for call in (rotary, rotated):
        (grad,) = torch.autograd.grad((call(x, cos, sin) ** 3).sum(), [x], create_graph=True)
        results += torch.autograd.grad((grad**2).sum(), [x])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)


def test_gradient_and_declaration():
    cos, sin = torch.randn(5, 8), torch.randn(5, 8)
    x = torch.randn(2, 5, 3, 16, requires_grad=True)
    weight = torch.randn(2, 5, 3, 16)
    (mine,) = torch.autograd.grad((rotary(x, cos, sin) * weight).sum(), [x])
    (theirs,) = torch.autograd.grad((rotated(x, cos, sin) * weight).sum(), [x])
    torch.testing.assert_close(mine, theirs)
    done = torch.library.opcheck(torch.ops.gluon_kernels.rotary.default, (x, cos, sin, False))
    assert set(done.values()) == {"SUCCESS"}


def test_mistakes_are_named_before_a_launch():
    x, cos = torch.zeros(2, 5, 3, 16), torch.zeros(5, 8)
    for call, error, words in (
        (lambda: rotary(x[0], cos, cos), ShapeError, "x: "),
        (lambda: rotary(x, cos[:4], cos), ShapeError, "cos: "),
        (lambda: rotary(x, cos, cos.int()), DtypeError, "sin: "),
        (lambda: rotary(x, cos.to("meta"), cos), ArgumentError, "cos: "),
    ):
        with pytest.raises(error, match=words):
            call()
