"""The functions of modules before a candidate, and those that it replaced."""

from __future__ import annotations

import sys
import types
from typing import Any, Iterable, Iterator, Mapping

__all__ = ["Snapshot", "owner_of"]

_WATCHED = (
    "builtins", "time", "datetime", "math", "os", "random", "threading", "warnings", "numpy", "numpy.testing", "numpy.linalg",
    "numpy.random", "torch", "torch.Tensor",
    "torch.cuda", "torch.cuda.Stream", "torch.cuda.Event", "torch.nn.functional", "torch.nn.Module", "torch.testing",
    "torch.linalg", "torch.random", "torch.autograd", "torch.utils._python_dispatch", "torch.overrides", "triton",
    "triton.testing", "triton.language", "triton.runtime.jit", "triton.runtime.interpreter", "gluon_core",
    "gluon_core.language", "gluon_core.simulation.evidence", "gluon_core.launch.place", "gluon_sim.settings",
    "gluon_sim.launcher", "gluon_sim.launcher.SimulatedKernel", "gluon_sim.launcher.Launch", "gluon_sim.errors",
    "gluon_sim.tools.profile.Profiler", "gluon_sim.executor.machine.Machine", )  # fmt: skip


_WHOLE = (
    "gluon_sim.",
    "gluon_core.simulation.",
    "gluon_core.launch.",
    "gluon_standin.",
    "gluon_prove.",
)
"""Modules of which each class is watched, too: the simulator with its sanitizer, and the records of launches."""


class Snapshot:
    """The functions of modules at one time.

    Args:
        more: modules and classes of them, in addition to those that all candidates find.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        self._functions: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._kinds: dict[str, tuple[Any, type]] = {}  # of modules
        self._names: dict[str, frozenset[str]] = {}  # of classes
        for path in (*_WATCHED, *more):
            owner = owner_of(path)
            if owner is not None:
                self._add(path, owner)
        for name, module in list(sys.modules.items()):
            if module is not None and f"{name}.".startswith(_WHOLE):
                self._add(name, module)
                for one in list(vars(module).values()):
                    if isinstance(one, type) and one.__module__ == name:
                        self._add(f"{name}.{one.__name__}", one)

    def _add(self, path: str, owner: Any) -> None:
        self._functions[path] = owner, dict(_callables(vars(owner), path.startswith("numpy")))
        if isinstance(owner, types.ModuleType):
            self._kinds[path] = owner, type(owner)
        else:
            self._names[path] = frozenset(vars(owner))

    def changed(self) -> Iterator[str]:
        """Yield the names of functions that were replaced since, and restore them."""
        for path, (owner, kind) in self._kinds.items():
            if type(owner) is not kind:
                owner.__class__ = kind
                yield f"{path}.__class__"
        for path, (owner, before) in self._functions.items():
            space = vars(owner)
            names = self._names.get(path)
            if names is not None and len(space) > len(names):
                for name in [name for name in space if name not in names]:
                    if any(
                        name in vars(base) for base in owner.__mro__[1:]
                    ):  # hides that of the base
                        delattr(owner, name)
                        yield f"{path}.{name}"
            for name, function in before.items():
                if space.get(name) is function:
                    continue
                try:
                    setattr(owner, name, function)
                except (AttributeError, TypeError):
                    pass
                yield f"{path}.{name}"


def owner_of(path: str) -> Any:
    """Return a module, or a class of one, that is loaded; None if it is not."""
    module = sys.modules.get(path)
    if module is not None:
        return module
    parent, _, name = path.rpartition(".")
    return getattr(sys.modules.get(parent), name, None)


_KINDS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.GetSetDescriptorType, type, property, staticmethod, classmethod,
)  # fmt: skip


def _callables(space: Mapping[str, Any], all_of_them: bool) -> Iterator[tuple[str, Any]]:
    for name, value in list(space.items()):
        if isinstance(value, _KINDS) or (all_of_them and callable(value)):
            yield name, value
