"""Gradients of softmax, norms, SwiGLU and cross entropy against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gluon_kernels as kernels
from gluon_kernels.norm import gradient_launches
from tests.kernels.launched import launches_of

pytestmark = [pytest.mark.once, pytest.mark.sampled(6), pytest.mark.usefixtures("hopper")]


def compare(op, other, *tensors):
    """Compare results with and without gradients, and gradients."""
    weight = None
    with torch.no_grad():
        torch.testing.assert_close(op(*tensors), other(*tensors), rtol=1e-4, atol=1e-5)
    sides = []
    for function in (op, other):
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = function(*leaves)
        weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
        sides.append((out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)))
    for mine, theirs in zip(*sides):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_of_softmax(programs, way):
    compare(kernels.softmax, lambda x: x.softmax(-1), torch.randn(2, 3, 300))
    compare(lambda x: kernels.softmax(x, 0), lambda x: x.softmax(0), torch.randn(30, 3))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("few", [0, 264])
def test_gradients_of_norms(programs, way, few, monkeypatch):
    monkeypatch.setattr(gradient_launches, "FEW_NARROW", few)

    def rms(x, weight):
        return F.rms_norm(x, x.shape[-1:], weight, 1e-6)

    def layer(x, weight, bias):
        return F.layer_norm(x, x.shape[-1:], weight, bias)

    def added(x, residual):
        result, summed = kernels.layer_norm(x, residual=residual)
        return result * summed

    x, weight, bias = torch.randn(5, 301) + 3, torch.randn(301), torch.randn(301)
    compare(kernels.rms_norm, rms, x, weight)
    compare(kernels.layer_norm, layer, x, weight, bias)
    compare(added, lambda x, y: F.layer_norm(x + y, (301,)) * (x + y), x, torch.randn(5, 301))


def launches_of_gradients(count, columns, *, weight=True):
    """Return how many launches the gradients of a layer norm take, after a comparison with torch's."""
    vectors = [torch.randn(columns, requires_grad=True) for _ in range(2)]
    x, grad = torch.randn(count, columns, requires_grad=True), torch.randn(count, columns)
    leaves = (x, *vectors) if weight else (x,)
    of_op = vectors if weight else [v.detach() for v in vectors]
    result = kernels.layer_norm(x, *of_op)
    sides = []
    launched = launches_of(
        lambda: sides.append(torch.autograd.grad(result, leaves, grad, retain_graph=True)), "sim:sm_90"
    )  # fmt: skip
    right = F.layer_norm(x, (columns,), *of_op)
    sides.append(torch.autograd.grad(right, leaves, grad))
    for mine, theirs in zip(*sides[-2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return len(launched)


def test_gradients_of_few_rows_take_one_launch(monkeypatch):
    assert launches_of_gradients(2, 4200) == 1  # rows that several programs would share
    assert launches_of_gradients(2, 13_001) == 3  # whose elements each have an address
    monkeypatch.setattr(gradient_launches, "FEW", 6)
    monkeypatch.setattr(gradient_launches, "FEW_NARROW", 4)
    assert launches_of_gradients(6, 40) == launches_of_gradients(4, 41) == 1
    assert launches_of_gradients(7, 40) == launches_of_gradients(5, 41) == 1
    monkeypatch.setattr(gradient_launches, "MOST_ADDED", 39)  # a launch adds up more columns
    assert launches_of_gradients(7, 40) == launches_of_gradients(5, 41) == 2
    assert launches_of_gradients(7, 40, weight=False) == 1
    monkeypatch.setattr(gradient_launches, "NEARBY", 6 * 300 * 2 * 32 - 1)
    assert launches_of_gradients(6, 300) == 2
    monkeypatch.setattr(gradient_launches, "MOST_SUMMED", 1)  # no program keeps sums of columns
    assert launches_of_gradients(5, 300) == 1
    assert launches_of_gradients(6, 300) == 3


@pytest.fixture
def no_few(monkeypatch):
    monkeypatch.setattr(gradient_launches, "FEW", 0)
    monkeypatch.setattr(gradient_launches, "FEW_NARROW", 0)
    monkeypatch.setattr(
        gradient_launches, "multiprocessors", lambda x: 3
    )  # 6 programs, 3 of a group


@pytest.mark.parametrize("columns", [300, 513])
def test_the_last_programs_add_up_the_sums_of_all(columns, no_few):
    for _ in range(2):  # the counters are zeros again
        assert launches_of_gradients(41, columns) == 1


@pytest.mark.campaign
@pytest.mark.gluon_schedules(6, checks=True)
@pytest.mark.parametrize("columns", [300, 513, 514])
def test_the_last_programs_read_the_parts_of_all(columns, no_few):
    assert launches_of_gradients(41, columns) == 1


def test_gradients_of_swiglu(way, monkeypatch):
    def other(gate, up):
        return F.silu(gate) * up

    compare(kernels.swiglu, other, torch.randn(5, 300), torch.randn(5, 300))
    both = torch.randn(3, 2, 2200)
    compare(lambda x: kernels.swiglu(*x.chunk(2, -1)), lambda x: other(*x.chunk(2, -1)), both)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_gradients_of_cross_entropy(programs, way, reduction):
    labels = torch.tensor([0, 299, -100, 7])
    compare(
        lambda x: kernels.cross_entropy(x, labels, reduction=reduction),
        lambda x: F.cross_entropy(x, labels, reduction=reduction),
        torch.randn(4, 300),
    )
