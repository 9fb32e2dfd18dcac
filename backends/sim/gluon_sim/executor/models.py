"""The reference models that give the ops of a target their meaning, and the vendor's other declarations."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np

from gluon_core.plugin.reference import Remedies
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.assembly import Assembler
from gluon_sim.executor.special import function

__all__ = ["Models", "models_for"]


class Models:
    """The reference models of the installed plugins.

    Args:
        modules: reference modules, the most specific first.
        arithmetic: builder ops of the portable language that the target's code does its own way.
        lockstep: whether the threads of a warp go in step, so that one's release is of them all.
        assembler: makes inline assembly of the target runnable; where no plugin contributes one, the
            name of its dialect.
        target: the simulated target.
        remedies: the calls that order the target's asynchronous work.
    """

    def __init__(
        self,
        modules: Sequence[Any] = (),
        arithmetic: Optional[Mapping[str, Callable[..., np.ndarray]]] = None,
        lockstep: bool = False,
        assembler: Union[Assembler, str, None] = None,
        target: Any = None,
        remedies: Optional[Remedies] = None,
    ):
        self.modules = list(modules)
        self.remedies = remedies or Remedies()
        self.arithmetic = arithmetic or {}
        self.lockstep = lockstep
        self.assembler = assembler
        self.target = target

    def __call__(self, name: str) -> Optional[Callable[..., Any]]:
        """Return the model of builder method `create_<name>`, or None."""
        for module in self.modules:
            fn: Optional[Callable[..., Any]] = getattr(module, name, None)
            if callable(fn) and not name.startswith("_"):
                return fn
        return None

    def extern(self, symbol: str) -> Optional[Callable[..., Any]]:
        """Return the model of a library function, None where there is none."""
        for module in self.modules:
            fn: Union[str, Callable[..., Any], None] = getattr(module, "EXTERNS", {}).get(symbol)
            if fn is not None:
                return function(fn) if isinstance(fn, str) else fn
        return None

    def is_idle(self, text: str) -> bool:
        """Return True if a text does nothing that a block notices, whatever else it orders."""
        return any(text.strip() in getattr(module, "IDLE_ASM", ()) for module in self.modules)

    def inline_asm(self, text: str) -> Optional[Callable[..., Any]]:
        for module in self.modules:
            fn: Optional[Callable[..., Any]] = getattr(module, "INLINE_ASM", {}).get(text.strip())
            if fn is not None:
                return fn
        return None


def models_for(target: Target) -> Models:
    """Return the reference models of the target's vendor, then those of everybody else."""
    own = target.architecture.backend
    backends = sorted(registry().backends.values(), key=lambda b: b.name != own)
    modules: list[Any] = []
    arithmetic: Mapping[str, Callable[..., np.ndarray]] = {}
    lockstep, dialect, remedies = False, None, None
    for backend in backends:
        if not backend.language.reference:
            continue
        try:
            module = importlib.import_module(backend.language.reference)
        except ModuleNotFoundError as error:
            # A vendor may have no models yet; a model that cannot import something is a mistake.
            if backend.name == own and error.name != backend.language.reference:
                raise
        except ImportError:
            if backend.name == own:
                raise
        else:
            modules.append(module)
            if backend.name == own:
                arithmetic = getattr(module, "ELEMENTWISE", {})
                lockstep = getattr(module, "LOCKSTEP", False)
                dialect = getattr(module, "ASSEMBLY", None)
                remedies = getattr(module, "REMEDIES", None)
    service = f"assembly.{dialect}"
    assembler = registry().service(service) if service in registry().offers("service") else dialect
    return Models(modules, arithmetic, lockstep, assembler, target, remedies)
