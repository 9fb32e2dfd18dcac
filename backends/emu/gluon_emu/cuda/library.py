"""The functions of `libcuda` that load and launch code, with the signatures of C.

Source: CUDA Driver API reference, sections Module Management, Execution Control, Memory Management and Tensor Map Object Management.
Work has ended when a call returns, so streams and contexts order nothing. Code is PTX: machine code of a GPU is refused as on a device
of another architecture.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from dataclasses import dataclass
from typing import Any, Callable, Optional

from gluon_core.errors import BackendError, GluonError
from gluon_core.plugin.targets import Target
from gluon_emu.cuda.memory import Pool, bytes_at
from gluon_emu.errors import EmulatorError, TimeLimitError
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.ptx.machine.code import Code
from gluon_emu.ptx.tensormap import BYTES, TensorMap, check_map
from gluon_emu.settings import of_launch

__all__ = ["Library", "Request"]

_VALUE, _DEVICE, _IMAGE, _PTX, _NOT_FOUND = 1, 101, 209, 218, 500  # CUresult
_ADDRESS, _TIMEOUT, _FAILED = 700, 702, 719
_NAMES = {
    0: "CUDA_SUCCESS", _VALUE: "CUDA_ERROR_INVALID_VALUE", _DEVICE: "CUDA_ERROR_INVALID_DEVICE",
    _IMAGE: "CUDA_ERROR_NO_BINARY_FOR_GPU", _PTX: "CUDA_ERROR_INVALID_PTX", _NOT_FOUND: "CUDA_ERROR_NOT_FOUND",
    _ADDRESS: "CUDA_ERROR_ILLEGAL_ADDRESS", _TIMEOUT: "CUDA_ERROR_LAUNCH_TIMEOUT", _FAILED: "CUDA_ERROR_LAUNCH_FAILED",
}  # fmt: skip
_VERSION = 13020  # of the driver
_CONTEXT = 0xC0
_CONFIG = struct.Struct("<3I3II4xQQI")  # CUlaunchConfig
_COOPERATIVE, _CLUSTER = 2, 4  # CUlaunchAttributeID
_ATTRIBUTE_BYTES = 72
_MAPS = {
    8: 9,
    9: 10,
    10: 8,
}  # types of elements that CUtensorMapDataType and PTX number differently

_int, _address, _long = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (_int,),
    "cuDriverGetVersion": (_address,),
    "cuDeviceGetCount": (_address,),
    "cuDeviceGet": (_address, _int),
    "cuDeviceGetAttribute": (_address, _int, _int),
    "cuDevicePrimaryCtxRetain": (_address, _int),
    "cuCtxGetCurrent": (_address,),
    "cuCtxSetCurrent": (_address,),
    "cuCtxGetDevice": (_address,),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (_address,),
    "cuThreadExchangeStreamCaptureMode": (_address,),
    "cuModuleLoadData": (_address, _address),
    "cuModuleGetFunction": (_address, _address, _address),
    "cuFuncGetAttribute": (_address, _int, _address),
    "cuFuncSetAttribute": (_address, _int, _int),
    "cuFuncSetCacheConfig": (_address, _int),
    "cuLaunchKernelEx": (_address, _address, _address, _address),
    "cuTensorMapEncodeTiled": (
        _address,
        _int,
        ctypes.c_uint32,
        _address,
        *[_address] * 4,
        *[_int] * 4,
    ),
    "cuMemAlloc_v2": (_address, _long),
    "cuMemFree_v2": (_long,),
    "cuMemAllocAsync": (_address, _long, _address),
    "cuMemFreeAsync": (_long, _address),
    "cuMemcpyHtoD_v2": (_long, _address, _long),
    "cuMemcpyDtoH_v2": (_address, _long, _long),
    "cuGetErrorName": (_int, _address),
    "cuGetErrorString": (_int, _address),
}


@dataclass
class Request:
    """A launch by addresses.

    Args:
        code: of the kernel.
        grid, block: blocks of the grid, threads of a block.
        shared: bytes of dynamic shared memory.
        values: the bytes of each argument.
        cluster: blocks of a cluster.
        cooperative: all blocks run at once.
    """

    code: Code
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    values: list[bytes]
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


class Library:
    """The functions as attributes, each callable from Python and by its address from C.

    Args:
        target: the emulated device.
    """

    names = tuple(_SIGNATURES)

    def __init__(self, target: Target):
        self.target = target
        self.pool = Pool()
        self._texts: dict[int, str] = {}
        self._codes: dict[int, Code] = {}
        self._strings = {s: ctypes.c_char_p(n.encode()) for s, n in _NAMES.items()}
        self.problem: Optional[GluonError] = None  # of the last call that failed
        for name, arguments in _SIGNATURES.items():
            body = getattr(self, f"_{name[2:]}".replace("_v2", ""))
            setattr(self, name, ctypes.CFUNCTYPE(_int, *arguments)(self._guarded(body)))

    def _guarded(self, body: Callable[..., Optional[int]]) -> Callable[..., int]:
        """Return the function that answers with a status, and shows the report behind one."""

        def call(*arguments: Any) -> int:
            try:
                return body(*arguments) or 0
            except GluonError as error:
                self.problem = error
                print(error, file=sys.stderr)
                late = isinstance(error, TimeLimitError)
                wrong = _FAILED if isinstance(error, EmulatorError) else _VALUE
                return _TIMEOUT if late else wrong
            except Exception as error:  # nothing that C calls may raise
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                return _FAILED

        return call

    # -- devices and contexts: one of each ---------------------------------------------------------------

    def _Init(self, flags: int) -> None:
        """Do nothing: it is initialized."""

    def _DriverGetVersion(self, out: int) -> None:
        _put(out, _int(_VERSION))

    def _DeviceGetCount(self, out: int) -> None:
        _put(out, _int(1))

    def _DeviceGet(self, out: int, ordinal: int) -> int:
        _put(out, _int(0))
        return _DEVICE if ordinal else 0

    def _DeviceGetAttribute(self, out: int, attribute: int, device: int) -> int:
        limits, version = self.target.limits, int(self.target.architecture.arch)
        known = {
            1: 1024, 10: 32, 16: 132, 75: version // 10, 76: version % 10,
            97: limits.shared_memory, 8: 48 * 1024, 12: limits.register_file,
        }  # fmt: skip
        _put(out, _int(known.get(attribute, 0)))
        return 0 if attribute in known else _VALUE

    def _DevicePrimaryCtxRetain(self, out: int, device: int) -> None:
        _put(out, _address(_CONTEXT))

    def _CtxGetCurrent(self, out: int) -> None:
        _put(out, _address(_CONTEXT))

    def _CtxSetCurrent(self, context: int) -> None:
        """Do nothing: there is one context."""

    def _CtxGetDevice(self, out: int) -> None:
        _put(out, _int(0))

    def _CtxSynchronize(self) -> None:
        """Do nothing: all work has ended."""

    def _StreamSynchronize(self, stream: int) -> None:
        """Do nothing: all work has ended."""

    def _ThreadExchangeStreamCaptureMode(self, mode: int) -> None:
        """Do nothing: no stream is captured here."""

    # -- code --------------------------------------------------------------------------------------------

    def _ModuleLoadData(self, out: int, image: int) -> int:
        head = ctypes.string_at(image, 4)
        if head in (b"\x7fELF", b"\x50\xed\x55\xba"):
            self.problem = BackendError(
                "the code is machine code of a GPU, and the emulator executes PTX",
                remedy=f"Build the bundle with --target {self.target}.",
            )
            print(self.problem, file=sys.stderr)
            return _IMAGE
        number = len(self._texts) + 1
        self._texts[number] = ctypes.string_at(image).decode(errors="replace")
        _put(out, _address(number))
        return 0

    def _ModuleGetFunction(self, out: int, module: int, name: int) -> int:
        number = len(self._codes) + 1
        try:
            self._codes[number] = code_of(self._texts[module], ctypes.string_at(name).decode())
        except BackendError as error:
            self.problem = error
            print(error, file=sys.stderr)
            return _NOT_FOUND if "no kernel" in str(error) else _PTX
        _put(out, _address(number))
        return 0

    def _FuncGetAttribute(self, out: int, attribute: int, function: int) -> None:
        code = self._codes[function]
        _put(out, _int({0: 1024, 1: code.static_shared, 3: code.local_bytes}.get(attribute, 0)))

    def _FuncSetAttribute(self, function: int, attribute: int, value: int) -> None:
        """Do nothing: a launch names its shared memory."""

    def _FuncSetCacheConfig(self, function: int, config: int) -> None:
        """Do nothing: there is no cache."""

    def _LaunchKernelEx(self, config: int, function: int, parameters: int, extra: int) -> None:
        self.run(self.request(config, function, parameters))

    def request(self, config: int, function: int, parameters: int) -> Request:
        """Return the launch that the arguments of `cuLaunchKernelEx` describe."""
        fields = _CONFIG.unpack(ctypes.string_at(config, _CONFIG.size))
        shared, _, attributes, count = fields[6:]
        code = self._codes[function]
        declared = code.kernel.parameters
        pointers = (ctypes.c_void_p * len(declared)).from_address(parameters)
        values = [ctypes.string_at(p, one.size) for p, one in zip(pointers, declared)]
        request = Request(code, fields[:3], fields[3:6], shared, values)
        for index in range(count):
            place = attributes + _ATTRIBUTE_BYTES * index
            kind, *words = struct.unpack("<I4x3I", ctypes.string_at(place, 20))
            if kind == _CLUSTER:
                request.cluster = (words[0], words[1], words[2])
            request.cooperative |= kind == _COOPERATIVE and bool(words[0])
        return request

    def run(self, request: Request) -> None:
        """Execute a launch to its end.

        Raises:
            EmulatorError: the code violates a rule.
            ArgumentError: a grid or block that there is not.
        """
        settings, _ = of_launch()
        words = [int.from_bytes(value[:8], "little") for value in request.values if len(value) >= 8]
        leaves = [("argument", "bytes", value) for value in request.values]
        launch = prepared(
            request.code, request.grid, leaves, [], self.pool.reached(words), request.shared, request.cluster, request.block,
        )  # fmt: skip
        launch.together = request.cooperative
        execute(launch, settings)

    # -- memory ------------------------------------------------------------------------------------------

    def _TensorMapEncodeTiled(
        self, out: int, kind: int, rank: int, base: int, shape: int, strides: int, box: int, steps: int,
        interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> None:  # fmt: skip
        def read(kind: Any, place: int, count: int) -> tuple[int, ...]:
            return tuple((kind * count).from_address(place)) if count else ()

        encoded = TensorMap(
            base or 0, _MAPS.get(kind, kind), swizzle, fill, read(_long, shape, rank), read(_long, strides, rank - 1),
            read(ctypes.c_uint32, box, rank), read(ctypes.c_uint32, steps, rank), True, interleave,
        )  # fmt: skip
        try:
            check_map(encoded)
        except EmulatorError as error:
            raise BackendError(str(error)) from None
        ctypes.memmove(out, encoded.encode(), BYTES)

    def _MemAlloc(self, out: int, size: int) -> None:
        _put(out, _long(self.pool.allocate(size)))

    def _MemFree(self, address: int) -> int:
        return 0 if self.pool.free(address) else _VALUE

    def _MemAllocAsync(self, out: int, size: int, stream: int) -> None:
        self._MemAlloc(out, size)

    def _MemFreeAsync(self, address: int, stream: int) -> int:
        return self._MemFree(address)

    def _MemcpyHtoD(self, to: int, source: int, size: int) -> None:
        bytes_at(to, size)[:] = bytes_at(source, size)

    def _MemcpyDtoH(self, to: int, source: int, size: int) -> None:
        bytes_at(to, size)[:] = bytes_at(source, size)

    # -- errors ------------------------------------------------------------------------------------------

    def _GetErrorName(self, status: int, out: int) -> int:
        text = self._strings.get(status)
        _put(out, text if text is not None else _address(None))
        return 0 if text is not None else _VALUE

    def _GetErrorString(self, status: int, out: int) -> int:
        return self._GetErrorName(status, out)


def _put(out: int, value: Any) -> None:
    """Write a value of C to an address."""
    ctypes.memmove(out, ctypes.addressof(value), ctypes.sizeof(value))
