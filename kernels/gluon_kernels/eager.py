"""Calls with gradients past the operators of `torch.library`, whose way through autograd takes longer than several launches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Sequence

import torch

import gluon_core as gluon

__all__ = [
    "differentiable",
    "direct",
    "gradients_through",
    "is_compiling",
    "is_plain",
    "is_transformed",
    "kept",
    "planned",
    "route",
    "wants_gradient",
]

is_plain: Callable[..., bool] = gluon.torch.is_plain
route: Callable[..., int] = gluon.torch.route
is_compiling = torch.compiler.is_compiling
direct: Callable[..., Callable[..., Any]] = gluon.torch.with_gradient
planned: Callable[..., Callable[..., Any]] = gluon.torch.planned


def is_transformed() -> bool:
    """Return True within a transform of `torch.func`, such as `vmap` or `grad`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def gradients_through(
    function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], grad: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of `function(*tensors)`, by functions that have gradients; where gradients are recorded, these have some, too."""
    if is_transformed():  # which allow no new leaves
        result: tuple[torch.Tensor, ...] = torch.func.vjp(function, *tensors)[1](grad)
        return result
    again = torch.is_grad_enabled()
    leaves = [
        x.view_as(x) if again and x.requires_grad else x.detach().requires_grad_() for x in tensors
    ]
    with torch.enable_grad():
        after = function(*leaves)
    return tuple(torch.autograd.grad(after, leaves, grad, create_graph=again))


def wants_gradient(*tensors: Any) -> bool:
    """Return True if a call that is not plain needs autograd and nothing else of torch; see `gluon_core.torch.is_plain`."""
    return not is_compiling() and route(*tensors) == 2


def differentiable(
    forward: Callable[..., Any], setup_context: Callable[..., None], backward: Callable[..., Any],
    again: bool = False,
) -> Callable[..., Any]:  # fmt: skip
    """Return `forward` with a gradient, from the functions that `gluon_core.torch.op` takes.

    Args:
        again: `backward` is made of functions that have gradients.
    """

    # A separate setup_context makes torch inspect the signature at each call.
    def forward_and_keep(ctx: Any, *arguments: Any) -> Any:
        output = forward(*arguments)
        setup_context(ctx, arguments, output)
        return output

    return direct(forward_and_keep, backward, backward if again else None, whole_context=True)


def kept(
    forward: Callable[..., tuple[torch.Tensor, tuple[torch.Tensor, ...]]],
    backward: Callable[..., tuple[Any, ...]],
) -> Callable[..., Callable[..., torch.Tensor]]:
    """Return `f(*settings)`, which returns `g(*tensors) -> result` with a gradient.

    Args:
        forward: `forward(*tensors, *settings)` returns the result, and the tensors that `backward` needs.
        backward: `backward(grad, *those tensors, *settings)` returns the gradients of the tensors, None at the end left out.
    """

    @lru_cache(maxsize=256)
    def of(*settings: Any) -> Callable[..., torch.Tensor]:
        def forward_and_keep(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
            result, ctx.to_save = forward(*tensors, *settings)
            return result

        def gradients(ctx: Any, grad: torch.Tensor) -> Any:
            results = backward(grad, *ctx.saved_tensors, *settings)
            return results + (None,) * (len(ctx.needs_input_grad) - len(results))

        return direct(forward_and_keep, gradients)

    return of
