"""A `libcuda` that records: the library object that `gluon_nvidia.driver.Driver` takes."""

import ctypes
import struct
from types import SimpleNamespace

CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
ENCODE_TILED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.POINTER(ctypes.c_uint32),
    *[ctypes.c_int] * 4,
)
CONFIG = struct.Struct("<3I3II4xQQI")


class FakeCuda:
    """Answers every call with success and keeps the arguments of `cuLaunchKernelEx`.

    Args:
        sizes: bytes of each parameter to read back.
        status: what launches answer, one after the other, then success.
        version: of the driver.
        encode_status: what encoding a tensor map answers.

    A tensor map is its number, from 1, as 32 32-bit words; `maps` holds what each was made from.
    """

    def __init__(
        self,
        sizes=(),
        status=(),
        capability=(9, 0),
        devices=1,
        attributes=None,
        version=13020,
        encode_status=0,
    ):
        self.sizes = sizes
        self.status = list(status)
        self.capability = capability
        self.devices = devices
        self.launches = []
        self.calls = []
        self.attributes = {0: 1024, 4: 40, 3: 16, **(attributes or {})}
        self.version = version
        self.encode_status = encode_status
        self.maps = []
        self.cuLaunchKernelEx = CALLBACK(self._launch)
        self.cuTensorMapEncodeTiled = ENCODE_TILED(self._encode_tiled)

    def _launch(self, config, function, parameters, extra):
        gx, gy, gz, bx, by, bz, shared, stream, attributes, count = CONFIG.unpack(
            ctypes.string_at(config, CONFIG.size)
        )
        pointers = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))
        self.launches.append(
            SimpleNamespace(
                grid=(gx, gy, gz),
                block=(bx, by, bz),
                shared=shared,
                stream=stream,
                function=function,
                attributes=[
                    struct.unpack("<I4x4I", ctypes.string_at(attributes + 72 * index, 24))
                    for index in range(count)
                ],
                parameters=[
                    ctypes.string_at(pointers[index], size) for index, size in enumerate(self.sizes)
                ],
            )
        )
        return self.status.pop(0) if self.status else 0

    def _encode_tiled(self, out, type, rank, address, shape, strides, box, steps, *modes):
        if self.encode_status:
            return self.encode_status
        assert out % 64 == 0
        self.maps.append(
            SimpleNamespace(
                type=type,
                address=address,
                shape=shape[:rank],
                strides=strides[: rank - 1],
                box=box[:rank],
                steps=steps[:rank],
                modes=modes,
            )
        )
        ctypes.memmove(out, self.map_bytes(len(self.maps)), 128)
        return 0

    @staticmethod
    def map_bytes(number):
        return struct.pack("<I", number) * 32

    def cuTensorMapEncodeIm2col(self, out, type, rank, address, shape, strides, *rest):
        lower, upper, channels, pixels, steps, *modes = rest
        self.maps.append(
            SimpleNamespace(
                type=type.value,
                address=address.value,
                shape=shape[: rank.value],
                strides=strides[: rank.value - 1],
                lower=lower[:],
                upper=upper[:],
                box=[channels.value, pixels.value],
                steps=steps[: rank.value],
                modes=tuple(mode.value for mode in modes),
            )
        )
        ctypes.memmove(out, self.map_bytes(len(self.maps)), 128)
        return 0

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version
        return 0

    def cuMemAllocAsync(self, out, size, stream):
        self.calls.append(("cuMemAllocAsync", size.value, stream.value or 0))
        out._obj.value = 0x7001
        return 0

    def cuMemFreeAsync(self, address, stream):
        self.calls.append(("cuMemFreeAsync", address.value, stream.value or 0))
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = self.devices
        return 0

    def cuDeviceGetAttribute(self, out, attribute, device):
        major, minor = self.capability
        out._obj.value = {75: major, 76: minor, 97: 232448}[attribute]
        return 0

    def cuModuleLoadData(self, out, data):
        self.calls.append(("cuModuleLoadData", data))
        out._obj.value = 0x20
        return 0

    def cuModuleGetFunction(self, out, module, name):
        out._obj.value = 0x30
        return 0

    def cuFuncGetAttribute(self, out, attribute, function):
        out._obj.value = self.attributes.get(attribute, 0)
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append(("cuFuncSetAttribute", attribute, value))
        return 0

    def cuGetErrorName(self, status, out):
        out._obj.value = b"CUDA_ERROR_SOMETHING"
        return 0

    def cuGetErrorString(self, status, out):
        out._obj.value = b"it went wrong"
        return 0

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def succeed(*arguments):
            self.calls.append((name, *arguments))
            return 0

        return succeed


def plug_cuda(monkeypatch, fake):
    """Let `fake` be this process's driver of NVIDIA, and return the `Driver` of it.

    A CUDA build of torch would look for a real driver, and there may be none.
    """
    from gluon_nvidia import driver

    state = driver.Driver(fake)
    monkeypatch.setattr(driver, "_state", state)
    monkeypatch.setattr(driver, "_torch", lambda: None)
    return state
