"""Calls with gradients past the operators of `torch.library`, whose way through autograd takes longer than several launches."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Optional

import torch
from torch.autograd.function import once_differentiable

import gluon_core as gluon

__all__ = [
    "differentiable",
    "direct",
    "is_compiling",
    "is_plain",
    "kept",
    "route",
    "wants_gradient",
]

is_plain: Callable[..., bool] = gluon.torch.is_plain
route: Callable[..., int] = gluon.torch.route
is_compiling = torch.compiler.is_compiling
_grad_enabled: Callable[[], bool] = torch._C.is_grad_enabled

# Torch asks each class for these at each call: in the class itself they need no search through its bases.
_ASKED = ("setup_context", "clear_saved_tensors_on_access", "boxed_grads_call")
_INHERITED = {
    name: vars(base)[name]
    for base in reversed(torch.autograd.Function.__mro__)
    for name in _ASKED
    if name in vars(base)
}


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

    return direct(forward_and_keep, backward, backward if again else None)


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


def direct(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    again: Optional[Callable[..., Any]] = None,
) -> Callable[..., Any]:
    """Return `f(*arguments) -> result` with a gradient, by the shortest way.

    A call costs least with tensors as its only arguments, and with `ctx.to_save = (...)` as the only thing that `forward` keeps: that is
    all that `save_for_backward` does, and the first other attribute makes a dictionary. An op with settings makes a function for each
    combination of them.

    Args:
        forward: `forward(ctx, *arguments) -> result` of `torch.autograd.Function`.
        backward: `backward(ctx, *grads)`, the gradients of all arguments.
        again: `backward` by functions that have gradients, for calls whose gradients need some.
    """
    twice = once_differentiable(backward) if again is None else again

    def run_backward(ctx: Any, *grads: Any) -> Any:
        return (twice if _grad_enabled() else backward)(ctx, *grads)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(run_backward)}
    function: Any = type("Direct", (torch.autograd.Function,), {**_INHERITED, **methods})
    function._backward_cls.apply = run_backward  # torch's own looks up the method at each call
    # Past the part that asks for transforms: where `wants_gradient`, there are none.
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return apply
