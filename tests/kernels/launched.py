"""Launches that operators of `gluon_kernels` make, with the arrays that they take, for tests that run a kernel again."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import Any, Callable, Iterator
from unittest.mock import patch

import torch

from gluon_core.launch.jit import GluonJITFunction
from gluon_kernels.plans import Plans


@dataclass(frozen=True)
class Launch:
    """One launch.

    Args:
        kernel: the jit function.
        grid: of it.
        arguments: its arguments; those that are memory as functions that make a copy.
        options: such as `num_warps`.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def fresh(self) -> list[Any]:
        """Return the arguments with memory of their own, as before the launch."""
        return Copies().of(self.arguments)


class Copies:
    """Copies of arguments; tensors that share memory share it in the copy, too."""

    def __init__(self) -> None:
        self._memory: dict[int, torch.UntypedStorage] = {}

    def of(self, value: Any) -> Any:
        """Return a copy of a tensor, a descriptor of one, or a tuple of them; anything else as it is."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self.of, value))
        if isinstance(value, torch.Tensor):
            value = value.detach()
            memory = value.untyped_storage()
            if memory.data_ptr() not in self._memory:
                self._memory[memory.data_ptr()] = memory.clone()
            copied = torch.empty(0, dtype=value.dtype)
            place = value.storage_offset(), value.size(), value.stride()
            return copied.set_(self._memory[memory.data_ptr()], *place)
        base = getattr(value, "base", None)
        if base is None:
            return value
        copy = object.__new__(type(value))
        object.__setattr__(copy, "__dict__", {**vars(value), "base": self.of(base)})
        return copy


@contextlib.contextmanager
def on_target(spec: str) -> Iterator[None]:
    """Let operators launch on a target; their plans are made anew, and dropped afterwards."""
    with patch.dict(os.environ, GLUON_TARGET=spec):
        forget()
        try:
            yield
        finally:
            forget()


def forget() -> None:
    """Drop the plans of all operators."""
    modules = [module for name, module in sys.modules.items() if name.startswith("gluon_kernels")]
    for module in modules:
        for value in vars(module).values():
            if type(value) is Plans:
                value.forget()


def launches_of(call: Callable[[], Any], spec: str) -> list[Launch]:
    """Return the launches that `call` makes on a target, in their order."""
    launches: list[Launch] = []
    prepare = GluonJITFunction.prepare

    def recorded(self: Any, *arguments: Any, grid: Any, **options: Any) -> Any:
        handle = prepare(self, *arguments, grid=grid, **options)

        def launch(*values: Any) -> None:
            launches.append(Launch(self, tuple(grid), tuple(Copies().of(values)), options))
            handle(*values)

        return launch

    with on_target(spec), patch.object(GluonJITFunction, "prepare", recorded):
        call()
    return launches
