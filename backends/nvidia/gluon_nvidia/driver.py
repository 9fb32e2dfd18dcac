"""The CUDA driver of this machine: devices, modules and launches, with neither a compiler nor torch.

The library is loaded on first use. `Driver` takes the library as an argument so that a recording
stand-in can replace it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Optional

from gluon_core import errors
from gluon_runtime import libcuda
from gluon_runtime.libcuda import CudaCalls

__all__ = ["Driver", "Function", "driver", "problem"]


@dataclass(frozen=True)
class Function:
    """A kernel that is loaded on one device.

    Args:
        handle: the CUfunction.
        module: the CUmodule; it stays loaded for the life of the process, because unloading it
            while a graph is being captured would break the capture.
        registers: 32-bit registers per thread.
        spills: 32-bit words of local memory per thread.
        max_threads: the most threads a block of it may have.
    """

    handle: int
    module: int
    registers: int
    spills: int
    max_threads: int


class Driver(CudaCalls):
    """The calls into `libcuda` that launching needs.

    Args:
        library: `ctypes.CDLL("libcuda.so.1")`, initialised.
    """

    failure, lacking = errors.LaunchError, errors.CapabilityError

    def __init__(self, library: Any):
        super().__init__(library)
        self._capabilities: dict[int, int] = {}

    def capability(self, index: int) -> int:
        """Return the compute capability as `10 * major + minor`; each miss of a launch asks."""
        if index not in self._capabilities:
            major = self.device_attribute(index, libcuda.CAPABILITY_MAJOR)
            minor = self.device_attribute(index, libcuda.CAPABILITY_MINOR)
            self._capabilities[index] = 10 * major + minor
        return self._capabilities[index]

    def current_device(self) -> int:
        torch = _torch()
        if torch is not None and torch.cuda.is_initialized():
            current: int = torch.cuda.current_device()
            return current
        return self.device_of_context()

    def load(self, cubin: bytes, name: str, shared: int, clusters: int, index: int) -> Function:
        """Load `cubin` on device `index` and set the function up for `shared` bytes."""
        module, handle = self.load_function(index, cubin, name, shared, clusters)
        wanted = (libcuda.REGISTERS, libcuda.LOCAL_SIZE, libcuda.MAX_THREADS)
        function = ctypes.c_void_p(handle)
        registers, local, threads = [self.function_attribute(function, w) for w in wanted]
        return Function(handle, module, registers, local // 4, threads)


_UNKNOWN = object()
_state: Any = _UNKNOWN
_problem: Optional[str] = None
_state_lock = threading.Lock()


def _open() -> Optional[Driver]:
    """Return the driver, or None with `_problem` saying why."""
    global _problem
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None  # no driver installed: nothing is wrong
    try:
        status = library.cuInit(0)
        if status == 100:  # CUDA_ERROR_NO_DEVICE
            return None
        if status:
            _problem = f"libcuda.so.1 is there, but cuInit failed with error {status}"
            return None
        driver = Driver(library)
    except (AttributeError, errors.LaunchError) as error:
        _problem = f"libcuda.so.1 is too old or broken: {error}"
        return None
    return driver if driver.count else None


def find() -> Optional[Driver]:
    """Return the CUDA driver of this machine when it has a device, else None. Never raises."""
    global _state
    if _state is _UNKNOWN:
        with _state_lock:
            if _state is _UNKNOWN:
                _state = _open()
    driver: Optional[Driver] = _state
    return driver


def problem() -> Optional[str]:
    """Return the reason why `find()` is None although a driver is installed."""
    find()
    return _problem


def driver() -> Driver:
    """Return the CUDA driver.

    Raises:
        DeviceError: there is no NVIDIA device.
    """
    driver = find()
    if driver is None:
        raise errors.DeviceError(
            _problem or "there is no NVIDIA device on this machine",
            remedy="Run on the simulator with GLUON_TARGET=sim, or gluon.compile without running.",
        )
    return driver


def _torch() -> Optional[Any]:
    """Return torch if the process has imported a build for CUDA."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.version.cuda else None


def stream_getter() -> Callable[[int], int]:
    """Return the cheapest function from a device's index to its current stream."""
    torch = _torch()
    if torch is None:
        return _default_stream
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def _default_stream(index: int) -> int:
    torch = _torch()  # it may have been imported after the first launch
    if torch is not None and torch.cuda.is_initialized():
        stream: int = torch.cuda.current_stream(index).cuda_stream
        return stream
    return 0


class device_scope(ContextManager[None]):
    """Make device `index` current, and the former one afterwards."""

    def __init__(self, index: int):
        torch = _torch()
        self._index = index
        self._inner = torch.cuda.device(index) if torch is not None else None

    def __enter__(self) -> None:
        cuda = driver()  # without a device, torch's own error comes later and names no remedy
        if self._inner is not None:
            self._inner.__enter__()
        cuda.ensure_context(self._index)

    def __exit__(self, *details: Any) -> None:
        if self._inner is not None:
            self._inner.__exit__(*details)
