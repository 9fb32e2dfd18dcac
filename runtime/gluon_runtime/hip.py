"""The driver of AMD GPUs, `libamdhip64` through ctypes.

Sources: HIP Runtime API reference, sections Module Management and Execution Control.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

from gluon_runtime.driver import Loaded, torch_cuda, torch_stream
from gluon_runtime.errors import BundleDriverError, BundleTargetError
from gluon_runtime.libcuda import Config
from gluon_runtime.manifest import Form, Launch, TensorMap
from gluon_runtime.values import Pointer, TensorDescriptor

__all__ = ["HipDriver", "open_driver"]

_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")
_PROPERTIES = 4096  # more than hipDeviceProp_t of any release has


class HipDriver:
    """See `gluon_runtime.driver.Driver`.

    Args:
        library: `libamdhip64`.
    """

    name = "hip"
    tensor_device = "cuda"  # as torch calls it

    def __init__(self, library: Any):
        self.calls = library
        library.hipGetErrorString.restype = ctypes.c_char_p
        count = ctypes.c_int()
        self._check(library.hipGetDeviceCount(ctypes.byref(count)), "hipGetDeviceCount")
        self._count = count.value
        self._architectures: dict[int, str] = {}

    def device_count(self) -> int:
        return self._count

    def architecture(self, device: int) -> str:
        architecture = self._architectures.get(device)
        if architecture is None:
            architecture = self._architectures[device] = self._ask(device)
        return architecture

    def _ask(self, device: int) -> str:
        cuda = torch_cuda("hip")
        if cuda is not None:
            return str(cuda.get_device_properties(device).gcnArchName).split(":")[0]
        # The name is in hipDeviceProp_t, at a place that differs between releases: look for `gfx`, up to
        # the end of the string.
        room = ctypes.create_string_buffer(_PROPERTIES)
        ask = getattr(self.calls, "hipGetDevicePropertiesR0600", None)
        ask = ask or self.calls.hipGetDeviceProperties
        self._check(ask(room, device), "hipGetDeviceProperties")
        place = room.raw.find(b"gfx", 256)  # behind the device's own name
        end = room.raw.find(b"\0", place)
        return (
            room.raw[place:end].decode("ascii", "replace").split(":")[0] if place > 0 else "unknown"
        )

    def current_device(self) -> int:
        device = ctypes.c_int()
        self._check(self.calls.hipGetDevice(ctypes.byref(device)), "hipGetDevice")
        return device.value

    def reaches(self, seen: Pointer) -> bool:
        return seen.device is not None and seen.device[0] == self.tensor_device

    def stream(self, device: int) -> int:
        return torch_stream(device, "hip")

    def enter(self, device: int) -> None:
        if self._count > 1 and self.current_device() != device:
            self._check(self.calls.hipSetDevice(device), "hipSetDevice")

    def load(self, device: int, code: bytes, launch: Launch) -> Loaded:
        self.enter(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        status = self.calls.hipModuleLoadData(ctypes.byref(module), code)
        self._check(status, "hipModuleLoadData")
        status = self.calls.hipModuleGetFunction(
            ctypes.byref(function), module, launch.entry.encode()
        )
        self._check(status, "hipModuleGetFunction")
        return Loaded(device, int(function.value or 0))

    def parts(self, loaded: Loaded, form: Form) -> dict[str, Any]:
        launch = form.launch

        def call(config: int, parameters: int) -> int:
            self._launch(loaded, launch, Config.from_address(config), ctypes.c_void_p(parameters))
            return 0

        return {"call": call, "function": loaded.function, "hip": True}

    def _launch(self, loaded: Loaded, launch: Launch, config: Config, pointers: Any) -> None:
        function, stream = ctypes.c_void_p(loaded.function), ctypes.c_void_p(config.stream)
        if launch.num_ctas > 1:
            call = getattr(self.calls, "hipDrvLaunchKernelEx", None)
            if call is None:
                raise BundleDriverError(
                    "the HIP runtime cannot launch clusters", argument=launch.entry
                )
            status = call(ctypes.byref(config), function, pointers, None)
        else:
            sizes = map(ctypes.c_uint, (*config.grid, *config.block, config.shared))
            if launch.cooperative:
                status = self.calls.hipModuleLaunchCooperativeKernel(
                    function, *sizes, stream, pointers
                )
            else:
                status = self.calls.hipModuleLaunchKernel(function, *sizes, stream, pointers, None)
        self._check(status, f"the launch of {launch.entry}")

    def refuse(
        self, status: int, launch: Launch, device: int, grid: tuple[int, int, int], last: bool
    ) -> None:
        """Do nothing: `_launch` raises the error."""

    def tensor_map(self, device: int, kind: TensorMap, value: TensorDescriptor) -> bytes:
        raise BundleTargetError("kernels for AMD GPUs take no tensor maps", argument=str(kind))

    def allocate(self, device: int, size: int, stream: int) -> int:
        self.enter(device)
        address = ctypes.c_void_p()
        status = self.calls.hipMallocAsync(
            ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        )
        self._check(status, "hipMallocAsync")
        return int(address.value or 0)

    def free(self, device: int, address: int, stream: int) -> None:
        status = self.calls.hipFreeAsync(ctypes.c_void_p(address), ctypes.c_void_p(stream))
        self._check(status, "hipFreeAsync")

    def _check(self, status: int, call: str) -> None:
        if status:
            text = (self.calls.hipGetErrorString(status) or b"no description").decode()
            raise BundleDriverError(f"{call} failed", got=f"HIP error {status}: {text}")


def open_driver() -> tuple[Optional[HipDriver], Optional[str]]:
    """Return the driver, or None and why."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        try:
            return HipDriver(library), None
        except (AttributeError, BundleDriverError) as error:
            return None, f"{name} is broken: {error}"
    return None, "libamdhip64.so is not installed"
