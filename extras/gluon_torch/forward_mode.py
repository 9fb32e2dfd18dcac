"""Ops in forward mode (`torch.func.jvp`, `torch.func.jacfwd`, `torch.autograd.forward_ad`), by their gradients.

Torch has no place for the forward mode of an op that Python defines, and drops the tangents. The gradients of such an op are linear in
those of its results; the gradients of that map, along the tangents of the operands, are the tangents of the results.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch import _C
from torch.autograd import forward_ad

from gluon_torch.errors import TangentError

__all__ = ["in_forward_mode", "refuse_tangents", "tangents_of"]


def tangents_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[int, torch.Tensor]:
    """Return the tangents of the arguments by their places, keywords last; none where another transform is innermost."""
    tangents: dict[int, torch.Tensor] = {}
    innermost = _C._functorch.peek_interpreter_stack()
    if innermost is not None and innermost.key() != _C._functorch.TransformType.Jvp:
        return tangents
    for place, value in enumerate((*args, *kwargs.values())):
        if isinstance(value, torch.Tensor):
            tangent = forward_ad.unpack_dual(value).tangent
            if tangent is not None:
                tangents[place] = tangent
    return tangents


def in_forward_mode(
    overload: Any, tangents: Mapping[int, torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Return the results of a call with their tangents.

    Args:
        overload: the op, as `torch.ops` has it; its gradient has a gradient.
        tangents: see `tangents_of`.

    Raises:
        RuntimeError: the op has no gradient, or that has none.
    """
    values = [*args, *kwargs.values()]
    single = False

    def call(*primals: torch.Tensor) -> Any:
        nonlocal single
        operands = dict(enumerate(values)) | dict(zip(tangents, primals))
        positional = [operands[place] for place in range(len(args))]
        named = {name: operands[len(args) + i] for i, name in enumerate(kwargs)}
        results = overload(*positional, **named)
        single = isinstance(results, torch.Tensor)
        results = (results,) if single else tuple(results)
        return tuple(x for x in results if x.is_floating_point()), results

    primals = [forward_ad.unpack_dual(values[place]).primal for place in tangents]
    floats, gradients, results = torch.func.vjp(call, *primals, has_aux=True)
    _, along = torch.func.vjp(gradients, tuple(map(torch.zeros_like, floats)))
    moved = iter(along(tuple(tangents.values()))[0])
    results = tuple(
        forward_ad.make_dual(x, next(moved)) if x.is_floating_point() else x for x in results
    )
    return results[0] if single else results


def refuse_tangents(overload: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that no argument of a call that has come to the dispatcher has a tangent.

    Raises:
        TangentError: one has.
    """
    for place in tangents_of(args, kwargs):
        name = [*(a.name for a in overload._schema.arguments[: len(args)]), *kwargs][place]
        raise TangentError(
            "forward mode has no way through torch.ops, and none through torch.func.grad",
            argument=f"{overload._schema.name}({name})",
            got="a tensor with a tangent",
            remedy="Call the op that gluon_core.torch.op returned, or gluon_core.torch.get(name); for a Hessian take "
            "torch.func.jacrev twice.",
        )
