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
        pass

    Direct.forward = staticmethod(forward)
    Direct.setup_context = staticmethod(setup_context)
    Direct.backward = staticmethod(once_differentiable(backward))
    return Direct.apply
