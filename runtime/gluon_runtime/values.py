"""What an argument of a launch is: an address with its element type, a number, a tuple.

Tensors are known by what they offer: `data_ptr()` and `dtype`, `__cuda_array_interface__`, or DLPack.
No array library is imported.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Sequence

from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.rules import plain_kind, storage_size

__all__ = ["Pointer", "Seen", "Spread", "TensorDescriptor", "look"]


@dataclass(frozen=True)
class Pointer:
    """An address on the device, as an argument.

    Args:
        address: of the first element.
        dtype: the element type, such as `fp32`; None fits any.
        size: bytes of storage behind it; None where it is not known.
    """

    address: int
    dtype: Optional[str] = None
    size: Optional[int] = None


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor in global memory, for a kernel's descriptor parameter. The box that one copy moves, and
    its layout in shared memory, are those that the kernel was compiled for.

    Args:
        base: a tensor, array or `Pointer`.
        shape, strides: of it, in elements; None for those that `base` has.
        block_shape: the box, where a kernel was compiled for several.
        padding: what loads bring for elements outside: "zero", or "nan".
        round_f32_to_tf32: copies round float32 elements.
    """

    base: Any
    shape: Optional[Sequence[int]] = None
    strides: Optional[Sequence[int]] = None
    block_shape: Optional[Sequence[int]] = None
    padding: str = "zero"
    round_f32_to_tf32: bool = False


class Spread(NamedTuple):
    """A descriptor that was looked at: what a map of it depends on, and what forms are chosen by.

    Args:
        address: of the first element.
        shape, strides: in elements.
        box: the box, None where the form decides.
        layout: of the box, as Python prints it; None where the form decides.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    padding: str
    round_f32_to_tf32: bool
    box: Optional[tuple[int, ...]]
    layout: Optional[str]


@dataclass(frozen=True)
class Seen:
    """An argument as it was found.

    Args:
        kind: `pointer`, `descriptor`, `int`, `float`, `bool`, `none`, `tuple` or `other`.
        value: the address of a pointer; a `Spread`; the items of a tuple, seen; else what came.
        dtype: of a pointer or descriptor, None where any fits.
        size: bytes of storage behind a pointer, None where it is not known.
        device: type and index of where a pointer points to, None where it is not known.
        owner: what keeps the memory alive.
    """

    kind: str
    value: Any
    dtype: Optional[str] = None
    size: Optional[int] = None
    device: Optional[tuple[str, int]] = None
    owner: Any = None


_NAMES = {
    "bool": "u1",
    "i1": "u1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
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
_dtypes: dict[Any, Optional[str]] = {}


def look(value: Any) -> Seen:
    """What `value` is; `other` for what kernels only take as a constant."""
    kind = plain_kind(value)
    if kind == "tuple":
        return Seen(kind, tuple(map(look, value)))
    if kind:
        return Seen(kind, int(value) if kind == "int" else value)
    if isinstance(value, Pointer):
        return Seen("pointer", value.address, value.dtype, value.size)
    if isinstance(value, ctypes.c_void_p):
        return Seen("pointer", value.value or 0)
    if hasattr(value, "block_shape") and hasattr(value, "base"):  # Gluon Core's own, too
        return _descriptor(value)
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return _tensor(value)
    if hasattr(value, "__cuda_array_interface__"):
        return _interface(value)
    if hasattr(value, "__dlpack__") and not isinstance(value, type):
        return _dlpack(value)
    return Seen("other", value)


def dtype_name(dtype: Any) -> str:
    """The short name of an element type.

    Raises:
        BundleArgumentError: kernels have no such elements.
    """
    found = _dtypes.get(dtype)
    if found is None:
        text = str(dtype).split(".")[-1]
        found = _NAMES.get(text, text if text in _NAMES.values() else None)
        if found is None:
            raise BundleArgumentError("kernels cannot take elements of this type", got=str(dtype))
        _dtypes[dtype] = found
    return found


def _descriptor(value: Any) -> Seen:
    """A `TensorDescriptor`, or a descriptor of Gluon Core."""
    base = look(value.base)
    if base.kind != "pointer":
        raise BundleArgumentError(
            "not a tensor to describe",
            expected="a tensor, an array or a gluon_runtime.Pointer",
            got=type(value.base).__name__,
        )
    shape = (
        value.base.shape if value.shape is None and hasattr(value.base, "shape") else value.shape
    )
    if shape is None or not 1 <= len(shape) <= 5 or min(map(int, shape)) < 1:
        raise BundleArgumentError(
            "a descriptor has 1 to 5 dimensions, each of an element at least", got=repr(shape)
        )
    sizes = tuple(map(int, shape))
    strides = tuple(map(int, _strides(value, sizes, base.dtype)))
    if len(strides) != len(sizes) or strides[-1] != 1 or min(strides) < 0:
        raise BundleArgumentError(
            "a descriptor has one stride for each dimension, the last of them 1", got=repr(strides)
        )
    bits = 8 * width_of(base.dtype)
    if base.value % 16 or any(step * bits % 128 for step in strides[:-1]):
        raise BundleArgumentError(
            "what is described must begin, and each of its rows, at a multiple of 16 bytes",
            got=f"{base.value:#x} with strides {strides} of {bits // 8} bytes",
        )
    if value.padding not in ("zero", "nan"):
        raise BundleArgumentError(
            "no such padding", expected="'zero' or 'nan'", got=repr(value.padding)
        )
    layout, box = getattr(value, "layout", None), value.block_shape
    made = Spread(
        base.value,
        sizes,
        strides,
        value.padding,
        bool(getattr(value, "round_f32_to_tf32", False)),
        None if box is None else tuple(map(int, box)),
        None if layout is None else repr(layout),
    )
    return Seen("descriptor", made, base.dtype, base.size, base.device, base.owner)


def _strides(value: Any, shape: tuple[int, ...], dtype: Optional[str]) -> Sequence[int]:
    """In elements."""
    if value.strides is not None:
        given: Sequence[int] = value.strides
        return given
    base = value.base
    if value.shape is None and callable(getattr(base, "stride", None)):
        own: Sequence[int] = base.stride()
        return own
    steps = getattr(base, "strides", None) if value.shape is None else None
    if steps is not None:  # NumPy's and CuPy's, in bytes
        return [step // width_of(dtype) for step in steps]
    found = [1]
    for extent in shape[:0:-1]:
        found.insert(0, found[0] * extent)
    return found


def width_of(dtype: Optional[str]) -> int:
    """Bytes of an element.

    Raises:
        BundleArgumentError: nothing says what the elements are.
    """
    if dtype is None:
        raise BundleArgumentError(
            "a descriptor wants to know the element type",
            remedy='Say it: Pointer(address, "fp16").',
        )
    bits = re.match(r"[a-z]+(\d+)", dtype)
    return max(1, int(bits[1]) // 8) if bits else 1


def _tensor(value: Any) -> Seen:
    try:
        address = int(value.data_ptr())
    except RuntimeError as error:  # torch: a tensor that stands for others
        raise BundleArgumentError(
            "the tensor has no memory of its own", got=f"{type(value).__name__}: {error}"
        ) from error
    device = getattr(value, "device", None)
    kind = getattr(device, "type", None)
    where = None if kind is None else (str(kind), int(getattr(device, "index", 0) or 0))
    return Seen("pointer", address, dtype_name(value.dtype), storage_size(value), where, value)


def _interface(value: Any) -> Seen:
    told = value.__cuda_array_interface__
    text = str(told["typestr"])
    if text[:1] == ">":
        raise BundleArgumentError("arrays must be in native byte order", got=text)
    kind, width = _TYPESTR.get(text[1:2]), int(text[2:])
    if kind is None:
        raise BundleArgumentError("kernels cannot take elements of this type", got=text)
    name = dtype_name(kind if kind == "bool" else f"{kind}{8 * width}")
    size = _extent(told["shape"], told.get("strides"), width)
    return Seen("pointer", int(told["data"][0]), name, size, ("cuda", -1), value)


def _extent(shape: Any, strides: Any, width: int) -> int:
    """Bytes from the first element to the end of the last; `strides` in bytes."""
    if 0 in shape:
        return 0
    if strides is None:
        size = width
        for extent in shape:
            size *= int(extent)
        return size
    return width + sum((int(n) - 1) * abs(int(s)) for n, s in zip(shape, strides))


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    """DLPack's `DLTensor`, the head of what a capsule holds."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_PLACES = {1: "cpu", 2: "cuda", 10: "cuda"}  # kDLCPU, kDLCUDA; torch calls ROCm's cuda as well


def _dlpack(value: Any) -> Seen:
    try:
        capsule = value.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        found = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    except Exception as error:  # whatever the library that owns it raises
        raise BundleArgumentError(
            "the array cannot be taken through DLPack", got=f"{type(value).__name__}: {error}"
        ) from error
    kind = _DLPACK.get(found.code)
    if kind is None or found.lanes != 1:
        raise BundleArgumentError(
            "kernels cannot take elements of this type", got=f"DLPack code {found.code}"
        )
    shape = found.shape[: found.ndim]
    width = found.bits // 8
    strides = [width * s for s in found.strides[: found.ndim]] if found.strides else None
    return Seen(
        "pointer",
        (found.data or 0) + found.byte_offset,
        dtype_name(kind if kind == "bool" else f"{kind}{found.bits}"),
        _extent(shape, strides, width),
        (_PLACES.get(found.device.type, f"DLPack {found.device.type}"), found.device.index),
        (value, capsule),  # the capsule frees the tensor when it goes
    )
