"""Lookup of the semantics of a recorded op: here for the portable ones, in a plugin for a vendor's."""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from gluon_core.errors import LayoutError
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.assembly import runs_text
from gluon_sim.executor.compile import CompiledProgram, compile_program
from gluon_sim.executor.control import CONTROL
from gluon_sim.executor.models import Models
from gluon_sim.executor.ops import OPS
from gluon_sim.executor.regions import REGIONS
from gluon_sim.sanitizer.spare import spare_barriers
from gluon_sim.tracing.arith import ELEMENTWISE
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.undetermined import undetermined

__all__ = ["prepare"]

_DEFERRED = ("deferred_store", "deferred_read")  # portable ops that are asynchronous elsewhere


def _issues(model: Callable[..., Any], depth: int = 3) -> bool:
    """Return True if a model, or a function of its package that it calls, starts asynchronous work."""
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
            remedy="Give it a layout, use gl.set_auto_layout, or mark the kernel layouts='auto'.",
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
        compiled = compile_program(program, find, models)
    names = {op.name for op in program.walk_ops()}
    used_models = [model for model in map(models, names) if model is not None]
    compiled.claims = any(getattr(model, "claims", False) for model in used_models)
    compiled.breakpoints = "breakpoint" in names
    compiled.unused_barriers = spare_barriers(program)
    compiled.asynchronous = not names.isdisjoint(_DEFERRED) or any(map(_issues, used_models))
    return compiled


def wants_machine(model: Callable[..., Any]) -> bool:
    """Return True if the model's first parameter is called `machine`."""
    code = getattr(model, "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] == "machine"
