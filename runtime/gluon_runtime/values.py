"""The arguments of a launch: an address with its element type, a number, a tuple, a descriptor.

Tensors and arrays of other libraries are known by their interface: `data_ptr()` and `dtype`, or DLPack. No array library is
imported.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.rules import plain_kind, storage_size

__all__ = ["Pointer", "TensorDescriptor", "dtype_name", "kind_of", "look"]


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


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor in global memory, for a kernel's descriptor parameter. The box that one copy moves, and
    its layout in shared memory, are those that the kernel was compiled for.

    Args:
        base: a tensor, array or `Pointer`.
        shape, strides: of it, in elements; None for those that `base` has.
        block_shape: the box, where a kernel was compiled for several.
        padding: the value that loads bring for elements outside: "zero", or "nan".
        round_f32_to_tf32: copies round float32 elements.
    """

    base: Any
    shape: Optional[Sequence[int]] = None
    strides: Optional[Sequence[int]] = None
    block_shape: Optional[Sequence[int]] = None
    padding: str = "zero"
    round_f32_to_tf32: bool = False


def look(value: Any) -> Any:
    """Return an argument as the engine takes it, with all that the choice of the code depends on: a `Pointer`, a
    `TensorDescriptor` of one with shape and strides, a plain value of Python, a tuple of these, or the object that
    kernels only take as a constant."""
    kind = kind_of(value)
    if hasattr(value, "block_shape") and hasattr(value, "base"):  # Gluon Core's own, too
        return _spread(value, look(value.base))
    if kind == "tuple":
        return tuple(map(look, value))
    if kind:
        return int(value) if kind == "int" else value
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return from_tensor(value)
    if hasattr(value, "__dlpack__") and not isinstance(value, type):
        return from_dlpack(value)
    return value


def kind_of(seen: Any) -> str:
    """Return `pointer`, `descriptor` or a name of `PLAIN` for what `look` returned, "" for an object."""
    if isinstance(seen, Pointer):
        return "pointer"
    return "descriptor" if isinstance(seen, TensorDescriptor) else plain_kind(seen)


def _spread(value: Any, base: Any) -> TensorDescriptor:
    """Return a `TensorDescriptor`, or a descriptor of Gluon Core, with all that `base` says of its tensor.

    Raises:
        BundleArgumentError: kernels cannot take it.
    """
    shape = getattr(value.base, "shape", None) if value.shape is None else value.shape
    sizes, box = tuple(map(int, shape or ())), value.block_shape
    strides: tuple[int, ...] = ()
    if isinstance(base, Pointer) and sizes:
        strides = tuple(map(int, _strides(value, sizes)))
    if strides[-1:] != (1,) or value.padding not in ("zero", "nan"):
        raise BundleArgumentError(
            "not a tensor to describe",
            expected="a tensor, array or gluon_runtime.Pointer with a shape, whose last stride is 1, and the padding "
            "'zero' or 'nan'",
            got=f"{type(value.base).__name__} of shape {shape}, strides {strides}, padding {value.padding!r}",
        )
    boxes = None if box is None else tuple(map(int, box))
    rounded = bool(getattr(value, "round_f32_to_tf32", False))
    return TensorDescriptor(base, sizes, strides, boxes, value.padding, rounded)


def _strides(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the strides in elements."""
    if value.strides is not None:
        return value.strides
    base = value.base
    if value.shape is None and callable(getattr(base, "stride", None)):
        return base.stride()
    in_bytes = getattr(base, "strides", None) if value.shape is None else None
    if in_bytes is not None:  # NumPy's and CuPy's, in bytes
        return [step // base.itemsize for step in in_bytes]
    packed = [1]
    for extent in shape[:0:-1]:
        packed.insert(0, packed[0] * extent)
    return packed


_NAMES = {
    "bool": "u1",
    **{
        f"{kind}int{bits}": f"{kind or 'i'}{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)
    },
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2fnuz": "fp8e5b16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
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


def from_tensor(value: Any) -> Pointer:
    device = getattr(value, "device", None)
    kind = getattr(device, "type", None)
    where = None if kind is None else (str(kind), int(getattr(device, "index", 0) or 0))
    return Pointer(
        int(value.data_ptr()), dtype_name(value.dtype), storage_size(value), where, value
    )


_DLTENSOR = struct.Struct("PiiiBBHPPQ")  # DLPack's `DLTensor`, the head of the content of a capsule
_PLACES = {1: "cpu", 2: "cuda", 10: "cuda"}  # kDLCPU, kDLCUDA; torch calls ROCm's cuda as well


def from_dlpack(value: Any) -> Pointer:
    capsule = value.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    head = ctypes.string_at(pointer(capsule, b"dltensor"), _DLTENSOR.size)
    start, place, index, _, code, bits, lanes, _, _, offset = _DLTENSOR.unpack(head)
    kind = _DLPACK.get(code if lanes == 1 else -1, f"DLPack code {code}, ")
    name = dtype_name(kind if kind == "bool" else f"{kind}{bits}")
    where = (_PLACES.get(place, f"DLPack {place}"), index)
    owner = (value, capsule)  # the capsule frees the tensor when it goes
    return Pointer(start + offset, name, storage_size(value), where, owner)
