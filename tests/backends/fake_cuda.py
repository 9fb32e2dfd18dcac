"""A `libcuda` that records: the library object that `gluon_nvidia.driver.Driver` takes."""

import ctypes
import struct
from types import SimpleNamespace

CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
CONFIG = struct.Struct("<3I3II4xQQI")


class FakeCuda:
    """Answers every call with success and keeps what `cuLaunchKernelEx` was given.

    Args:
        sizes: bytes of each parameter to read back.
        status: what launches answer, one after the other, then success.
    """

    def __init__(self, sizes=(), status=(), capability=(9, 0), devices=1, attributes=None):
        self.sizes = sizes
        self.status = list(status)
        self.capability = capability
        self.devices = devices
        self.launches = []
        self.calls = []
        self.attributes = {0: 1024, 4: 40, 3: 16, **(attributes or {})}
        self.cuLaunchKernelEx = CALLBACK(self._launch)

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
