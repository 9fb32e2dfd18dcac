"""Calls with gradients past the operators of `torch.library`, whose way through autograd takes longer than several launches."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.autograd.function import once_differentiable

import gluon_core as gluon

__all__ = ["differentiable", "is_compiling", "is_plain", "wants_gradient"]

is_plain: Callable[..., bool] = gluon.torch.is_plain
is_compiling = torch.compiler.is_compiling


def wants_gradient(*tensors: Any) -> bool:
    """Return True if a call needs autograd and nothing else of torch; see `gluon_core.torch.is_plain`."""
    if is_compiling() or not torch.is_grad_enabled():
        return False
    with torch.no_grad():
        return is_plain(*tensors)


def differentiable(
    forward: Callable[..., Any], setup_context: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `forward` with a gradient, from the functions that `gluon_core.torch.op` takes."""

    class Direct(torch.autograd.Function):
        # A separate setup_context makes torch inspect the signature at each call.
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            output = forward(*arguments)
            setup_context(ctx, arguments, output)
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(ctx, *grads)

    apply: Callable[..., Any] = Direct.apply
    return apply
