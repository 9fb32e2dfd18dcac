"""Where the meaning of a recorded op is found: here for the portable ones, in a plugin for a vendor's."""

from __future__ import annotations

import importlib
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import numpy as np

from gluon_core.errors import LayoutError
from gluon_core.plugin.call_sites import Remedies
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.reference import wants_machine
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.assembly import Assembler
from gluon_sim.errors import SimulatorError, span_of
from gluon_sim.executor.assembly import runs_text
from gluon_sim.executor.compile import CompiledProgram, compile_program
from gluon_sim.executor.control import CONTROL
from gluon_sim.executor.ops import OPS
from gluon_sim.executor.regions import REGIONS
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.undetermined import undetermined

__all__ = ["Models", "models_for", "prepare"]

_DEFERRED = ("deferred_store", "deferred_read")  # portable ops that are asynchronous elsewhere


class Models:
    """The reference models of the installed plugins.

    Args:
        modules: reference modules, the most specific first.
        arithmetic: builder ops of the portable language that the target's code does its own way.
        lockstep: whether the threads of a warp go in step, so that one's release is of them all.
        assembler: makes inline assembly of the target runnable; where no plugin contributes one, the
            name of its dialect.
        target: what the simulator stands in for.
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
        """The model of builder method `create_<name>`, or None."""
        for module in self.modules:
            fn: Optional[Callable[..., Any]] = getattr(module, name, None)
            if callable(fn) and not name.startswith("_"):
                return fn
        return None

    def extern(self, symbol: str) -> Optional[Callable[..., Any]]:
        for module in self.modules:
            fn: Optional[Callable[..., Any]] = getattr(module, "EXTERNS", {}).get(symbol)
            if fn is not None:
                return fn
        return None

    def inline_asm(self, text: str) -> Optional[Callable[..., Any]]:
        for module in self.modules:
            fn: Optional[Callable[..., Any]] = getattr(module, "INLINE_ASM", {}).get(text.strip())
            if fn is not None:
                return fn
        return None


def _issues(model: Callable[..., Any], depth: int = 3) -> bool:
    """Does a model, or a function of its package that it calls, start asynchronous work?"""
    code = getattr(model, "__code__", None)
    if code is None or depth == 0:
        return False
    if "issue" in code.co_names:
        return True
    package = model.__module__.rpartition(".")[0]
    called = (getattr(model, "__globals__", {}).get(name) for name in code.co_names)
    return any(
        callable(fn)
        and getattr(fn, "__module__", "").startswith(package)
        and _issues(fn, depth - 1)
        for fn in called
    )


def prepare(program: Program, models: Optional[Models] = None) -> CompiledProgram:
    """Make a recorded program runnable."""
    models = models or Models()
    bare = undetermined(program)
    if bare is not None:
        raise LayoutError(
            "nothing determines the layout of this tensor",
            expected="a layout, or an op with a tensor that has one",
            got="an AutoLayout",
            remedy="Give it a layout where it is made, or use gl.set_auto_layout.",
            span=span_of(bare.loc),
        )

    def find(op: Op) -> tuple[Callable[..., Any], bool, bool]:
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
            return runs_text(op, models.assembler, models.target), False, False
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
    compiled.asynchronous = not names.isdisjoint(_DEFERRED) or any(map(_issues, found))
    return compiled


def models_for(target: Target) -> Models:
    """The reference models of the target's vendor, then those of everybody else."""

    own = target.architecture.backend
    backends = sorted(registry().backends.values(), key=lambda b: b.name != own)
    modules: list[Any] = []
    arithmetic: Mapping[str, Callable[..., np.ndarray]] = {}
    lockstep, dialect, remedies = False, None, None
    for backend in backends:
        if not backend.reference:
            continue
        try:
            module = importlib.import_module(backend.reference)
        except ModuleNotFoundError as error:
            # A vendor may have no models yet; a model that cannot import something is a mistake.
            if backend.name == own and error.name != backend.reference:
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
    path = registry().assembler(dialect) if dialect else None
    assembler = load_path(path) if path else dialect
    return Models(modules, arithmetic, lockstep, assembler, target, remedies)
