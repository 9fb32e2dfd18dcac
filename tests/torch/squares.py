"""Operands of `f(x, factor, nothing)`, x * x * factor, and a check of those whose gradient has none."""

from __future__ import annotations

import pytest
import torch

from gluon_torch.errors import MissingGradientError


def operands(rows=3):
    return [torch.randn(rows, 4, dtype=torch.float64, requires_grad=True) for _ in "xf"]


def refuses_second_gradients(call):
    """Check that a gradient is right, and that its own gradient is an error."""
    x, factor = operands()
    out = call(x, factor, None)
    for needed in (True, False):  # by the gradient of the result, or by what is kept alone
        weights = torch.ones_like(out, requires_grad=needed)
        (grad,) = torch.autograd.grad(out, x, weights, create_graph=True)
        torch.testing.assert_close(grad, 2 * x * factor)
        with pytest.raises(MissingGradientError, match="differentiable once"):
            torch.autograd.grad((x + grad).sum(), x)
