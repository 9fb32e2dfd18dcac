"""Stand-ins for `libcuda` and `libamdhip64`, as ctypes gives them: they answer and write down."""

from __future__ import annotations

import ctypes

from gluon_runtime.libcuda import Config


class Attribute(ctypes.Structure):
    """CUlaunchAttribute: the value is a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_uint), ("_pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


def value_of(operand):
    """The number that a ctypes operand carries."""
    return getattr(operand, "value", operand) or 0


def to(pointer, kind=ctypes.c_int):
    """Return the object that `byref` points to."""
    return kind.from_address(ctypes.addressof(pointer._obj))


class Library:
    """Functions that are not defined here are not in the library."""

    def __init__(self):
        self.calls = []
        self.launched = []
        self.fails = {}

    def note(self, name, *operands):
        self.calls.append((name, *operands))
        return self.fails.pop(name, 0)

    def named(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


def arguments_at(address, sizes):
    """The bytes of the arguments that a driver would copy, given their sizes."""
    pointers = (ctypes.c_void_p * len(sizes)).from_address(address)
    return b"".join(ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes))


class Cuda(Library):
    shared = 232448
    threads = 1024

    def cuDeviceGetCount(self, count):
        to(count).value = 1
        return 0

    def cuDeviceGet(self, device, index):
        to(device).value = 100 + index
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        to(value).value = {75: 9, 76: 0, 97: self.shared}[attribute]
        return 0

    def cuCtxGetDevice(self, device):
        return 201

    def cuDevicePrimaryCtxRetain(self, context, device):
        to(context, ctypes.c_void_p).value = 0xC0
        return self.note("retain", value_of(device))

    def cuCtxGetCurrent(self, context):
        to(context, ctypes.c_void_p).value = None
        return 0

    def cuCtxSetCurrent(self, context):
        return self.note("enter", value_of(context))

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return self.note("mode", to(mode).value)

    def cuModuleLoadData(self, module, code):
        to(module, ctypes.c_void_p).value = 0xD0
        return self.note("load", code)

    version = 13000

    def cuDriverGetVersion(self, version):
        to(version).value = self.version
        return 0

    def cuTensorMapEncodeTiled(self, into, kind, rank, address, shape, strides, box, steps, *modes):
        assert into.value % 64 == 0
        ctypes.memset(into.value, 0xFF, 128)
        lists = [list(field) for field in (shape, strides, box, steps)]
        words = [mode.value for mode in modes]
        return self.note("encode", kind.value, rank.value, address.value, *lists, *words)

    def cuModuleGetFunction(self, function, module, name):
        to(function, ctypes.c_void_p).value = 0xF0
        return self.note("function", value_of(module), name)

    def cuFuncGetAttribute(self, value, attribute, function):
        to(value).value = {0: self.threads, 1: 1000}[attribute]
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        return self.note("set", attribute, value)

    def cuFuncSetCacheConfig(self, function, config):
        return self.note("prefer", config)

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        failed = self.note("launch")
        settings = to(config, Config)
        attributes = (Attribute * settings.count).from_address(settings.attributes or id(self))
        self.launched.append(
            {
                "grid": tuple(settings.grid),
                "block": tuple(settings.block),
                "shared": settings.shared,
                "stream": settings.stream,
                "attributes": [(a.id, tuple(a.value[:3])) for a in attributes],
                "function": function.value,
                "pointers": pointers.value,
                "extra": extra,
            }
        )
        return failed

    def cuMemAllocAsync(self, address, size, stream):
        to(address, ctypes.c_uint64).value = 0xABC000
        return self.note("allocate", value_of(size), value_of(stream))

    def cuMemFreeAsync(self, address, stream):
        return self.note("free", value_of(address), value_of(stream))

    def cuGetErrorName(self, status, text):
        to(text, ctypes.c_char_p).value = b"CUDA_ERROR_TESTED"

    def cuGetErrorString(self, status, text):
        to(text, ctypes.c_char_p).value = b"as the test wanted"


class _Text:
    """A function of the library whose `restype` can be set."""

    restype = None

    def __call__(self, status):
        return b"as the test wanted"


class Hip(Library):
    def __init__(self):
        super().__init__()
        self.hipGetErrorString = _Text()

    def hipGetDeviceCount(self, count):
        to(count).value = 1
        return 0

    def hipGetDevicePropertiesR0600(self, room, device):
        name, arch = b"AMD Instinct gfx", b"gfx942:sramecc+:xnack-\0"
        ctypes.memmove(room, name, len(name))
        ctypes.memmove(ctypes.addressof(room) + 1160, arch, len(arch))
        return 0

    def hipGetDevice(self, device):
        to(device).value = 0
        return 0

    def hipModuleLoadData(self, module, code):
        to(module, ctypes.c_void_p).value = 0xD0
        return self.note("load", code)

    def hipModuleGetFunction(self, function, module, name):
        to(function, ctypes.c_void_p).value = 0xF0
        return self.note("function", value_of(module), name)

    def hipModuleLaunchKernel(self, function, *operands):
        sizes, (stream, pointers, extra) = operands[:7], operands[7:]
        self.launched.append([size.value for size in sizes])
        return self.note("launch", function.value, value_of(stream), value_of(pointers), extra)

    def hipModuleLaunchCooperativeKernel(self, function, *operands):
        self.launched.append([size.value for size in operands[:7]])
        return self.note("cooperative", function.value, *map(value_of, operands[7:]))

    def hipDrvLaunchKernelEx(self, config, function, pointers, extra):
        settings = to(config, Config)
        attributes = (Attribute * settings.count).from_address(settings.attributes)
        self.launched.append(
            {
                "grid": tuple(settings.grid),
                "block": tuple(settings.block),
                "attributes": [(a.id, tuple(a.value[:3])) for a in attributes],
            }
        )
        return self.note("clusters", function.value)
