"""Descriptors of tensors for the tensor data mover, TDM (gfx1250)."""

from __future__ import annotations

from typing import Any, Optional, Sequence

from gluon_amd.layouts import PartitionedSharedLayout
from gluon_core import descriptors as core
from gluon_core._triton import tl_tuple, unwrap
from gluon_core.errors import DtypeError, LayoutError, ShapeError
from gluon_core.layouts import PaddedSharedLayout, SharedLinearLayout, SwizzledSharedLayout

__all__ = ["check_block", "padding_of", "tensor_descriptor", "tensor_descriptor_type"]

MAX_RANK = 5
_MAX_EXTENT = (1 << 16) - 1  # a dimension of the box has 16 bits in the descriptor
# What the descriptor has bits for, in dwords (4 bytes).
_INTERVALS = (2, 256)
_PADDINGS = (1, 128)


def padding_of(layout: Any) -> Optional[tuple[int, int]]:
    """(interval, padding) in elements of a shared layout; None where it has no gaps."""
    if isinstance(layout, PartitionedSharedLayout):
        layout = layout.partition_layout
    if not isinstance(layout, PaddedSharedLayout):
        return None
    interval, padding = layout.interval_padding_pairs[0]
    return interval, padding


def check_block(block_shape: Sequence[int], bits: int, layout: Any) -> None:
    """Refuse a box or a layout that TDM cannot move.

    Args:
        block_shape: of the box.
        bits: of an element.
        layout: of the box in LDS.

    Raises:
        ShapeError: more than 5 dimensions, or an extent above 65535.
        DtypeError: elements that are not whole bytes.
        LayoutError: a swizzle, or gaps that the hardware does not make.
    """
    if not 1 <= len(block_shape) <= MAX_RANK:
        raise ShapeError(
            "TDM moves boxes of 1 to 5 dimensions",
            argument="block_shape",
            expected=f"1 to {MAX_RANK} dimensions",
            got=list(block_shape),
        )
    for dim, size in enumerate(block_shape):
        if size > _MAX_EXTENT:
            raise ShapeError(
                f"dimension {dim} of the box is too long",
                argument="block_shape",
                expected=f"at most {_MAX_EXTENT}",
                got=list(block_shape),
            )
    if bits not in (8, 16, 32, 64):
        raise DtypeError(
            "TDM moves elements of 1, 2, 4 or 8 bytes", argument="base", got=f"{bits} bits"
        )
    inner = layout
    if isinstance(layout, PartitionedSharedLayout):
        inner = layout.partition_layout
    if isinstance(inner, SwizzledSharedLayout):
        if inner.max_phase != 1:
            raise LayoutError(
                "TDM does not swizzle",
                argument="layout",
                expected="max_phase=1",
                got=repr(layout),
                remedy="PaddedSharedLayout avoids bank conflicts here.",
            )
    elif isinstance(inner, PaddedSharedLayout):
        _check_padding(inner, bits)
    elif not isinstance(inner, SharedLinearLayout):
        raise LayoutError(
            "TDM does not write this layout",
            argument="layout",
            expected="PaddedSharedLayout, or SwizzledSharedLayout with max_phase=1",
            got=repr(layout),
        )


def _check_padding(layout: PaddedSharedLayout, bits: int) -> None:
    pairs = layout.interval_padding_pairs
    if len(pairs) != 1:
        raise LayoutError(
            "TDM makes gaps of one kind",
            argument="layout",
            expected="one [interval, padding] pair",
            got=pairs,
        )
    for name, value, (low, high) in zip(("interval", "padding"), pairs[0], (_INTERVALS, _PADDINGS)):
        if not low * 32 <= value * bits <= high * 32:
            raise LayoutError(
                f"the {name} is not one that TDM has",
                argument="layout",
                expected=f"{low * 32 // bits or 1} to {high * 32 // bits} elements of {bits} bits "
                f"({low} to {high} dwords)",
                got=f"{value} in {pairs}",
            )


class tensor_descriptor_type(core.tensor_descriptor_type):
    """Type of a TDM descriptor.

    Args:
        block_type: dtype and shape of the box that one copy moves.
        shape_type: tuple type, an int32 for each dimension.
        strides_type: tuple type, an int64 for each dimension.
        layout: shared layout of the box: padded, or not swizzled.

    Raises:
        ShapeError, DtypeError, LayoutError: TDM cannot move such boxes.
    """

    def __init__(self, block_type: Any, shape_type: Any, strides_type: Any, layout: Any):
        super().__init__(block_type, shape_type, strides_type, layout)
        block = [int(unwrap(size)) for size in self.block_type.shape]
        check_block(block, self.block_type.element_ty.primitive_bitwidth, self.layout)

    def make(self, handle: Any, shape: Any, strides: Any) -> Any:
        return tensor_descriptor(handle, shape, strides, self)

    def mangle(self) -> str:
        parts = (self.block_type, self.shape_type, self.strides_type, self.layout)
        return f"TD{'_'.join(part.mangle() for part in parts)}TD"


class tensor_descriptor(core.tensor_descriptor):
    """A TDM descriptor. It is a kernel's argument, or `make_tensor_descriptor` makes it.

    Args:
        handle: the IR value.
        shape: of the tensor, int32 scalars.
        strides: of the tensor in elements, int64 scalars.
        type: a `tensor_descriptor_type`.

    ISA: gfx1250, D# groups of tensor_load_to_lds.
    """

    type_class = tensor_descriptor_type

    def __init__(self, handle: Any, shape: Any, strides: Any, type: Any):
        self.handle = handle
        self.shape = shape if isinstance(shape, tl_tuple) else tl_tuple(list(shape))
        self.strides = strides if isinstance(strides, tl_tuple) else tl_tuple(list(strides))
        self.type = type
