"""Check in debug mode that an op does as it declares, on each call, at the cost of copies."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gluon_torch.errors import FakeResultError, MutationError

__all__ = ["checked", "debug", "enabled"]

wanted = os.environ.get("GLUON_TORCH_DEBUG", "0") not in ("", "0")  # read at each call


def enabled() -> bool:
    """Return True if calls of ops are checked."""
    return wanted


@contextmanager
def debug(on: bool = True) -> Iterator[None]:
    """Check each call of an op in the block; `GLUON_TORCH_DEBUG=1` checks all of a process.

    Raises:
        MutationError: an op wrote an argument that is not among its `mutates_args`.
        FakeResultError: its results differ in shape, strides, dtype or device from its declaration to torch.
    """
    global wanted
    before, wanted = wanted, on
    try:
        yield
    finally:
        wanted = before


def checked(
    overload: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call an implementation of an op and compare its effects with the declaration of the op."""
    declared = _fake_results(overload, args, kwargs)
    read, written = _by_declaration(overload, args, kwargs)
    storages = {tensor.untyped_storage()._cdata for tensor in written}
    kept = [
        (name, tensor, tensor.detach().clone())
        for name, tensor in read
        if tensor.untyped_storage()._cdata not in storages  # given twice, and written as the other
    ]
    result = function(*args, **kwargs)
    for name, tensor, before in kept:
        if not _same_bits(tensor, before):
            raise MutationError(
                f"{overload._schema.name} wrote an argument that it does not declare",
                argument=name,
                expected=f"mutates_args to name {name!r}",
                got=f"mutates_args={_written_names(overload)!r}",
                remedy="Without it torch reorders and removes calls wrongly.",
            )
    _compare(overload, result, declared)
    return result


def _written_names(overload: Any) -> tuple[str, ...]:
    return tuple(
        a.name
        for a in overload._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
    )


def _by_declaration(
    overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[tuple[str, torch.Tensor]], list[torch.Tensor]]:
    """Return the tensors that a call only reads, by name, and those that it may write."""
    names = _written_names(overload)
    values = {a.name: value for a, value in zip(overload._schema.arguments, args)}
    values.update(kwargs)
    read: list[tuple[str, torch.Tensor]] = []
    written: list[torch.Tensor] = []
    for name, value in values.items():
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        if name in names:
            written += tensors
        else:
            read += [(name, tensor) for tensor in tensors]
    return read, written


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN is as it was, too."""
    one, other = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return bool(torch.equal(one, other))


def _fake_results(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    with FakeTensorMode() as mode:
        fakes = tree_map_only(torch.Tensor, mode.from_tensor, (args, dict(kwargs)))
        return overload(*fakes[0], **fakes[1])


def _compare(overload: Any, result: Any, declared: Any) -> None:
    real, fake = tree_leaves(result), tree_leaves(declared)
    name = overload._schema.name
    if len(real) != len(fake):
        raise FakeResultError(
            "the fake returns a different number of results",
            argument=name,
            expected=f"{len(real)}",
            got=len(fake),
        )
    for index, (one, other) in enumerate(zip(real, fake)):
        if isinstance(one, torch.Tensor) and _spoken(one) != _spoken(other):
            raise FakeResultError(
                "the fake's result differs from the kernel's",
                argument=f"result {index} of {name}",
                expected=_spoken(one),
                got=_spoken(other),
                remedy="Correct fake= or shape=: torch.compile allocates and indexes by it.",
            )


def _spoken(tensor: torch.Tensor) -> str:
    strides = [s if n > 1 else 1 for n, s in zip(tensor.shape, tensor.stride())]
    if 0 in tensor.shape:
        strides = []
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind}{list(tensor.shape)} with strides {strides} on {tensor.device}"
