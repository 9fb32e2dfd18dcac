"""The simulator behind the contract: it runs the architectures of all other backends."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Mapping, cast

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Compiler, Report, Stage
from gluon_core.plugin.device import Device
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.simulation import Simulation
from gluon_core.plugin.targets import Target
from gluon_core.simulation.watch import Watch
from gluon_sim.settings import Settings

if TYPE_CHECKING:
    from gluon_core.plugin.builder import Builder
    from gluon_core.plugin.semantic import SemanticLayer
    from gluon_core.simulation.predicted import Predicted
    from gluon_sim.executor.compile import CompiledProgram
    from gluon_sim.tracing.program import Program

__all__ = ["SIM", "ProgramText"]

_SETTINGS = frozenset(f.name for f in fields(Settings))


class ProgramText(bytes):
    """The text of a recorded program, with the program itself."""

    program: Program
    compiled: CompiledProgram


class SimCompiler(Compiler):
    """Traces kernels into programs of NumPy calls."""

    cacheable = False

    def options(self, target: Target, values: Mapping[str, Any]) -> Any:
        """Return options of the architecture's own backend: a kernel that simulates is one that compiles.

        The `Settings` of this launch are options, too: `kernel[grid](..., schedule="eager")`.
        """
        own = {k: v for k, v in values.items() if k in _SETTINGS}
        options = _vendor(target).compiler.options(
            _real(target), {k: v for k, v in values.items() if k not in own}
        )
        if own:
            Settings(**own)  # refuses what cannot be
            _attach(options, own)
        return options

    def target_attribute(self, target: Target) -> str:
        return str(target)

    def builder(self, context: Any, target: Target) -> Builder:
        from gluon_sim.executor.models import models_for
        from gluon_sim.tracing.builder import SimBuilder

        # most of its methods are made from a table
        return cast("Builder", SimBuilder(context, target, models_for(target)))

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        functions = dict(_vendor(target).compiler.codegen(_real(target), options))
        functions["convert_custom_types"] = _convert
        return functions

    def module_map(self, target: Target) -> Mapping[str, Any]:
        return _vendor(target).compiler.module_map(_real(target))

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        def program(module: Program, metadata: dict[str, Any]) -> ProgramText:
            from gluon_sim.executor.capacity import capacity_checked
            from gluon_sim.executor.lookup import prepare
            from gluon_sim.executor.models import models_for

            text = ProgramText(str(module).encode())
            text.program = module
            text.compiled = compiled = prepare(module, models_for(target))
            module.context = None  # of Triton, and only for tracing; kernels outlive its bindings
            metadata["name"] = module.kernel.name
            metadata.setdefault("simulation", None)
            metadata["shared"] = compiled.shared_bytes
            if capacity_checked(options):
                compiled.refuse_excess()
            return text

        return (Stage("program", program),)

    def inspect(self, compiled: Any) -> Report:
        """Count recorded ops; there are no registers."""
        from collections import Counter

        text = compiled.asm["program"]
        mix = Counter(op.name for op in text.program.walk_ops())
        return Report(
            registers=None,
            spills=None,
            shared_memory=compiled.metadata.shared,
            instruction_count=sum(mix.values()),
            instruction_mix=dict(mix.most_common()),
        )


class Host(Device):
    """The CPU, which takes torch CPU tensors and NumPy arrays."""

    tensor_device = "cpu"

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        make: Callable[[Any], Callable[..., Any]] = load_path("gluon_sim.launcher:make_launcher")
        return make(compiled)


class Sim(Simulation):
    """Runs programs under schedules, with checks."""

    watches = (*Simulation.watches, "findings")
    settings = "gluon_sim.settings:using"
    ranks = "gluon_sim.executor.ranks:run"

    def hardware_options(self, options: Any) -> Any:
        return _detach(options)

    def watch(self, wish: Watch) -> ContextManager[Any]:
        from gluon_sim.tools.session import watch

        return watch(wish)

    def predict(self, tell: Callable[[Predicted], None], only: bool = False) -> ContextManager[Any]:
        from gluon_sim.timing.session import Wish, predicting

        return predicting(Wish(tell, only))


def _attach(options: Any, settings: Mapping[str, Any]) -> None:
    """Make settings part of a vendor's options: of their text too, which tells kernels apart."""
    kind: Any = type(options)
    text = ", ".join(f"{k}={v!r}" for k, v in sorted(settings.items()))
    named = {"__repr__": lambda self: f"{kind.__repr__(self)} simulated with {text}"}
    object.__setattr__(options, "simulation", dict(settings))
    object.__setattr__(options, "__class__", type(kind.__name__, (kind,), named))


def _detach(options: Any) -> Any:
    """Return the vendor's options without the settings of a simulated launch."""
    if not hasattr(options, "simulation"):
        return options
    plain = copy.copy(options)
    object.__delattr__(plain, "simulation")
    object.__setattr__(plain, "__class__", type(options).__bases__[0])
    return plain


def _real(target: Target) -> Target:
    return Target(target.architecture.backend, target.architecture)


def _vendor(target: Target) -> Backend:
    from gluon_core.registry.load import registry

    return registry().backend(target.architecture.backend)


def _convert(value: Any, type: Any, rounding: Any = None, *, _semantic: SemanticLayer) -> Any:
    """Cast as an op, where the compilers use inline assembly."""
    builder = _semantic.builder
    handle = builder.create_fp_to_fp(value.handle, type.to_ir(builder), rounding)
    return _semantic.make_tensor(handle, type)


SIM = Backend("sim", compiler=SimCompiler(), device=Host(), simulation=Sim())
