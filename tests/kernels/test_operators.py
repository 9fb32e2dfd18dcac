"""Every operator that `gluon_kernels` registers: `torch.library.opcheck`, and gradients against differences of a float64 reference.

A new operator gets its line in `operators.py`.
"""

from __future__ import annotations

import inspect

import pytest
import torch

import gluon_core as gluon
import gluon_kernels
from gluon_torch import ops
from tests.kernels.operators import GRADIENTS, OPERATORS, WITHOUT

pytestmark = pytest.mark.once
PREFIX = "gluon_kernels::"


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    torch.manual_seed(0)


def test_every_operator_has_a_case():
    registered = {name[len(PREFIX) :] for name in ops._ops if name.startswith(PREFIX)}
    assert registered == set(OPERATORS)


def test_every_function_has_gradients_or_a_reason():
    functions = {n for n in gluon_kernels.__all__ if inspect.isfunction(getattr(gluon_kernels, n))}
    assert functions == set(GRADIENTS) | set(WITHOUT)
    assert not set(GRADIENTS) & set(WITHOUT)


@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name):
    overload = gluon.torch.get(PREFIX + name).overload
    case = OPERATORS[name]
    done = torch.library.opcheck(overload, case.arguments(), test_utils=case.checks)
    assert set(done.values()) == {"SUCCESS"}


def derivative(function, inputs, along, by):
    """Return the derivative of `(function(*inputs) * by).sum()` along a direction, by differences."""
    step = 1e-5
    ahead, behind = (
        (function(*(x + sign * step * d for x, d in zip(inputs, along))) * by).sum()
        for sign in (1, -1)
    )
    return float(ahead - behind) / (2 * step)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    case = GRADIENTS[name]
    inputs = [x.detach().requires_grad_() for x in case.inputs()]
    result = case.call(*inputs)
    by = torch.randn(result.shape, dtype=torch.float64)
    grads = torch.autograd.grad(result, inputs, by.to(result.dtype))
    wide = [x.detach().double() for x in inputs]
    for number, grad in enumerate(grads):
        assert grad.dtype == inputs[number].dtype and grad.shape == inputs[number].shape
        for _ in range(3):
            along = [torch.zeros_like(x) for x in wide]
            along[number] = torch.randn_like(wide[number])
            right = derivative(case.reference, wide, along, by)
            analytic = float((grad.double() * along[number]).sum())
            scale = (
                float(grad.double().norm() * along[number].norm()) / along[number].numel() ** 0.5
            )
            assert abs(analytic - right) <= case.tolerance * max(abs(right), scale), number


@pytest.mark.sampled(8)
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_by_torch_func(name):
    case = GRADIENTS[name]
    inputs = tuple(x.detach() for x in case.inputs())

    def loss(*inputs):
        result = case.call(*inputs).double()
        return (result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum()

    transformed = torch.func.grad(loss, tuple(range(len(inputs))))(*inputs)
    leaves = [x.clone().requires_grad_() for x in inputs]
    for one, other in zip(transformed, torch.autograd.grad(loss(*leaves), leaves)):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
