"""The rule for `torch.vmap` that any op can have: one call for each element of the batch."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch
from torch.utils._pytree import tree_map, tree_map_only

from gluon_core.errors import ArgumentError

__all__ = ["one_by_one"]


def one_by_one(overload: Any, call: Optional[Callable[..., Any]] = None) -> Callable[..., Any]:
    """Return a vmap rule that calls the op once for each element of the batch, and stacks the results.

    Each call is given contiguous tensors, whichever dimension the batch is.

    Args:
        overload: the op, as `torch.ops` has it.
        call: is called for it.
    """
    call = overload if call is None else call
    arguments = overload._schema.arguments
    written = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}

    def rule(info: Any, in_dims: Sequence[Any], *args: Any) -> tuple[Any, Any]:
        for argument, value, dim in zip(arguments, args, in_dims):
            if argument.name in written and value is not None and not _batched(dim):
                raise ArgumentError(
                    "all calls of a batch would write the same tensor",
                    argument=f"{overload._schema.name}({argument.name})",
                    remedy="Give vmap a tensor with a dimension for the batch, or write the rule: "
                    "vmap=f(info, in_dims, *args).",
                )
        if not info.batch_size:
            raise ArgumentError("the batch is empty", argument=overload._schema.name)
        results = []
        for index in range(info.batch_size):
            parts = [_element(value, dim, index) for value, dim in zip(args, in_dims)]
            dense = tree_map_only(torch.Tensor, torch.Tensor.contiguous, parts)
            results.append(call(*dense))
            for argument, part, copy in zip(arguments, parts, dense):
                if argument.name in written:
                    tree_map(_put_back, part, copy)
        return _stacked(results)

    return rule


def _batched(dim: Any) -> bool:
    return all(d is not None for d in dim) if isinstance(dim, (list, tuple)) else dim is not None


def _element(value: Any, dim: Any, index: int) -> Any:
    if isinstance(value, (list, tuple)) and isinstance(dim, (list, tuple)):
        return [_element(item, d, index) for item, d in zip(value, dim)]
    return value if dim is None else value.select(dim, index)


def _put_back(part: Any, copy: Any) -> None:
    if copy is not part:
        part.copy_(copy)


def _stacked(results: list[Any]) -> tuple[Any, Any]:
    first = results[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(results), 0
    if isinstance(first, (list, tuple)):
        parts = [_stacked(list(part)) for part in zip(*results)]
        return type(first)(p[0] for p in parts), type(first)(p[1] for p in parts)
    return first, None
