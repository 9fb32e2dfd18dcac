"""The simulator behind the contract: it stands in for the architectures of all other backends."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Callable, ContextManager, Mapping

from gluon_core.backend import Backend, Report, Stage, Watch, load_path
from gluon_core.targets import Target
from gluon_sim.settings import Settings

__all__ = ["ProgramText", "SimBackend"]

_SETTINGS = frozenset(f.name for f in fields(Settings))


class ProgramText(bytes):
    """The text of a recorded program, with the program itself."""

    program: Any = None
    compiled: Any = None


class SimBackend(Backend):
    """Runs kernels on the CPU over torch CPU tensors and NumPy arrays."""

    name = "sim"
    architectures = ()
    simulates = True
    simulation = "gluon_sim.settings:using"
    cacheable = False
    tensor_device = "cpu"
    raw_pointers = False

    def options(self, target: Target, given: Mapping[str, Any]) -> Any:
        """Those of the architecture's own backend: a kernel that simulates is one that compiles.

        And the `Settings` by name, for this launch: `kernel[grid](..., schedule="eager")`.
        """
        own = {k: v for k, v in given.items() if k in _SETTINGS}
        options = _vendor(target).options(
            _real(target), {k: v for k, v in given.items() if k not in own}
        )
        if own:
            Settings(**own)  # refuses what cannot be
            _attach(options, own)
        return options

    def target_attribute(self, target: Target) -> str:
        return str(target)

    def builder(self, context: Any, target: Target) -> Any:
        from gluon_sim.builder import SimBuilder

        return SimBuilder(context, target, models_for(target))

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        functions = dict(_vendor(target).codegen(_real(target), options))
        functions["convert_custom_types"] = _convert
        return functions

    def module_map(self, target: Target) -> Mapping[str, Any]:
        return _vendor(target).module_map(_real(target))

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        def program(module: Any, metadata: dict) -> ProgramText:
            from gluon_sim.compile import shared_peak
            from gluon_sim.lookup import prepare

            text = ProgramText(str(module).encode())
            text.program = module
            text.compiled = prepare(module, models_for(target))
            module.context = None  # of Triton, and only for tracing; kernels outlive its bindings
            metadata["name"] = module.kernel.name
            metadata["shared"] = shared = shared_peak(module)
            refuse_excess(module, shared, target, options)
            return text

        return (Stage("program", program),)

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        return load_path("gluon_sim.launcher:make_launcher")(compiled)

    def watch(self, wish: Watch) -> ContextManager[Any]:
        from gluon_sim.session import watch

        return watch(wish)

    def inspect(self, compiled: Any) -> Report:
        """Counts recorded ops; there are no registers."""
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


def capacity_checked(options: Any) -> bool:
    """Whether a kernel with these options must fit into the memories of its target."""
    from gluon_sim.settings import current

    own = getattr(options, "simulation", None) or {}
    return bool(own.get("capacity", current().capacity))


def refuse_excess(program: Any, shared: int, target: Target, options: Any) -> None:
    """Refuse a kernel that needs more shared or tensor memory than there is, if that is checked.

    Args:
        options: of the kernel; its `simulation` holds settings of this launch.

    Raises:
        CapacityError: at the line of the largest buffer.
    """
    from gluon_sim.compile import largest_buffer
    from gluon_sim.errors import CapacityError, span_of
    from gluon_sim.tensor_memory import check_columns

    if not capacity_checked(options):
        return
    check_columns(program, target.limits.tensor_memory_columns, str(target))
    limit = target.limits.shared_memory
    if shared > limit:
        raise CapacityError(
            f"{program.kernel.name} needs too much shared memory",
            expected=f"at most {limit} bytes on {target}",
            got=f"{shared} bytes in use at once",
            remedy="Use smaller tiles or fewer stages.",
            report="capacity.shared",
            span=span_of(largest_buffer(program).loc),
        )


def _attach(options: Any, settings: Mapping[str, Any]) -> None:
    """Make settings part of a vendor's options: of their text too, which tells kernels apart."""
    kind = type(options)
    text = ", ".join(f"{k}={v!r}" for k, v in sorted(settings.items()))
    named = {"__repr__": lambda self: f"{kind.__repr__(self)} simulated with {text}"}
    object.__setattr__(options, "simulation", dict(settings))
    object.__setattr__(options, "__class__", type(kind.__name__, (kind,), named))


def _real(target: Target) -> Target:
    return Target(target.architecture.backend, target.architecture)


def _vendor(target: Target) -> Backend:
    from gluon_core.plugins import registry

    return registry().backend(target.architecture.backend)


def models_for(target: Target) -> Any:
    """The reference models of the target's vendor, then those of everybody else."""
    import importlib

    from gluon_core.plugins import registry
    from gluon_sim.lookup import Models

    own = target.architecture.backend
    backends = sorted(registry().backends.values(), key=lambda b: b.name != own)
    modules, arithmetic = [], {}
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
    return Models(modules, arithmetic)


def _convert(value: Any, type: Any, rounding: Any = None, _semantic: Any = None) -> Any:
    """Casts that the compilers do with inline assembly; here they are casts."""
    builder = _semantic.builder
    handle = builder.create_fp_to_fp(value.handle, type.to_ir(builder), rounding)
    return _semantic.make_tensor(handle, type)
