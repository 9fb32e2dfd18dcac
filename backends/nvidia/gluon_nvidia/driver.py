"""`libcuda` through ctypes: devices, modules and launches, with neither a compiler nor torch.

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

__all__ = ["Driver", "Function", "driver", "problem"]

SUCCESS = 0
ERROR_INVALID_CONTEXT = 201

# CUdevice_attribute
ATTRIBUTE_CAPABILITY_MAJOR = 75
ATTRIBUTE_CAPABILITY_MINOR = 76
ATTRIBUTE_SHARED_OPTIN = 97
# CUfunction_attribute
FUNCTION_MAX_THREADS = 0
FUNCTION_SHARED_SIZE = 1
FUNCTION_LOCAL_SIZE = 3
FUNCTION_REGISTERS = 4
FUNCTION_MAX_DYNAMIC_SHARED = 8
FUNCTION_NON_PORTABLE_CLUSTER = 14

DEFAULT_DYNAMIC_SHARED = 48 * 1024
CACHE_PREFER_SHARED = 1
CAPTURE_MODE_RELAXED = 2


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


class Driver:
    """The calls into `libcuda` that launching needs.

    Args:
        library: `ctypes.CDLL("libcuda.so.1")`, initialised.
    """

    def __init__(self, library: Any):
        self.calls = library
        self._lock = threading.Lock()
        self._contexts: dict[int, int] = {}
        self.launch_ex = library.cuLaunchKernelEx
        self.launch_ex.restype = ctypes.c_int
        self.launch_ex_address = ctypes.cast(self.launch_ex, ctypes.c_void_p).value
        self.encode_tiled_address = _address_of(library, "cuTensorMapEncodeTiled")
        self.current_device_address = _address_of(library, "cuCtxGetDevice")
        self._version: Optional[int] = None
        count = ctypes.c_int()
        self.check(library.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        self.device_count: int = count.value

    # -- devices -----------------------------------------------------------------------------------

    def device_attribute(self, index: int, attribute: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        self.check(self.calls.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
        status = self.calls.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        self.check(status, "cuDeviceGetAttribute")
        return value.value

    def capability(self, index: int) -> int:
        """Compute capability as `10 * major + minor`."""
        major = self.device_attribute(index, ATTRIBUTE_CAPABILITY_MAJOR)
        return 10 * major + self.device_attribute(index, ATTRIBUTE_CAPABILITY_MINOR)

    def current_device(self) -> int:
        torch = _torch()
        if torch is not None and torch.cuda.is_initialized():
            current: int = torch.cuda.current_device()
            return current
        device = ctypes.c_int()
        if self.calls.cuCtxGetDevice(ctypes.byref(device)) == SUCCESS:
            return device.value
        return 0

    def ensure_context(self, index: int) -> None:
        """Make the primary context of device `index` current when this thread has none, or another's."""
        context = self._contexts.get(index)
        if context is None:
            with self._lock:
                device, primary = ctypes.c_int(), ctypes.c_void_p()
                self.check(self.calls.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
                status = self.calls.cuDevicePrimaryCtxRetain(ctypes.byref(primary), device)
                self.check(status, "cuDevicePrimaryCtxRetain")
                context = self._contexts[index] = int(primary.value or 0)
        current = ctypes.c_void_p()
        self.check(self.calls.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        if current.value != context:
            status = self.calls.cuCtxSetCurrent(ctypes.c_void_p(context))
            self.check(status, "cuCtxSetCurrent")

    # -- modules -----------------------------------------------------------------------------------

    def load(self, cubin: bytes, name: str, shared: int, clusters: int, index: int) -> Function:
        """Load `cubin` on device `index` and set the function up for `shared` bytes."""
        self.ensure_context(index)
        lib = self.calls
        # Loading is not allowed while this thread captures a graph in a stricter mode.
        mode = ctypes.c_int(CAPTURE_MODE_RELAXED)
        swapped = lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == SUCCESS
        try:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self.check(lib.cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
            status = lib.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self.check(status, "cuModuleGetFunction")
            if shared > DEFAULT_DYNAMIC_SHARED:
                self.check(
                    lib.cuFuncSetCacheConfig(function, CACHE_PREFER_SHARED), "cuFuncSetCacheConfig"
                )
                most = self.device_attribute(index, ATTRIBUTE_SHARED_OPTIN)
                most -= self._function_attribute(function, FUNCTION_SHARED_SIZE)
                status = lib.cuFuncSetAttribute(function, FUNCTION_MAX_DYNAMIC_SHARED, most)
                self.check(status, "cuFuncSetAttribute")
            if clusters > 8:  # more blocks than every device of the generation can hold
                status = lib.cuFuncSetAttribute(function, FUNCTION_NON_PORTABLE_CLUSTER, 1)
                self.check(status, "cuFuncSetAttribute")
            return Function(
                handle=int(function.value or 0),
                module=int(module.value or 0),
                registers=self._function_attribute(function, FUNCTION_REGISTERS),
                spills=self._function_attribute(function, FUNCTION_LOCAL_SIZE) // 4,
                max_threads=self._function_attribute(function, FUNCTION_MAX_THREADS),
            )
        finally:
            if swapped:
                lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _function_attribute(self, function: ctypes.c_void_p, attribute: int) -> int:
        value = ctypes.c_int()
        status = self.calls.cuFuncGetAttribute(ctypes.byref(value), attribute, function)
        self.check(status, "cuFuncGetAttribute")
        return value.value

    # -- tensor maps -------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Return the version of the driver as CUDA counts: 13010 is 13.1."""
        if self._version is None:
            version = ctypes.c_int()
            self.check(self.calls.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
            self._version = version.value
        return self._version

    def encode_tiled(
        self,
        element_type: int,
        address: int,
        shape: list[int],
        strides: list[int],
        box: list[int],
        steps: list[int],
        *modes: int,
    ) -> tuple[int, bytes]:
        """`cuTensorMapEncodeTiled`: its status and the map.

        Args:
            shape, strides, box, steps: fastest dimension first; strides in bytes, without the first.
            modes: interleave, swizzle, L2 promotion, fill.
        """
        operands = (_array(ctypes.c_uint32, box), _array(ctypes.c_uint32, steps))
        call = "cuTensorMapEncodeTiled"
        return self._encode(call, element_type, address, shape, strides, operands, modes)

    def encode_im2col(
        self,
        element_type: int,
        address: int,
        shape: list[int],
        strides: list[int],
        lower: list[int],
        upper: list[int],
        channels: int,
        pixels: int,
        steps: list[int],
        *modes: int,
    ) -> tuple[int, bytes]:
        """`cuTensorMapEncodeIm2col`, with operands like those of `encode_tiled`."""
        operands = (
            _array(ctypes.c_int, lower),
            _array(ctypes.c_int, upper),
            ctypes.c_uint32(channels),
            ctypes.c_uint32(pixels),
            _array(ctypes.c_uint32, steps),
        )
        call = "cuTensorMapEncodeIm2col"
        return self._encode(call, element_type, address, shape, strides, operands, modes)

    def _encode(
        self,
        call: str,
        element_type: int,
        address: int,
        shape: list[int],
        strides: list[int],
        operands: tuple[Any, ...],
        modes: tuple[int, ...],
    ) -> tuple[int, bytes]:
        encode = getattr(self.calls, call, None)
        if encode is None:
            raise errors.CapabilityError(
                f"the driver has no {call}", expected="a driver for CUDA 12 or later"
            )
        room = (ctypes.c_char * 192)()  # 128 bytes, aligned to 64
        start = -ctypes.addressof(room) % 64
        status = encode(
            ctypes.c_void_p(ctypes.addressof(room) + start),
            ctypes.c_int(element_type),
            ctypes.c_uint32(len(shape)),
            ctypes.c_void_p(address),
            _array(ctypes.c_uint64, shape),
            _array(ctypes.c_uint64, strides or [0]),
            *operands,
            *(ctypes.c_int(mode) for mode in modes),
        )
        return int(status), room.raw[start : start + 128]

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, size: int, stream: int) -> int:
        """`size` bytes of the device, in the order of `stream`."""
        address = ctypes.c_uint64()
        status = self.calls.cuMemAllocAsync(
            ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        )
        self.check(status, "cuMemAllocAsync")
        return address.value

    def free(self, address: int, stream: int) -> None:
        """Free memory from `allocate` once `stream` is through with it."""
        status = self.calls.cuMemFreeAsync(ctypes.c_uint64(address), ctypes.c_void_p(stream))
        self.check(status, "cuMemFreeAsync")

    # -- errors ------------------------------------------------------------------------------------

    def error_text(self, status: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.calls.cuGetErrorName(status, ctypes.byref(name))
        self.calls.cuGetErrorString(status, ctypes.byref(text))
        head = (name.value or b"CUDA error").decode()
        return f"{head} ({status}): {(text.value or b'no description').decode()}"

    def check(self, status: int, call: str) -> None:
        if status != SUCCESS:
            raise errors.LaunchError(f"{call} failed", got=self.error_text(status))


def _array(kind: Any, values: list[int]) -> Any:
    return (kind * len(values))(*values)


def _address_of(library: Any, name: str) -> int:
    """Return the address of a function of the library; 0 for one that it lacks, or that is Python."""
    function: Any = getattr(library, name, None)
    try:
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    except (ctypes.ArgumentError, TypeError):
        return 0


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
        if status != SUCCESS:
            _problem = f"libcuda.so.1 is there, but cuInit failed with error {status}"
            return None
        driver = Driver(library)
    except (AttributeError, errors.LaunchError) as error:
        _problem = f"libcuda.so.1 is too old or broken: {error}"
        return None
    return driver if driver.device_count else None


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
        if self._inner is not None:
            self._inner.__enter__()
        driver().ensure_context(self._index)

    def __exit__(self, *details: Any) -> None:
        if self._inner is not None:
            self._inner.__exit__(*details)
