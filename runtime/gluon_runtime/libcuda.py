"""The calls of `libcuda` that launches need, through ctypes, for kernels of bundles and of the just-in-time compiler.

Sources: CUDA Driver API reference, sections Device, Context, Module, Memory and Tensor Map Object Management, and
Execution Control.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any, Callable, Optional, Sequence

__all__ = ["Config", "CudaCalls"]

INVALID_CONTEXT = 201  # CUresult
CAPABILITY_MAJOR, CAPABILITY_MINOR, SHARED_OPTIN = 75, 76, 97  # CUdevice_attribute
# CUfunction_attribute
MAX_THREADS, SHARED_STATIC, LOCAL_SIZE, REGISTERS, SHARED_DYNAMIC, NON_PORTABLE = 0, 1, 3, 4, 8, 14
_DEFAULT_SHARED = 48 * 1024
_PREFER_SHARED = 1
_CAPTURE_RELAXED = 2
# PTX numbers element types as CUtensorMapDataType does but for three.
_PTX_TO_DRIVER = {8: 10, 9: 8, 10: 9}
_TF32 = 11  # CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
_NOT_INTERLEAVED, _PROMOTION_128 = 0, 2
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
# Drivers up to this one mark the maps of tensors of fewer bytes so that copies may fail; the bit is cleared for them,
# as CUTLASS does.
MARKED_UP_TO, _SMALL, _MARK = 13010, 128 * 1024, 1 << 21


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


class CudaCalls:
    """`libcuda`, whose failures raise `failure`.

    Args:
        library: `libcuda`, initialised, or a stand-in.

    Attributes:
        failure: `f(message, got=...)`, the error for a call that failed.
        lacking: `f(message, expected=...)`, the error for a function that the driver lacks.
        count: the number of devices.
    """

    failure: Callable[..., Exception]
    lacking: Callable[..., Exception]

    def __init__(self, library: Any):
        self.calls = library
        self._contexts: dict[int, int] = {}
        self._lock = threading.Lock()
        self._version: Optional[int] = None
        self._launch = library.cuLaunchKernelEx  # an old driver has none
        count = ctypes.c_int()
        self.check(library.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        self.count: int = count.value

    def _address_of(self, name: str) -> int:
        """Return the address of a function of the library; 0 for one that it lacks, or that is none of C."""
        function: Any = getattr(self.calls, name, None)
        try:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
        except (ctypes.ArgumentError, TypeError):
            return 0

    @property
    def version(self) -> int:
        """Return the version of the driver as CUDA counts: 13010 is 13.1."""
        if self._version is None:
            version = ctypes.c_int()
            self.check(self.calls.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
            self._version = version.value
        return self._version

    # -- devices -----------------------------------------------------------------------------------

    def device_attribute(self, index: int, attribute: int) -> int:
        device, value = ctypes.c_int(), ctypes.c_int()
        self.check(self.calls.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
        status = self.calls.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        self.check(status, "cuDeviceGetAttribute")
        return value.value

    def device_of_context(self) -> int:
        """Return the device of the current context, 0 without one."""
        device = ctypes.c_int()
        return 0 if self.calls.cuCtxGetDevice(ctypes.byref(device)) else device.value

    def ensure_context(self, index: int) -> None:
        """Make the primary context of device `index` current where this thread has none, or another."""
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

    def load_function(
        self, index: int, code: bytes, name: str, shared: int, clusters: int
    ) -> tuple[int, int]:
        """Load `code` on device `index` and set its function `name` up for `shared` bytes and clusters of so many blocks.

        Returns:
            The CUmodule and the CUfunction. The module stays loaded for the life of the process: unloading it
            while a graph is being captured would break the capture.
        """
        self.ensure_context(index)
        # Loading is not allowed while this thread captures a graph in a stricter mode.
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        swapped = not self.calls.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            status = self.calls.cuModuleLoadData(ctypes.byref(module), code)
            self.check(status, "cuModuleLoadData")
            status = self.calls.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
            self.check(status, "cuModuleGetFunction")
            if shared > _DEFAULT_SHARED:
                status = self.calls.cuFuncSetCacheConfig(function, _PREFER_SHARED)
                self.check(status, "cuFuncSetCacheConfig")
                most = self.device_attribute(index, SHARED_OPTIN)
                most -= self.function_attribute(function, SHARED_STATIC)
                self._set(function, SHARED_DYNAMIC, most)
            if clusters > 8:  # more blocks than every device of the generation can hold
                self._set(function, NON_PORTABLE, 1)
            return int(module.value or 0), int(function.value or 0)
        finally:
            if swapped:
                self.calls.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def function_attribute(self, function: Any, attribute: int) -> int:
        value = ctypes.c_int()
        status = self.calls.cuFuncGetAttribute(ctypes.byref(value), attribute, function)
        self.check(status, "cuFuncGetAttribute")
        return value.value

    def _set(self, function: Any, attribute: int, value: int) -> None:
        status = self.calls.cuFuncSetAttribute(function, attribute, value)
        self.check(status, "cuFuncSetAttribute")

    # -- launches ----------------------------------------------------------------------------------

    def launch_parts(self, function: int, maps: bool) -> dict[str, Any]:
        """Return the arguments of `native.launch` that depend on the driver. `call` is an address if C may make launches
        alone: the engine launches on another device's behalf only if it can ask which is current.

        Args:
            function: the CUfunction.
            maps: it takes maps of tensors.
        """
        launch, current = map(self._address_of, ("cuLaunchKernelEx", "cuCtxGetDevice"))
        alone = launch and (current or self.count == 1)
        return {
            "call": launch if alone else functools.partial(self._launch_in_python, function),
            "function": function,
            "current_device": current if self.count > 1 else 0,
            "encode_tiled": self._address_of("cuTensorMapEncodeTiled") if maps else 0,
            "unmark": maps and self.version <= MARKED_UP_TO,
        }

    def _launch_in_python(self, function: int, config: int, parameters: int) -> int:
        operands = (ctypes.byref(Config.from_address(config)), ctypes.c_void_p(function))
        status: int = self._launch(*operands, ctypes.c_void_p(parameters), None)
        return status

    # -- tensor maps -------------------------------------------------------------------------------

    def encode_tiled(
        self, kind: Any, address: int, shape: Sequence[int], strides: Sequence[int], *modes: bool
    ) -> tuple[int, bytes]:
        """Return the status of `cuTensorMapEncodeTiled`, and the map; see `encode`."""
        box = kind.box[::-1]
        operands = [(ctypes.c_uint32 * len(box))(*values) for values in (box, [1] * len(box))]
        tensor = address, shape, strides, *modes
        status, encoded = self.encode("cuTensorMapEncodeTiled", kind, tensor, operands)
        row = shape[-1] * (1 + kind.fp4_padded) - 1
        reach = row + sum((n - 1) * step for n, step in zip(shape[:-1], strides))
        if not status and reach * kind.element_bytes + 1 < _SMALL and self.version <= MARKED_UP_TO:
            word = int.from_bytes(encoded[8:16], "little") & ~_MARK
            encoded = encoded[:8] + word.to_bytes(8, "little") + encoded[16:]
        return status, encoded

    def encode(
        self, call: str, kind: Any, tensor: tuple[Any, ...], operands: Sequence[Any]
    ) -> tuple[int, bytes]:
        """Return the status of a function that encodes tensor maps, and the map.

        Args:
            call: its name.
            kind: the facts of the kernel: `swizzle`; `element_type`, as PTX numbers it; `element_bytes` of the unit of
                strides; `fp4_padded`: two elements of the tensor are one byte, the shape counts bytes.
            tensor: its address; shape and strides in elements, the slowest dimension first; True for copies that round
                float32 elements; True for NaN outside of it.
            operands: those between the strides and the modes.
        """
        encode = getattr(self.calls, call, None)
        if encode is None:
            raise self.lacking(f"the driver has no {call}", expected="CUDA 12.0 or newer")
        address, shape, strides, tf32, nan = tensor
        rank, element = len(shape), _PTX_TO_DRIVER.get(kind.element_type, kind.element_type)
        extents = [shape[-1] * (1 + kind.fp4_padded), *shape[-2::-1]]
        steps = [step * kind.element_bytes for step in strides[-2::-1]]
        room = (ctypes.c_char * (_MAP_BYTES + _MAP_ALIGNMENT))()
        start = -ctypes.addressof(room) % _MAP_ALIGNMENT
        status = encode(
            ctypes.c_void_p(ctypes.addressof(room) + start),
            ctypes.c_int(_TF32 if tf32 else element),
            ctypes.c_uint32(rank),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * rank)(*extents),
            (ctypes.c_uint64 * max(1, rank - 1))(*steps),
            *operands,
            *map(ctypes.c_int, (_NOT_INTERLEAVED, kind.swizzle, _PROMOTION_128, nan)),
        )
        return int(status), room.raw[start : start + _MAP_BYTES]

    # -- memory ------------------------------------------------------------------------------------

    def allocate(self, device: int, size: int, stream: int) -> int:
        """Return the address of `size` bytes of a device, in the order of `stream`."""
        self.ensure_context(device)
        address = ctypes.c_uint64()
        operands = ctypes.c_size_t(size), ctypes.c_void_p(stream)
        self.check(self.calls.cuMemAllocAsync(ctypes.byref(address), *operands), "cuMemAllocAsync")
        return address.value

    def free(self, device: int, address: int, stream: int) -> None:
        """Free memory from `allocate` once `stream` is through with it."""
        status = self.calls.cuMemFreeAsync(ctypes.c_uint64(address), ctypes.c_void_p(stream))
        self.check(status, "cuMemFreeAsync")

    # -- errors ------------------------------------------------------------------------------------

    def refuse_launch(
        self, status: int, index: int, last: bool, facts: tuple[Any, int, int, int], **named: Any
    ) -> None:
        """Raise the error for a launch that was refused with `status`; return where another try may help, since this
        thread had no context yet.

        Args:
            index: of the device.
            last: no other try follows.
            facts: the grid, blocks per cluster, threads per block, bytes of shared memory.
            named: further parts of the error.
        """
        if status == INVALID_CONTEXT and not last:
            self.ensure_context(index)
            return
        grid, num_ctas, threads, shared = facts
        clusters = f"clusters of {num_ctas} blocks, each " if num_ctas > 1 else ""
        raise self.failure(
            "the driver refused the launch",
            expected=f"grid {tuple(grid)} of {clusters}{threads} threads, {shared} bytes of shared memory",
            got=self.error_text(status),
            **named,
        )

    def error_text(self, status: int) -> str:
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.calls.cuGetErrorName(status, ctypes.byref(name))
        self.calls.cuGetErrorString(status, ctypes.byref(text))
        head = (name.value or b"CUDA error").decode()
        return f"{head} ({status}): {(text.value or b'no description').decode()}"

    def check(self, status: int, call: str) -> None:
        if status:
            raise self.failure(f"{call} failed", got=self.error_text(status))
