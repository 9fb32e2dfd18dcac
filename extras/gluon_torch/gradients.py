"""Calls with gradients past the operators of `torch.library`, whose way through autograd takes longer than several launches."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from gluon_torch import shortcut
from gluon_torch.errors import MissingGradientError

__all__ = ["checked_backward", "with_gradient"]

_grad_enabled: Callable[[], bool] = torch._C.is_grad_enabled

# Torch asks each class for these at each call: in the class itself they need no search through its bases.
_ASKED = ("setup_context", "clear_saved_tensors_on_access", "boxed_grads_call")
_INHERITED = {
    name: vars(base)[name]
    for base in reversed(torch.autograd.Function.__mro__)
    for name in _ASKED
    if name in vars(base)
}


def with_gradient(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    again: Optional[Callable[..., Any]] = None,
    *,
    whole_context: bool = False,
) -> Callable[..., Any]:
    """Return `f(*arguments) -> result` with a gradient, by the shortest way; for calls whose `route` is 2.

    A call costs least with tensors as its only arguments. An op with settings makes a function for each combination of them, and keeps it: a node
    of a graph may need it as long as the process lives.

    Args:
        forward: `forward(ctx, *arguments) -> tensor`, without gradients; `ctx.to_save = (...)` keeps tensors and None for the gradients.
        backward: `backward(ctx, grad)`, the gradients of all arguments, or of the first alone; `ctx` has `saved_tensors` and `needs_input_grad`.
        again: `backward` by functions that have gradients, for calls whose gradients need some; without it those raise an error.
        whole_context: `ctx` is that of `torch.autograd.Function`, with all of its methods, and `forward` may return several tensors; a call costs more.
    """
    run_backward = checked_backward(backward, again)
    of_all = _of_all_arguments(run_backward)
    methods = {"forward": staticmethod(forward), "backward": staticmethod(of_all)}
    function: Any = type("Direct", (torch.autograd.Function,), {**_INHERITED, **methods})
    function._backward_cls.apply = of_all  # torch's own looks up the method at each call
    # Past the part that asks for transforms: where `route` is 2, there are none.
    way: Callable[..., Any] = super(torch.autograd.Function, function).apply
    if whole_context:
        return way

    def take(module: Any) -> None:
        nonlocal way
        way = module.function(forward, run_backward, shortcut.Context)

    def by_the_shortest(*arguments: Any) -> Any:
        return way(*arguments)

    shortcut.when_loaded(take)
    return by_the_shortest if shortcut.loaded() is None else way


def checked_backward(
    backward: Callable[..., Any], again: Optional[Callable[..., Any]]
) -> Callable[..., Any]:
    """Return `backward`, or `again` where the gradients need some; without it those raise an error."""
    twice = _once(backward) if again is None else again

    def run_backward(ctx: Any, *grads: Any) -> Any:
        return (twice if _grad_enabled() else backward)(ctx, *grads)

    return run_backward


def _of_all_arguments(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return `backward` with None for the arguments behind the last gradient that it returns, as torch demands."""

    def run_backward(ctx: Any, *grads: Any) -> Any:
        results = backward(ctx, *grads)
        several = results if isinstance(results, tuple) else (results,)
        return several + (None,) * (len(ctx.needs_input_grad) - len(several))

    return run_backward


class _WithoutGradient(torch.autograd.Function):  # type: ignore[misc]
    """Return the first `count` tensors as results that depend on all others by a gradient which there is not."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Any:
        return tuple([x.detach() for x in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise MissingGradientError(
            "gradients of a function that is differentiable once were differentiated",
            remedy="Detach them, or leave create_graph out; a function of your own takes again=.",
        )


def _once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return `backward` for graphs of gradients: its results raise an error where they are differentiated.

    Torch's `once_differentiable` asks `grads` alone, and leads to none of the tensors that a gradient is wanted for.
    """

    def run_backward(ctx: Any, *grads: Any) -> Any:
        tensors = (*grads, *ctx.saved_tensors)
        sources = [x for x in tensors if x is not None and x.requires_grad]
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not sources:
            return results
        several = results if isinstance(results, tuple) else (results,)
        present = [x for x in several if x is not None]
        marked = iter(_WithoutGradient.apply(len(present), *present, *sources))
        return tuple([None if x is None else next(marked) for x in several])

    return run_backward
