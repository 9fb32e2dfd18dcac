"""Launches of plain `@triton.jit` kernels without a GPU.

Triton's own compiler has compiled the kernel for the simulated architecture when this is asked. A
backend that executes machine code gets that; for any other, Triton's interpreter runs the kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from gluon_core.errors import CapabilityError
from gluon_core.plugin.targets import Target
from gluon_core.plugin.triton_compiler import TritonDevice
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import witnessed
from gluon_standin import triton_kernels
from gluon_standin.narrow import rounded_arithmetic

__all__ = ["executed", "launcher", "resources", "summary"]

executed: Counter[tuple[str, str]] = Counter()
"""(kernel, how its launches were executed) -> how many there were."""

_INTERPRETER = "Triton's interpreter"


@dataclass
class _Compiled:
    """A kernel of Triton's own compiler, as a backend's launcher takes it."""

    name: str
    target: Target
    asm: Mapping[str, Any]
    metadata: Any
    src: Any
    kernel: Any = None
    packed_metadata: tuple[int, int, int] = (0, 0, 0)
    function: Any = None
    module: Any = None
    n_regs: Optional[int] = None
    n_spills: Optional[int] = None
    n_max_threads: int = 0

    def signature_types(self) -> tuple[Any, ...]:
        constants = {path for path in self.src.constants if len(path) == 1}
        return tuple(
            "constexpr" if (index,) in constants else kind
            for index, kind in enumerate(self.src.signature.values())
        )


def launcher(target: Target, src: Any, metadata: Any) -> Callable[..., None]:
    """Return what Triton calls to launch a compiled kernel: its `driver.launcher_cls(src, metadata)`."""
    backend = registry().backend(target.backend)
    fn = getattr(src, "fn", None)
    chosen = f"machine code for {target.architecture.name}, compiled by Triton"
    compiled = _Compiled(metadata.name, target, {}, metadata, src)
    run: Any = None

    def interpreted(grid: Any, stream: int, *values: Any) -> None:
        try:
            triton_kernels.interpret(fn, grid, values, rounded_arithmetic)
        except triton_kernels.InterpreterError as error:  # it wraps what went wrong
            if isinstance(error.__cause__, (NotImplementedError, AttributeError)):
                raise CapabilityError(
                    "Triton's interpreter, which runs plain @triton.jit kernels on this target, "
                    "cannot run this one",
                    argument=compiled.name,
                    got=str(error.__cause__),
                    remedy=_elsewhere(target),
                ) from error
            raise

    if not backend.simulation.machine_code:
        chosen = _INTERPRETER
        run = witnessed(compiled, interpreted, _INTERPRETER)

    def launch(
        x: int, y: int, z: int, stream: int, function: Any, packed: Any, launch_metadata: Any,
        enter: Any, leave: Any, *values: Any,
    ) -> None:  # fmt: skip
        nonlocal run
        if run is None:  # the code object comes with the first launch
            compiled.asm = _machine_code(src, metadata, function)
            run = witnessed(compiled, backend.device.launcher(compiled))
        if not x * y * z:
            return
        programs = x * y * z * int(getattr(metadata, "num_ctas", 1) or 1)
        for name in ("global", "profile"):
            size = int(getattr(metadata, f"{name}_scratch_size", 0) or 0)
            align = int(getattr(metadata, f"{name}_scratch_align", 1) or 1)
            if backend.simulation.machine_code and TritonDevice.user_allocator(name) is not None:
                continue  # its launcher asks the allocator
            triton_kernels.scratch(size * programs, align, stream, name == "profile")
        if enter is not None:
            enter(launch_metadata)
        executed[compiled.name, chosen] += 1
        run((x, y, z), stream, *values)
        if leave is not None:
            leave(launch_metadata)

    return launch


def _elsewhere(target: Target) -> str:
    """Return a remedy: where machine code of the kernel runs without a GPU, else the alternatives."""
    vendor, name = target.architecture.backend, target.architecture.name
    for backend in registry().backends.values():
        if backend.simulation.machine_code and vendor in (
            backend.simulation.stands_in_for or (vendor,)
        ):
            return f"{backend.name}:{name} executes its machine code."
    return "Decorate it with gluon_core.jit (it is then a Gluon kernel), or run on a GPU."


def resources(target: Target) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return functions that read the registers and spills of a kernel of Triton's."""
    triton_kernels.read_when_asked()
    vendor = registry().backend(target.architecture.backend)

    def report(kernel: Any) -> Any:
        real = Target(vendor.name, target.architecture)
        compiled = _Compiled(kernel.name, real, kernel.asm, kernel.metadata, kernel.src)
        compiled.kernel = kernel.kernel
        return vendor.compiler.inspect(compiled)

    return lambda kernel: report(kernel).registers, lambda kernel: report(kernel).spills


def _machine_code(src: Any, metadata: Any, code: Any) -> dict[str, Any]:
    """Return the entries of `asm` that a backend's launcher may read."""
    asm = {"hsaco": code, "cubin": code}
    for extension in ("amdgcn", "ptx"):
        text = triton_kernels.machine_text(src.name, metadata.hash, extension)
        if text is not None:
            asm[extension] = text
    return asm


def summary() -> list[str]:
    """Return a line for each way in which plain Triton kernels were executed."""
    ways: dict[str, list[str]] = {}
    for (kernel, way), count in sorted(executed.items()):
        ways.setdefault(way, []).append(f"{kernel} ({count})" if count > 1 else kernel)
    return [f"plain Triton kernels, {way}: {', '.join(names)}" for way, names in ways.items()]
