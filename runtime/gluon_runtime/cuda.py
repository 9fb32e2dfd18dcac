"""The driver of NVIDIA GPUs, `libcuda` through ctypes.

Sources: CUDA Driver API reference, sections Module Management and Execution Control.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from dataclasses import dataclass
from typing import Any, Optional

from gluon_runtime.arrays import Seen
from gluon_runtime.driver import torch_cuda, torch_stream
from gluon_runtime.errors import BundleDeviceError, BundleDriverError
from gluon_runtime.manifest import MAP_ALIGNMENT, MAP_BYTES, Form, Launch, TensorMap
from gluon_runtime.values import Spread

__all__ = ["CudaDriver", "open_driver"]

_INVALID_CONTEXT = 201
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _SHARED_OPTIN = 75, 76, 97  # CUdevice_attribute
_MAX_THREADS, _SHARED_STATIC, _SHARED_DYNAMIC, _NON_PORTABLE = 0, 1, 8, 14  # CUfunction_attribute
_DEFAULT_SHARED = 48 * 1024
_PREFER_SHARED = 1
_CAPTURE_RELAXED = 2
# PTX numbers element types as CUtensorMapDataType does but for three.
_PTX_TO_DRIVER = {8: 10, 9: 8, 10: 9}
_TF32 = 11
_PROMOTION_128 = 2
# Drivers up to this one mark the maps of small tensors so that copies may fail; the bit is cleared.
_MARKED_UP_TO, _SMALL, _MARK = 13010, 128 * 1024, 1 << 21


class Config(ctypes.Structure):
    """CUlaunchConfig; HIP_LAUNCH_CONFIG has the same fields."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


@dataclass
class Loaded:
    """A kernel on a device. The module stays loaded for the life of the process: unloading would
    break a graph that is being captured."""

    device: int
    function: ctypes.c_void_p


class CudaDriver:
    """See `gluon_runtime.driver.Driver`.

    Args:
        library: `libcuda`, initialised.
    """

    name = "cuda"
    tensor_device = "cuda"

    def __init__(self, library: Any):
        self.calls = library
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._launch = library.cuLaunchKernelEx  # an old driver has none
        count = ctypes.c_int()
        self._check(library.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        self._count = count.value

    def device_count(self) -> int:
        return self._count

    def _attribute(self, index: int, attribute: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        self._check(self.calls.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
        status = self.calls.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        self._check(status, "cuDeviceGetAttribute")
        return value.value

    def architecture(self, device: int) -> str:
        major = self._attribute(device, _CAPABILITY_MAJOR)
        return f"sm_{major}{self._attribute(device, _CAPABILITY_MINOR)}"

    def current_device(self) -> int:
        cuda = torch_cuda("cuda")
        if cuda is not None:
            current: int = cuda.current_device()
            return current
        device = ctypes.c_int()
        return device.value if not self.calls.cuCtxGetDevice(ctypes.byref(device)) else 0

    def reaches(self, seen: Seen) -> bool:
        return seen.device is not None and seen.device[0] == self.tensor_device

    def stream(self, device: int) -> int:
        return torch_stream(device, "cuda")

    def enter(self, device: int) -> None:
        if self._count > 1:
            self._enter(device)

    def _enter(self, index: int) -> None:
        """Make the primary context of a device current in this thread."""
        context = self._contexts.get(index)
        if context is None:
            with self._lock:
                device, retained = ctypes.c_int(), ctypes.c_void_p()
                self._check(self.calls.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
                status = self.calls.cuDevicePrimaryCtxRetain(ctypes.byref(retained), device)
                self._check(status, "cuDevicePrimaryCtxRetain")
                context = self._contexts[index] = int(retained.value or 0)
        current = ctypes.c_void_p()
        self._check(self.calls.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
        if current.value != context:
            status = self.calls.cuCtxSetCurrent(ctypes.c_void_p(context))
            self._check(status, "cuCtxSetCurrent")

    def load(self, device: int, code: bytes, launch: Launch) -> Loaded:
        lib = self.calls
        most = self._attribute(device, _SHARED_OPTIN)
        if launch.shared > most:
            raise BundleDeviceError(
                "the kernel needs more shared memory than the device has",
                argument=launch.entry,
                expected=f"at most {most} bytes",
                got=f"{launch.shared} bytes",
            )
        self._enter(device)
        # Loading is not allowed while this thread captures a graph in a stricter mode.
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        swapped = not lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            return self._load(device, code, launch, most)
        finally:
            if swapped:
                lib.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def _load(self, device: int, code: bytes, launch: Launch, most: int) -> Loaded:
        lib = self.calls
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(lib.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        status = lib.cuModuleGetFunction(ctypes.byref(function), module, launch.entry.encode())
        self._check(status, "cuModuleGetFunction")
        threads = self._of(function, _MAX_THREADS)
        if launch.threads > threads:
            raise BundleDeviceError(
                "the kernel needs so many registers that its block does not fit",
                argument=launch.entry,
                expected=f"at most {threads} threads",
                got=f"{launch.threads} threads",
            )
        if launch.shared > _DEFAULT_SHARED:
            status = lib.cuFuncSetCacheConfig(function, _PREFER_SHARED)
            self._check(status, "cuFuncSetCacheConfig")
            most -= self._of(function, _SHARED_STATIC)
            status = lib.cuFuncSetAttribute(function, _SHARED_DYNAMIC, most)
            self._check(status, "cuFuncSetAttribute")
        if launch.num_ctas > 8:  # more blocks than every device of the generation can hold
            status = lib.cuFuncSetAttribute(function, _NON_PORTABLE, 1)
            self._check(status, "cuFuncSetAttribute")
        return Loaded(device, function)

    def _of(self, function: ctypes.c_void_p, attribute: int) -> int:
        value = ctypes.c_int()
        status = self.calls.cuFuncGetAttribute(ctypes.byref(value), attribute, function)
        self._check(status, "cuFuncGetAttribute")
        return value.value

    def _address_of(self, name: str) -> int:
        """Return the address of a function of the library; 0 for one that it lacks, or that is none of C."""
        function: Any = getattr(self.calls, name, None)
        try:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
        except (ctypes.ArgumentError, TypeError):
            return 0

    def parts(self, loaded: Loaded, form: Form) -> dict[str, Any]:
        address, current = map(self._address_of, ("cuLaunchKernelEx", "cuCtxGetDevice"))
        alone = address and (current or self._count == 1)
        maps = any(field.map for field in form.packing.fields)
        return {
            "call": address if alone else functools.partial(self._launch_in_python, loaded),
            "function": loaded.function.value or 0,
            "current_device": current if self._count > 1 else 0,
            "encode_tiled": self._address_of("cuTensorMapEncodeTiled") if maps else 0,
            "unmark": maps and self._version() <= _MARKED_UP_TO,
        }

    def _launch_in_python(self, loaded: Loaded, config: int, parameters: int) -> int:
        operands = (ctypes.byref(Config.from_address(config)), loaded.function)
        status: int = self._launch(*operands, ctypes.c_void_p(parameters), None)
        return status

    def refuse(
        self, status: int, launch: Launch, device: int, grid: tuple[int, int, int], last: bool
    ) -> None:
        if status == _INVALID_CONTEXT and not last:  # a thread that has no context yet
            self._enter(device)
            return
        clusters = f"clusters of {launch.num_ctas} blocks, each " if launch.num_ctas > 1 else ""
        raise BundleDriverError(
            "the driver refused the launch",
            argument=launch.entry,
            expected=f"grid {grid} of {clusters}{launch.threads} threads, {launch.shared} bytes "
            "of shared memory",
            got=self._text(status),
        )

    def tensor_map(self, device: int, kind: TensorMap, value: Spread) -> bytes:
        """`cuTensorMapEncodeTiled` (CUDA Driver API reference, Tensor Map Object Management)."""
        rank, size = len(kind.box), kind.element_bytes
        shape = list(value.shape[::-1])
        if kind.fp4_padded:
            shape[0] *= 2
        strides = [step * size for step in value.strides[::-1]]
        element = _PTX_TO_DRIVER.get(kind.element_type, kind.element_type)
        self._enter(device)
        encode = getattr(self.calls, "cuTensorMapEncodeTiled", None)
        if encode is None:
            raise BundleDeviceError("the driver has no tensor maps", expected="CUDA 12.0 or newer")
        room = (ctypes.c_uint8 * (MAP_BYTES + MAP_ALIGNMENT))()
        start = ctypes.addressof(room) + -ctypes.addressof(room) % MAP_ALIGNMENT
        status = encode(
            ctypes.c_void_p(start),
            ctypes.c_int(_TF32 if value.round_f32_to_tf32 else element),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(value.base),
            (ctypes.c_uint64 * rank)(*shape),
            (ctypes.c_uint64 * max(1, rank - 1))(*strides[1:]),
            (ctypes.c_uint32 * rank)(*kind.box[::-1]),
            (ctypes.c_uint32 * rank)(*[1] * rank),
            ctypes.c_int(0),  # not interleaved
            ctypes.c_int(kind.swizzle),
            ctypes.c_int(_PROMOTION_128),
            ctypes.c_int(value.padding == "nan"),
        )
        if status:
            raise BundleDriverError(
                "the driver cannot encode the descriptor",
                argument=f"{list(value.shape)} elements with strides {list(value.strides)}",
                expected=f"a tensor for copies of {list(kind.box)} elements of {size} bytes",
                got=self._text(status),
            )
        encoded = ctypes.string_at(start, MAP_BYTES)
        reach = sum((n - 1) * step for n, step in zip(shape, [size, *strides[1:]]))
        if reach + 1 < _SMALL and self._version() <= _MARKED_UP_TO:
            word = int.from_bytes(encoded[8:16], "little") & ~_MARK
            encoded = encoded[:8] + word.to_bytes(8, "little") + encoded[16:]
        return encoded

    def _version(self) -> int:
        version = ctypes.c_int()
        self._check(self.calls.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
        return version.value

    def allocate(self, device: int, size: int, stream: int) -> int:
        self._enter(device)
        address = ctypes.c_uint64()
        status = self.calls.cuMemAllocAsync(
            ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        )
        self._check(status, "cuMemAllocAsync")
        return address.value

    def free(self, device: int, address: int, stream: int) -> None:
        status = self.calls.cuMemFreeAsync(ctypes.c_uint64(address), ctypes.c_void_p(stream))
        self._check(status, "cuMemFreeAsync")

    def _text(self, status: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.calls.cuGetErrorName(status, ctypes.byref(name))
        self.calls.cuGetErrorString(status, ctypes.byref(text))
        head = (name.value or b"CUDA error").decode()
        return f"{head} ({status}): {(text.value or b'no description').decode()}"

    def _check(self, status: int, call: str) -> None:
        if status:
            raise BundleDriverError(f"{call} failed", got=self._text(status))


def open_driver() -> tuple[Optional[CudaDriver], Optional[str]]:
    """Return the driver, or None and why."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None, "libcuda.so.1 is not installed"
    try:
        status = library.cuInit(0)
        if status:
            return None, f"cuInit failed with error {status}"
        return CudaDriver(library), None
    except (AttributeError, BundleDriverError) as error:
        return None, f"libcuda.so.1 is too old or broken: {error}"
