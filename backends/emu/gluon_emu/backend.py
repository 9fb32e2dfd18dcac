"""The emulator behind the contract: a vendor's own pipeline, and its machine code executed here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, Mapping

from gluon_core.errors import CapabilityError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Compiler, Report, Stage
from gluon_core.plugin.device import Device
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.simulation import Simulation
from gluon_core.plugin.targets import Target
from gluon_core.simulation.watch import Executed, Watch

__all__ = ["EMU"]

_SETTINGS = "gluon_emu.settings:using"
_MACHINES = {"amd": "amdgcn", "nvidia": "ptx"}  # backend -> the package that executes its code

_TRACES = {
    "amd": "gluon_emu.amdgcn.machine.trace:executed",
    "nvidia": "gluon_emu.ptx.trace:executed",
}


class EmuCompiler(Compiler):
    """The compiler of the architecture's own backend."""

    isolate = True
    pointer_range_bits = 32  # as the vendor's own, so that the code is the same

    def options(self, target: Target, options: Mapping[str, Any]) -> Any:
        """Return those of the architecture's own backend."""
        return _vendor(target).compiler.options(_real(target), options)

    def target_attribute(self, target: Target) -> str:
        return _vendor(target).compiler.target_attribute(_real(target))

    def load_dialects(self, context: Any) -> None:
        from gluon_core.registry.load import registry

        for name in Emu.stands_in_for:
            registry().backend(name).compiler.load_dialects(context)

    def builder(self, context: Any, target: Target) -> Any:
        return _vendor(target).compiler.builder(context, _real(target))

    def codegen(self, target: Target, options: Any) -> Mapping[str, Any]:
        return _vendor(target).compiler.codegen(_real(target), options)

    def module_map(self, target: Target) -> Mapping[str, Any]:
        return _vendor(target).compiler.module_map(_real(target))

    def pipeline(self, target: Target, options: Any) -> tuple[Stage, ...]:
        stages = _vendor(target).compiler.pipeline(_real(target), options)
        # PTX is executed as it is, so nothing assembles it.
        return tuple(stage for stage in stages if stage.name != "cubin")

    def process(self, target: Target) -> str:
        return _vendor(target).compiler.process(_real(target))

    def version(self, target: Target) -> str:
        return _vendor(target).compiler.version(_real(target))

    def derive(self, name: str, asm: Mapping[str, Any]) -> Any:
        raise KeyError(name)

    def inspect(self, compiled: Any) -> Report:
        """Return the facts of the machine code; PTX is assembled for them."""
        real, compiler = _real(compiled.target), _vendor(compiled.target).compiler
        stages = compiler.pipeline(real, compiler.options(real, {}))
        missing = [stage for stage in stages if stage.name == "cubin"]
        if not missing or isinstance(compiled.kernel, bytes):
            return compiler.inspect(compiled)
        code = missing[0].run(compiled.asm["ptx"], compiled.metadata._asdict())
        return compiler.inspect(_Assembled(compiled, code))


class _Assembled:
    """A compiled kernel with the machine code that its PTX becomes."""

    def __init__(self, compiled: Any, code: bytes):
        self._compiled = compiled
        self.kernel = code
        self.asm = {**dict(compiled.asm), "cubin": code}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


class Host(Device):
    """The CPU, which takes torch CPU tensors and NumPy arrays."""

    tensor_device = "cpu"

    def launcher(self, compiled: Any) -> Callable[..., Any]:
        isa = _MACHINES[compiled.target.architecture.backend]
        make: Callable[[Any], Callable[..., Any]] = load_path(
            f"gluon_emu.{isa}.launcher:make_launcher"
        )
        return make(compiled)


class Emu(Simulation):
    """Executes machine code, where a target names it."""

    unasked = False
    machine_code = True
    stands_in_for = tuple(_MACHINES)
    watches = ("trace_isa", "asm")
    settings = _SETTINGS

    @contextmanager
    def watch(self, wish: Watch) -> Iterator[Any]:
        using: Callable[..., ContextManager[Any]] = load_path(_SETTINGS)
        used: Callable[..., ContextManager[Any]] = load_path("gluon_emu.replaced:all_used")
        assembly = ",".join(wish.asm) or None
        with used(assembly), using(trace=wish.trace_isa, assembly=assembly) as settings:
            yield settings

    def executed(self, compiled: Any, path: str) -> Executed:
        backend = compiled.target.architecture.backend
        read: Callable[[Any, str], Executed] = load_path(_TRACES[backend])
        return read(compiled, path)


def _real(target: Target) -> Target:
    return Target(target.architecture.backend, target.architecture)


def _vendor(target: Target) -> Backend:
    from gluon_core.registry.load import registry

    name = target.architecture.backend
    if name not in Emu.stands_in_for:
        raise CapabilityError(
            f"the emulator runs machine code of {', '.join(Emu.stands_in_for)}",
            argument="target",
            got=str(target),
            remedy=f"Try sim:{target.architecture.name}.",
        )
    return registry().backend(name)


EMU = Backend(
    "emu",
    compiler=EmuCompiler(),
    device=Host(),
    simulation=Emu(),
)
