"""The arguments of a launch: an address with its element type, a number, a tuple, a descriptor."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_runtime.arrays import Pointer, from_dlpack, from_interface, from_tensor, width_of
from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.rules import plain_kind

__all__ = ["Pointer", "Spread", "TensorDescriptor", "kind_of", "look"]


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


@dataclass(frozen=True)
class Spread(TensorDescriptor):
    """A descriptor that was looked at: its base is a `Pointer`, and no shape or stride is left open.

    Args:
        layout: of the box, as Python prints it; None where the form decides.
    """

    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    layout: Optional[str] = None


def look(value: Any) -> Any:
    """Return an argument as the engine takes it, with all that the choice of the code depends on: a `Pointer`, a `Spread`, a
    plain value of Python, a tuple of these, or the object that kernels only take as a constant."""
    kind = kind_of(value)
    if kind == "tuple":
        return tuple(map(look, value))
    if kind:
        return int(value) if kind == "int" else value
    if isinstance(value, ctypes.c_void_p):
        return Pointer(value.value or 0)
    if hasattr(value, "block_shape") and hasattr(value, "base"):  # Gluon Core's own, too
        return _spread(value, look(value.base))
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return from_tensor(value)
    if hasattr(value, "__cuda_array_interface__"):
        return from_interface(value)
    if hasattr(value, "__dlpack__") and not isinstance(value, type):
        return from_dlpack(value)
    return value


def kind_of(seen: Any) -> str:
    """Return `pointer`, `descriptor` or a name of `PLAIN` for what `look` returned, "" for an object."""
    if isinstance(seen, Pointer):
        return "pointer"
    return "descriptor" if isinstance(seen, Spread) else plain_kind(seen)


def _spread(value: Any, base: Any) -> Spread:
    """Return a `TensorDescriptor`, or a descriptor of Gluon Core, with all that `base` says of its tensor.

    Raises:
        BundleArgumentError: kernels cannot take it.
    """
    if not isinstance(base, Pointer):
        raise BundleArgumentError(
            "not a tensor to describe",
            expected="a tensor, an array or a gluon_runtime.Pointer",
            got=type(value.base).__name__,
        )
    shape = getattr(value.base, "shape", None) if value.shape is None else value.shape
    sizes = tuple(map(int, shape or ()))
    strides = tuple(map(int, _strides(value, sizes, base.dtype)))
    width = width_of(base.dtype)
    mistake, expected, got = "", None, repr(strides)
    if not 1 <= len(sizes) <= 5 or min(sizes) < 1:
        mistake, got = (
            "a descriptor has 1 to 5 dimensions, each of an element at least",
            repr(shape),
        )
    elif len(strides) != len(sizes) or strides[-1] != 1 or min(strides) < 0:
        mistake = "a descriptor has one stride for each dimension, the last of them 1"
    elif base.address % 16 or any(step * width % 16 for step in strides[:-1]):
        mistake = (
            "a tensor that is described must begin, and each of its rows, at a multiple of 16 bytes"
        )
        got = f"{base.address:#x} with strides {strides} of {width} bytes"
    elif value.padding not in ("zero", "nan"):
        mistake, expected, got = "unsupported padding", "'zero' or 'nan'", repr(value.padding)
    if mistake:
        raise BundleArgumentError(mistake, expected=expected, got=got)
    layout, box = getattr(value, "layout", None), value.block_shape
    return Spread(
        base,
        sizes,
        strides,
        None if box is None else tuple(map(int, box)),
        value.padding,
        bool(getattr(value, "round_f32_to_tf32", False)),
        None if layout is None else repr(layout),
    )


def _strides(value: Any, shape: tuple[int, ...], dtype: Optional[str]) -> Any:
    """Return the strides in elements."""
    if value.strides is not None:
        return value.strides
    base = value.base
    if value.shape is None and callable(getattr(base, "stride", None)):
        return base.stride()
    in_bytes = getattr(base, "strides", None) if value.shape is None else None
    if in_bytes is not None:  # NumPy's and CuPy's, in bytes
        return [step // width_of(dtype) for step in in_bytes]
    packed = [1]
    for extent in shape[:0:-1]:
        packed.insert(0, packed[0] * extent)
    return packed
