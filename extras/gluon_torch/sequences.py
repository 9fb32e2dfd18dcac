"""Several launches and the tensors between them as one function, and functions with a gradient whose launches are found by signature.

Both are in C++ once `shortcut` is built: no Python runs between autograd and the launches then, which matters most in the gradients, on
the thread of the device, where Python begins with cold caches.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

import torch

from gluon_torch import shortcut
from gluon_torch.gradients import checked_backward, with_gradient
from gluon_torch.prepared import signature

__all__ = ["planned", "sequence"]

Plan = Callable[..., Any]
LIMIT = 4096  # plans of a function


def sequence(
    count: int,
    makers: Sequence[Callable[[], torch.Tensor]],
    launches: Sequence[tuple[Callable[..., Any], Sequence[Optional[int]]]],
    results: Union[int, Sequence[Optional[int]]],
    memory: Optional[Callable[[], tuple[Optional[torch.Tensor], ...]]] = None,
) -> Plan:
    """Return `f(*tensors, ...) -> result or results`, which makes tensors and calls launches one after the other.

    Places count the first `count` arguments of a call, then the tensors of `makers`, then those of `memory`; None is no tensor.

    Args:
        count: tensors of a call; more arguments are ignored.
        makers: functions that each return a new tensor.
        launches: functions such as those of `prepare`, and the places of their tensors.
        results: the place of the result, or several for a tuple.
        memory: a function that returns tensors whose contents do not matter, such as those that launches of a stream share.
    """
    module = shortcut.loaded()
    several = not isinstance(results, int)
    wanted: Any = results if several else (results,)
    steps = [(launch, _numbers(places)) for launch, places in launches]
    if module is not None:
        native: Plan = module.sequence(
            count, tuple(makers), memory, steps, _numbers(wanted), several
        )
        return native

    def run(*arguments: Any) -> Any:
        if len(arguments) < count:
            raise TypeError(f"a sequence takes {count} tensors")
        slots = [*arguments[:count], *(make() for make in makers)]
        if memory is not None:
            slots += memory()
        slots.append(None)  # -1
        for launch, places in steps:
            launch(*[slots[place] for place in places])
        chosen = tuple([slots[place] for place in _numbers(wanted)])
        return chosen if several else chosen[0]

    return run


def _numbers(places: Sequence[Optional[int]]) -> tuple[int, ...]:
    return tuple([-1 if place is None else place for place in places])


def planned(
    forward: Callable[..., Plan],
    backward: Callable[..., Plan],
    again: Optional[Callable[..., Any]] = None,
    *,
    keep: Sequence[int] = (),
) -> Callable[..., Any]:
    """Return `f(*tensors) -> result` with a gradient, whose launches are those of a plan for each signature; for calls whose `route` is 2.

    Args:
        forward: `forward(*tensors) -> plan`, called once per signature; `plan(*tensors)` returns the result, or a tuple that begins with it.
        backward: `backward(needs, grad, *kept) -> plan`, where `needs` has a truth for each of the tensors; `plan(grad, *kept)` returns the
            gradients of all tensors, of the first ones, or of the first alone.
        again: `again(ctx, grad)`, the gradients by functions that have gradients, as for `with_gradient`.
        keep: places of what the gradients need: among the tensors, then among the results.
    """
    places = tuple(keep)
    plans: dict[Any, Plan] = {}
    gradient_plans: dict[Any, Plan] = {}

    def run_forward(ctx: Any, *tensors: Any) -> Any:
        known_by = signature(*tensors)
        plan = plans.get(known_by)
        if plan is None:
            plan = _added(plans, known_by, forward(*tensors))
        results = plan(*tensors)
        several = results if type(results) is tuple else (results,)
        slots = (*tensors, *several)
        ctx.to_save = tuple([slots[place] for place in places])
        return several[0]

    def run_backward(ctx: Any, grad: torch.Tensor) -> Any:
        kept, needs = ctx.saved_tensors, tuple(ctx.needs_input_grad)
        known_by = signature(grad, *kept), needs
        plan = gradient_plans.get(known_by)
        if plan is None:
            plan = _added(gradient_plans, known_by, backward(needs, grad, *kept))
        results = plan(grad, *kept)
        several = results if type(results) is tuple else (results,)
        return several + (None,) * (len(needs) - len(several))

    way = with_gradient(run_forward, run_backward, again)

    def take(module: Any) -> None:
        nonlocal way
        fallback = checked_backward(run_backward, again)
        way = module.planned(forward, backward, fallback, shortcut.Context, signature, places, LIMIT)  # fmt: skip

    def by_the_shortest(*tensors: Any) -> Any:
        return way(*tensors)

    shortcut.when_loaded(take)
    return by_the_shortest if shortcut.loaded() is None else way


def _added(plans: dict[Any, Plan], known_by: Any, plan: Plan) -> Plan:
    if len(plans) >= LIMIT:
        plans.clear()
    plans[known_by] = plan
    return plan
