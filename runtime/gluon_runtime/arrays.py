"""Tensors and arrays of other libraries: where they are, and of which elements.

They are known by their interface: `data_ptr()` and `dtype`, `__cuda_array_interface__`, or DLPack. No array
library is imported.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, Optional

from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.rules import storage_size

__all__ = ["Pointer", "dtype_name", "from_dlpack", "from_interface", "from_tensor", "width_of"]


@dataclass(frozen=True)
class Pointer:
    """An address on the device, as an argument.

    Args:
        address: of the first element.
        dtype: the element type, such as `fp32`; None fits any.
        size: bytes of storage behind it; None where it is not known.
        device: type and index of where it points to, as torch names them; None where that is not known.
        owner: the object that keeps the memory alive.
    """

    address: int
    dtype: Optional[str] = None
    size: Optional[int] = None
    device: Optional[tuple[str, int]] = None
    owner: Any = None

    def data_ptr(self) -> int:
        return self.address


_NAMES = {
    "bool": "u1",
    "i1": "u1",
    **{
        f"{kind}int{bits}": f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)
    },
    "float8e4nv": "fp8e4nv",
    "float8_e4m3fn": "fp8e4nv",
    "float8e5": "fp8e5",
    "float8_e5m2": "fp8e5",
    "float8e4b15": "fp8e4b15",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2fnuz": "fp8e5b16",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
    "float32": "fp32",
    "double": "fp64",
    "float64": "fp64",
}
_TYPESTR = {"f": "float", "i": "int", "u": "uint", "b": "bool"}
_DLPACK = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Return the short name of an element type.

    Raises:
        BundleArgumentError: kernels have no such elements.
    """
    text = str(dtype).split(".")[-1]
    name = _NAMES.get(text, text if text in _NAMES.values() else None)
    if name is None:
        raise BundleArgumentError("kernels cannot take elements of this type", got=str(dtype))
    return name


def width_of(dtype: Optional[str]) -> int:
    """Return the bytes of an element.

    Raises:
        BundleArgumentError: the element type is unknown.
    """
    if dtype is None:
        raise BundleArgumentError(
            "a descriptor needs an element type",
            remedy='Say it: Pointer(address, "fp16").',
        )
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return max(1, int(bits[1]) // 8) if bits else 1


def from_tensor(value: Any) -> Pointer:
    try:
        address = int(value.data_ptr())
    except RuntimeError as error:  # torch: a tensor that stands for others
        raise BundleArgumentError(
            "the tensor has no memory of its own", got=f"{type(value).__name__}: {error}"
        ) from error
    device = getattr(value, "device", None)
    kind = getattr(device, "type", None)
    where = None if kind is None else (str(kind), int(getattr(device, "index", 0) or 0))
    return Pointer(address, dtype_name(value.dtype), storage_size(value), where, value)


def from_interface(value: Any) -> Pointer:
    fields = value.__cuda_array_interface__
    text = str(fields["typestr"])
    if text[:1] == ">":
        raise BundleArgumentError("arrays must be in native byte order", got=text)
    width = int(text[2:])
    name = _element(_TYPESTR.get(text[1:2]), 8 * width, text)
    size = _extent(fields["shape"], fields.get("strides"), width)
    return Pointer(int(fields["data"][0]), name, size, ("cuda", -1), value)


def _element(kind: Optional[str], bits: int, text: str) -> str:
    """Return the short name of elements that `text` describes; `kind` is None for those that no kernel takes."""
    return dtype_name(text if kind is None else kind if kind == "bool" else f"{kind}{bits}")


def _extent(shape: Any, strides: Any, width: int) -> int:
    """Return the bytes from the first element to the end of the last; `strides` in bytes."""
    if 0 in shape:
        return 0
    if strides is None:
        return width * math.prod(map(int, shape))
    return width + sum((int(n) - 1) * abs(int(s)) for n, s in zip(shape, strides))


_DLTENSOR = struct.Struct("PiiiBBHPPQ")  # DLPack's `DLTensor`, the head of the content of a capsule
_PLACES = {1: "cpu", 2: "cuda", 10: "cuda"}  # kDLCPU, kDLCUDA; torch calls ROCm's cuda as well


def from_dlpack(value: Any) -> Pointer:
    try:
        capsule = value.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        head = ctypes.string_at(pointer(capsule, b"dltensor"), _DLTENSOR.size)
    except Exception as error:  # whatever the library that owns it raises
        raise BundleArgumentError(
            "the array cannot be taken through DLPack", got=f"{type(value).__name__}: {error}"
        ) from error
    start, place, index, rank, code, bits, lanes, sizes, steps, offset = _DLTENSOR.unpack(head)
    name = _element(_DLPACK.get(code) if lanes == 1 else None, bits, f"DLPack code {code}")
    extents, width = ctypes.c_int64 * rank, bits // 8
    strides = [width * step for step in extents.from_address(steps)] if steps else None
    size = _extent(extents.from_address(sizes) if rank else (), strides, width)
    where = (_PLACES.get(place, f"DLPack {place}"), index)
    owner = (value, capsule)  # the capsule frees the tensor when it goes
    return Pointer(start + offset, name, size, where, owner)
