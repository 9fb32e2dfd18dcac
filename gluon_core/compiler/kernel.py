"""Define `CompiledKernel`, the result of a compile or a launch, with the names users of Triton know."""

from __future__ import annotations

import functools
import hashlib
import keyword
from collections import namedtuple
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Protocol, Sequence

from gluon_core import _triton
from gluon_core.compiler import cache
from gluon_core.errors import ArgumentError, DeviceError, LaunchError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Report
from gluon_core.plugin.launcher import Launcher
from gluon_core.plugin.machine_code import Loop
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.registry.verify import checked
from gluon_core.simulation.evidence import witnessed
from gluon_runtime.grid import check_grid

if TYPE_CHECKING:
    from gluon_core.compiler.source import GluonASTSource

__all__ = ["AsmDict", "CompiledKernel", "metadata_tuple"]


class AsmDict(dict[str, Any]):
    """Stage -> text or bytes; a disassembly (`sass`) is made when it is asked for.

    Args:
        values: outputs of the stages.
        derive: makes further entries; raises KeyError for a name that it does not know.
        more: answers the names of stages whose entries can be had so.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        derive: Callable[[str, Mapping[str, Any]], Any],
        more: Callable[[], Sequence[str]] = tuple,
    ):
        super().__init__(values)
        self._derive = derive
        self._more = more

    def __missing__(self, key: str) -> Any:
        value = self._derive(key, self)
        self[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self._more()

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


def metadata_tuple(values: Mapping[str, Any]) -> Any:
    """`values` as a named tuple, sorted by name as Triton's is."""
    names = sorted(name for name in values if name.isidentifier() and not keyword.iskeyword(name))
    return _metadata_class(tuple(names))(**{name: values[name] for name in names})


@functools.lru_cache(maxsize=64)
def _metadata_class(names: tuple[str, ...]) -> Any:
    return namedtuple("KernelMetadata", names)


class Hardware(Protocol):
    """A simulated kernel on the architecture that it is simulated for, compiled when asked."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Return the names of the compilation stages."""

    def entry(self, name: str) -> Any:
        """Return an entry of `asm`, compiled no further than its stage; KeyError where there is none."""

    def kernel(self) -> CompiledKernel:
        """Return the whole of it."""

    def again(self, until: str) -> CompiledKernel:
        """Return it compiled up to a stage, under the settings of now."""


class SimulatedMetadata:
    """Hold the known facts of a simulated kernel; facts of a compiler alone are computed on request."""

    def __init__(self, own: Any, hardware: Hardware):
        self._own = own
        self._hardware = hardware

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(self._own, name):
            return getattr(self._own, name)
        return getattr(self._hardware.kernel().metadata, name)

    def __repr__(self) -> str:
        return repr(self._own)


def _on_demand(
    backend: Backend, hardware: Optional[Hardware], traced: Optional[Callable[[], str]]
) -> tuple[Callable[[str, Mapping[str, Any]], Any], Callable[[], Sequence[str]]]:
    """Hold the function for further entries of `asm`, and the names of those that are as good as there."""

    def derive(name: str, asm: Mapping[str, Any]) -> Any:
        if traced is not None and name in _triton.SOURCE_ENTRIES:
            return traced()
        return backend.compiler.derive(name, asm) if hardware is None else hardware.entry(name)

    def more() -> Sequence[str]:
        own = () if traced is None else _triton.SOURCE_ENTRIES
        return own if hardware is None else (*own, *hardware.stages)

    return derive, more


class CompiledKernel:
    """Machine code with everything that was made on the way.

    Attributes:
        asm: stage -> text or bytes: `ttgir`, `llir`, `ptx`, `cubin`, and `sass` on demand; or
            `amdgcn`, `hsaco`; `source`, the module before any stage, on demand.
        metadata: attributes `name`, `shared` (bytes), `num_warps`, `num_ctas`, `target`, `hash`
            and the compile options.
        target: the `gluon_core.plugin.targets.Target`.
        kernel: the machine code.
        src: the `GluonASTSource`.
        hash: the key of the entry in the cache.
        diagnostics: other output of the compiler.
        hardware: of a simulated kernel, how it is compiled for the architecture itself; facts of the
            machine code come from there, compiled as far as needed.
        traced: makes the text of the module before any stage, the value of `asm["source"]`.
        metadata_group: file name -> path of the entry in the cache.
    """

    def __init__(
        self,
        src: GluonASTSource,
        target: Target,
        backend: Backend,
        asm: Mapping[str, Any],
        metadata: Mapping[str, Any],
        hash: str,
        files: Optional[Mapping[str, str]] = None,
        diagnostics: str = "",
        hardware: Optional[Hardware] = None,
        traced: Optional[Callable[[], str]] = None,
    ):
        self.src = src
        self.target = target
        self.backend = backend
        self.hardware = hardware
        self.asm = AsmDict(asm, *_on_demand(backend, hardware, traced))
        values = dict(metadata)
        values["target"] = (
            _triton.gpu_target(target) if target.architecture.triton_backend else target
        )
        values["hash"] = hash
        values.setdefault("name", src.name)
        values.setdefault("shared", 0)
        values.setdefault("num_ctas", 1)
        values.setdefault("num_warps", 4)
        self.metadata = metadata_tuple(values)
        if hardware is not None:
            self.metadata = SimulatedMetadata(self.metadata, hardware)
        self.packed_metadata = (
            self.metadata.num_warps,
            self.metadata.num_ctas,
            self.metadata.shared,
        )
        self.hash = hash
        self.name: str = self.metadata.name
        self.kernel = next(reversed(list(asm.values())))
        self.metadata_group = dict(files or {})
        self.diagnostics = diagnostics
        self._loaded: dict[str, Any] = {}
        self._launchers: dict[int, Launcher] = {}
        self._report: Optional[Report] = None

    # -- results of loading or inspecting -----------------------------------------------------------

    def _get(self, name: str) -> Any:
        return self._loaded.get(name)

    @property
    def function(self) -> Any:
        """Return the driver's handle, None until the kernel is loaded."""
        return self._get("function")

    @function.setter
    def function(self, value: Any) -> None:
        self._loaded["function"] = value

    @property
    def module(self) -> Any:
        """Return the driver's module, None until the kernel is loaded."""
        return self._get("module")

    @module.setter
    def module(self, value: Any) -> None:
        self._loaded["module"] = value

    @property
    def n_regs(self) -> Optional[int]:
        """32-bit registers per thread: the driver's word once loaded, else read from the code."""
        return self._get("n_regs") if "n_regs" in self._loaded else self._registers[0]

    @n_regs.setter
    def n_regs(self, value: Any) -> None:
        self._loaded["n_regs"] = value

    @property
    def n_spills(self) -> Optional[int]:
        """Spills per thread, see `Report.spills`."""
        return self._get("n_spills") if "n_spills" in self._loaded else self._registers[1]

    @n_spills.setter
    def n_spills(self, value: Any) -> None:
        self._loaded["n_spills"] = value

    @property
    def n_max_threads(self) -> int:
        """Return the most threads that a block of this kernel may have."""
        if "n_max_threads" in self._loaded:
            known: int = self._loaded["n_max_threads"]
            return known
        return self.target.limits.max_warps * self.target.warp_size

    @n_max_threads.setter
    def n_max_threads(self, value: Any) -> None:
        self._loaded["n_max_threads"] = value

    def report(self) -> Report:
        """Return registers, spills, shared memory and instruction mix; needs no device."""
        if self._report is None:
            self._report = self._kept_report()
        return self._report

    def _kept_report(self) -> Report:
        """Return the report that the cache has of this machine code; compute and keep it where there is none.

        Disassembling takes longer than loading the kernel.
        """
        always = _triton.knobs.compilation.always_compile
        if always or not self.metadata_group or not isinstance(self.kernel, bytes):
            return self.backend.compiler.inspect(self)
        packages = (__name__.partition(".")[0], type(self.backend).__module__.partition(".")[0])
        made_from = hashlib.sha256(self.kernel).hexdigest()
        maker = cache.key_of([cache.content_hash(packages), _triton.VERSION_TEXT, made_from])
        kept = cache.load_companion(self.hash, self.src.name, "report", maker)
        if kept is not None:
            loops = tuple(Loop(**loop) for loop in kept.pop("loops"))
            return Report(**kept, loops=loops)
        report = self.backend.compiler.inspect(self)
        if type(report) is Report:  # a plugin's own class holds more
            cache.store_companion(self.hash, self.src.name, "report", maker, asdict(report))
        return report

    def _compiled(self) -> CompiledKernel:
        """Return the kernel with machine code, that of the architecture where this one is simulated."""
        return self if self.hardware is None else self.hardware.kernel()

    @functools.cached_property
    def _registers(self) -> tuple[Optional[int], Optional[int]]:
        """Return registers and spills of the machine code."""
        kernel = self._compiled()
        return kernel.backend.compiler.registers(kernel)

    def signature_types(self) -> tuple[Any, ...]:
        """Return the type of each parameter in order, nested for tuples."""
        return self.src.types

    # -- running -----------------------------------------------------------------------------------

    def launcher(self, device: int) -> Launcher:
        """Return the launch on a device; the kernel is loaded on the first call."""
        launcher = self._launchers.get(device)
        if launcher is not None:
            return launcher
        runtime = _triton.knobs.runtime
        details = (self.name, self.metadata_group, self.hash)
        if not _triton.hook_is_empty(runtime.kernel_load_start_hook):
            runtime.kernel_load_start_hook(self.module, self.function, *details)
        waiting = registry().waiting_for(self.backend, "launcher()")
        with waiting, self.backend.device.scope(device):
            launcher = checked(self.backend, "launcher", self.backend.device.launcher(self))
        launcher = witnessed(self, launcher)
        if not _triton.hook_is_empty(runtime.kernel_load_end_hook):
            runtime.kernel_load_end_hook(self.module, self.function, *details)
        self._launchers[device] = launcher
        return launcher

    def _init_handles(self) -> None:
        """Load the kernel on the current device."""
        self.launcher(self._device())

    def _device(self) -> int:
        here = self.backend.device.target()
        if self.backend.simulates or here is None:
            return 0
        device = self.backend.device.current()
        plugged = self.backend.device.target(device)
        if plugged != self.target:
            raise DeviceError(
                f"{self.name} was compiled for another device",
                expected=self.target,
                got=plugged,
                remedy="Compile it for this device, or choose one with its tensors.",
            )
        return device

    def launch_metadata(self, grid: Any, stream: int, *arguments: Any) -> Any:
        """Return the argument of launch hooks, None when there are no hooks."""
        runtime = _triton.knobs.runtime
        if _triton.hook_is_empty(runtime.launch_enter_hook):
            return None
        self._init_handles()
        metadata = _triton.lazy_dict(
            {
                "name": self.name,
                "function": self.function,
                "stream": stream,
                "metadata": self.metadata,
            }
        )
        extra = getattr(self.src.fn, "launch_metadata", None)
        if extra is not None:
            named = dict(zip(self.src.fn.arg_names, arguments))
            metadata.add(extra, (grid, self.metadata, named))
        return metadata

    def run(
        self,
        grid_0: int,
        grid_1: int,
        grid_2: int,
        stream: int,
        function: Any,
        packed_metadata: Any,
        launch_metadata: Any,
        launch_enter_hook: Any,
        launch_exit_hook: Any,
        *arguments: Any,
    ) -> None:
        """Launch, with the operands that Triton's `CompiledKernel.run` takes."""
        launch = self.launcher(self._device())
        if not _triton.hook_is_empty(launch_enter_hook):
            launch_enter_hook(launch_metadata)
        if grid_0 and grid_1 and grid_2:
            launch((grid_0, grid_1, grid_2), stream, *arguments)
        if not _triton.hook_is_empty(launch_exit_hook):
            launch_exit_hook(launch_metadata)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """`compiled[grid](*args)`: one argument per parameter of the kernel."""
        gx, gy, gz = check_grid(grid, LaunchError)
        device = self._device()
        self.launcher(device)
        stream_of = self.backend.device.stream_getter()
        count = len(self.src.fn.arg_names)

        def runner(*args: Any, stream: Optional[int] = None) -> None:
            if len(args) != count:
                raise ArgumentError(
                    f"{self.name} takes {count} arguments, constants included", got=len(args)
                )
            if stream is None:
                stream = stream_of(device)
            runtime = _triton.knobs.runtime
            metadata = self.launch_metadata(grid, stream, *args)
            hooks = (runtime.launch_enter_hook, runtime.launch_exit_hook)
            self.run(
                gx, gy, gz, stream, self.function, self.packed_metadata, metadata, *hooks, *args
            )

        return runner

    def result(self) -> CompiledKernel:
        """Itself; Triton's asynchronous compilation hands out objects that have this method."""
        return self

    def __repr__(self) -> str:
        return f"CompiledKernel({self.name}, {self.target})"

    def _heading(self) -> str:
        stages = ", ".join(name for name in self.asm if name != "source")
        return f"{self.name} for {self.target}: {stages}"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self._heading())}</b></p>{self._compiled().report()._repr_html_()}"

    def __rich__(self) -> Any:
        table = self._compiled().report().__rich__()
        table.title = self._heading()
        return table
