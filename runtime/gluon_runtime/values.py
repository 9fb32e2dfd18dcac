"""The arguments of a launch: an address with its element type, a number, a tuple, a descriptor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_runtime.arrays import Pointer, from_dlpack, from_tensor, width_of
from gluon_runtime.errors import BundleArgumentError
from gluon_runtime.rules import plain_kind

__all__ = ["Pointer", "TensorDescriptor", "kind_of", "look"]


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
        strides = tuple(map(int, _strides(value, sizes, base.dtype)))
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


def _strides(value: Any, shape: tuple[int, ...], dtype: Any) -> Any:
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
