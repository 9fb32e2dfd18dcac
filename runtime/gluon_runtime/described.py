"""Descriptors of tensors, as the programs that load bundles make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from gluon_runtime.arrays import Seen, width_of
from gluon_runtime.errors import BundleArgumentError

__all__ = ["Spread", "TensorDescriptor", "spread"]


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
    """A descriptor that was looked at: its base is an address, and no shape or stride is left open.

    Args:
        layout: of the box, as Python prints it; None where the form decides.
    """

    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    layout: Optional[str] = None


def spread(value: Any, base: Seen) -> Seen:
    """Return the properties of a `TensorDescriptor`, or of a descriptor of Gluon Core.

    Args:
        base: those of its base.

    Raises:
        BundleArgumentError: kernels cannot take it.
    """
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
            "a tensor that is described must begin, and each of its rows, at a multiple of 16 bytes",
            got=f"{base.value:#x} with strides {strides} of {bits // 8} bytes",
        )
    if value.padding not in ("zero", "nan"):
        raise BundleArgumentError(
            "unsupported padding", expected="'zero' or 'nan'", got=repr(value.padding)
        )
    layout, box = getattr(value, "layout", None), value.block_shape
    spread = Spread(
        base.value,
        sizes,
        strides,
        None if box is None else tuple(map(int, box)),
        value.padding,
        bool(getattr(value, "round_f32_to_tf32", False)),
        None if layout is None else repr(layout),
    )
    return Seen("descriptor", spread, base.dtype, base.size, base.device, base.owner)


def _strides(value: Any, shape: tuple[int, ...], dtype: Optional[str]) -> Sequence[int]:
    """Return the strides in elements."""
    if value.strides is not None:
        steps: Sequence[int] = value.strides
        return steps
    base = value.base
    if value.shape is None and callable(getattr(base, "stride", None)):
        own: Sequence[int] = base.stride()
        return own
    in_bytes = getattr(base, "strides", None) if value.shape is None else None
    if in_bytes is not None:  # NumPy's and CuPy's, in bytes
        return [step // width_of(dtype) for step in in_bytes]
    packed = [1]
    for extent in shape[:0:-1]:
        packed.insert(0, packed[0] * extent)
    return packed
