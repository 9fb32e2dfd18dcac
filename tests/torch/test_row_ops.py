"""The operators of `examples/row_ops.py` against torch's own: results, gradients, declarations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.kernels import cases

pytestmark = pytest.mark.once

ops = cases.module("row_ops")


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    """Tensors are on the CPU here, where there is a GPU as well."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")


@pytest.fixture(params=["short", "long"])
def lengths(request, monkeypatch):
    """Rows that registers hold, and rows that are walked over."""
    if request.param == "long":
        monkeypatch.setattr(ops, "LONGEST", 16)
        few = ops.parts
        monkeypatch.setattr(ops, "parts", lambda warp: few(warp, num_warps=1, depth=1))


def both(op, other, *tensors):
    """Results and gradients of `op` and `other` for equal inputs and one gradient."""
    results = []
    for function in (op, other):
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = function(*leaves)
        weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
        results.append((out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)))
    for mine, theirs in zip(*results):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_softmax(lengths):
    both(ops.softmax, lambda x: x.softmax(-1), torch.randn(2, 3, 300))


def test_rms_norm(lengths):
    def norm(x, weight):
        return ops.rms_norm(x, weight, 1e-5)[0]

    def other(x, weight):
        return F.rms_norm(x, x.shape[-1:], weight, 1e-5)

    both(norm, other, torch.randn(5, 300), torch.randn(300))


def test_cross_entropy(lengths):
    labels = torch.tensor([0, 299, -100, 7])

    def loss(x):
        return ops.cross_entropy(x, labels, -100)[0]

    def other(x):
        return F.cross_entropy(x, labels, reduction="none", ignore_index=-100)

    both(loss, other, torch.randn(4, 300))


def test_declarations_are_true():
    x = torch.randn(3, 40, requires_grad=True)
    torch.library.opcheck(ops.softmax.overload, (x,))
    torch.library.opcheck(ops.rms_norm.overload, (x, torch.randn(40), 1e-5))
    labels = torch.tensor([1, 2, 3])
    torch.library.opcheck(ops.cross_entropy.overload, (x, labels, -100))


def test_in_a_compiled_function():
    function = torch.compile(lambda x: ops.softmax(x * 2) + 1, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 40)
    torch.testing.assert_close(function(x), (x * 2).softmax(-1) + 1)
