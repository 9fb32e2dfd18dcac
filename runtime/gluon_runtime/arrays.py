"""Tensors and arrays of other libraries: where they are, and of which elements.

They are known by their interface: `data_ptr()` and `dtype`, or DLPack. No array library is imported.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from dataclasses import dataclass
from typing import Any, Optional

from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.rules import storage_size

__all__ = ["Pointer", "dtype_name", "from_dlpack", "from_tensor", "width_of"]


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

    def __repr__(self) -> str:
        return f"Pointer({self.address:#x}, {self.dtype!r}, size={self.size}, device={self.device})"

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


def width_of(dtype: str) -> int:
    """Return the bytes of an element."""
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
    start, place, index, _, code, bits, lanes, _, _, offset = _DLTENSOR.unpack(head)
    kind = _DLPACK.get(code if lanes == 1 else -1, f"DLPack code {code}, ")
    name = dtype_name(kind if kind == "bool" else f"{kind}{bits}")
    where = (_PLACES.get(place, f"DLPack {place}"), index)
    owner = (value, capsule)  # the capsule frees the tensor when it goes
    return Pointer(start + offset, name, storage_size(value), where, owner)
