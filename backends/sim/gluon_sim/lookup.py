"""Where the meaning of a recorded op is found: here for the portable ones, in a plugin for a vendor's."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from gluon_core.reference import wants_machine

from .arith import ELEMENTWISE
from .compile import CompiledProgram, compile_program
from .control import CONTROL
from .errors import SimulatorError, span_of
from .ops import OPS
from .program import Op, Program
from .regions import REGIONS

__all__ = ["Models", "prepare"]


class Models:
    """The reference models of the installed plugins.

    Args:
        modules: reference modules, the most specific first.
        arithmetic: builder ops of the portable language that the target's code does its own way.
    """

    def __init__(self, modules: Sequence[Any] = (), arithmetic: Optional[Mapping] = None):
        self.modules = list(modules)
        self.arithmetic = arithmetic or {}

    def __call__(self, name: str) -> Optional[Callable]:
        """The model of builder method `create_<name>`, or None."""
        for module in self.modules:
            fn = getattr(module, name, None)
            if callable(fn) and not name.startswith("_"):
                return fn
        return None

    def extern(self, symbol: str) -> Optional[Callable]:
        for module in self.modules:
            fn = getattr(module, "EXTERNS", {}).get(symbol)
            if fn is not None:
                return fn
        return None

    def inline_asm(self, text: str) -> Optional[Callable]:
        for module in self.modules:
            fn = getattr(module, "INLINE_ASM", {}).get(text.strip())
            if fn is not None:
                return fn
        return None


def _issues(model: Callable, depth: int = 3) -> bool:
    """Does a model, or a function of its package that it calls, start asynchronous work?"""
    code = getattr(model, "__code__", None)
    if code is None or depth == 0:
        return False
    if "issue" in code.co_names:
        return True
    package = model.__module__.rpartition(".")[0]
    called = (getattr(model, "__globals__", {}).get(name) for name in code.co_names)
    return any(
        callable(fn) and getattr(fn, "__module__", "").startswith(package) and _issues(fn, depth - 1)
        for fn in called
    )


def prepare(program: Program, models: Optional[Models] = None) -> CompiledProgram:
    """Make a recorded program runnable."""
    models = models or Models()

    def find(op: Op) -> tuple[Callable, bool, bool]:
        name = op.name
        if name in CONTROL:
            return CONTROL[name], True, False
        if name in REGIONS:
            return REGIONS[name], True, False
        if name == "warp_specialize_partitions":
            return (lambda task: None), False, False
        if name == "inline_asm":
            model = models.inline_asm(op.args[0])
            if model is not None:
                return (
                    (lambda task, asm, constraints, args, *rest: model(task, *args)),
                    False,
                    False,
                )
        if name in OPS:
            return OPS[name], False, False
        if name in ELEMENTWISE:
            return models.arithmetic.get(name, ELEMENTWISE[name]), False, True
        model = models(name)
        if model is None:
            raise SimulatorError(
                f"the simulator has no reference model for the builder op `{name}`",
                span=span_of(op.loc),
            )
        if wants_machine(model):
            return model, False, False
        return (lambda task, *args, **named: model(*args, **named)), False, False

    with np.errstate(all="ignore"):  # constants may overflow their type
        compiled = compile_program(program, find)
    names = {op.name for op in program.walk_ops()}
    found = [model for model in map(models, names) if model is not None]
    compiled.claims = any(getattr(model, "claims", False) for model in found)
    compiled.asynchronous = any(_issues(model) for model in found)
    return compiled
