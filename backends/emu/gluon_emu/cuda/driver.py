"""The emulated driver for bundles that Python opens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gluon_core.errors import DeviceError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import note, witnessed
from gluon_core.simulation.host_memory import refusal
from gluon_emu.cuda.library import Library, Request
from gluon_emu.settings import of_launch
from gluon_runtime.cuda import CudaDriver
from gluon_runtime.driver import Loaded, torch_stream
from gluon_runtime.libcuda import Config
from gluon_runtime.manifest import Form

__all__ = ["EmulatedDriver", "driver_of", "library_of"]

_PLACES = ("cpu", "cuda")  # of tensors that an emulated kernel can work on


@dataclass(frozen=True)
class _Kernel:
    """The kernel of a bundle as records of launches have it."""

    name: str
    target: Target


class EmulatedDriver(CudaDriver):
    """See `gluon_runtime.driver.Driver`: kernels on the memory of the host, whose reports are raised."""

    looks_at_each = True  # tensors of a stand-in and of the host are alike

    def __init__(self, library: Library):
        super().__init__(library)
        self._library = library

    def architecture(self, device: int) -> str:
        return self._library.target.architecture.name

    def current_device(self) -> int:
        return 0

    def stream(self, device: int) -> int:
        return torch_stream(device, "cuda")

    def reaches(self, seen: Any) -> bool:
        return seen.device[0] in _PLACES and refusal(seen.owner) is None

    def parts(self, loaded: Loaded, form: Form) -> dict[str, Any]:
        kernel: Any = _Kernel(form.launch.entry, self._library.target)

        def call(config: int, parameters: int) -> int:
            request = self._library.request(config, loaded.function, parameters)
            settings = Config.from_address(config)
            witnessed(kernel, _runs(self._library, request))(
                tuple(settings.grid), settings.stream or 0
            )
            return 0

        return {**super().parts(loaded, form), "call": call}


def _runs(library: Library, request: Request) -> Any:
    def run(grid: Any, stream: Any) -> None:
        settings, overridden = of_launch()
        note(settings.off, overridden)
        library.run(request)

    return run


@lru_cache
def library_of(target: str) -> Library:
    """Return the functions of `libcuda` for an emulated device.

    Raises:
        TargetError: it is unknown.
        DeviceError: it is no GPU of NVIDIA's that the emulator executes.
    """
    wanted = registry().target(target)
    if wanted.backend != "emu" or wanted.architecture.backend != "nvidia":
        raise DeviceError(
            "the emulated driver is that of NVIDIA's GPUs",
            argument="target",
            expected="e.g. emu:sm_90",
            got=str(wanted),
        )
    return Library(wanted)


@lru_cache
def driver_of(target: str) -> EmulatedDriver:
    """Return the driver of an emulated device, such as `emu:sm_90`."""
    return EmulatedDriver(library_of(target))
