"""The emulator behind the contract: AMD's own pipeline, and its machine code executed here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, Mapping

from gluon_core.errors import CapabilityError
from gluon_core.plugin.backend import Backend, Executed, Report, Stage, Watch, load_path
from gluon_core.plugin.targets import Target

__all__ = ["EmuBackend"]


class EmuBackend(Backend):
    """Runs what AMD's pipeline makes of a kernel, over torch CPU tensors and NumPy arrays."""

    name = "emu"
    architectures = ()
    simulates = True
    unasked = False
    machine_code = True
    stands_in_for = ("amd",)
    watches = ("trace_isa", "asm")
    command = "gluon_emu.command.emu:emu"
    simulation = "gluon_emu.settings:using"
    isolate = True
    tensor_device = "cpu"
    raw_pointers = False
    pointer_range_bits = 32  # as the vendor's own, so that the code is the same

    def options(self, target: Target, given: Mapping[str, Any]) -> Any:
        """Those of the architecture's own backend."""
        return _vendor(target).options(_real(target), given)

    def target_attribute(self, target: Target) -> str:
        return _vendor(target).target_attribute(_real(target))

    def load_dialects(self, context: Any) -> None:
        from gluon_core.registry.load import registry

        for name in self.stands_in_for:
            registry().backend(name).load_dialects(context)

    def builder(self, context: Any, target: Target) -> Any:
        return _vendor(target).builder(context, _real(target))

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        return _vendor(target).codegen(_real(target), options)

    def module_map(self, target: Target) -> Mapping[str, Any]:
        return _vendor(target).module_map(_real(target))

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        return _vendor(target).pipeline(_real(target), options)

    def compiler_process(self, target: Target) -> str:
        return _vendor(target).compiler_process(_real(target))

    def pipeline_version(self, target: Target) -> str:
        return _vendor(target).pipeline_version(_real(target))

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        raise KeyError(name)

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        make: Callable[[Any], Callable[..., Any]] = load_path(
            "gluon_emu.amdgcn.launcher:make_launcher"
        )
        return make(compiled)

    @contextmanager
    def watch(self, wish: Watch) -> Iterator[Any]:
        using: Callable[..., ContextManager[Any]] = load_path(self.simulation)
        used: Callable[..., ContextManager[Any]] = load_path("gluon_emu.amdgcn.replaced:all_used")
        assembly = ",".join(wish.asm) or None
        with used(assembly), using(trace=wish.trace_isa, assembly=assembly) as settings:
            yield settings

    def inspect(self, compiled: Any) -> Report:
        return _vendor(compiled.target).inspect(compiled)

    def executed(self, compiled: Any, path: str) -> Executed:
        read: Callable[[Any, str], Executed] = load_path("gluon_emu.amdgcn.machine.trace:executed")
        return read(compiled, path)


def _real(target: Target) -> Target:
    return Target(target.architecture.backend, target.architecture)


def _vendor(target: Target) -> Backend:
    from gluon_core.registry.load import registry

    name = target.architecture.backend
    if name not in EmuBackend.stands_in_for:
        raise CapabilityError(
            f"the emulator runs machine code of {', '.join(EmuBackend.stands_in_for)}",
            argument="target",
            got=str(target),
            remedy=f"Try sim:{target.architecture.name}.",
        )
    return registry().backend(name)
